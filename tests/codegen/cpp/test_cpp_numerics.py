"""Built kernels against numpy references and, on random kernels, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from cpp_harness import BEST, assert_close, build, levels_here, run
from hypothesis import HealthCheck, assume, given, settings

from stax.base.target import Target
from stax.ir.dtypes import DTYPES
from stax.ir.interp import run_kernel
from stax.ir.kernel import Size
from stax.ir.value import Value, bound, index, load, scalar
from tests import kernels
from tests.kernels import KS0, X0, X1, KernelCase, at, f32, make, st
from tests.random_kernels import kernel_cases

LARGE = (
    kernels.add_transposed(700, 513),
    kernels.outer_sum(3000, 70),
    kernels.outer_sum(5, 5000),
    kernels.full_sum(3_000_001),
    kernels.softmax(3, 70_000),
    kernels.layer_norm(2000, 130),
)


@pytest.mark.parametrize("level", levels_here())
@pytest.mark.parametrize("case", kernels.cases(), ids=lambda c: c.name)
def test_hand_made(case: KernelCase, level: str) -> None:
    _against_reference(case, Target("cpu", level))


@pytest.mark.parametrize("case", LARGE, ids=lambda c: c.name)
def test_large_enough_for_threads(case: KernelCase) -> None:
    _against_reference(case, BEST)


def _against_reference(case: KernelCase, target: Target) -> None:
    library = build(case.kernel, target)
    assert case.reference is not None
    for seed in (0, 1):
        buffers = case.inputs(seed)
        want = case.reference({k: v.copy() for k, v in buffers.items()}, case.env)
        code, got = run(library, case, buffers)
        assert code == 0
        assert got.keys() == want.keys()
        for pointer in case.kernel.pointers:
            if pointer.kind != "in":
                assert_close(got[pointer.name], want[pointer.name], pointer.dtype)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernel_cases())
def test_random(case: KernelCase) -> None:
    buffers = case.inputs(7)
    want = {k: v.copy() for k, v in buffers.items()}
    axes = (*case.kernel.axes, *case.kernel.reduce_axes)
    # The interpreter does not know reductions over no elements; the hand-made kernels have them.
    assume(all(a.extent.evaluate(case.env) for a in axes))
    run_kernel(case.kernel, want, case.env)
    code, got = run(build(case.kernel), case, buffers)
    assert code == 0
    for pointer in case.kernel.pointers:
        if pointer.kind != "in":
            loose = 20.0 if DTYPES[pointer.dtype].itemsize >= 4 else 2.0
            assert_close(got[pointer.name], want[pointer.name], pointer.dtype, loose)


def test_the_same_bits_whatever_the_number_of_threads() -> None:
    import torch

    before = torch.get_num_threads()
    for case in (kernels.full_sum(1_000_003), kernels.outer_sum(40_000, 24)):
        library, buffers = build(case.kernel), case.inputs(3)
        found = set()
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.add(b"".join(v.tobytes() for v in run(library, case, buffers)[1].values()))
        torch.set_num_threads(before)
        assert len(found) == 1


# -- checked indices


def _gather(extent: object, rows: int, mask: Value | None = None) -> KernelCase:
    row = bound(at("in_ptr0", X0, "int64"), extent)  # type: ignore[arg-type]
    offset = scalar("add", scalar("mul", row, index(8)), index(X1))
    kernel = make(
        [st("v0", load("in_ptr1", "float32", (offset,), mask), ("out_ptr0", X1 + X0 * 8))],
        x=[6, 8],
        pointers=["in_ptr0:int64", "in_ptr1:float32", "out_ptr0:float32"],
        sizes=[Size("ks0", 0, None, 4)] if extent is KS0 else [],
        fused=["embedding"],
    )
    counts = {"in_ptr0": 6, "in_ptr1": 8 * rows, "out_ptr0": 48}
    return KernelCase("gather", kernel, counts, None, {"ks0": rows} if extent is KS0 else {})


@pytest.mark.parametrize("bad", [-1, 4, 2**62, -(2**63)])
@pytest.mark.parametrize("extent", [4, KS0], ids=["constant", "symbolic"])
def test_an_index_out_of_range_is_told_and_not_read(bad: int, extent: object) -> None:
    case = _gather(extent, 4)
    library, buffers = build(case.kernel), case.inputs()
    buffers["in_ptr0"] = np.array([0, 1, 2, 3, 3, 0])
    assert run(library, case, buffers)[0] == 0
    buffers["in_ptr0"][3] = bad
    code, got = run(library, case, buffers)
    assert code == 1
    assert (got["out_ptr0"].reshape(6, 8)[3] == 0).all()


def test_an_index_into_nothing_is_told() -> None:
    case = _gather(KS0, 0)
    library, buffers = build(case.kernel), case.inputs()
    buffers["in_ptr0"] = np.zeros(6, np.int64)
    assert run(library, case, buffers)[0] == 1


def test_the_first_failed_check_is_the_answer() -> None:
    a, b = bound(at("in_ptr0", X0, "int64"), 4), bound(at("in_ptr1", X0, "int64"), 4)
    body = scalar("add", load("in_ptr2", "float32", (a,)), load("in_ptr2", "float32", (b,)))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[3],
        pointers=["in_ptr0:int64", "in_ptr1:int64", "in_ptr2:float32", "out_ptr0:float32"],
    )
    case = KernelCase("two", kernel, {p.name: 4 for p in kernel.pointers}, None)
    library, buffers = build(kernel), case.inputs()
    buffers["in_ptr0"], buffers["in_ptr1"] = np.array([0, 1, 2, 0]), np.array([0, 9, 2, 0])
    assert run(library, case, buffers)[0] == 2
    buffers["in_ptr0"][2] = -3
    assert run(library, case, buffers)[0] == 1


def test_a_store_in_place_waits_for_every_loop_that_reads() -> None:
    """x is overwritten by x - mean(x) although a later loop still needs the old x."""
    row = kernels.R0 + X0 * 40
    x = at("inout_ptr0", row)
    mean = scalar("truediv", kernels.local("v0", "float32"), f32(40))
    centred = kernels.local("v1", "float32")
    kernel = make(
        [
            st("v0", x, space="xr", combine="sum"),
            st("v1", scalar("sub", x, mean), ("inout_ptr0", row), space="xr"),
            st("v2", scalar("mul", centred, centred), space="xr", combine="sum"),
            st(
                "v3",
                scalar("mul", centred, kernels.local("v2", "float32")),
                ("out_ptr0", row),
                space="xr",
            ),
        ],
        x=[5],
        r=[40],
        form="per",
        pointers=["inout_ptr0:float32", "out_ptr0:float32"],
    )
    case = KernelCase("in_place_norm", kernel, {"inout_ptr0": 200, "out_ptr0": 200}, None)
    buffers = case.inputs(5)
    old = buffers["inout_ptr0"].astype(np.float64).reshape(5, 40)
    centred64 = old - old.mean(1, keepdims=True)
    _, got = run(build(kernel), case, buffers)
    assert_close(got["inout_ptr0"], centred64, "float32", 5)
    assert_close(got["out_ptr0"], centred64 * (centred64**2).sum(1, keepdims=True), "float32", 5)


def test_an_outer_store_in_place_waits_for_the_loop_that_reads() -> None:
    """The scale is doubled in place, and the sum is still of the old scale."""
    scale = at("inout_ptr0", X0)
    kernel = make(
        [
            st("v0", scalar("mul", scale, f32(2)), ("inout_ptr0", X0)),
            st(
                "v1",
                scalar("mul", at("in_ptr0", kernels.R0 + X0 * 50), scale),
                ("out_ptr0", X0),
                space="xr",
                combine="sum",
            ),
        ],
        x=[7],
        r=[50],
        form="per",
        pointers=["in_ptr0:float32", "out_ptr0:float32", "inout_ptr0:float32"],
    )
    counts = {"in_ptr0": 350, "out_ptr0": 7, "inout_ptr0": 7}
    case = KernelCase("in_place_scale", kernel, counts, None)
    buffers = case.inputs(5)
    _, got = run(build(case.kernel), case, buffers)
    want = buffers["in_ptr0"].reshape(7, 50).astype(np.float64).sum(1) * buffers["inout_ptr0"]
    assert_close(got["out_ptr0"], want, "float32", 5)
    assert_close(got["inout_ptr0"], buffers["inout_ptr0"] * 2, "float32")
