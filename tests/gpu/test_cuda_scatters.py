"""Writes at computed places on a real device: sums under contention, halves, large tensors, inputs written in place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stax
from tests.scatters import ADDS, ALL, SETS, aten

pytestmark = pytest.mark.gpu


def compiled(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return stax.compile(fn, store="memory:", fullgraph=True, strict_native=True, **how)


def on_device(args: list[Tensor]) -> list[Tensor]:
    return [a.cuda() for a in args]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ALL)
def test_equals_eager(name: str, dynamic: bool) -> None:
    args = on_device(ALL[name].args(seed=7))
    torch.testing.assert_close(compiled(ALL[name].fn, dynamic=dynamic)(*args), ALL[name].fn(*args))


@pytest.mark.parametrize("name", [n for n in (*ADDS, *SETS) if "masked" not in n])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.bool], ids=str)
def test_whole_numbers(name: str, dtype: torch.dtype) -> None:
    args = on_device(ALL[name].args(seed=8, dtype=dtype))
    assert torch.equal(compiled(ALL[name].fn)(*args), ALL[name].fn(*args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [3, 50_000])
def test_the_gradient_of_an_embedding(dtype: torch.dtype, rows: int) -> None:
    """100 000 tokens in 3 rows, or in many: the error is at most twice that of eager."""
    index = torch.randint(0, rows, (100, 1000), device="cuda")
    grad = torch.randn(100, 1000, 64, device="cuda", dtype=dtype)

    def fn(g: Tensor, i: Tensor) -> Tensor:
        return aten.embedding_dense_backward(g, i, rows, 1, False)

    exact = fn(grad.double(), index)
    ours, eager = (f(grad, index).double() for f in (compiled(fn), fn))
    unit = torch.finfo(dtype).eps * exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + unit / 2


def test_one_of_several_values_wins() -> None:
    index = torch.randint(0, 100, (100_000,), device="cuda")
    values = torch.arange(100_000, device="cuda")
    old = torch.full((100,), -1, device="cuda")
    found = compiled(lambda x, i, v: x.index_put((i,), v))(old, index, values)
    assert torch.equal(index[found], torch.arange(100, device="cuda"))


def test_offsets_beyond_32_bits() -> None:
    rows, columns = 2_200, 1 << 20
    table = torch.zeros(rows, columns, device="cuda", dtype=torch.float32)
    index = torch.tensor([0, 2_100, rows - 1, 2_100], device="cuda")
    new = torch.randn(4, columns, device="cuda")

    def add(x: Tensor, i: Tensor, v: Tensor) -> None:
        x.index_add_(0, i, v)

    compiled(add)(table, index, new)
    torch.testing.assert_close(
        table[[0, 2_100, rows - 1]], torch.stack((new[0], new[1] + new[3], new[2]))
    )
    assert not table[1:2_100].any()
    found = compiled(lambda w, i: F.embedding(i, w) * 2)(table, index)
    torch.testing.assert_close(found, table[index] * 2)


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
def test_an_input_is_written_in_place(offset: int) -> None:
    def fn(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x.index_copy_(0, i, v)
        return x.sum(0)

    run = compiled(fn)
    old, index, new = on_device(ALL["index_copy"].args())
    flat = torch.zeros(old.numel() + offset, device="cuda")
    ours, theirs = flat[offset:].view_as(old).copy_(old), old.clone()
    torch.testing.assert_close(run(ours, index, new), fn(theirs, index, new))
    torch.testing.assert_close(ours, theirs)


CHILD = """
import torch, stax
x, i, v = torch.zeros(5, 3).cuda(), torch.tensor([1, -1]).cuda(), torch.ones(2, 3).cuda()
stax.compile(lambda x, i, v: x.index_add(0, i, v), store="memory:", fullgraph=True)(x, i, v)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("refused", type(error).__name__)
"""


def test_an_index_of_minus_one_is_an_error() -> None:
    """As in eager a device-side assertion, which costs the process its context: so in one of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    assert "refused" in done.stdout, done.stderr[-2000:]
