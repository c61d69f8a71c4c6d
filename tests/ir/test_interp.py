"""The numpy oracle against torch: memory through strides, values, reductions, kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stax.base.errors import VerifyError
from stax.ir.expr import Expr, const, sym
from stax.ir.interp import Tensor, convert, round_bfloat16, run, run_kernel
from stax.ir.kernel import Kernel, Pointer, Size, Statement, Store
from stax.ir.program import (
    Axis,
    Buffer,
    Computation,
    Extern,
    Literal,
    Mutation,
    Origin,
    Program,
    Symbol,
    TensorRef,
    contiguous,
)
from stax.ir.value import Value, bound, cast, constant, index, load, local, scalar, where

N = sym("n")
ORIGIN = Origin("test")


def buffer(
    name: str,
    kind: str,
    *shape: Expr | int,
    dtype: str = "float32",
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
) -> Buffer:
    sizes = tuple(map(const, shape))
    return Buffer(
        name,
        kind,
        dtype,
        sizes,
        contiguous(sizes) if strides is None else tuple(map(const, strides)),
        const(offset),
        "cpu",
    )


def whole(b: Buffer) -> TensorRef:
    return TensorRef(b.name, b.shape, b.strides, b.offset)


def program_of(
    body: Value,
    *inputs: Buffer,
    shape: tuple[Expr | int, ...],
    over: tuple[Axis, ...] = (),
    combine: str | None = None,
) -> Program:
    out = buffer(
        "out", "temp", *shape, dtype="int64" if combine in ("argmax", "argmin") else body.dtype
    )
    axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(out.shape))
    symbols = (
        (Symbol("n", 3),) if any("n" in e.symbols for b in (*inputs, out) for e in b.shape) else ()
    )
    node = Computation("out", axes, over, combine, body, ORIGIN)
    return Program(
        symbols, (*inputs, out), tuple(b.name for b in inputs), (node,), (whole(out),), ()
    )


def test_strided_input_and_offset() -> None:
    x = buffer("x", "input", 2, 3, strides=(1, 4), offset=5)
    program = program_of(
        scalar("add", load("x", "float32", [sym("i0"), sym("i1")]), constant(1, "float32")),
        x,
        shape=(2, 3),
    )
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(program, [array], {})[0], array + 1)


def test_sizes_are_given_at_the_call() -> None:
    x = buffer("x", "input", N)
    body = scalar("mul", load("x", "float32", [sym("i0")]), cast(index(sym("i0") * N), "float32"))
    program = program_of(body, x, shape=(N,))
    for n in (2, 5):
        array = np.ones(n, np.float32)
        np.testing.assert_array_equal(run(program, [array], {"n": n})[0], np.arange(n) * n)


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_combines(combine: str) -> None:
    x = buffer("x", "input", 4, 5)
    body = load("x", "float32", [sym("i0"), sym("r0")])
    program = program_of(body, x, shape=(4,), over=(Axis("r0", const(5)),), combine=combine)
    array = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    array[1, 3] = np.nan
    tensor = torch.from_numpy(array)
    expected = {
        "sum": tensor.sum(1),
        "prod": tensor.prod(1),
        "max": tensor.amax(1),
        "min": tensor.amin(1),
        "argmax": tensor.argmax(1),
        "argmin": tensor.argmin(1),
    }[combine]
    np.testing.assert_allclose(run(program, [array], {})[0], expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("combine", ["any", "all"])
def test_boolean_combines(combine: str) -> None:
    x = buffer("x", "input", 4, 0, dtype="bool")
    program = program_of(
        load("x", "bool", [sym("i0"), sym("r0")]),
        x,
        shape=(4,),
        over=(Axis("r0", const(0)),),
        combine=combine,
    )
    assert run(program, [np.empty((4, 0), bool)], {})[0].tolist() == [combine == "all"] * 4


def test_masked_load_reads_nothing_where_the_mask_is_false() -> None:
    x = buffer("x", "input", 3)
    mask = scalar("lt", index(sym("i0")), index(3))
    program = program_of(load("x", "float32", [sym("i0")], mask, -1.0), x, shape=(5,))
    assert run(program, [np.arange(3, dtype=np.float32)], {})[0].tolist() == [0, 1, 2, -1, -1]
    with pytest.raises(VerifyError, match="out of bounds"):
        run(
            program_of(load("x", "float32", [sym("i0")]), x, shape=(5,)),
            [np.zeros(3, np.float32)],
            {},
        )


def test_bound() -> None:
    x, i = buffer("x", "input", 3), buffer("i", "input", 2, dtype="int64")
    place = bound(load("i", "int64", [sym("i0")]), 3)
    program = program_of(load("x", "float32", [place]), x, i, shape=(2,))
    x_values = np.arange(3, dtype=np.float32)
    assert run(program, [x_values, np.array([2, 0])], {})[0].tolist() == [2, 0]
    for bad in (3, -1):
        with pytest.raises(
            IndexError, match=f"index {bad} is out of bounds for a dimension of size 3"
        ):
            run(program, [x_values, np.array([0, bad])], {})


def test_external_call_gets_strided_views() -> None:
    x, out = buffer("x", "input", 2, 3), buffer("out", "temp", 3, 2)
    ref = TensorRef("x", (const(3), const(2)), (const(1), const(3)), const(0))
    call = Extern(("out",), "aten.neg.default", (ref,), (("k", Literal(2)),), ORIGIN)
    program = Program((), (x, out), ("x",), (call,), (whole(out), Literal("text"), const(4)), ())

    def negate(target: str, args: list[Tensor], kwargs: dict[str, object]) -> list[Tensor]:
        assert (target, kwargs, args[0].dtype) == ("aten.neg.default", {"k": 2}, "float32")
        return [Tensor(-args[0].array, "float32")]

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = run(program, [array], {}, negate)
    np.testing.assert_array_equal(found[0], -array.T)
    assert found[1:] == ["text", 4]
    with pytest.raises(VerifyError, match="external call"):
        run(program, [array], {})


def test_mutation_shows_in_aliases() -> None:
    x, out = buffer("x", "input", 3), buffer("out", "temp", 3)
    body = scalar("add", load("x", "float32", [sym("i0")]), constant(1, "float32"))
    node = Computation("out", (Axis("i0", const(3)),), (), None, body, ORIGIN)
    program = Program((), (x, out), ("x",), (node,), (whole(x),), (Mutation("x", "out"),))
    array = np.zeros(3, np.float32)
    assert run(program, [array], {})[0].tolist() == [1, 1, 1]
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool", "float64"]
)
def test_casts_are_torch_s(dtype: str) -> None:
    values = [0.0, -0.0, 0.4, -0.6, 1.5, 2.5, -3.7, 100.3, 65519.0, 1e-8, 3.0e38]
    values = values if dtype in ("bfloat16", "float16", "bool", "float64", "int64") else values[:8]
    values = [v for v in values if dtype != "int64" or v < 1e18]
    x = torch.tensor(values)
    expected = x.to(getattr(torch, dtype))
    expected = expected.float() if dtype == "bfloat16" else expected
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(convert(x.numpy(), dtype), expected.numpy())


def test_bfloat16_rounding_is_torch_s() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    expected = torch.from_numpy(x.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(round_bfloat16(x), expected)
    assert np.isnan(round_bfloat16(np.array([np.nan], np.float32))).all()


def softmax_kernel() -> Kernel:
    """Rows of softmax: a maximum, exponentials, their sum, a quotient stored."""
    x0, r0 = sym("x0"), sym("r0_0")
    read = load("in_ptr0", "float32", [x0 * 5 + r0])
    return Kernel(
        "per",
        (Axis("x0", sym("ks0")),),
        (Axis("r0_0", const(5)),),
        (Pointer("in_ptr0", "in", "float32"), Pointer("out_ptr0", "out", "float32")),
        (Size("ks0", 2, None, 3),),
        (
            Statement("v0", "xr", "max", read, ()),
            Statement(
                "v1", "xr", None, scalar("exp", scalar("sub", read, local("v0", "float32"))), ()
            ),
            Statement("v2", "xr", "sum", local("v1", "float32"), ()),
            Statement(
                "v3",
                "xr",
                None,
                scalar("truediv", local("v1", "float32"), local("v2", "float32")),
                (Store("out_ptr0", x0 * 5 + r0),),
            ),
        ),
        "int32",
        False,
        ("aten._softmax.default",),
    )


@pytest.mark.parametrize("rows", [2, 7])
def test_kernel(rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
    out = np.zeros(rows * 5, np.float32)
    run_kernel(softmax_kernel(), {"in_ptr0": x.reshape(-1), "out_ptr0": out}, {"ks0": rows})
    np.testing.assert_allclose(
        out.reshape(rows, 5), torch.from_numpy(x).softmax(1).numpy(), rtol=1e-6
    )


def test_kernel_reduction_is_stored_once_a_row() -> None:
    x0, r0 = sym("x0"), sym("r0_0")
    kernel = Kernel(
        "red",
        (Axis("x0", const(3)),),
        (Axis("r0_0", const(4)),),
        (Pointer("in_ptr0", "in", "float32"), Pointer("out_ptr0", "inout", "float32")),
        (),
        (
            Statement("v0", "xr", "sum", load("in_ptr0", "float32", [x0 * 4 + r0]), ()),
            Statement(
                "v1",
                "x",
                None,
                scalar("add", local("v0", "float32"), load("out_ptr0", "float32", [x0])),
                (Store("out_ptr0", x0),),
            ),
        ),
        "int32",
        False,
        ("aten.sum.default",),
    )
    out = np.ones(3, np.float32)
    run_kernel(kernel, {"in_ptr0": np.arange(12, dtype=np.float32), "out_ptr0": out}, {})
    assert out.tolist() == [7, 23, 39]


def test_where_and_shared_values() -> None:
    x = buffer("x", "input", 4)
    v = load("x", "float32", [sym("i0")])
    body = where(
        scalar("gt", v, constant(0, "float32")), v, scalar("mul", v, constant(0.1, "float32"))
    )
    array = np.array([-2, -1, 0, 3], np.float32)
    np.testing.assert_allclose(
        run(program_of(body, x, shape=(4,)), [array], {})[0], [-0.2, -0.1, 0, 3], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("rows", "cols", "expected"),
    [(2, 0, [3.0, 4.0]), (0, 3, [77.0, 77.0]), (2, 3, [6.0, 16.0])],
)
def test_rows_without_elements_are_stored(rows: int, cols: int, expected: list[float]) -> None:
    """A sum over nothing is 0, and what is computed once a row still reads memory."""
    x0, r0 = sym("x0"), sym("r0_0")
    total = scalar("add", local("v0", "float32"), load("in_ptr1", "float32", [x0]))
    kernel = Kernel(
        "red",
        (Axis("x0", sym("ks0")),),
        (Axis("r0_0", sym("ks1")),),
        (
            Pointer("in_ptr0", "in", "float32"),
            Pointer("in_ptr1", "in", "float32"),
            Pointer("out_ptr0", "out", "float32"),
        ),
        (Size("ks0", 0, None, 2), Size("ks1", 0, None, 3)),
        (
            Statement("v0", "xr", "sum", load("in_ptr0", "float32", [x0 * sym("ks1") + r0]), ()),
            Statement("v1", "x", None, total, (Store("out_ptr0", x0),)),
        ),
        "int64",
        False,
        ("aten.sum.default",),
    )
    arrays = {
        "in_ptr0": np.arange(rows * cols, dtype=np.float32),
        "in_ptr1": np.array([3, 4], np.float32),
        "out_ptr0": np.full(2, 77, np.float32),
    }
    run_kernel(kernel, arrays, {"ks0": rows, "ks1": cols})
    assert arrays["out_ptr0"].tolist() == expected


def test_argmax_over_an_empty_space() -> None:
    """No rows give no positions; a row without elements has none, and eager raises too."""
    x = buffer("x", "input", N, 4)
    body = load("x", "float32", [sym("i0"), sym("r0")])
    program = program_of(body, x, shape=(N,), over=(Axis("r0", const(4)),), combine="argmax")
    assert run(program, [np.zeros((0, 4), np.float32)], {"n": 0})[0].shape == (0,)
    x = buffer("x", "input", 2, N)
    program = program_of(body, x, shape=(2,), over=(Axis("r0", N),), combine="argmax")
    with pytest.raises(IndexError, match="argmax of no elements"):
        run(program, [np.zeros((2, 0), np.float32)], {"n": 0})
