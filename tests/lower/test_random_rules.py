"""Random numbers that kernels draw: distributions as eager's, reproducible by torch.manual_seed, positions not layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stax.base.errors import OptionError
from stax.base.options import Options
from stax.ir.philox import random64
from stax.ir.program import Extern
from stax.schedule.schedule import schedule
from tests.lowering import compare, externs, lowered, run_program

SEED_CALL = "aten.randint.low"
N = 1 << 16
Fn = Callable[..., Any]


def philox(fn: Fn, args: list[torch.Tensor], seed: int = 0, dynamic: bool = False) -> list[Any]:
    """The outputs where kernels draw."""
    program = lowered(fn, args, dynamic, random="philox")
    torch.manual_seed(seed)
    return run_program(program, args)


def empty(n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(n, dtype=dtype)


# name → (draws, mean, variance)
DISTRIBUTIONS: dict[str, tuple[Fn, float, float]] = {
    "rand": (lambda: torch.rand(N), 0.5, 1 / 12),
    "rand_like": (lambda: torch.rand_like(empty()), 0.5, 1 / 12),
    "rand_float64": (lambda: torch.rand(N, dtype=torch.float64), 0.5, 1 / 12),
    "uniform": (lambda: empty().uniform_(-3, 2), -0.5, 25 / 12),
    "randn": (lambda: torch.randn(N), 0, 1),
    "randn_float64": (lambda: torch.randn(N, dtype=torch.float64), 0, 1),
    "randn_like": (lambda: torch.randn_like(empty()), 0, 1),
    "normal_": (lambda: empty().normal_(3, 0.5), 3, 0.25),
    "normal": (lambda: torch.normal(3.0, 0.5, (N,)), 3, 0.25),
    "normal_of_means": (lambda: torch.normal(torch.full((N,), 2.0), 3.0), 2, 9),
    "normal_of_deviations": (lambda: torch.normal(2.0, torch.full((N,), 3.0)), 2, 9),
    "normal_of_both": (lambda: torch.normal(torch.full((N,), 2.0), torch.full((N,), 3.0)), 2, 9),
    "log_normal": (
        lambda: empty().log_normal_(0, 0.5),
        float(np.exp(0.125)),
        float((np.exp(0.25) - 1) * np.exp(0.25)),
    ),
    "exponential": (lambda: empty().exponential_(2), 0.5, 0.25),
    "exponential_float64": (lambda: empty(dtype=torch.float64).exponential_(2), 0.5, 0.25),
    "geometric": (lambda: empty().geometric_(0.3), 1 / 0.3, 0.7 / 0.09),
    "geometric_int": (lambda: empty(dtype=torch.int32).geometric_(0.3), 1 / 0.3, 0.7 / 0.09),
    "arctan_of_cauchy": (lambda: empty().cauchy_(2, 3).sub(2).div(3).atan(), 0, np.pi**2 / 12),
    "bernoulli_p": (lambda: empty().bernoulli_(0.3), 0.3, 0.21),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.3)), 0.3, 0.21),
    "bernoulli_tensor": (lambda: empty().bernoulli_(torch.full((N,), 0.3)), 0.3, 0.21),
    "randint": (lambda: torch.randint(10, (N,)), 4.5, 99 / 12),
    "randint_low": (lambda: torch.randint(-3, 10, (N,)), 3, 168 / 12),
    "randint_float": (lambda: torch.randint(-3, 10, (N,), dtype=torch.float32), 3, 168 / 12),
    "randint_like": (lambda: torch.randint_like(empty(), 2, 12), 6.5, 99 / 12),
    "randint_int8": (lambda: torch.randint(-128, 128, (N,), dtype=torch.int8), -0.5, 65535 / 12),
    "randint_wide": (
        lambda: torch.randint(-(2**63), 2**63 - 1, (N,)).double() / 2**63,
        0,
        1 / 3,
    ),
    "random_int8": (lambda: empty(dtype=torch.int8).random_(), 63, (128**2 - 1) / 12),
    "random_from": (lambda: empty(dtype=torch.int64).random_(5, 25), 14.5, 399 / 12),
    "random_to": (lambda: empty(dtype=torch.int16).random_(20), 9.5, 399 / 12),
    "random_bool": (lambda: empty(dtype=torch.bool).random_(), 0.5, 0.25),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_variance(name: str) -> None:
    """Within 5 standard deviations of what they estimate; dtype and shape are eager's; torch draws the seed alone."""
    fn, mean, variance = DISTRIBUTIONS[name]
    program = lowered(fn, [], random="philox", strict_native=True)
    assert externs(program) == [SEED_CALL]
    torch.manual_seed(1)
    (found,) = run_program(program, [])
    assert found.shape == (N,) and found.dtype == fn().numpy().dtype
    x = found.astype(np.float64)
    fourth = ((x - mean) ** 4).mean()
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / N)
    assert abs(((x - mean) ** 2).mean() - variance) < 5 * np.sqrt(fourth / N)


def test_bounds_of_fractions() -> None:
    for dtype, digits in ((torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)):
        (found,) = philox(lambda dtype=dtype: torch.rand(N, dtype=dtype), [])
        assert 0 <= found.min() < 1e-3 * 2 ** (11 - min(digits, 11)) and 0.99 < found.max() < 1
        assert not np.any(found.astype(np.float64) * 2**digits % 1)
    (low,) = philox(lambda: empty(dtype=torch.bfloat16).uniform_(1, 1.0078125), [])
    assert set(low) == {1.0}


def test_normal_numbers_reach_the_tails() -> None:
    (found,) = philox(lambda: torch.randn(1 << 20), [])
    for limit, share in ((1, 0.317311), (2, 0.0455003), (3, 0.0026998), (4, 6.334e-5)):
        expected = share * len(found)
        assert abs((abs(found) > limit).sum() - expected) < 5 * np.sqrt(expected)


def test_normal_numbers_are_box_muller_of_the_words() -> None:
    """Two neighbours are one draw; float64 is the reference."""
    (found,) = philox(lambda: torch.randn(N), [], seed=4)
    torch.manual_seed(4)
    key = torch.randint(-(2**63), 2**63 - 1, [1]).numpy()
    pairs = random64(key, np.arange(N // 2)).view(np.uint64)
    low, high = ((pairs >> np.uint64(s) & np.uint64(0xFFFFFFFF)).astype(float) for s in (0, 32))
    radius = np.sqrt(-2 * np.log((low + 0.5) / 2**32))
    # The quarter turn is centred on its axis.
    angle = 2 * np.pi * (high / 2**32 - 1 / 8)
    want = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
    # Rounding of what is computed, and of the fraction under the logarithm.
    radius = np.repeat(radius, 2)
    bound = 4 * np.finfo(np.float32).eps * radius + 2.0**-24 / radius
    assert np.all(np.abs(found - want) <= bound)


def test_neighbours_are_independent() -> None:
    for dtype in (torch.float32, torch.float64):
        (found,) = philox(lambda dtype=dtype: torch.randn(N, dtype=dtype), [], seed=2)
        for power in (1, 2):
            values = found.astype(np.float64) ** power
            for lag in (1, 2, 3, 4):
                assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / np.sqrt(N)


@pytest.mark.parametrize("low, high", [(0, 7), (-3, 2**31), (0, 3 * 2**61), (-(2**62), 2**62 + 5)])
def test_every_part_of_a_range_is_as_likely(low: int, high: int) -> None:
    (found,) = philox(lambda: torch.randint(low, high, (N,)), [])
    assert found.min() >= low and found.max() < high
    parts = [(int(x) - low) * 7 // (high - low) for x in found]
    counts = np.bincount(parts, minlength=7)
    assert ((counts - N / 7) ** 2).sum() / (N / 7) < 6 + 5 * np.sqrt(12)


# -- dropout


def test_native_dropout_gives_its_mask() -> None:
    x = torch.randn(64, 257)
    out, mask = philox(lambda x: torch.native_dropout(x, 0.25, True), [x])
    assert mask.dtype == np.bool_ and abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(out, np.where(mask, x.numpy() / 0.75, 0), rtol=1e-6)


@pytest.mark.parametrize("p, native", [(0.0, False), (1.0, False), (1.0, True)])
def test_certain_probabilities(p: float, native: bool) -> None:
    x = torch.randn(1000) + 10
    fn: Fn = (
        (lambda x: torch.native_dropout(x, p, True)[0]) if native else (lambda x: F.dropout(x, p))
    )
    (found,) = philox(fn, [x])
    np.testing.assert_array_equal(found, (x * (1 - p)).numpy())
    for draw in (
        lambda: torch.bernoulli(torch.full((1000,), p)),
        lambda: empty(1000).bernoulli_(p),
    ):
        (truth,) = philox(draw, [])
        assert set(truth) == {p}


def test_relu_of_dropout_is_one_kernel() -> None:
    program = lowered(
        lambda x: torch.relu(F.dropout(x, 0.5)), [torch.randn(64, 65)], random="philox"
    )
    steps = schedule(program, Options(random="philox")).steps
    assert len(steps) == 2 and isinstance(steps[0], Extern) and steps[0].target == SEED_CALL


def test_backward_drops_what_forward_dropped() -> None:
    """In one kernel: the mask is drawn once and read by both."""

    def fn(x: torch.Tensor) -> Any:
        out, pull = torch.func.vjp(lambda x: F.dropout(torch.tanh(x), 0.5), x)[:2]
        return out, pull(torch.ones_like(out))[0]

    x = torch.rand(40, 50) + 1
    program = lowered(fn, [x], random="philox")
    assert len(schedule(program, Options(random="philox")).steps) == 2
    out, grad = philox(fn, [x])
    np.testing.assert_array_equal(out == 0, grad == 0)
    slope = 2 / np.cosh(x.numpy()) ** 2
    np.testing.assert_allclose(grad, np.where(out == 0, 0, slope), rtol=1e-5)


def test_an_element_s_number_is_its_position_s() -> None:
    """Whatever the strides of what is drawn, and however often it is read: neighbours share nothing."""
    x = torch.rand(8, 12, 5) + 1

    def fn(x: torch.Tensor) -> Any:
        kept = F.dropout(x, 0.5)
        return kept, kept.transpose(0, 1).contiguous(), kept.sum(2)

    plain = philox(fn, [x])
    turned = philox(fn, [x.permute(2, 1, 0).contiguous().permute(2, 1, 0)])
    np.testing.assert_array_equal(plain[0], turned[0])
    np.testing.assert_array_equal(plain[1], plain[0].transpose(1, 0, 2))
    np.testing.assert_allclose(plain[2], plain[0].sum(2), rtol=1e-6)
    rows = (plain[0] != 0).reshape(8, -1)
    assert len(np.unique(rows, axis=0)) == 8
    groups = (philox(fn, [torch.ones(64, 64, 1)])[0] != 0).reshape(-1, 4)
    assert len(np.unique(groups, axis=0)) == 16


# -- seeds


def two(x: torch.Tensor) -> Any:
    return torch.rand_like(x), F.dropout(x, 0.5), torch.rand_like(x)


def test_manual_seed_reproduces_and_calls_differ() -> None:
    x = torch.rand(100)
    program = lowered(two, [x], random="philox")
    torch.manual_seed(3)
    first, second = run_program(program, [x]), run_program(program, [x])
    torch.manual_seed(3)
    again = run_program(program, [x])
    for a, b, c in zip(first, second, again):
        np.testing.assert_array_equal(a, c)
        assert not np.array_equal(a, b)
    assert not np.array_equal(first[0], first[2])


def test_one_seed_a_graph_in_the_order_of_torch_s_draws() -> None:
    """What torch draws after the graph is what it draws after one number."""
    x = torch.rand(10)
    program = lowered(
        lambda x: (torch.rand_like(x), torch.multinomial(x, 2), torch.randn_like(x)), [x],
        random="philox",
    )  # fmt: skip
    assert externs(program) == [SEED_CALL, "aten.multinomial.default"]
    torch.manual_seed(5)
    (_, picked, _) = run_program(program, [x])
    after = torch.rand(1)
    torch.manual_seed(5)
    torch.randint(-(2**63), 2**63 - 1, [1])
    np.testing.assert_array_equal(picked, torch.multinomial(x, 2).numpy())
    assert torch.equal(after, torch.rand(1))


def test_eager_draws_are_torch_s() -> None:
    x = torch.rand(7)
    program = lowered(two, [x])
    torch.manual_seed(3)
    found = run_program(program, [x])
    torch.manual_seed(3)
    compare(found, two(x))


# -- shapes and refusals


def test_sizes_that_are_symbols() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5), torch.randint(x.shape[0], (x.shape[1],))

    program = lowered(fn, [torch.ones(6, 8)], dynamic=True, random="philox")
    assert externs(program) == [SEED_CALL]
    for shape in ((6, 8), (50, 1000)):
        torch.manual_seed(0)
        kept, places = run_program(program, [torch.ones(shape)])
        assert kept.shape == shape and places.max() < shape[0] and places.min() >= 0
        torch.manual_seed(0)
        (static, _) = philox(fn, [torch.ones(shape)])
        np.testing.assert_array_equal(kept, static)


def test_positions_beyond_32_bits() -> None:
    program = lowered(lambda: torch.rand(2**31 + 5), [], random="philox")
    _, step = schedule(program, Options(random="philox")).steps
    assert not isinstance(step, Extern) and step.kernel.index_dtype == "int64"


def test_no_elements() -> None:
    x = torch.ones(0, 3)
    assert [f.shape for f in philox(two, [x])] == [(0, 3)] * 3


@pytest.mark.parametrize(
    "fn, target",
    [
        (lambda x: torch.randint_like(x, 4, dtype=torch.int8).bernoulli_(1.5), "aten.bernoulli.p"),
        (lambda x: torch.randint(5, 5, (3,)), "aten.randint.low"),
        (lambda x: x.normal_(0, -1.0), "aten.normal_functional.default"),
        (lambda x: x.exponential_(-1.0), "aten.exponential.default"),
        (lambda x: torch.randint(0, 300, (3,), dtype=torch.uint8), "aten.randint.low"),
        (lambda x: torch.randn(3, dtype=torch.complex64), "aten.randn.default"),
        (lambda x: torch.randperm(9), "aten.randperm.default"),
    ],
)
def test_what_torch_refuses_or_alone_can_draw_is_left_to_it(fn: Fn, target: str) -> None:
    try:
        program = lowered(fn, [torch.rand(5)], random="philox")
    except Exception as error:  # whichever error eager has for it, raised while tracing
        with pytest.raises(type(error)):
            fn(torch.rand(5))
        return
    assert target in externs(program)


def test_the_option_has_two_values() -> None:
    with pytest.raises(OptionError, match=r"random; expected eager \| philox; found 'x'"):
        Options(random="x")
