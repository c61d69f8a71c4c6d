"""Rules of comparison, logic, bits, questions about floats, and choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from stax.ir.dtypes import DTYPES
from stax.ir.value import Value, scalar, where
from stax.lower.build import Call, Rule, Table
from stax.lower.pointwise import both, elementwise, negative, num, overloads, unary, zero
from stax.lower.scalars import Operand, common_dtype, rounded
from stax.lower.views import View

# -- comparison and logic


def compare(op: str) -> Rule:
    def rule(c: Call, x: Operand, y: Operand) -> View:
        common = common_dtype(x, y)
        return elementwise(
            c, partial(scalar, op), rounded(x, common), rounded(y, common), dtype=common
        )

    return rule


def logical(op: str) -> Rule:
    return lambda c, x, y: elementwise(c, partial(scalar, op), x, y, dtype="bool")


def bitwise(op: str) -> Rule:
    return lambda c, x, y: elementwise(c, partial(scalar, op), x, y)


def shift(op: str) -> Rule:
    """A count outside 0 .. bits-1 shifts everything out, as in eager."""

    def fn(a: Value, b: Value) -> Value:
        bits = 8 * DTYPES[a.dtype].itemsize
        fits = both(scalar("ge", b, zero(b)), scalar("lt", b, num(bits, b)))
        if op == "rshift":
            return scalar("rshift", a, where(fits, b, num(bits - 1, b)))
        return where(fits, scalar("lshift", a, where(fits, b, zero(b))), zero(a))

    return lambda c, x, y: elementwise(c, fn, x, y)


def classify(fn: Callable[[Value], Value]) -> Rule:
    """A question about floats; integers are never NaN or infinite and are asked as float32."""

    def rule(c: Call, x: View) -> View:
        return elementwise(c, fn, x, dtype=x.dtype if DTYPES[x.dtype].is_float else "float32")

    return rule


def isfinite(x: Value) -> Value:
    return scalar("lt", scalar("abs", x), num(math.inf, x))


def nan_to_num(
    c: Call,
    x: View,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> View:
    if not DTYPES[x.dtype].is_float:
        return c.fill(c.operand(x, x.dtype))
    limits = torch.finfo(getattr(torch, x.dtype))
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def fn(v: Value) -> Value:
        v = where(scalar("isnan", v), num(0.0 if nan is None else nan, v), v)
        v = where(scalar("eq", v, num(math.inf, v)), num(high, v), v)
        return where(scalar("eq", v, num(-math.inf, v)), num(low, v), v)

    return elementwise(c, fn, x)


# -- choice


def where_rule(c: Call, condition: View, x: Operand, y: Operand) -> View:
    chosen = c.operand(condition, "bool")
    return c.fill(where(chosen, *(c.operand(o, c.out.dtype) for o in (x, y))))


def masked_fill(c: Call, x: View, mask: View, value: Operand) -> View:
    return where_rule(c, mask, value, x)


def clamp(c: Call, x: View, min: Operand | None = None, max: Operand | None = None) -> View:
    low, high = (None if v is None else rounded(v, c.out.dtype) for v in (min, max))

    def fn(v: Value, *ends: Value) -> Value:
        rest = list(ends)
        if low is not None:
            v = scalar("maximum", v, rest.pop(0))
        return v if high is None else scalar("minimum", v, rest.pop(0))

    return elementwise(c, fn, x, *(v for v in (low, high) if v is not None))


def clamp_max(c: Call, x: View, max: Operand) -> View:
    return clamp(c, x, None, max)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

RULES: Table = {
    **{
        k: r
        for op in _COMPARISONS
        for k, r in overloads(op, compare(op), "Tensor", "Scalar").items()
    },
    "aten.signbit.default": classify(negative),
    **{f"aten.logical_{op}.default": logical(op) for op in ("and", "or", "xor")},
    "aten.logical_not.default": lambda c, x: elementwise(
        c, partial(scalar, "not"), x, dtype="bool"
    ),
    **{
        k: r
        for op in ("and", "or", "xor")
        for k, r in overloads(
            f"bitwise_{op}", bitwise(op), "Tensor", "Scalar", "Scalar_Tensor"
        ).items()
    },
    "aten.bitwise_not.default": unary(partial(scalar, "not")),
    **overloads("bitwise_left_shift", shift("lshift"), "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
    **overloads("bitwise_right_shift", shift("rshift"), "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
    **overloads("__lshift__", shift("lshift"), "Tensor", "Scalar"),
    **overloads("__rshift__", shift("rshift"), "Tensor", "Scalar"),
    "aten.isnan.default": classify(partial(scalar, "isnan")),
    "aten.isinf.default": classify(partial(scalar, "isinf")),
    "aten.isfinite.default": classify(isfinite),
    "aten.isposinf.default": classify(lambda x: scalar("eq", x, num(math.inf, x))),
    "aten.isneginf.default": classify(lambda x: scalar("eq", x, num(-math.inf, x))),
    "aten.nan_to_num.default": nan_to_num,
    "aten.where.self": where_rule,
    **overloads("where", where_rule, "ScalarSelf", "ScalarOther", "Scalar"),
    **overloads("masked_fill", masked_fill, "Scalar", "Tensor"),
    **overloads("clamp", clamp, "default", "Tensor"),
    **overloads("clamp_min", clamp, "default", "Tensor"),
    **overloads("clamp_max", clamp_max, "default", "Tensor"),
}
