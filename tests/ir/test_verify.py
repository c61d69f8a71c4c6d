"""Each invariant, broken once: the verifier names the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_interp import ORIGIN, buffer, program_of, softmax_kernel, whole

from stax.base.errors import VerifyError
from stax.ir.expr import const, sym
from stax.ir.kernel import Kernel, Pointer, Statement, Store
from stax.ir.program import Axis, Extern, Mutation, Program, TensorRef
from stax.ir.text import kernel_text, program_text
from stax.ir.value import Value, bound, cast, constant, load, local, scalar
from stax.ir.verify import verify_kernel, verify_program

I0 = sym("i0")
X = buffer("x", "input", 4)
READ = load("x", "float32", [I0])


def good() -> Program:
    return program_of(scalar("add", READ, constant(1, "float32")), X, shape=(4,))


def with_node(**changes: Any) -> Program:
    program = good()
    return replace(program, nodes=(replace(program.nodes[0], **changes),))


def with_buffer(name: str, **changes: Any) -> Program:
    program = good()
    return replace(
        program,
        buffers=tuple(replace(b, **changes) if b.name == name else b for b in program.buffers),
    )


def test_good_values_pass() -> None:
    verify_program(good())
    verify_kernel(softmax_kernel())


BROKEN: dict[str, tuple[Program, str]] = {
    "undefined buffer": (with_node(body=load("y", "float32", [I0])), "undefined buffer y"),
    "read of itself": (
        with_node(body=load("out", "float32", [I0])),
        "out is read before it is defined",
    ),
    "defined twice": (replace(good(), nodes=good().nodes * 2), "out is defined twice"),
    "writes an input": (with_node(out="x"), "x is not a temp"),
    "undefined axis": (with_node(body=load("x", "float32", [sym("i9")])), "undefined symbol in i9"),
    "rank of a load": (with_node(body=load("x", "float32", [I0, I0])), "rank of a load of x"),
    "dtype of a load": (
        with_node(body=cast(load("x", "int64", [I0]), "float32")),
        "dtype of a load of x",
    ),
    "dtype of the body": (with_node(body=cast(READ, "float64")), "dtype of the body"),
    "extent": (with_node(axes=(Axis("i0", const(5)),)), "axes do not span the buffer"),
    "reduction without axes": (with_node(combine="sum"), "go together"),
    "axes without reduction": (with_node(reduce_axes=(Axis("r0", const(2)),)), "go together"),
    "unknown combine": (
        with_node(combine="median", reduce_axes=(Axis("r0", const(2)),)),
        "unknown combine",
    ),
    "axis called twice": (
        with_node(combine="sum", reduce_axes=(Axis("i0", const(2)),)),
        "two things called i0",
    ),
    "float index": (
        with_node(body=Value("load", "float32", (READ,), ("x", 1, 0))),
        "indices of a load of x",
    ),
    "mixed dtypes": (
        with_node(body=Value("add", "float32", (READ, constant(1, "float64")))),
        "arguments of add",
    ),
    "arity": (with_node(body=Value("exp", "float32", (READ, READ))), "arguments of exp"),
    "unknown operator": (
        with_node(body=Value("blur", "float32", (READ,))),
        "unknown operator blur",
    ),
    "local in a program": (with_node(body=local("v0", "float32")), "a local in a program"),
    "half arithmetic": (
        program_of(
            Value("exp", "float16", (load("h", "float16", [I0]),)),
            buffer("h", "input", 4, dtype="float16"),
            shape=(4,),
        ),
        "exp of float16",
    ),
    "bound over an unknown size": (
        with_node(body=load("x", "float32", [bound(constant(0, "int64"), sym("q"))])),
        "undefined symbol in q",
    ),
    "bad kind": (with_buffer("x", kind="weight"), "bad kind"),
    "unknown dtype": (with_buffer("x", dtype="float12"), "unknown dtype"),
    "strides": (with_buffer("x", strides=()), "one stride a dimension"),
    "temp with an offset": (with_buffer("out", offset=const(1)), "a temp with an offset"),
    "size that is no symbol": (with_buffer("x", shape=(sym("q"),)), "undefined symbol in q"),
    "two buffers of one name": (
        replace(good(), buffers=(*good().buffers, X)),
        "two things called x",
    ),
    "input not listed": (replace(good(), inputs=()), "inputs and input buffers differ"),
    "output not defined": (
        replace(good(), outputs=(TensorRef("z", (), (), const(0)),)),
        "z is read before it is defined",
    ),
    "call before its argument": (
        replace(
            good(),
            nodes=(
                Extern((), "aten.neg.default", (whole(good().buffer("out")),), (), ORIGIN),
                *good().nodes,
            ),
        ),
        "out is read before it is defined",
    ),
    "mutation of a temp": (
        replace(good(), mutations=(Mutation("out", "out"),)),
        "the target is not an input",
    ),
    "mutation from an input": (
        replace(good(), mutations=(Mutation("x", "x"),)),
        "x is not a defined temp",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_program(name: str) -> None:
    program, message = BROKEN[name]
    with pytest.raises(VerifyError, match=message) as caught:
        verify_program(program)
    assert caught.value.where


def kernel(**changes: Any) -> Kernel:
    return replace(softmax_kernel(), **changes)


def statements(*new: Statement) -> Kernel:
    """The softmax kernel with its last statements replaced."""
    old = softmax_kernel().statements
    return kernel(statements=(*old[: len(old) - len(new)], *new))


R0, X0 = sym("r0_0"), sym("x0")
SUM = local("v2", "float32")
PLACE = X0 * 5 + R0
BROKEN_KERNELS: dict[str, tuple[Kernel, str]] = {
    "local before definition": (
        statements(
            Statement("v3", "xr", None, local("v9", "float32"), (Store("out_ptr0", PLACE),))
        ),
        "v9 is used before",
    ),
    "dtype of a local": (
        statements(
            Statement(
                "v3",
                "xr",
                None,
                cast(local("v2", "float64"), "float32"),
                (Store("out_ptr0", PLACE),),
            )
        ),
        "dtype of local v2",
    ),
    "local of the wrong space": (
        statements(Statement("v3", "x", None, local("v1", "float32"), (Store("out_ptr0", X0),))),
        "v1 of space xr is used in space x",
    ),
    "reduce axis in space x": (
        statements(
            Statement(
                "v3", "x", None, load("in_ptr0", "float32", [PLACE]), (Store("out_ptr0", X0),)
            )
        ),
        "undefined symbol",
    ),
    "store over a reduce axis": (
        statements(Statement("v3", "x", None, SUM, (Store("out_ptr0", PLACE),))),
        "undefined symbol",
    ),
    "store to an input": (
        statements(Statement("v3", "xr", None, SUM, (Store("in_ptr0", PLACE),))),
        "store to in_ptr0",
    ),
    "store of another dtype": (
        statements(Statement("v3", "xr", None, cast(SUM, "float64"), (Store("out_ptr0", PLACE),))),
        "dtype of a store",
    ),
    "load from an output": (
        statements(
            Statement(
                "v3", "xr", None, load("out_ptr0", "float32", [PLACE]), (Store("out_ptr0", PLACE),)
            )
        ),
        "load from out_ptr0",
    ),
    "rank of a load": (
        statements(
            Statement(
                "v3", "xr", None, load("in_ptr0", "float32", [X0, R0]), (Store("out_ptr0", PLACE),)
            )
        ),
        "rank of a load",
    ),
    "every row on one element": (
        statements(Statement("v3", "xr", None, SUM, (Store("out_ptr0", R0),))),
        "overlap",
    ),
    "two axes of one stride": (
        statements(Statement("v3", "xr", None, SUM, (Store("out_ptr0", X0 + R0),))),
        "overlap",
    ),
    "the same store twice": (
        statements(
            Statement("v3", "xr", None, SUM, (Store("out_ptr0", PLACE), Store("out_ptr0", PLACE)))
        ),
        "overlap",
    ),
    "nothing stored": (
        statements(Statement("v3", "xr", None, SUM, ())),
        "out_ptr0 is never stored",
    ),
    "defined twice": (
        statements(
            Statement("v2", "xr", None, local("v1", "float32"), (Store("out_ptr0", PLACE),))
        ),
        "defined twice",
    ),
    "combine in space x": (
        statements(Statement("v3", "x", "sum", SUM, (Store("out_ptr0", X0),))),
        "bad combine",
    ),
    "bad space": (
        statements(Statement("v3", "y", None, SUM, (Store("out_ptr0", X0),))),
        "bad space",
    ),
    "form": (kernel(form="poi"), "form and reduce_axes"),
    "index dtype": (kernel(index_dtype="int16"), "bad index dtype"),
    "bounds flag": (kernel(bounds_checked=True), "bounds_checked"),
    "pointer called twice": (
        kernel(pointers=(*softmax_kernel().pointers, Pointer("in_ptr0", "in", "float32"))),
        "two things called in_ptr0",
    ),
}


@pytest.mark.parametrize("name", BROKEN_KERNELS)
def test_broken_kernel(name: str) -> None:
    broken, message = BROKEN_KERNELS[name]
    if name == "defined twice":
        broken = replace(
            broken, statements=(*softmax_kernel().statements[:3], *broken.statements[-1:])
        )
    with pytest.raises(VerifyError, match=message):
        verify_kernel(broken)


def test_golden_kernel(golden: Any) -> None:
    golden.check("softmax_kernel", kernel_text(softmax_kernel()))


def test_text_names_every_part() -> None:
    text = program_text(good())
    assert "input x: float32[4] cpu" in text
    assert "add(x[i0], 1.0)" in text
    assert "output out [4]" in text
