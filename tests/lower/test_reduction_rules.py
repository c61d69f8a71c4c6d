"""Every reduction, softmax and normalisation against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check, computations, externs, lowered

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def floats(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def ints(
    *shape: int, dtype: torch.dtype = torch.int64, low: int = 0, high: int = 20
) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


Fn = Callable[[torch.Tensor], Any]

REDUCTIONS: dict[str, Fn] = {
    "sum": torch.sum,
    "sum_dim": lambda x: x.sum(1),
    "sum_dims_keep": lambda x: x.sum((0, -1), keepdim=True),
    "sum_empty_dims": lambda x: x.sum(()),
    "sum_double": lambda x: x.sum(0, dtype=torch.float64),
    "mean": torch.mean,
    "mean_dim": lambda x: x.mean(-1),
    "mean_keep": lambda x: x.mean((1, 2), keepdim=True),
    "mean_double": lambda x: x.mean(1, dtype=torch.float64),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amin_keep": lambda x: x.amin(-1, keepdim=True),
    "max_all": lambda x: x.max(),
    "min_all": lambda x: x.min(),
    "max_dim": lambda x: tuple(x.max(1)),
    "min_dim_keep": lambda x: tuple(x.min(0, keepdim=True)),
    "aminmax": lambda x: tuple(x.aminmax(dim=1)),
    "argmax": lambda x: x.argmax(),
    "argmax_dim": lambda x: x.argmax(1),
    "argmin_keep": lambda x: x.argmin(-1, keepdim=True),
    "any": lambda x: (x > 1).any(),
    "any_dim": lambda x: (x > 1).any(1, keepdim=True),
    "any_float": lambda x: x.any(0),
    "all": lambda x: (x > -1).all(),
    "all_dim": lambda x: (x > -1).all(-1),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1, correction=0, keepdim=True),
    "std": lambda x: x.std((0, 1)),
    "std_biased": lambda x: x.std(2, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (1, 2), keepdim=True),
    "var_correction": lambda x: x.var(1, correction=2),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp_keep": lambda x: x.logsumexp((0, 2), keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "softmax_outer": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 1), keepdim=True),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "nansum": lambda x: x.nansum(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-2:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=1),
    "cumsum": lambda x: x.cumsum(1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reduction(name: str, dtype: torch.dtype) -> None:
    program = check(REDUCTIONS[name], [floats(3, 5, 7, dtype=dtype)], scale=4)
    assert not externs(program)


@pytest.mark.parametrize("name", [n for n in REDUCTIONS if n != "aminmax"])
def test_reduction_of_strided(name: str) -> None:
    """A permuted input, and one whose elements repeat."""
    check(REDUCTIONS[name], [floats(7, 3, 5).permute(1, 2, 0)], scale=4)
    check(REDUCTIONS[name], [floats(3, 1, 7).expand(3, 5, 7)], scale=4)


DYNAMIC_SKIP = {"layer_norm", "cumsum"}


@pytest.mark.parametrize("name", [n for n in REDUCTIONS if n not in DYNAMIC_SKIP])
def test_reduction_dynamic(name: str) -> None:
    """The program of one size holds for others."""
    from lowering import compare, run_program

    program = lowered(REDUCTIONS[name], [floats(3, 5, 7)], dynamic=True)
    for shape in ((3, 5, 7), (4, 9, 6), (2, 6, 11)):
        x = floats(*shape, seed=1)
        compare(run_program(program, [x]), REDUCTIONS[name](x), scale=4)


EXTREMES = (
    "amax",
    "amin_keep",
    "max_all",
    "min_all",
    "max_dim",
    "min_dim_keep",
    "argmax",
    "argmax_dim",
    "argmin_keep",
)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_integer_extremes(name: str, dtype: torch.dtype) -> None:
    """Identity elements: more than 16 elements, all above or all below zero."""
    x = ints(2, 18, 3, dtype=dtype, low=1, high=100)
    check(REDUCTIONS[name], [x])
    if dtype != torch.uint8:
        check(REDUCTIONS[name], [-x])


@pytest.mark.parametrize("name", EXTREMES)
def test_nan_is_extreme(name: str) -> None:
    x = floats(3, 5, 7)
    x[1, 2, 3] = math.nan
    x[0, 0, 0] = -math.inf
    x[2, 4, 6] = math.inf
    check(REDUCTIONS[name], [x])


@pytest.mark.parametrize(
    "name", ["sum", "sum_dim", "prod", "prod_dim", "any_float", "count_nonzero", "sum_dims_keep"]
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int8, torch.bool], ids=str)
def test_integer_sums(name: str, dtype: torch.dtype) -> None:
    """Integers and booleans are summed in int64."""
    check(REDUCTIONS[name], [ints(2, 3, 4, dtype=dtype, high=5)])


@pytest.mark.parametrize(
    "fn", [torch.amax, torch.amin, torch.max, torch.min], ids=lambda f: f.__name__
)
def test_boolean_extremes(fn: Fn) -> None:
    check(lambda x: fn(x), [ints(3, 4, high=2).bool()])


@pytest.mark.parametrize(
    "name",
    ["sum", "mean", "prod", "any_float", "softmax", "log_softmax", "var", "logsumexp", "sum_dim"],
)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 2), (1, 1, 1)], ids=str)
def test_sizes_zero_and_one(name: str, shape: tuple[int, ...]) -> None:
    check(REDUCTIONS[name], [floats(*shape)])


ZERO_DIM = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": lambda x: x.amax(0),
    "max": lambda x: tuple(x.max(0)),
    "argmax": lambda x: x.argmax(),
    "softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "sum_0": lambda x: x.sum(-1),
    "any": lambda x: x.any(),
    "cumsum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", ZERO_DIM)
def test_zero_dim(name: str) -> None:
    check(ZERO_DIM[name], [floats()])


def test_rows_of_minus_infinity() -> None:
    x = floats(3, 4)
    x[1] = -math.inf
    x[2, 0] = math.inf
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)), [x])
    x[2] = 0.0
    check(lambda x: torch.ops.aten._safe_softmax(x, -1), [x])


NORMS: dict[str, Fn] = {
    "layer_norm": lambda x: F.layer_norm(x, (6,), *_affine(x, 6)),
    "layer_norm_two_dims": lambda x: F.layer_norm(x, (4, 6), x[0, 0], x[0, 1]),
    "layer_norm_without": lambda x: F.layer_norm(x, (6,), eps=0.1),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (6,), None, None, 1e-5),
    "rms_norm": lambda x: F.rms_norm(x, (6,), _affine(x, 6)[0]),
    "rms_norm_eps": lambda x: F.rms_norm(x, (6,), None, 0.1),
    "group_norm": lambda x: F.group_norm(x, 2, *_affine(x, 8)),
    "group_norm_whole": lambda x: F.group_norm(x, 1),
    "instance_norm": lambda x: F.instance_norm(x),
    "batch_norm": lambda x: F.batch_norm(x, *_statistics(x, 8), *_affine(x, 8)),
    "batch_norm_without": lambda x: F.batch_norm(x, *_statistics(x, 8)),
}


def _affine(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(size, dtype=x.dtype)
    return base * 0.1 + 1, base * 0.3


def _statistics(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(size, dtype=x.dtype)
    return base * 0.1, base * 0.3 + 0.5


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norm(name: str, dtype: torch.dtype) -> None:
    program = check(NORMS[name], [floats(3, 8, 4, 6, dtype=dtype)], scale=4)
    assert not externs(program)


def test_batch_norm_of_training_is_functional() -> None:
    """The functional form returns the new running statistics."""

    def fn(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        return torch.ops.aten._native_batch_norm_legit_functional(
            x, None, None, mean, var, True, 0.1, 1e-5
        )

    check(fn, [floats(3, 8, 5), *_statistics(floats(1), 8)], scale=4)


def test_half_sums_keep_float32_inside() -> None:
    """2049 ones: float16 addition alone would stop at 2048."""
    program = check(torch.sum, [torch.ones(4096, dtype=torch.float16) * 0.5])
    assert [c.combine for c in computations(program)] == ["sum", None]
    assert computations(program)[0].body.dtype == "float32"


def test_long_scans_are_left_to_torch() -> None:
    x = floats(3000)
    assert externs(check(lambda x: x.cumsum(0), [x], scale=40, strict_native=True)) == [
        "aten.cumsum.default"
    ]


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_extreme_of_nothing_is_left_to_torch_which_refuses(name: str, dynamic: bool) -> None:
    program = lowered(lambda x: getattr(torch, name)(x), [torch.zeros(0, 3)], dynamic=dynamic)
    assert externs(program) == [f"aten.{name}.default"]
