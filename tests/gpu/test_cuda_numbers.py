"""Random words and 8-bit floats on a real device: the bits of the reference and of eager there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import stax
from stax.ir.philox import random32
from tests.gpu.test_cuda_launch import target

pytestmark = pytest.mark.gpu
PHILOX = stax.Options(random="philox")
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return stax.compile(fn, options=PHILOX, store="memory:", fullgraph=True, target=target())


def seed() -> np.ndarray[Any, Any]:
    """What a graph draws from the device's generator after torch.manual_seed(0)."""
    torch.manual_seed(0)
    found = torch.randint(-(2**63), 2**63 - 1, [1], dtype=torch.int64, device="cuda")
    torch.manual_seed(0)
    return found.cpu().numpy()


@pytest.mark.parametrize("count", [1, 1000, (1 << 20) + 3])
def test_fractions_are_the_reference_s(count: int) -> None:
    key = seed()
    found = compiled(lambda: torch.rand(count, device="cuda"))()
    words = random32(key, np.arange(count)) >> 8
    np.testing.assert_array_equal(found.cpu().numpy(), words.astype(np.float32) * 2.0**-24)


def test_positions_beyond_32_bits() -> None:
    count = 2**31 + 4096
    key = seed()
    found = compiled(lambda: torch.rand(count, dtype=torch.bfloat16, device="cuda"))()
    words = random32(key, np.arange(count - 8192, count)) >> 24
    last = found[-8192:].float().cpu().numpy()
    np.testing.assert_array_equal(last, words.astype(np.float32) * 2.0**-8)


def test_dropout_is_reproduced_and_knows_no_layout() -> None:
    fn = compiled(lambda x: torch.relu(F.dropout(x, 0.25)))
    x = torch.rand(513, 1000, device="cuda") + 1
    torch.manual_seed(0)
    first, second = fn(x), fn(x)
    torch.manual_seed(0)
    assert torch.equal(fn(x.t().contiguous().t()), first) and not torch.equal(first, second)
    assert abs((first != 0).double().mean().item() - 0.75) < 0.01
    torch.testing.assert_close(first[first != 0], x[first != 0] / 0.75)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_code_of_an_8_bit_float(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").view(dtype)
    for wide in (torch.float32, torch.bfloat16, torch.float16):
        found = compiled(lambda x, wide=wide: x.to(wide))(codes)
        assert torch.equal(found.nan_to_num(7.5), codes.to(wide).nan_to_num(7.5))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_to_an_8_bit_float(dtype: torch.dtype, wide: torch.dtype) -> None:
    """Every 1021st float32, of both signs, infinite and NaN among them."""
    bits = torch.arange(-(2**31), 2**31, 1021, device="cuda").to(torch.int32)
    x = torch.cat(
        [bits.view(torch.float32), torch.tensor([464.0, 480.0, 61440.0, torch.inf], device="cuda")]
    )
    x = torch.cat([x, -x]).to(wide)
    found, want = compiled(lambda x: x.to(dtype))(x), x.to(dtype)
    numbers = ~want.float().isnan()
    assert torch.equal(found.view(torch.uint8)[numbers], want.view(torch.uint8)[numbers])
    assert bool(found.float().isnan()[~numbers].all())
