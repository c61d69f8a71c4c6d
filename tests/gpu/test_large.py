"""Tensors of more than 2**31 elements: indices that leave 32 bits."""

from __future__ import annotations

import pytest
import torch

import stax

pytestmark = pytest.mark.gpu
ROWS, COLS = 65_544, 32_768  # 2**31 + 2**18 elements


@pytest.fixture
def large() -> torch.Tensor:
    if torch.cuda.get_device_properties(0).total_memory < 24 << 30:
        pytest.skip("needs 24 GiB of device memory")
    return torch.randint(-100, 100, (ROWS, COLS), device="cuda", dtype=torch.int8)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_pointwise(large: torch.Tensor, dynamic: bool) -> None:
    fn = stax.compile(lambda x: x // 3 + 1, fullgraph=True, dynamic=dynamic, store="memory:")
    found = fn(large)
    assert torch.equal(found[-9:], large[-9:] // 3 + 1)
    assert torch.equal(found[:9], large[:9] // 3 + 1)
    assert int(found.sum(dtype=torch.int64)) == int((large // 3 + 1).sum(dtype=torch.int64))


def test_sums_along_and_across_and_of_all(large: torch.Tensor) -> None:
    fn = stax.compile(
        lambda x: (x.sum(1), x.sum(0), x.sum(), x.amax()), fullgraph=True, store="memory:"
    )
    rows, cols, whole, most = fn(large)
    assert torch.equal(rows, large.sum(1))
    assert torch.equal(cols, large.sum(0))
    assert int(whole) == int(large.sum(dtype=torch.int64))
    assert int(most) == int(large.max())


def test_position_beyond_32_bits(large: torch.Tensor) -> None:
    large[-1, -3] = 127
    fn = stax.compile(lambda x: x.argmax(), fullgraph=True, store="memory:")
    assert int(fn(large)) == ROWS * COLS - 3


def test_transposed(large: torch.Tensor) -> None:
    fn = stax.compile(lambda x: x.t().contiguous(), fullgraph=True, store="memory:")
    assert torch.equal(fn(large)[:, -70:], large.t()[:, -70:])


def test_picked_rows(large: torch.Tensor) -> None:
    at = torch.tensor([ROWS - 1, 0, 65_536], device="cuda")
    fn = stax.compile(lambda x, i: x[i] + 1, fullgraph=True, store="memory:")
    assert torch.equal(fn(large, at), large[at] + 1)
