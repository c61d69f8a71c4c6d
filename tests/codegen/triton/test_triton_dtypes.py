"""Every integer dtype, bool and the edges of float16 through whole programs: the oracle, Triton text and C++ give what
eager gives, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import stax
from stax.build.local import LocalBuilder
from stax.schedule.schedule import schedule
from tests.lowering import bind, externs, lowered, run_program, to_numpy
from tests.triton_interpret import Interpreter
from tests.triton_programs import run_interpreted

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Fn = Callable[..., Any]


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


def check(
    fn: Fn, args: list[torch.Tensor], interpreter: Interpreter, builder: LocalBuilder
) -> list[torch.Tensor]:
    """Eager's results, once the three others are equal to them."""
    want = pytree.tree_leaves(fn(*args))
    program = lowered(fn, args)
    given = [to_numpy(a) for a in args]
    compiled = stax.compile(fn, store="memory:", builder=builder, fullgraph=True)
    ways = {
        "oracle": run_program(program, args),
        "triton": run_interpreted(schedule(program, stax.Options()), given, bind(program, args), interpreter),
        "cpp": [to_numpy(t) for t in pytree.tree_leaves(compiled(*args))],
    }  # fmt: skip
    for way, found in ways.items():
        for k, (f, w) in enumerate(zip(found, want, strict=True)):
            assert f.dtype == to_numpy(w).dtype, (way, k)
            np.testing.assert_array_equal(f, to_numpy(w), err_msg=f"{way}, result {k}")
    return want


def draw(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Over the whole range of the dtype."""
    low, high = (0, 2) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def reductions(x: torch.Tensor) -> Any:
    found = [
        x.amax(-1),
        x.amin(-1),
        x.sum(-1),
        x.prod(-1),
        x.any(-1),
        x.all(-1),
        -x.amax(-1).long(),
    ]
    if x.dtype == torch.bool:
        return found
    return [
        *found,
        x.argmax(-1),
        x.argmin(-1),
        x.max(0),
        x.min(0),
        -x.amax(-1),
        x.argmax(),
        x.amin(),
    ]


def pointwise(x: torch.Tensor) -> Any:
    return (
        -x, x.abs(), x + 1, x * x, x // 3, x % 5, x >> 1, x << 1, x.sign(), x.clamp(2, 90), ~x, x - 100,
        torch.maximum(x, x.flip(0)), x.double() / 3, x.to(torch.int8), x.to(torch.int64) * 3, x.bool(),
    )  # fmt: skip


def logic(x: torch.Tensor) -> Any:
    return ~x, x & x.flip(0), x ^ x.flip(0), x.int() - 1, x.sum(), x.float().mean(-1)


@pytest.mark.parametrize("shape", [(3, 18), (18,), (5, 1025), (2, 4097)], ids=str)
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_reductions(
    dtype: torch.dtype, shape: tuple[int, ...], interpreter: Interpreter, builder: LocalBuilder
) -> None:
    check(reductions, [draw(dtype, shape)], interpreter, builder)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_pointwise(dtype: torch.dtype, interpreter: Interpreter, builder: LocalBuilder) -> None:
    fn = logic if dtype == torch.bool else pointwise
    check(fn, [draw(dtype, (7, 45))], interpreter, builder)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_extremes_of_eighteen_bytes(
    dtype: torch.dtype, interpreter: Interpreter, builder: LocalBuilder
) -> None:
    """pytorch/pytorch#191499: a block wider than the row must not bring in elements of its own."""
    x = torch.arange(20, 38).to(dtype)
    x[1] = 1
    low, place, top, highest = check(
        lambda x: (x.amin(), x.argmin(), x.amax(), x.argmax()), [x], interpreter, builder
    )
    assert (low, place, top, highest) == (1, 1, 37, 17)
    negative = torch.full((18,), -128, dtype=torch.int8)
    negative[4] = 1
    (found,) = check(lambda x: -x.amax(), [negative], interpreter, builder)
    assert found == -1


def test_positions_times_large_numbers(interpreter: Interpreter, builder: LocalBuilder) -> None:
    """pytorch/pytorch#183901: what is int64 in the program is int64 in the kernel, however small its index is."""
    (found,) = check(lambda: torch.arange(10) * 1_500_000_000, [], interpreter, builder)
    assert found[-1] == 13_500_000_000
    check(lambda: torch.arange(0, 10 * 1_500_000_000, 1_500_000_000), [], interpreter, builder)
    check(
        lambda x: (torch.arange(x.shape[0]) * x.shape[0] * 1_000_003) + x.long(),
        [torch.ones(3000)], interpreter, builder,
    )  # fmt: skip


def test_overflow_of_float16_is_seen_by_every_reader(
    interpreter: Interpreter, builder: LocalBuilder
) -> None:
    """pytorch/pytorch#183607: 300 * 300 is infinite in float16 whether it is stored or read on in the same kernel."""
    x = torch.full((5,), 300.0, dtype=torch.float16)
    stored, *_ = check(
        lambda x: (x * x, (x * x).float() * 2, (x * x) / (x * x), (x * x).isinf()),
        [x], interpreter, builder,
    )  # fmt: skip
    assert torch.isinf(stored).all()


def test_complex_numbers_are_torch_s() -> None:
    z = torch.randn(4, dtype=torch.complex64)
    assert externs(lowered(lambda z: (z * 2, z.abs()), [z])) == [
        "aten.mul.Tensor",
        "aten.abs.default",
    ]
    compiled = stax.compile(lambda z: (z * 2, z.abs() + 1), store="memory:", fullgraph=True)
    torch.testing.assert_close(compiled(z), (z * 2, z.abs() + 1))
