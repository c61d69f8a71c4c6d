"""Scatters in the IR: what the oracle makes of them, how they print, and every broken invariant refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_interp import ORIGIN, buffer, whole

from stax.base.errors import VerifyError
from stax.ir.expr import const, sym
from stax.ir.interp import run, run_kernel
from stax.ir.kernel import Kernel, Pointer, Store
from stax.ir.program import Axis, Computation, Extern, Mutation, Program
from stax.ir.text import kernel_text, program_text
from stax.ir.traffic import traffic
from stax.ir.value import Value, bound, constant, load, local, scalar, scatter
from stax.ir.verify import verify_kernel, verify_program
from tests.scatter_kernels import scatter_add, scatter_set

I0, I1 = sym("i0"), sym("i1")
ROW = bound(load("at", "int64", [I0]), 5)
NEW = load("new", "float32", [I0, I1])
KEPT = scalar("gt", NEW, constant(0, "float32"))


def good(body: Value | None = None, rows: int = 4) -> Program:
    """base = old; out = base with the rows of ``new`` added to the rows ``at``."""
    body = scatter("base", NEW, [ROW, I1], mode="add") if body is None else body
    copy = Computation(
        "base", (Axis("i0", const(5)), Axis("i1", const(3))), (), None,
        load("old", "float32", [I0, I1]), ORIGIN,
    )  # fmt: skip
    axes = (Axis("i0", const(rows)), Axis("i1", const(3)))
    inputs = (
        buffer("old", "input", 5, 3),
        buffer("at", "input", rows, dtype="int64"),
        buffer("new", "input", rows, 3),
    )
    out = buffer("out", "temp", 5, 3)
    return Program(
        (), (*inputs, buffer("base", "temp", 5, 3), out), ("old", "at", "new"),
        (copy, Computation("out", axes, (), None, body, ORIGIN)), (whole(out),), (),
    )  # fmt: skip


def arrays(rows: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    old = rng.standard_normal((5, 3)).astype(np.float32)
    new = rng.standard_normal((rows, 3)).astype(np.float32)
    return [old, rng.integers(0, 5, rows), new]


def test_the_oracle_adds() -> None:
    program = good(scatter("base", NEW, [ROW, I1], KEPT, "add"))
    verify_program(program)
    old, at, new = arrays()
    expected = old.astype(np.float64)
    np.add.at(expected, at, np.where(new > 0, new, 0))
    (found,) = run(program, [old, at, new], {})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_oracle_sets() -> None:
    program = good(scatter("base", NEW, [ROW, I1]))
    old, _, new = arrays()
    expected, at = old.copy(), np.array([4, 0, 2, 1])
    expected[at] = new
    (found,) = run(program, [old, at, new], {})
    np.testing.assert_array_equal(found, expected)


def test_the_oracle_changes_nothing_for_no_points() -> None:
    program = good(rows=0)
    verify_program(program)
    old, at, new = arrays(0)
    np.testing.assert_array_equal(run(program, [old, at, new], {})[0], old)


def test_an_index_out_of_range_is_an_error_under_any_mask() -> None:
    old, at, new = arrays()
    at[0] = 5
    for mask in (None, constant(False, "bool")):
        with pytest.raises(IndexError, match="index 5 is out of bounds"):
            run(good(scatter("base", NEW, [ROW, I1], mask)), [old, at, new], {})


def test_a_place_that_nobody_checked_is_refused() -> None:
    old, at, new = arrays()
    at[0] = -1
    with pytest.raises(VerifyError, match="scatter into base out of bounds in dimension 0"):
        run(good(scatter("base", NEW, [load("at", "int64", [I0]), I1])), [old, at, new], {})


def test_text() -> None:
    program = good(scatter("base", NEW, [ROW, I1], KEPT, "add"))
    text = program_text(program)
    assert "out: float32[5, 3] = scatter over [i0:4, i1:3]" in text
    assert "base[bound(at[i0], 5), i1 if gt(%0, 0.0)] += %0" in text
    assert "  update update_ptr0: float32" in kernel_text(scatter_add().kernel)
    (last,) = kernel_text(scatter_set().kernel).splitlines()[-1:]
    assert last.startswith("      update_ptr1[remainder(mul([x0], 7), [ks0]) if eq(")
    assert last.endswith("] = mul(in_ptr0[x0], 2.0)")


def test_traffic_counts_the_places_once_and_sums_twice() -> None:
    """16 columns of 40 rows, an index each, and at most the 10 rows that there are."""
    found = traffic(scatter_add().kernel)
    assert dict(found.reads) == {"in_ptr0": 40 * 8, "in_ptr1": 640 * 4, "update_ptr0": 160 * 4}
    assert dict(found.writes) == {"update_ptr0": 160 * 4}
    set_only = traffic(scatter_set().kernel)
    assert "update_ptr1" not in dict(set_only.reads)
    assert dict(set_only.writes) == {"out_ptr0": 400, "update_ptr1": 400}


def test_kernels_run_as_programs_do() -> None:
    for case in (scatter_add("int32"), scatter_set()):
        verify_kernel(case.kernel)
        found = case.inputs()
        assert case.reference is not None
        expected = case.reference(case.inputs(), case.env)
        run_kernel(case.kernel, found, case.env)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def into_input(**changes: Any) -> Program:
    """old receives what the scatter into it gives, and is the output."""
    program = good(scatter("old", NEW, [ROW, I1], mode="add"))
    old = program.buffer("old")
    buffers = tuple(b for b in program.buffers if b.name != "base")
    made = replace(
        program,
        buffers=buffers,
        nodes=program.nodes[1:],
        outputs=(whole(old),),
        mutations=(Mutation("old", "out"),),
    )
    return replace(made, **changes)


def test_an_input_that_receives_the_result_may_be_the_base() -> None:
    verify_program(into_input())
    old, at, new = arrays()
    expected = old.copy()
    np.add.at(expected, at, new)
    given = [old, at, new]
    run(into_input(), given, {})
    np.testing.assert_array_equal(given[0], expected)


# -- broken programs


def changed(**changes: Any) -> Program:
    return replace(good(), **changes)


def with_base(**changes: Any) -> Program:
    buffers = tuple(replace(b, **changes) if b.name == "base" else b for b in good().buffers)
    return changed(buffers=buffers)


def read_twice(*loads: str) -> Program:
    program = good()
    extra = buffer("more", "temp", 5, 3)
    body = load(loads[0], "float32", [I0, I1])
    node = replace(program.nodes[0], out="more", body=body)
    return replace(program, buffers=(*program.buffers, extra), nodes=(*program.nodes, node))


ADDED_HALF = scatter("base", Value("cast", "float16", (NEW,)), [ROW, I1], mode="add")
BROKEN: dict[str, tuple[Program, str]] = {
    "an undefined base": (good(scatter("nothing", NEW, [ROW, I1])), "base of a scatter"),
    "an input that is read": (good(scatter("old", NEW, [ROW, I1])), "the base old is read"),
    "a constant as base": (
        replace(
            into_input(),
            buffers=tuple(
                replace(b, kind="constant") if b.name == "old" else b for b in into_input().buffers
            ),
        ),
        "base of a scatter",
    ),
    "an input that stays as it is": (into_input(mutations=()), "the base old is an input"),
    "an input and another result": (
        into_input(outputs=(whole(buffer("out", "temp", 5, 3)),)),
        "the base old is an input",
    ),
    "its own result as base": (good(scatter("out", NEW, [ROW, I1])), "base of a scatter"),
    "another shape": (with_base(shape=(const(4), const(3))), "do not span|layout of the base"),
    "other strides": (with_base(strides=(const(1), const(5))), "layout of the base"),
    "another device": (with_base(device="cuda"), "layout of the base"),
    "another dtype": (
        good(scatter("base", Value("cast", "float64", (NEW,)), [ROW, I1])),
        "scatter into base",
    ),
    "rank": (good(scatter("base", NEW, [ROW])), "rank of a scatter into base"),
    "fewer arguments than its rank": (
        good(Value("scatter", "float32", (NEW, ROW), ("base", 2, "set"))),
        "rank of a scatter into base",
    ),
    "more arguments": (
        good(Value("scatter", "float32", (NEW, ROW, ROW, KEPT, KEPT), ("base", 2, "set"))),
        "scatter into base",
    ),
    "a float index": (good(scatter("base", NEW, [NEW, I1])), "indices of a scatter"),
    "a float mask": (good(scatter("base", NEW, [ROW, I1], NEW)), "mask of a scatter"),
    "an unknown mode": (good(scatter("base", NEW, [ROW, I1], mode="mul")), "mode of a scatter"),
    "inside a value": (
        good(scalar("add", scatter("base", NEW, [ROW, I1]), NEW)),
        "a scatter inside a value|axes do not span",
    ),
    "a scatter of a scatter": (
        good(scatter("base", scatter("base", NEW, [ROW, I1]), [ROW, I1])),
        "a scatter inside a value",
    ),
    "a base that is read": (read_twice("base"), "the base base is read elsewhere"),
    "a base that its scatter reads": (
        good(scatter("base", load("base", "float32", [I0, I1]), [ROW, I1])),
        "the base base is read elsewhere",
    ),
    "a base that is an output": (
        changed(outputs=(whole(buffer("base", "temp", 5, 3)),)),
        "the base base is read elsewhere",
    ),
    "a base that goes to an input": (
        changed(mutations=(Mutation("old", "base"),)),
        "the base base is read elsewhere",
    ),
    "a base that torch reads": (
        changed(
            nodes=(
                *good().nodes,
                Extern((), "aten.neg.default", (whole(buffer("base", "temp", 5, 3)),), (), ORIGIN),
            )
        ),
        "the base base is read elsewhere",
    ),
    "of a reduction": (
        changed(
            nodes=(
                good().nodes[0],
                replace(good().nodes[1], combine="sum", reduce_axes=(Axis("r0", const(2)),)),
            )
        ),
        "a scatter of a reduction",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_program(name: str) -> None:
    program, message = BROKEN[name]
    with pytest.raises(VerifyError, match=message) as caught:
        verify_program(program)
    assert caught.value.where


def test_sums_in_a_type_that_no_target_adds_in() -> None:
    program = good(ADDED_HALF)
    buffers = tuple(
        replace(b, dtype="float16") if b.name in ("base", "out") else b for b in program.buffers
    )
    copy = replace(
        program.nodes[0], body=Value("cast", "float16", (load("old", "float32", [I0, I1]),))
    )
    with pytest.raises(VerifyError, match="a sum in base at computed places"):
        verify_program(replace(program, buffers=buffers, nodes=(copy, program.nodes[1])))


# -- broken kernels


def kernel(**changes: Any) -> Kernel:
    return replace(scatter_add().kernel, **changes)


def statement(**changes: Any) -> Kernel:
    (found,) = kernel().statements
    return kernel(statements=(replace(found, **changes),))


def pointed(kind: str) -> Kernel:
    (*ins, update) = kernel().pointers
    return kernel(pointers=(*ins, replace(update, kind=kind)))


(SCATTER,) = kernel().statements
BROKEN_KERNELS: dict[str, tuple[Kernel, str]] = {
    "into an out pointer": (pointed("out"), "scatter into update_ptr0"),
    "into an in pointer": (pointed("in"), "scatter into update_ptr0"),
    "into an inout pointer": (pointed("inout"), "scatter into update_ptr0"),
    "into nothing": (kernel(pointers=kernel().pointers[:2]), "scatter into update_ptr0"),
    "with a store": (statement(stores=(Store("update_ptr0", sym("x0")),)), "combine or stores"),
    "with a combine": (statement(combine="sum", space="xr"), "xr|combine or stores"),
    "twice": (
        kernel(statements=(SCATTER, replace(SCATTER, name="v1"))),
        "scatters into update_ptr0",
    ),
    "a pointer that nothing changes": (
        kernel(pointers=(*kernel().pointers, Pointer("update_ptr1", "update", "float32"))),
        "scatters into update_ptr1",
    ),
    "a value of it": (
        kernel(
            statements=(
                SCATTER,
                replace(SCATTER, name="v1", body=local("v0", "float32")),
            )
        ),
        "a scatter, which has no value",
    ),
    "a read beside it": (
        kernel(
            statements=(
                SCATTER,
                replace(SCATTER, name="v1", body=load("update_ptr0", "float32", [0])),
            )
        ),
        "load from update_ptr0",
    ),
}


@pytest.mark.parametrize("name", BROKEN_KERNELS)
def test_broken_kernel(name: str) -> None:
    broken, message = BROKEN_KERNELS[name]
    with pytest.raises(VerifyError, match=message) as caught:
        verify_kernel(broken)
    assert caught.value.where
