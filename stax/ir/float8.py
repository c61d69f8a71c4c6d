"""The 8-bit floats in numpy: what a code means and which code a float32 becomes, as torch has it.

Rounding is to nearest even. Beyond its largest value float8_e5m2 becomes infinite; float8_e4m3fn, which has no infinity,
stays at its largest.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
NAN_CODE = 0x7F


@cache
def values(dtype: str) -> Any:
    """The float32 of every code."""
    mantissa, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / 2.0**mantissa
    sizes = np.where(exponent == 0, fraction * 2, fraction + 1) * 2.0 ** (exponent - bias)
    if dtype == "float8_e4m3fn":
        sizes[NAN_CODE] = np.nan
    else:
        sizes[0x7C:] = [np.inf, np.nan, np.nan, np.nan]
    return np.concatenate([sizes, -sizes]).astype(np.float32)


@cache
def _middles(dtype: str) -> Any:
    """Between each code and the next above zero; the last one is where float8_e5m2 becomes infinite."""
    count, above = (NAN_CODE, np.inf) if dtype == "float8_e4m3fn" else (0x7C, 65536.0)
    sizes = values(dtype)[:count].astype(np.float64)
    return (sizes + np.append(sizes[1:], above)) / 2


def codes(array: Any, dtype: str) -> Any:
    """The code of each element, rounded to float32 first, as uint8."""
    single = np.asarray(array, np.float32)
    size, middles = (
        np.nan_to_num(np.abs(single), nan=0, posinf=np.inf).astype(np.float64),
        _middles(dtype),
    )
    below = np.searchsorted(middles, size)
    tie = middles[np.minimum(below, len(middles) - 1)] == size
    code = np.minimum(below + (tie & (below % 2 == 1)), 0x7E if dtype == "float8_e4m3fn" else 0x7C)
    code = np.where(np.isnan(single), NAN_CODE, code)
    return (code | np.signbit(single) << 7).astype(np.uint8)


def rounded(array: Any, dtype: str) -> Any:
    """The nearest value of the type, as float32."""
    return values(dtype)[codes(array, dtype)]
