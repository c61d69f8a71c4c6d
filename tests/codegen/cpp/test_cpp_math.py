"""The float32 functions of the prelude over all exponents: the largest error in units in the last place, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpp_harness import Library, build, levels_here

from stax.base.target import Target
from stax.ir.kernel import Size
from stax.ir.value import scalar
from tests.kernels import KS0, X0, Array, at, make, st

INF, NAN = np.inf, np.nan
MOST_ULP = 2.0
FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sin", "cos", "rsqrt")  # fmt: skip
EDGES: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-INF, 0), (INF, INF), (0, 1), (-200, 0), (200, INF), (88.72, 3.3931806e38), (-103, 1e-45)),
    "exp2": ((-INF, 0), (INF, INF), (0, 1), (127, 2.0**127), (128, INF), (-149, 1e-45), (-151, 0)),
    "expm1": ((-INF, -1), (INF, INF), (0, 0), (-100, -1), (100, INF)),
    "log": ((0, -INF), (-0.0, -INF), (-1, NAN), (-INF, NAN), (INF, INF), (1, 0), (1e-45, -103.27893)),
    "log2": ((0, -INF), (-1, NAN), (INF, INF), (8, 3), (1e-45, -149)),
    "log10": ((0, -INF), (-1, NAN), (INF, INF), (1000, 3)),
    "log1p": ((-1, -INF), (-2, NAN), (INF, INF), (0, 0), (1e-30, 1e-30)),
    "tanh": ((-INF, -1), (INF, 1), (30, 1), (-30, -1), (0, 0), (1e-30, 1e-30)),
    "erf": ((-INF, -1), (INF, 1), (5, 1), (-5, -1), (0, 0)),
    "sin": ((INF, NAN), (-INF, NAN), (0, 0), (1e-30, 1e-30)),
    "cos": ((INF, NAN), (0, 1), (1e-30, 1)),
    "rsqrt": ((0, INF), (-0.0, -INF), (-1, NAN), (INF, 0), (4, 0.5)),
}  # fmt: skip


def _library(op: str, target: Target) -> Library:
    body = scalar(op, at("in_ptr0", X0))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[KS0],
        sizes=[Size("ks0", 0, None, 1 << 20)],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        fused=[op],
    )
    return build(kernel, target)


def _apply(library: Library, data: Array) -> Array:
    out = np.zeros_like(data)
    assert library([data, out], {"ks0": data.size}) == 0
    return out


def _arguments() -> Array:
    """Every exponent and sign, and more where functions turn."""
    rng = np.random.default_rng(0)
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    near = [rng.standard_normal(200_000) * s for s in (1, 30, 1e-3)]
    ones = 1 + rng.standard_normal(100_000) * 1e-3
    return np.concatenate([bits.view(np.float32), *[n.astype(np.float32) for n in (*near, ones)]])


def _errors_ulp(got: Array, exact: Array) -> Array:
    """Errors in units in the last place of float32; 0 where both are NaN or both overflow alike."""
    with np.errstate(over="ignore"):
        want = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    usable = np.isfinite(want)
    unit = np.spacing(np.maximum(np.abs(want[usable]), np.float32(2.0**-126))).astype(np.float64)
    return np.abs(got[usable].astype(np.float64) - exact[usable]) / unit


@pytest.mark.parametrize("level", levels_here())
@pytest.mark.parametrize("op", FUNCTIONS)
def test_error(op: str, level: str) -> None:
    data = _arguments()
    exact = getattr(torch, op)(torch.from_numpy(data).double()).numpy()
    got = _apply(_library(op, Target("cpu", level)), data)
    worst = float(_errors_ulp(got, exact).max())
    print(f"{op} on {level}: {worst:.2f} ulp")
    assert worst <= MOST_ULP


@pytest.mark.parametrize("op", FUNCTIONS)
def test_edges(op: str) -> None:
    pairs = (*EDGES[op], (NAN, NAN))
    data = np.array([p for p, _ in pairs] * 9, np.float32)
    want = np.array([w for _, w in pairs] * 9, np.float32)
    got = _apply(_library(op, Target("cpu", levels_here()[-1])), data)
    np.testing.assert_allclose(got, want, rtol=2e-4 if op == "exp" else 3e-7, atol=0)
