"""The 8-bit floats of the oracle are torch's: every code, every tie, every end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stax.ir.float8 import FLOAT8, codes, rounded, values


def of_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code(dtype: str) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    want = every.view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(values(dtype), want)
    np.testing.assert_array_equal(np.signbit(values(dtype)), np.signbit(want))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_floats_round_as_in_torch(dtype: str) -> None:
    spread = np.arange(0, 2**32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    exact = np.unique(values(dtype)[np.isfinite(values(dtype))]).astype(np.float64)
    middles = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    ends = np.array([448, 464, 480, 57344, 61440, 65536, np.inf, np.nan, 0], np.float32)
    data = np.concatenate([spread, *(np.nextafter(middles, np.float32(e)) for e in (-1e9, 1e9)), middles, ends, -ends])  # fmt: skip
    np.testing.assert_array_equal(codes(data, dtype), of_torch(data, dtype).view(torch.uint8))
    np.testing.assert_array_equal(rounded(data, dtype), of_torch(data, dtype).float())
    double = data[np.isfinite(data)][::64].astype(np.float64) * (1 + 2.0**-40)
    np.testing.assert_array_equal(codes(double, dtype), of_torch(double, dtype).view(torch.uint8))
