"""Rules of elementwise arithmetic, comparison, logic, rounding and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.value import Value, cast, constant, scalar, where
from stax.lower.build import Call, Declined, Rule, Table
from stax.lower.scalars import (
    Operand,
    add,
    common_dtype,
    div,
    mul,
    number,
    operand_value,
    rounded,
    sub,
)
from stax.lower.views import View


def elementwise(
    c: Call, fn: Callable[..., Value], *operands: Operand, dtype: str | None = None
) -> View:
    """``fn`` of the operands, broadcast to the result's shape, each as the widened form of ``dtype`` (default: the
    result's); the value is rounded to the result's dtype."""
    compute = accumulator(c.out.dtype if dtype is None else dtype)
    rank = len(c.out.shape)
    return c.fill(cast(fn(*(operand_value(o, compute, rank) for o in operands)), c.out.dtype))


def unary(fn: Callable[[Value], Value]) -> Rule:
    return lambda c, x: elementwise(c, fn, x)


def binary(fn: Callable[[Value, Value], Value]) -> Rule:
    """Python numbers meet half tensors already rounded to the half dtype."""

    def rule(c: Call, x: Operand, y: Operand) -> View:
        storage = c.out.dtype
        return elementwise(c, fn, rounded(x, storage), rounded(y, storage))

    return rule


def zero(like: Value) -> Value:
    return constant(0, like.dtype)


def one(like: Value) -> Value:
    return constant(1, like.dtype)


def num(value: float, like: Value) -> Value:
    return number(value, like.dtype)


def both(a: Value, b: Value) -> Value:
    return scalar("and", a, b)


# -- arithmetic


def _term(c: Call, value: Operand) -> Operand:
    """A number of a sum: on the CPU eager rounds it to a half dtype, elsewhere it keeps it in float32. Factors and
    divisors are never rounded."""
    return rounded(value, c.out.dtype) if c.out.device == "cpu" else value


def add_rule(c: Call, x: Operand, y: Operand, *, alpha: Operand = 1) -> View:
    fn = add if alpha == 1 else lambda a, b, k: add(a, mul(k, b))
    return elementwise(c, fn, *_terms(c, x, y, alpha))


def sub_rule(c: Call, x: Operand, y: Operand, *, alpha: Operand = 1) -> View:
    fn = sub if alpha == 1 else lambda a, b, k: sub(a, mul(k, b))
    return elementwise(c, fn, *_terms(c, x, y, alpha))


def rsub_rule(c: Call, x: Operand, y: Operand, alpha: Operand = 1) -> View:
    return sub_rule(c, y, x, alpha=alpha)


def _terms(c: Call, x: Operand, y: Operand, alpha: Operand) -> list[Operand]:
    return [_term(c, v) for v in ((x, y) if alpha == 1 else (x, y, alpha))]


def mul_rule(c: Call, x: Operand, y: Operand) -> View:
    return elementwise(c, mul, x, y)


def div_rule(c: Call, x: Operand, y: Operand) -> View:
    return elementwise(c, div, x, y)


def div_mode(
    c: Call, x: Operand, y: Operand, *, rounding_mode: str | None = None
) -> View | Declined:
    if rounding_mode is None:
        return div_rule(c, x, y)
    refused = _checked_division(c, y)
    if refused is not None:
        return refused
    return elementwise(
        c, partial(scalar, "floordiv") if rounding_mode == "floor" else _trunc_div, x, y
    )


def _trunc_div(a: Value, b: Value) -> Value:
    if DTYPES[a.dtype].is_float:
        return scalar("trunc", div(a, b))
    return scalar("floordiv", sub(a, scalar("fmod", a, b)), b)


def floor_divide(c: Call, x: Operand, y: Operand) -> View | Declined:
    return div_mode(c, x, y, rounding_mode="floor")


def _modulo(op: str) -> Rule:
    def rule(c: Call, x: Operand, y: Operand) -> View | Declined:
        refused = _checked_division(c, y)
        storage = c.out.dtype
        fn = partial(scalar, op)
        return (
            elementwise(c, fn, rounded(x, storage), rounded(y, storage))
            if refused is None
            else refused
        )

    return rule


def _checked_division(c: Call, y: Operand) -> Declined | None:
    """Eager raises on an integer division by zero on the CPU: only torch can say so when the divisor is data."""
    if (
        DTYPES[c.out.dtype].is_float
        or (isinstance(y, int) and y != 0)
        or not isinstance(y, (View, int))
    ):
        return None
    if isinstance(y, View) and c.out.device != "cpu":
        return None
    return Declined("an integer divisor that may be zero raises in eager")


def sign(x: Value) -> Value:
    if x.dtype == "bool":
        return x
    positive = cast(scalar("gt", x, zero(x)), x.dtype)
    return (
        positive
        if DTYPES[x.dtype].kind == "uint"
        else sub(positive, cast(scalar("lt", x, zero(x)), x.dtype))
    )


def negative(x: Value) -> Value:
    """The sign bit, NaN aside: also true of -0.0."""
    if not DTYPES[x.dtype].is_float:
        return scalar("lt", x, zero(x))
    return where(
        scalar("eq", x, zero(x)), scalar("lt", div(one(x), x), zero(x)), scalar("lt", x, zero(x))
    )


def copysign(x: Value, y: Value) -> Value:
    size = scalar("abs", x)
    return where(negative(y), scalar("neg", size), size)


def hypot(x: Value, y: Value) -> Value:
    a, b = scalar("abs", x), scalar("abs", y)
    big, small = scalar("maximum", a, b), scalar("minimum", a, b)
    ratio = div(small, big)
    plain = mul(big, scalar("sqrt", add(one(x), mul(ratio, ratio))))
    return where(scalar("or", scalar("eq", big, zero(x)), scalar("isinf", big)), big, plain)


def extreme(op: str) -> Callable[[Value, Value], Value]:
    """maximum or minimum, of booleans too."""
    of_bool = {"maximum": "or", "minimum": "and"}[op]
    return lambda a, b: scalar(of_bool if a.dtype == "bool" else op, a, b)


def _fextreme(op: str) -> Callable[[Value, Value], Value]:
    def fn(a: Value, b: Value) -> Value:
        if not DTYPES[a.dtype].is_float:
            return extreme(op)(a, b)
        return where(scalar("isnan", a), b, where(scalar("isnan", b), a, scalar(op, a, b)))

    return fn


def xlogy(x: Value, y: Value) -> Value:
    product = where(scalar("eq", x, zero(x)), zero(x), mul(x, scalar("log", y)))
    return where(scalar("isnan", y), y, product)


# -- powers


def pow_scalar(c: Call, x: View, exponent: Operand) -> View | Declined:
    """Special exponents as eager has them, so that x**2 is x*x exactly."""
    if not isinstance(exponent, (int, float)):
        return elementwise(c, partial(scalar, "pow"), x, exponent)
    if not DTYPES[c.out.dtype].is_float:
        if exponent < 0 or exponent > 64:
            return Declined("an integer power with a negative or large exponent")
        return elementwise(c, lambda a: _power(a, int(exponent)), x)
    power = rounded(exponent, c.out.dtype)
    assert isinstance(power, (int, float))
    return elementwise(c, lambda a: _float_power(a, float(power)), x)


def _power(a: Value, n: int) -> Value:
    """a**n by squaring."""
    result: Value | None = None
    while n:
        if n & 1:
            result = a if result is None else mul(result, a)
        n >>= 1
        a = mul(a, a) if n else a
    return one(a) if result is None else result


_FLOAT_POWERS: dict[float, Callable[[Value], Value]] = {
    0.0: one,
    1.0: lambda a: a,
    2.0: lambda a: mul(a, a),
    3.0: lambda a: mul(mul(a, a), a),
    0.5: lambda a: scalar("sqrt", a),
    -0.5: lambda a: scalar("rsqrt", a),
    -1.0: lambda a: div(one(a), a),
    -2.0: lambda a: div(one(a), mul(a, a)),
}


def _float_power(a: Value, exponent: float) -> Value:
    special = _FLOAT_POWERS.get(exponent)
    return scalar("pow", a, num(exponent, a)) if special is None else special(a)


def pow_tensor(c: Call, x: Operand, y: View) -> View | Declined:
    if not DTYPES[c.out.dtype].is_float:
        return Declined("an integer power whose exponent is data")
    return elementwise(c, partial(scalar, "pow"), rounded(x, c.out.dtype), y)


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
        return c.fill(operand_value(x, x.dtype, x.rank))
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
    rank = len(c.out.shape)
    chosen = operand_value(condition, "bool", rank)
    return c.fill(where(chosen, *(operand_value(o, c.out.dtype, rank) for o in (x, y))))


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


def lerp(c: Call, x: View, end: View, weight: Operand) -> View:
    def fn(a: Value, b: Value, w: Value) -> Value:
        gap = sub(b, a)
        near = add(a, mul(w, gap))
        far = sub(b, mul(gap, sub(one(w), w)))
        return where(scalar("lt", scalar("abs", w), num(0.5, w)), near, far)

    return elementwise(c, fn, x, end, weight)


def addcmul(c: Call, x: View, a: View, b: View, *, value: Operand = 1) -> View:
    return elementwise(
        c, lambda s, k, p, q: add(s, mul(p if value == 1 else mul(k, p), q)), x, value, a, b
    )


def addcdiv(c: Call, x: View, a: View, b: View, *, value: Operand = 1) -> View:
    return elementwise(
        c, lambda s, k, p, q: add(s, div(p if value == 1 else mul(k, p), q)), x, value, a, b
    )


# -- copies and casts


def copy_rule(c: Call, x: View, **unused: object) -> View | Declined:
    """clone and casts: a fresh tensor of the result's dtype and strides."""
    if x.buffer.device != c.out.device:
        return Declined("a copy between devices")
    return c.fill(cast(operand_value(x, x.dtype, x.rank), c.out.dtype))


def copy_into(c: Call, x: View, source: View, non_blocking: bool = False) -> View | Declined:
    if source.buffer.device != c.out.device:
        return Declined("a copy between devices")
    return c.fill(cast(operand_value(source, source.dtype, x.rank), c.out.dtype))


def rounding(op: str) -> Rule:
    return unary(lambda x: scalar(op, x) if DTYPES[x.dtype].is_float else x)


def round_decimals(c: Call, x: View, *, decimals: int = 0) -> View | Declined:
    if decimals or not DTYPES[x.dtype].is_float:
        return Declined("round to decimals")
    return elementwise(c, partial(scalar, "round"), x)


# -- inverse hyperbolic functions, accurate near zero and for large arguments


def acosh(x: Value) -> Value:
    t = sub(x, one(x))
    near = scalar("log1p", add(t, scalar("sqrt", add(mul(num(2, x), t), mul(t, t)))))
    return where(scalar("gt", x, num(1e8, x)), add(scalar("log", x), num(math.log(2), x)), near)


def asinh(x: Value) -> Value:
    a = scalar("abs", x)
    square = mul(a, a)
    near = scalar("log1p", add(a, div(square, add(one(x), scalar("sqrt", add(one(x), square))))))
    far = add(scalar("log", a), num(math.log(2), x))
    return copysign(where(scalar("gt", a, num(1e8, x)), far, near), x)


def atanh(x: Value) -> Value:
    return mul(num(0.5, x), scalar("log1p", div(mul(num(2, x), x), sub(one(x), x))))


_FLOAT_UNARY = "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p erf erfc sin cos tan asin acos atan sinh cosh tanh".split()
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _overloads(name: str, rule: Rule, *overloads: str) -> dict[str, Rule]:
    return {f"aten.{name}.{o}": rule for o in overloads}


RULES: Table = {
    **{f"aten.{op}.default": unary(partial(scalar, op)) for op in _FLOAT_UNARY},
    **{f"aten.{op}.default": rounding(op) for op in ("floor", "ceil", "trunc", "round")},
    **{
        k: r
        for op in _COMPARISONS
        for k, r in _overloads(op, compare(op), "Tensor", "Scalar").items()
    },
    "aten.round.decimals": round_decimals,
    "aten.acosh.default": unary(acosh),
    "aten.asinh.default": unary(asinh),
    "aten.atanh.default": unary(atanh),
    "aten.neg.default": unary(partial(scalar, "neg")),
    "aten.abs.default": unary(partial(scalar, "abs")),
    "aten.sign.default": unary(sign),
    "aten.sgn.default": unary(sign),
    "aten.signbit.default": classify(negative),
    "aten.reciprocal.default": unary(lambda x: div(one(x), x)),
    "aten.square.default": unary(lambda x: mul(x, x)),
    "aten.frac.default": unary(lambda x: sub(x, scalar("trunc", x))),
    **_overloads("add", add_rule, "Tensor", "Scalar"),
    **_overloads("sub", sub_rule, "Tensor", "Scalar"),
    **_overloads("rsub", rsub_rule, "Tensor", "Scalar"),
    **_overloads("mul", mul_rule, "Tensor", "Scalar"),
    **_overloads("div", div_rule, "Tensor", "Scalar"),
    **_overloads("div", div_mode, "Tensor_mode", "Scalar_mode"),
    **_overloads("floor_divide", floor_divide, "default", "Scalar"),
    **_overloads("remainder", _modulo("remainder"), "Tensor", "Scalar", "Scalar_Tensor"),
    **_overloads("fmod", _modulo("fmod"), "Tensor", "Scalar"),
    "aten.maximum.default": binary(extreme("maximum")),
    "aten.minimum.default": binary(extreme("minimum")),
    "aten.fmax.default": binary(_fextreme("maximum")),
    "aten.fmin.default": binary(_fextreme("minimum")),
    "aten.atan2.default": binary(partial(scalar, "atan2")),
    "aten.hypot.default": binary(hypot),
    **_overloads("copysign", binary(copysign), "Tensor", "Scalar"),
    **_overloads("xlogy", binary(xlogy), "Tensor", "Scalar_Self", "Scalar_Other"),
    "aten.pow.Tensor_Scalar": pow_scalar,
    **_overloads("pow", pow_tensor, "Tensor_Tensor", "Scalar"),
    **{f"aten.logical_{op}.default": logical(op) for op in ("and", "or", "xor")},
    "aten.logical_not.default": lambda c, x: elementwise(
        c, partial(scalar, "not"), x, dtype="bool"
    ),
    **{
        k: r
        for op in ("and", "or", "xor")
        for k, r in _overloads(
            f"bitwise_{op}", bitwise(op), "Tensor", "Scalar", "Scalar_Tensor"
        ).items()
    },
    "aten.bitwise_not.default": unary(partial(scalar, "not")),
    **_overloads("bitwise_left_shift", shift("lshift"), "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
    **_overloads(
        "bitwise_right_shift", shift("rshift"), "Tensor", "Tensor_Scalar", "Scalar_Tensor"
    ),
    **_overloads("__lshift__", shift("lshift"), "Tensor", "Scalar"),
    **_overloads("__rshift__", shift("rshift"), "Tensor", "Scalar"),
    "aten.isnan.default": classify(partial(scalar, "isnan")),
    "aten.isinf.default": classify(partial(scalar, "isinf")),
    "aten.isfinite.default": classify(isfinite),
    "aten.isposinf.default": classify(lambda x: scalar("eq", x, num(math.inf, x))),
    "aten.isneginf.default": classify(lambda x: scalar("eq", x, num(-math.inf, x))),
    "aten.nan_to_num.default": nan_to_num,
    "aten.where.self": where_rule,
    **_overloads("where", where_rule, "ScalarSelf", "ScalarOther", "Scalar"),
    **_overloads("masked_fill", masked_fill, "Scalar", "Tensor"),
    **_overloads("clamp", clamp, "default", "Tensor"),
    **_overloads("clamp_min", clamp, "default", "Tensor"),
    **_overloads("clamp_max", clamp_max, "default", "Tensor"),
    **_overloads("lerp", lerp, "Scalar", "Tensor"),
    "aten.addcmul.default": addcmul,
    "aten.addcdiv.default": addcdiv,
    "aten._to_copy.default": copy_rule,
    "aten.clone.default": copy_rule,
    "aten.lift_fresh_copy.default": copy_rule,
    "aten.copy.default": copy_into,
}
