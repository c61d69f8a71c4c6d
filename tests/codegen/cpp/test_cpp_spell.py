"""Every scalar operator has a C++ spelling for every type of its domain, and means what its reference means."""

from __future__ import annotations

import numpy as np
import pytest
from cpp_harness import build, run

from stax.base.errors import VerifyError
from stax.codegen.cpp.spell import CLASSES, SPELLINGS, class_of, spell_op
from stax.codegen.cpp.types import literal
from stax.ir.dtypes import DTYPES
from stax.ir.ops import SCALAR_OPS, ScalarOp
from stax.ir.value import cast, constant, scalar
from tests.kernels import X0, Array, Buffers, KernelCase, at, make, numpy_dtype, st

DTYPES_TESTED = (
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
POINTS = 400


def _defined(op: ScalarOp, dtype: str) -> bool:
    """Whether the operator is one of ``dtype``: bools have those whose reference gives a bool."""
    kind = DTYPES[dtype].kind
    if op.domain == "int64":
        return dtype == "int64"
    if op.domain == "float":
        return kind == "float"
    if op.domain == "int" and kind == "float":
        return False
    if kind != "bool":
        return True
    sample = np.array([True, True])
    try:
        return op.reference(*[sample] * op.arity).dtype == np.bool_
    except TypeError:
        return False


def test_every_row_has_a_column_for_every_class() -> None:
    assert SPELLINGS.keys() == SCALAR_OPS.keys()
    assert all(len(row) == len(CLASSES) for row in SPELLINGS.values())


@pytest.mark.parametrize("dtype", DTYPES_TESTED)
def test_every_operator_of_a_type_is_spelled(dtype: str) -> None:
    for op in SCALAR_OPS.values():
        if _defined(op, dtype):
            assert spell_op(op.name, dtype, ("a", "b")[: op.arity])


def test_what_is_not_defined_is_refused() -> None:
    for op, dtype in (
        ("exp", "int32"),
        ("and", "float32"),
        ("lshift", "bool"),
        ("nothing", "bool"),
    ):
        with pytest.raises(VerifyError, match=f"no C\\+\\+ spelling of {op} for {dtype}"):
            spell_op(op, dtype, ("a", "b"))
    with pytest.raises(VerifyError, match="complex"):
        class_of("complex64")


def _case(dtype: str, ops: list[ScalarOp]) -> KernelCase:
    """One kernel with a result for each operator."""
    a, b = at("in_ptr0", X0, dtype), at("in_ptr1", X0, dtype)
    out = [
        st(f"v{i}", scalar(op.name, *(a, b)[: op.arity]), (f"out_ptr{i}", X0))
        for i, op in enumerate(ops)
    ]
    pointers = [f"in_ptr0:{dtype}", f"in_ptr1:{dtype}"]
    pointers += [f"out_ptr{i}:{s.dtype}" for i, s in enumerate(out)]
    kernel = make(out, x=[POINTS], pointers=pointers)
    return KernelCase(dtype, kernel, {p.name: POINTS for p in kernel.pointers}, None)


def _inputs(case: KernelCase, dtype: str) -> Buffers:
    rng = np.random.default_rng(11)
    buffers = case.inputs(3)
    kind, size = DTYPES[dtype].kind, DTYPES[dtype].itemsize
    if kind == "float":
        special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -2.5, 0.5]
        pairs = np.array([(p, q) for p in special for q in special])
        for i in (0, 1):
            data = rng.standard_normal(POINTS) * rng.choice([0.1, 1, 10, 40], POINTS)
            data[: len(pairs)] = pairs[:, i]
            buffers[f"in_ptr{i}"] = data.astype(dtype)
    elif kind != "bool":
        limits = np.iinfo(dtype)
        wide = rng.integers(limits.min, limits.max, POINTS, dtype=dtype, endpoint=True)
        wide[:4] = [limits.min, limits.max, 0, 1]
        buffers["in_ptr0"] = wide
        # Small and not zero: divisors, shifts and exponents at once.
        buffers["in_ptr1"] = rng.integers(1, 8 * size - 1, POINTS).astype(dtype)
        if kind == "int":
            buffers["in_ptr1"][POINTS // 2 :] *= -1
    return buffers


def _compare(op: ScalarOp, dtype: str, got: Array, buffers: Buffers) -> None:
    a, b = buffers["in_ptr0"], buffers["in_ptr1"]
    if op.name in ("lshift", "rshift", "pow") and DTYPES[dtype].kind == "int":
        a, b, got = a[: POINTS // 2], b[: POINTS // 2], got[: POINTS // 2]
    with np.errstate(all="ignore"):
        want = op.reference(*(a, b)[: op.arity])
    if op.name == "sign" and DTYPES[dtype].is_float:
        want = np.where(np.isnan(a), 0, want)  # as torch on the CPU
    if want.dtype == np.bool_ or not DTYPES[dtype].is_float:
        np.testing.assert_array_equal(got, want, err_msg=op.name)
    else:
        tolerance = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-37, err_msg=op.name)


@pytest.mark.parametrize("dtype", DTYPES_TESTED)
def test_meaning(dtype: str) -> None:
    ops = [op for op in SCALAR_OPS.values() if _defined(op, dtype)]
    case = _case(dtype, ops)
    buffers = _inputs(case, dtype)
    code, got = run(build(case.kernel), case, buffers)
    assert code == 0
    for i, op in enumerate(ops):
        _compare(op, dtype, got[f"out_ptr{i}"], buffers)


def test_integer_division_never_ends_the_process() -> None:
    """By zero it gives 0; the least integer by -1 wraps."""
    for dtype in ("int8", "int32", "int64", "uint8"):
        ops = [SCALAR_OPS[n] for n in ("floordiv", "remainder", "fmod")]
        case = _case(dtype, ops)
        buffers = case.inputs(0)
        least = np.iinfo(dtype).min
        buffers["in_ptr0"][:] = least
        buffers["in_ptr1"][: POINTS // 2] = 0
        buffers["in_ptr1"][POINTS // 2 :] = np.array(-1).astype(dtype)
        _, got = run(build(case.kernel), case, buffers)
        quotient = got["out_ptr0"]
        assert (quotient[: POINTS // 2] == 0).all()
        assert (quotient[POINTS // 2 :] == (least if least else 0)).all()


def test_shifts_by_more_than_the_width() -> None:
    case = _case("int32", [SCALAR_OPS["lshift"], SCALAR_OPS["rshift"]])
    buffers = case.inputs(0)
    buffers["in_ptr0"][:] = -5
    buffers["in_ptr1"][:] = 40
    _, got = run(build(case.kernel), case, buffers)
    assert (got["out_ptr0"] == 0).all()
    assert (got["out_ptr1"] == -1).all()


# -- casts and constants


@pytest.mark.parametrize("source", DTYPES_TESTED)
def test_casts(source: str) -> None:
    targets = [*DTYPES_TESTED, "float16", "bfloat16"]
    x = at("in_ptr0", X0, source)
    out = [st(f"v{i}", cast(x, to), (f"out_ptr{i}", X0)) for i, to in enumerate(targets)]
    pointers = [f"in_ptr0:{source}", *(f"out_ptr{i}:{t}" for i, t in enumerate(targets))]
    kernel = make(out, x=[300], pointers=pointers)
    case = KernelCase("casts", kernel, {p.name: 300 for p in kernel.pointers}, None)
    buffers = case.inputs(4)
    if DTYPES[source].is_float:
        buffers["in_ptr0"] = np.abs(buffers["in_ptr0"] * 40).astype(source)
    _, got = run(build(kernel), case, buffers)
    import torch

    # torch has no arithmetic on wide unsigned types, but it converts them.
    tensor = torch.from_numpy(buffers["in_ptr0"])
    for i, to in enumerate(targets):
        want = tensor.to(getattr(torch, to))
        plain = want.float().numpy() if to == "bfloat16" else want.numpy()
        np.testing.assert_array_equal(got[f"out_ptr{i}"], plain.astype(numpy_dtype(to)), to)


def test_floats_that_no_integer_holds_do_not_end_the_process() -> None:
    x = at("in_ptr0", X0)
    targets = [t for t in DTYPES_TESTED if t != "float64"]
    out = [st(f"v{i}", cast(x, to), (f"out_ptr{i}", X0)) for i, to in enumerate(targets)]
    pointers = ["in_ptr0:float32", *(f"out_ptr{i}:{t}" for i, t in enumerate(targets))]
    kernel = make(out, x=[8], pointers=pointers)
    case = KernelCase("casts", kernel, {p.name: 8 for p in kernel.pointers}, None)
    buffers = case.inputs(4)
    buffers["in_ptr0"][:] = [np.nan, np.inf, -np.inf, 1e30, -1e30, 300, -1, 0.5]
    code, got = run(build(kernel), case, buffers)
    assert code == 0
    assert got["out_ptr5"].dtype == np.uint8
    assert list(got["out_ptr5"][5:]) == [44, 255, 0]


def test_constants_are_exact() -> None:
    values = [0.1, 1e-45, 3.4028235e38, 1e39, -0.0, 1 / 3, 16777217.0, float("nan"), -float("inf")]
    out = [st(f"v{i}", constant(v, "float32"), ("out_ptr0", i)) for i, v in enumerate(values)]
    out += [st(f"v{i + 20}", constant(v, "float64"), ("out_ptr1", i)) for i, v in enumerate(values)]
    whole = [-(2**63), 2**63 - 1, -1, 2**31, -(2**31) - 1, 0]
    out += [st(f"v{i + 40}", constant(v, "int64"), ("out_ptr2", i)) for i, v in enumerate(whole)]
    kernel = make(out, pointers=["out_ptr0:float32", "out_ptr1:float64", "out_ptr2:int64"])
    case = KernelCase("constants", kernel, {p.name: 9 for p in kernel.pointers}, None)
    _, got = run(build(kernel), case, case.inputs())
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got["out_ptr0"], np.array(values).astype(np.float32))
    np.testing.assert_array_equal(got["out_ptr1"], np.array(values))
    assert np.signbit(got["out_ptr0"][4])
    assert list(got["out_ptr2"][:6]) == whole


def test_the_text_of_constants_is_short() -> None:
    assert literal(0.1, "float32") == "0.1f"
    assert literal(1, "float32") == "1.0f"
    assert literal(-2.5, "float64") == "(-2.5)"
    assert literal(1e39, "float32") == "__builtin_inff()"
    assert literal(True, "bool") == "true"
    assert literal(7, "int64") == "(int64_t)7"
