"""Every elementwise rule against eager: dtypes, broadcasting, strides, NaN and infinities, sizes 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check, computations, externs, lowered

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8, torch.int8)
EDGES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    math.nan,
    math.inf,
    -math.inf,
    1e-30,
    30.0,
    -30.0,
)


def floats(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, edges: bool = True
) -> torch.Tensor:
    """Random numbers among which the edges stand."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    flat = x.view(-1)
    if edges and len(flat) >= len(EDGES):
        flat[: len(EDGES)] = torch.tensor(EDGES)[
            torch.randperm(len(EDGES), generator=torch.Generator().manual_seed(seed))
        ]
    return x.to(dtype)


def ints(
    *shape: int, dtype: torch.dtype = torch.int64, low: int = 0, high: int = 20, seed: int = 0
) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p erf erfc sin cos tan asin acos atan sinh cosh tanh asinh "
            "acosh atanh floor ceil trunc round neg abs sign reciprocal square frac sigmoid isnan isinf isfinite "
            "isposinf isneginf nan_to_num logical_not rad2deg sinc sgn"
        ).split()
    },
    **{
        name: getattr(F, name)
        for name in (
            "relu silu elu leaky_relu hardtanh hardswish hardsigmoid softplus mish logsigmoid celu selu hardshrink "
            "softshrink relu6 softsign tanhshrink"
        ).split()
    },
    "signbit": lambda x: x.nan_to_num().signbit(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    # eager's float kernel gives NaN for inf
    "gelu": lambda x: F.gelu(x.clamp(-1e4, 1e4)),
    "elu_alpha": lambda x: F.elu(x, 0.3),
    "leaky_relu_slope": lambda x: F.leaky_relu(x, 0.3),
    "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "add_scalar": lambda x: x + 1.5,
    "add_alpha": lambda x: torch.add(x, 2.0, alpha=0.1),
    "rsub": lambda x: 1.0 - x,
    "rsub_alpha": lambda x: torch.rsub(x, 3.0, alpha=2.0),
    "mul_scalar": lambda x: x * 0.1,
    "div_scalar": lambda x: x / 3.0,
    "scalar_div": lambda x: 1.0 / x,
    "floor_div": lambda x: x // 0.7,
    "div_trunc": lambda x: torch.div(x, -0.7, rounding_mode="trunc"),
    "div_floor": lambda x: torch.div(x, -0.7, rounding_mode="floor"),
    "remainder": lambda x: torch.remainder(x, -0.7),
    "remainder_scalar": lambda x: torch.remainder(3.0, x),
    "fmod": lambda x: torch.fmod(x, -0.7),
    **{f"pow_{e}": (lambda x, e=e: x**e) for e in (0, 1, 2, 3, -1, -2, 2.5, 4)},
    # of -inf and of 0 eager's halves and floats disagree
    "pow_0.5": lambda x: (x.abs() + 1e-3) ** 0.5,
    "pow_-0.5": lambda x: (x.abs() + 1e-3) ** -0.5,
    "scalar_pow": lambda x: 2.0**x,
    "clamp": lambda x: x.clamp(-0.5, 1.5),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp(max=0.1),
    "gt_scalar": lambda x: x > 0.1,
    "eq_scalar": lambda x: x == 0.5,
    "nan_to_num_given": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, -math.inf),
    "where_scalar": lambda x: torch.where(x > 0, x, 0.25),
    "to_double": lambda x: x.double(),
    "to_bfloat16": lambda x: x.to(torch.bfloat16),
    "to_bool": lambda x: x.bool(),
    "clone": torch.clone,
    "lerp_scalar": lambda x: torch.lerp(x, x * 2, 0.7),
    "round_2": lambda x: torch.round(x.clamp(-20, 20), decimals=2),
    "round_minus_1": lambda x: torch.round(x * 10, decimals=-1),
    "xlog1py": lambda x: torch.special.xlog1py(2.0, x),
    "xlogy_scalar": lambda x: torch.xlogy(x, 2.0),
    "copysign_scalar": lambda x: torch.copysign(x, -1.0),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unary(name: str, dtype: torch.dtype) -> None:
    program = check(UNARY[name], [floats(5, 7, dtype=dtype)])
    assert not externs(program)


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "add sub mul div maximum minimum fmax fmin atan2 hypot copysign xlogy pow remainder fmod eq ne lt le gt ge "
            "logical_and logical_or logical_xor logaddexp heaviside floor_divide"
        ).split()
    },
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add_alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=0.3),
    "rsub": lambda x, y: torch.rsub(x, y),
    "lerp": lambda x, y: torch.lerp(x, y, y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "prelu": lambda x, y: torch.ops.aten._prelu_kernel(x, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "clamp_tensor": lambda x, y: torch.clamp(x, y, y + 1),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary(name: str, dtype: torch.dtype) -> None:
    check(BINARY[name], [floats(6, 7, dtype=dtype), floats(6, 7, dtype=dtype, seed=1)])


INTEGER: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in "neg abs sign square isnan isinf isfinite bitwise_not logical_not".split()
    },
    **{
        name: getattr(torch, name)
        for name in "floor ceil trunc round sqrt exp sigmoid reciprocal".split()
    },
    "add": lambda x: x + 100,
    "mul": lambda x: x * 100,
    "rsub": lambda x: 7 - x,
    "true_div": lambda x: x / 3,
    "floor_div": lambda x: x // 3,
    "trunc_div": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3,
    "fmod": lambda x: torch.fmod(x, 3),
    "add_float": lambda x: x + 1.5,
    "gt_float": lambda x: x > 1.5,
    "pow0": lambda x: x**0,
    "pow3": lambda x: x**3,
    "clamp": lambda x: x.clamp(2, 9),
    "clamp_float": lambda x: x.clamp(0.5, 9.5),
    "and": lambda x: x & 5,
    "xor": lambda x: x ^ 5,
    "or": lambda x: x | 5,
    "and_tensor": lambda x: x & (x + 1),
    "lshift": lambda x: x << 3,
    "rshift": lambda x: x >> 1,
    "lshift_all": lambda x: x << x,
    "rshift_all": lambda x: x >> x,
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "where": lambda x: torch.where(x > 5, x, 0),
    "to_float": lambda x: x.float(),
    "to_half": lambda x: x.half(),
    "to_uint8": lambda x: x.to(torch.uint8),
    "to_int8": lambda x: x.to(torch.int8),
    "mixed": lambda x: x + torch.ones((), dtype=torch.float64, device=x.device),
    "mixed_dims": lambda x: x * x.new_ones((1,), dtype=torch.float32),
}


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer(name: str, dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -20
    program = check(INTEGER[name], [ints(4, 9, dtype=dtype, low=low)])
    assert not externs(program)


BOOLEAN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + x.flip(0),
    "mul": lambda x: x * x.flip(0),
    "not": lambda x: ~x,
    "and": lambda x: x & x.flip(0),
    "xor": lambda x: x ^ True,
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "to_float": lambda x: x.float(),
    "times_float": lambda x: x * 0.5,
    "plus_int": lambda x: x + 2,
    "lt": lambda x: x < x.flip(0),
    "eq": lambda x: x == True,  # noqa: E712
    "where": lambda x: torch.where(x, 1.0, 2.0),
    "masked": lambda x: torch.ones(4, 3).masked_fill(x, 0.5),
    "sqrt": torch.sqrt,
}


@pytest.mark.parametrize("name", BOOLEAN)
def test_boolean(name: str) -> None:
    check(BOOLEAN[name], [ints(4, 3, high=2).bool()])


PAIRS = [
    (torch.float32, torch.float64),
    (torch.float32, torch.float16),
    (torch.bfloat16, torch.float16),
    (torch.int32, torch.float32),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int32),
    (torch.int64, torch.bfloat16),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_promotion(pair: tuple[torch.dtype, torch.dtype]) -> None:
    """Dimensioned, 0-dim and Python numbers, in both orders."""
    a, b = ints(3, 4, dtype=pair[0]), ints(3, 4, dtype=pair[1], seed=1)
    zero = ints(dtype=pair[1], low=2)
    check(
        lambda a, b, z: (a + b, b * a, a + z, z * a, a < b, a == z, a + 2, b + 1.5, a > 1),
        [a, b, zero],
    )


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((2, 3, 4), (3, 1)),
    ((), (3,)),
    ((1,), ()),
    ((), ()),
    ((0, 3), (3,)),
    ((2, 0), (1, 1)),
    ((1, 1, 1), (5, 1)),
    ((4, 1, 3, 1), (2, 1, 5)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(lambda x, y: (x + y, y * x - 1, torch.where(x > y, x, y)), [floats(*s) for s in shapes])


STRIDED: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: floats(7, 5).t(),
    "channels_last": lambda: floats(2, 4, 3, 5).contiguous(memory_format=torch.channels_last),
    "stepped": lambda: floats(10, 6)[::2, ::3],
    "offset": lambda: floats(10, 6)[3:, 2:],
    "expanded": lambda: floats(1, 6).expand(5, 6),
    "permuted": lambda: floats(3, 4, 5).permute(2, 0, 1),
    "diagonal": lambda: floats(5, 6).diagonal(),
    "unfolded": lambda: floats(9).unfold(0, 4, 2),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides(name: str) -> None:
    """Results have the strides of eager."""
    check(lambda x: (x + 1, x.exp() * 2, x > 0, x.double()), [STRIDED[name]()])


@pytest.mark.parametrize("size", [2, 3, 17])
def test_dynamic(size: int) -> None:
    """One program at the size it was captured with, and others at theirs."""
    check(
        lambda x, y: (x * x.shape[0] + y, x / x.shape[1], x * x.shape[1] ** -0.5),
        [floats(size, 6), floats(6)],
        dynamic=True,
    )


def test_halves_are_rounded_after_each_operator() -> None:
    """A value observed twice is the same value: 300 * 300 is inf in float16 and stays it."""
    x = torch.full((40,), 300.0, dtype=torch.float16)

    def fn(x: torch.Tensor) -> Any:
        y = x * x
        return y, y / x, torch.isinf(y), torch.where(torch.isinf(y), 0.0, y)

    check(fn, [x])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_meet_halves_as_in_eager(dtype: torch.dtype) -> None:
    """A comparison sees the number in the half dtype: bf16(0.1) is not greater than 0.1."""
    x = torch.tensor([0.1, 0.2, 0.3, 1.0], dtype=dtype)
    check(
        lambda x: (x > 0.1, x == 0.1, x.clamp(min=0.3), torch.where(x > 0.2, x, 0.7), x * 0.1), [x]
    )


FLOAT_TO_INT = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOAT_TO_INT, ids=str)
def test_float_to_integer(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.9, -0.9, 1.5, -1.5, 100.7, -100.7, 127.0])
    check(lambda x: x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype), [x])


def test_one_operator_is_one_computation() -> None:
    program = lowered(lambda x: F.gelu(x + 1) * 2, [floats(4, 4)])
    assert [c.origin.op for c in computations(program)] == [
        "aten.add.Tensor",
        "aten.gelu.default",
        "aten.mul.Tensor",
    ]
    assert all(c.combine is None for c in computations(program))


def test_integer_division_by_data_is_left_to_torch() -> None:
    """Eager raises for a zero divisor on the CPU; a loop would not."""
    x, y = ints(5, low=1), ints(5, low=1, seed=1)
    assert externs(check(lambda x, y: x // y, [x, y])) == ["aten.floor_divide.default"]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        check(lambda x, y: x // (y * 0), [x, y])
