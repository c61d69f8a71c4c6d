"""The 8- and 16-bit floats: every code and many floats convert as torch converts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpp_harness import Library, build, levels_here

from stax.base.target import Target
from stax.ir.dtypes import DTYPES
from stax.ir.value import cast
from tests.kernels import X0, Array, at, make, st

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _library(source: str, to: str, count: int, level: str = "") -> Library:
    body = cast(at("in_ptr0", X0, source), to)
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[count],
        pointers=[f"in_ptr0:{source}", f"out_ptr0:{to}"],
        fused=["_to_copy"],
    )
    return build(kernel, Target("cpu", level or levels_here()[-1]))


def _codes(dtype: str) -> Array:
    size = DTYPES[dtype].itemsize
    return np.arange(256**size, dtype=np.uint8 if size == 1 else np.uint16)


@pytest.mark.parametrize("level", levels_here())
@pytest.mark.parametrize("dtype", NARROW)
def test_every_code_widens(dtype: str, level: str) -> None:
    codes = _codes(dtype)
    out = np.zeros(codes.size, np.float32)
    _library(dtype, "float32", codes.size, level)([codes, out], {})
    want = torch.from_numpy(codes).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


@pytest.mark.parametrize("dtype", NARROW)
def test_floats_round_as_in_torch(dtype: str) -> None:
    rng = np.random.default_rng(0)
    bits = np.arange(0, 2**32, 8191, dtype=np.uint64).astype(np.uint32).view(np.float32)
    data = np.concatenate(
        [
            bits,
            (rng.standard_normal(200_000) * 2.0 ** rng.integers(-30, 20, 200_000)).astype(
                np.float32
            ),
            _ties(dtype),
        ]
    )
    memory = np.uint8 if DTYPES[dtype].itemsize == 1 else np.uint16
    out = np.zeros(data.size, memory)
    _library("float32", dtype, data.size)([data, out], {})
    kind = getattr(torch, dtype)
    got = torch.from_numpy(out).view(kind).float().numpy()
    want = torch.from_numpy(data).to(kind).float().numpy()
    np.testing.assert_array_equal(got, want)


def _ties(dtype: str) -> Array:
    """Midpoints between neighbours, which round to the even one, and the neighbours of midpoints."""
    wide = torch.from_numpy(_codes(dtype)).view(getattr(torch, dtype)).double().numpy()
    values = np.unique(wide[np.isfinite(wide)])
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])


@pytest.mark.parametrize("dtype", NARROW)
def test_a_cast_there_and_back_rounds(dtype: str) -> None:
    data = np.linspace(-3, 3, 1001).astype(np.float32)
    body = cast(cast(at("in_ptr0", X0), dtype), "float32")
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[1001],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )
    out = np.zeros_like(data)
    build(kernel)([data, out], {})
    want = torch.from_numpy(data).to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(out, want)
