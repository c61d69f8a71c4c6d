"""Sums are at least half as exact as eager torch's, however long they are and whichever way they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpp_harness import build, run

from stax.ir.kernel import Pointer
from stax.ir.value import rewrite
from tests import kernels
from tests.kernels import Array, Buffers, KernelCase

Eager = Callable[[torch.Tensor], torch.Tensor]
SHAPES = ((1, 1_000_003), (16, 65_536), (300, 1000), (2000, 100), (500, 30))


def _row_sum(rows: int, cols: int) -> KernelCase:
    base = kernels.add_relu_sum(rows, cols)
    body = kernels.at("in_ptr0", kernels.R0 + kernels.X0 * cols)
    statement = replace(base.kernel.statements[0], body=body)
    pointers = tuple(p for p in base.kernel.pointers if p.name != "in_ptr1")
    kernel = replace(base.kernel, statements=(statement,), pointers=pointers)
    return replace(base, kernel=kernel, elements={"in_ptr0": rows * cols, "out_ptr0": rows})


def _as_double(case: KernelCase) -> KernelCase:
    pointers = tuple(Pointer(p.name, p.kind, "float64") for p in case.kernel.pointers)
    statements = tuple(
        replace(s, body=rewrite(s.body, lambda n, a: _double(n, a))) for s in case.kernel.statements
    )
    return replace(case, kernel=replace(case.kernel, pointers=pointers, statements=statements))


def _double(node: kernels.Value, args: tuple[kernels.Value, ...]) -> kernels.Value:
    dtype = "float64" if node.dtype == "float32" else node.dtype
    return kernels.Value(node.op, dtype, args, node.attr)


def _error(got: Array, exact: Array) -> float:
    """Root mean square of the error, relative to that of the exact values."""
    wrong = got.astype(np.longdouble) - exact
    return float(np.sqrt(np.mean(wrong**2) / np.mean(exact.astype(np.longdouble) ** 2)))


def _compare(case: KernelCase, shape: tuple[int, int], axis: int, shift: float) -> None:
    library = build(case.kernel)
    ours: list[Array] = []
    eager: list[Array] = []
    true: list[Array] = []
    for seed in range(6):
        buffers: Buffers = case.inputs(seed)
        buffers["in_ptr0"] = (buffers["in_ptr0"] + shift).astype(buffers["in_ptr0"].dtype)
        data = buffers["in_ptr0"].reshape(shape)
        true.append(data.astype(np.longdouble).sum(axis))
        ours.append(run(library, case, buffers)[1]["out_ptr0"])
        eager.append(torch.from_numpy(data).sum(axis).numpy())
    exact = np.concatenate(true)
    mine, theirs = (_error(np.concatenate(r), exact) for r in (ours, eager))
    print(f"{case.name} {shape} axis {axis}: {mine / theirs:.2f} of eager's error")
    assert mine <= 2 * theirs


@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["mixed", "positive"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(shape: tuple[int, int], shift: float) -> None:
    _compare(_row_sum(*shape), shape, 1, shift)


@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["mixed", "positive"])
@pytest.mark.parametrize("shape", [(200_000, 5), (65_536, 16), (5000, 300), (100, 2000)], ids=str)
def test_columns(shape: tuple[int, int], shift: float) -> None:
    _compare(kernels.outer_sum(*shape), shape, 0, shift)


@pytest.mark.parametrize("shape", [(1, 1_000_003), (300, 1000)], ids=str)
def test_rows_of_float64(shape: tuple[int, int]) -> None:
    _compare(_as_double(_row_sum(*shape)), shape, 1, 3.0)


def test_columns_of_float64() -> None:
    _compare(_as_double(kernels.outer_sum(65_536, 16)), (65_536, 16), 0, 3.0)


def test_a_dynamic_sum() -> None:
    case = kernels.dynamic(3, 1_000_000)
    buffers = case.inputs(1)
    buffers["in_ptr0"] = buffers["in_ptr0"] + np.float32(5)
    exact = buffers["in_ptr0"].astype(np.float64).reshape(3, -1).mean(1)
    _, got = run(build(case.kernel), case, buffers)
    np.testing.assert_allclose(got["out_ptr0"], exact, rtol=2e-7)


def test_softmax_and_layer_norm() -> None:
    softmax, norm = kernels.softmax(), kernels.layer_norm()
    buffers = softmax.inputs(2)
    x = torch.from_numpy(buffers["in_ptr0"]).reshape(37, 1000)
    exact = torch.softmax(x.double(), 1).numpy().reshape(-1)
    eager = torch.softmax(x, 1).numpy().reshape(-1)
    got = run(build(softmax.kernel), softmax, buffers)[1]["out_ptr2"]
    assert _error(got, exact) <= 2 * _error(eager, exact)
    buffers = norm.inputs(2)
    x, w, b = (torch.from_numpy(buffers[f"in_ptr{i}"]) for i in range(3))
    x = x.reshape(24, 768)
    want = torch.layer_norm(x.double(), (768,), w.double(), b.double()).numpy().reshape(-1)
    eager = torch.layer_norm(x, (768,), w, b).numpy().reshape(-1)
    got = run(build(norm.kernel), norm, buffers)[1]["out_ptr2"]
    assert np.abs(got - want).max() <= 2 * np.abs(eager - want).max()
