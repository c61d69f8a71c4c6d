"""How loops are chosen: lane axis, threads, parts, flushes, kept rows, squares and pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpp_harness import BEST, assert_close, build, run

from stax.codegen.cpp.emit import emit
from stax.codegen.cpp.flush import Flush, place_flush
from stax.codegen.cpp.plan import plan
from stax.codegen.cpp.segments import pieces
from stax.ir.expr import Expr, const
from stax.ir.kernel import Kernel, Size
from stax.ir.value import index, scalar, where
from tests import kernels
from tests.kernels import KS0, KS1, R0, X0, X1, Buffers, KernelCase, at, local, make, st


def _text(kernel: Kernel) -> str:
    return emit(kernel, BEST).text


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (kernels.add_relu_sum(), "row"),
        (kernels.two_reduced_axes(), "row"),
        (kernels.full_sum(), "row"),
        (kernels.outer_sum(), "column"),
        (kernels.add_broadcast(), "pointwise"),
        (kernels.add_transposed(40, 33), "pointwise"),
        (kernels.add_transposed(512, 512), "tile"),
    ],
    ids=lambda c: c.name if isinstance(c, KernelCase) else c,
)
def test_kind(case: KernelCase, kind: str) -> None:
    assert plan(case.kernel).kind == kind


def test_threads_only_where_the_work_pays() -> None:
    assert "parallel" not in _text(kernels.add_relu_sum(8, 64).kernel)
    assert "#pragma omp parallel for schedule(static)\n" in _text(
        kernels.add_relu_sum(4096, 64).kernel
    )
    assert "if(10 * ks0 * ks1 + 6 * ks0 >= 200000)" in _text(kernels.dynamic().kernel)


def test_few_long_reductions_are_shared_in_parts() -> None:
    assert plan(kernels.full_sum(1 << 20).kernel).parallel == "parts"
    assert plan(kernels.softmax(2, 1 << 20).kernel).parallel == "parts"
    assert plan(kernels.outer_sum(100_000, 64).kernel).parallel == "parts"
    assert plan(kernels.softmax(64, 1 << 14).kernel).parallel == "outer"
    assert plan(kernels.outer_sum(1000, 5000).kernel).parallel == "outer"


def test_flushes() -> None:
    assert place_flush([1000], 64) is None
    assert place_flush([10_000], 64) == Flush(0, 32 * 64)
    assert place_flush([None], 64) == Flush(0, 32 * 64)
    assert place_flush([1000, 100], 64) == Flush(0, 16)
    assert place_flush([4, 3, 100], 64) is None
    assert place_flush([None, 5]) == Flush(0, 6)
    assert place_flush([7, 40]) == Flush(1, 32)
    assert place_flush([0], 1) is None


def _dynamic_softmax(rows: int, cols: int) -> KernelCase:
    offset = R0 + X0 * KS1
    x = at("in_ptr0", offset)
    top, e, total = (local(f"v{i}", "float32") for i in range(3))
    kernel = make(
        [
            st("v0", x, space="xr", combine="max"),
            st("v1", scalar("exp", scalar("sub", x, top)), space="xr"),
            st("v2", e, space="xr", combine="sum"),
            st("v3", scalar("truediv", e, total), ("out_ptr0", offset), space="xr"),
        ],
        x=[KS0],
        r=[KS1],
        sizes=[Size("ks0", 2, None, rows), Size("ks1", 2, None, cols)],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        form="red",
        fused=["_softmax"],
    )

    def reference(b: Buffers, env: object) -> Buffers:
        data = b["in_ptr0"].astype(np.float64).reshape(rows, cols)
        exp = np.exp(data - data.max(1, keepdims=True))
        return {"out_ptr0": exp / exp.sum(1, keepdims=True)}

    n = rows * cols
    env = {"ks0": rows, "ks1": cols}
    return KernelCase("dynamic_softmax", kernel, {"in_ptr0": n, "out_ptr0": n}, reference, env)


def test_costly_values_are_computed_once() -> None:
    """In an array where a row is short, else in the output that is overwritten."""
    assert _text(kernels.softmax().kernel).count("= stax_expf(") == 2  # whole groups and the rest
    assert "float v1_row[1000];" in _text(kernels.softmax().kernel)
    case = _dynamic_softmax(5, 700)
    text = _text(case.kernel)
    assert "_row" not in text
    assert "out_ptr0[ks1 * x0 + r0_0] / v2" in text
    buffers = case.inputs(1)
    assert case.reference is not None
    want = case.reference(buffers, case.env)["out_ptr0"]
    assert_close(run(build(case.kernel), case, buffers)[1]["out_ptr0"], want, "float32")


def test_values_that_nothing_needs_are_not_printed() -> None:
    base = kernels.add_broadcast().kernel
    unused = st("v1", scalar("exp", at("in_ptr0", X1)))
    assert "stax_expf" not in _text(replace(base, statements=(*base.statements, unused)))


# -- pieces


def _joined(a: Expr | int, b: Expr | int, sizes: list[Size], env: dict[str, int]) -> KernelCase:
    """torch.cat of rows of a and of b elements."""
    a, b = const(a), const(b)
    first, second = (scalar(op, index(X1), index(a)) for op in ("lt", "ge"))
    left = at("in_ptr0", X1 + X0 * a, mask=first)
    right = at("in_ptr1", X1 - a + X0 * b, mask=second)
    kernel = make(
        [st("v0", where(first, left, right), ("out_ptr0", X1 + X0 * (a + b)))],
        x=[6, a + b],
        pointers=["in_ptr0:float32", "in_ptr1:float32", "out_ptr0:float32"],
        sizes=sizes,
        fused=["cat"],
    )
    m, n = a.evaluate(env), b.evaluate(env)

    def reference(buffers: Buffers, _: object) -> Buffers:
        parts = [buffers["in_ptr0"].reshape(6, m), buffers["in_ptr1"].reshape(6, n)]
        return {"out_ptr0": np.concatenate(parts, 1)}

    counts = {"in_ptr0": 6 * m, "in_ptr1": 6 * n, "out_ptr0": 6 * (m + n)}
    return KernelCase("cat", kernel, counts, reference, env)


JOINED = [
    _joined(30, 50, [], {}),
    _joined(KS0, 20, [Size("ks0", 2, None, 10)], {"ks0": 10}),
    _joined(KS0, KS1, [Size("ks0", 2, None, 10), Size("ks1", 2, None, 7)], {"ks0": 10, "ks1": 7}),
]


@pytest.mark.parametrize("case", JOINED, ids=["static", "half", "symbolic"])
def test_a_concatenation_has_no_masks(case: KernelCase) -> None:
    lane = case.kernel.axes[1]
    assert len(pieces(case.kernel, lane)) == 2
    text = _text(case.kernel)
    assert "?" not in text[text.index('extern "C"') :]
    buffers = case.inputs(2)
    assert case.reference is not None
    want = case.reference(buffers, case.env)["out_ptr0"]
    assert_close(run(build(case.kernel), case, buffers)[1]["out_ptr0"], want, "float32")


def test_a_part_that_may_be_absent_keeps_its_masks() -> None:
    case = _joined(KS0, 20, [Size("ks0", 0, None, 10)], {"ks0": 0})
    assert len(pieces(case.kernel, case.kernel.axes[1])) == 1
    buffers = case.inputs(2)
    _, got = run(build(case.kernel), case, buffers)
    np.testing.assert_array_equal(got["out_ptr0"], buffers["in_ptr1"])


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_comparison_is_cut_at_the_right_point(op: str, sign: int) -> None:
    body = scalar(op, index(X0 * sign), index(9 * sign))
    kernel = make([st("v0", body, ("out_ptr0", X0))], x=[20], pointers=["out_ptr0:bool"])
    assert len(pieces(kernel, kernel.axes[0])) > 1
    case = KernelCase("compare", kernel, {"out_ptr0": 20}, None)
    _, got = run(build(kernel), case, case.inputs())
    functions = {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
    np.testing.assert_array_equal(
        got["out_ptr0"], functions[op](np.arange(20) * sign, 9 * sign), op
    )
