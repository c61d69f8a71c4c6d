"""Every scalar operator and every cast is spelled for every dtype it is for, compiles, and means what torch means."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stax.base.errors import VerifyError
from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.build.triton import compile_triton
from stax.codegen.triton.emit import emit
from stax.codegen.triton.spell import COMBINES as SPELLED_COMBINES
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel
from stax.ir.ops import COMBINES, SCALAR_OPS, ScalarOp
from stax.ir.source import Source
from stax.ir.value import Value, cast, constant, scalar, where
from tests.kernels import X0, at, make, numpy_dtype, st
from tests.triton_interpret import Interpreter

HOPPER = Target("cuda", "sm_90")
FLOATS = ("float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALVES = ("float16", "bfloat16")
# A bool is cast before these: torch refuses them too, or promotes.
NOT_OF_BOOL = {"floordiv", "remainder", "fmod", "neg", "pow", "lshift", "rshift"}
TORCH: dict[str, Callable[..., Any]] = {
    "truediv": torch.true_divide, "floordiv": torch.floor_divide, "maximum": torch.maximum, "minimum": torch.minimum,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not,
    "lshift": operator.lshift, "rshift": operator.rshift,
}  # fmt: skip


def applies(row: ScalarOp, dtype: str) -> bool:
    kind = DTYPES[dtype].kind
    if dtype == "bool" and row.name in NOT_OF_BOOL:
        return False
    if row.domain == "int64":
        return dtype == "int64"
    return row.domain == "any" or (row.domain == "float") == (kind == "float")


def kernel_of(dtype: str, count: int) -> tuple[Kernel, list[ScalarOp]]:
    """One kernel that applies every operator of a dtype, one output each."""
    rows = [row for row in SCALAR_OPS.values() if applies(row, dtype)]
    args = [at("in_ptr0", X0, dtype), at("in_ptr1", X0, dtype)]
    values = [scalar(row.name, *args[: row.arity]) for row in rows]
    return _stored(values, [f"in_ptr0:{dtype}", f"in_ptr1:{dtype}"], count), rows


def _stored(values: list[Value], inputs: list[str], count: int) -> Kernel:
    statements = [st(f"v{k}", v, (f"out_ptr{k}", X0)) for k, v in enumerate(values)]
    outputs = [f"out_ptr{k}:{v.dtype}" for k, v in enumerate(values)]
    return make(statements, x=[count], pointers=[*inputs, *outputs])


def pairs(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Interesting values against each other; no integer division by zero."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        values = np.array([False, True])
    elif kind == "float":
        values = np.array(
            [0.0, -0.0, 1, -1, 0.5, -2.5, 3.5, 7, -7.25, 1e-3, 100.125, np.inf, -np.inf, np.nan]
        )
    else:
        bits = 8 * DTYPES[dtype].itemsize
        low = [] if kind == "uint" else [-(2 ** (bits - 1)) + 1, -7, -3, -2, -1]
        values = np.array([*low, 1, 2, 3, 5, 7, 8, 2 ** (bits - 1) - 1])
    values = values.astype(numpy_dtype(dtype))
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def run(
    source: Source, kernel: Kernel, inputs: dict[str, Any], interpreter: Interpreter
) -> list[Any]:
    count = len(inputs["in_ptr0"])
    outs = [p for p in kernel.pointers if p.kind == "out"]
    buffers = {**inputs, **{p.name: np.zeros(count, numpy_dtype(p.dtype)) for p in outs}}
    after = interpreter.run(source, buffers)
    return [after[p.name] for p in outs]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_operators_mean_what_torch_means(dtype: str, interpreter: Interpreter) -> None:
    a, b = pairs(dtype)
    kernel, rows = kernel_of(dtype, len(a))
    found = run(emit(kernel, HOPPER), kernel, {"in_ptr0": a, "in_ptr1": b}, interpreter)
    for row, got in zip(rows, found):
        expected, defined = eager(row, dtype, a, b)
        np.testing.assert_allclose(
            got[defined], expected[defined], rtol=1e-6, err_msg=f"{row.name} of {dtype}"
        )


def eager(row: ScalarOp, dtype: str, a: Any, b: Any) -> tuple[Any, Any]:
    """(torch's result, where it is defined). Unsigned types wider than a byte have few operators in torch: numpy's."""
    defined = np.ones(len(a), bool)
    args = (a, b)[: row.arity]
    if DTYPES[dtype].kind in ("int", "uint") and row.name == "pow":
        defined = (b >= 0) & (b < 64)
    if row.domain == "int64":
        return row.reference(*args), defined
    if dtype in ("uint16", "uint32", "uint64") or (
        dtype == "bool" and row.name in ("add", "mul", "sub", "abs", "sign")
    ):
        with np.errstate(all="ignore"):
            reference = np.logical_xor if (dtype, row.name) == ("bool", "sub") else row.reference
            reference = (lambda x: x) if (dtype, row.name) == ("bool", "sign") else reference
            return reference(*args), defined
    function = (
        TORCH.get(row.name) or getattr(torch, row.name, None) or getattr(torch.special, row.name)
    )
    with np.errstate(all="ignore"):
        result = function(*(torch.from_numpy(x) for x in args))
    return result.numpy(), defined


def test_negative_zero_stays_negative(interpreter: Interpreter) -> None:
    kernel = _stored([scalar("neg", at("in_ptr0", X0))], ["in_ptr0:float32"], 2)
    found = run(
        emit(kernel, HOPPER), kernel, {"in_ptr0": np.array([0, -0.0], np.float32)}, interpreter
    )
    assert list(np.signbit(found[0])) == [True, False]


def test_powers_of_integers_as_torch(interpreter: Interpreter) -> None:
    a = np.array([2, -1, -1, 1, 0, 3, -3, 5], np.int64)
    b = np.array([-1, -3, -4, -9, 0, 40, 41, 0], np.int64)
    kernel = _stored(
        [scalar("pow", at("in_ptr0", X0, "int64"), at("in_ptr1", X0, "int64"))],
        ["in_ptr0:int64", "in_ptr1:int64"],
        8,
    )
    found = run(emit(kernel, HOPPER), kernel, {"in_ptr0": a, "in_ptr1": b}, interpreter)
    np.testing.assert_array_equal(
        found[0], torch.pow(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    )


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_shifts_past_the_width_as_torch(dtype: str, interpreter: Interpreter) -> None:
    a = np.array([1, 5, 100, 77, 3, 127], numpy_dtype(dtype))
    b = np.array([0, 3, 7, 8, 32, 100], numpy_dtype(dtype))
    args = at("in_ptr0", X0, dtype), at("in_ptr1", X0, dtype)
    kernel = _stored(
        [scalar("lshift", *args), scalar("rshift", *args)],
        [f"in_ptr0:{dtype}", f"in_ptr1:{dtype}"],
        6,
    )
    left, right = run(emit(kernel, HOPPER), kernel, {"in_ptr0": a, "in_ptr1": b}, interpreter)
    x, n = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_array_equal(left, (x << n).numpy())
    np.testing.assert_array_equal(right, (x >> n).numpy())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_operators_compile(dtype: str) -> None:
    kernel, _ = kernel_of(dtype, 4096)
    assert compiled(emit(kernel, HOPPER)).startswith(b"\x7fELF")


def compiled(source: Source) -> bytes:
    job = Job(
        "triton", source.entry, source.text, source.params, source.default, HOPPER, Toolchain()
    )
    return compile_triton(job)[0]


def test_an_operator_of_the_wrong_dtype_is_refused() -> None:
    truth = Value("neg", "bool", (at("in_ptr0", X0, "bool"),))
    with pytest.raises(VerifyError, match="no spelling of neg for bool"):
        emit(_stored([truth], ["in_ptr0:bool"], 8), HOPPER)


def test_every_reduction_is_spelled() -> None:
    assert set(SPELLED_COMBINES) == set(COMBINES)


# -- casts and constants

ALL = (*FLOATS, *INTS, *HALVES, "bool")


@pytest.mark.parametrize("source", ALL)
def test_casts_as_torch(source: str, interpreter: Interpreter) -> None:
    kind = DTYPES[source].kind
    values = np.array(
        [0, 1, 2, 3, 100, 127]
        if kind in ("uint", "bool")
        else [0, 1, -1, 2.5, -3.75, 100, 126.5, -127]
    )
    values = np.trunc(values) if kind == "int" else values
    stored = torch.from_numpy(values).to(getattr(torch, source))
    kernel = _stored(
        [cast(at("in_ptr0", X0, source), to) for to in ALL], [f"in_ptr0:{source}"], len(values)
    )
    as_numpy = stored.float().numpy() if source in HALVES else stored.numpy()
    found = run(emit(kernel, HOPPER), kernel, {"in_ptr0": as_numpy}, interpreter)
    for to, got in zip(ALL, found):
        unsigned_wide = to in ("uint16", "uint32", "uint64") and kind == "float"
        expected = (
            stored.to(torch.int64).to(getattr(torch, to))
            if unsigned_wide
            else stored.to(getattr(torch, to))
        )
        np.testing.assert_array_equal(
            got, (expected.float() if to in HALVES else expected).numpy(), err_msg=to
        )
    compiled(emit(kernel, HOPPER))


def test_large_integers_round_once_to_half(interpreter: Interpreter) -> None:
    values = np.array([2049, 65519, 4097, -2051], np.int64)
    kernel = _stored([cast(at("in_ptr0", X0, "int64"), to) for to in HALVES], ["in_ptr0:int64"], 4)
    found = run(emit(kernel, HOPPER), kernel, {"in_ptr0": values}, interpreter)
    for to, got in zip(HALVES, found):
        expected = torch.from_numpy(values).to(getattr(torch, to)).float().numpy()
        np.testing.assert_array_equal(got.astype(np.float32), expected)


CONSTANTS = [
    ("float32", 0.1), ("float32", float("inf")), ("float32", float("nan")), ("float64", 0.1), ("float64", 1e300),
    ("float16", 0.1), ("bfloat16", 0.1), ("int8", -128), ("uint8", 255), ("int64", -(2**63)), ("int64", 2**63 - 1),
    ("uint64", 2**64 - 1), ("uint32", 2**32 - 1), ("int32", -(2**31)), ("bool", True),
]  # fmt: skip


def test_constants_have_their_dtype(interpreter: Interpreter) -> None:
    values = [constant(number, dtype) for dtype, number in CONSTANTS]
    chosen = [where(scalar("gt", at("in_ptr0", X0), constant(0, "float32")), v, v) for v in values]
    kernel = _stored(chosen, ["in_ptr0:float32"], 3)
    source = emit(kernel, HOPPER)
    found = run(source, kernel, {"in_ptr0": np.array([1, -1, 0], np.float32)}, interpreter)
    for (dtype, number), got in zip(CONSTANTS, found):
        if DTYPES[dtype].is_integral:
            assert [int(g) for g in got] == [number] * 3
            continue
        expected = torch.full((3,), number, dtype=getattr(torch, dtype))
        np.testing.assert_array_equal(
            got, (expected.float() if dtype == "bfloat16" else expected).numpy()
        )
    compiled(source)


def test_only_cuda_is_emitted() -> None:
    kernel, _ = kernel_of("float32", 8)
    with pytest.raises(VerifyError, match="another target"):
        emit(kernel, Target("cpu", "x86-64-v3"))
