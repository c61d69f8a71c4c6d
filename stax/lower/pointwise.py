"""Rules of elementwise arithmetic, comparison, logic, rounding and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.value import Value, cast, constant, scalar, where
from stax.lower.build import Call, Declined, Rule, Table
from stax.lower.scalars import (
    Operand,
    add,
    div,
    mul,
    number,
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
    return c.fill(cast(fn(*(c.operand(o, compute) for o in operands)), c.out.dtype))


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


# -- sums of products


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
    return c.fill(cast(c.operand(x, x.dtype), c.out.dtype))


def copy_into(c: Call, x: View, source: View, non_blocking: bool = False) -> View | Declined:
    if source.buffer.device != c.out.device:
        return Declined("a copy between devices")
    return c.fill(cast(c.operand(source, source.dtype), c.out.dtype))


def rounding(op: str) -> Rule:
    return unary(lambda x: scalar(op, x) if DTYPES[x.dtype].is_float else x)


def round_decimals(c: Call, x: View, *, decimals: int = 0) -> View:
    """Eager scales by a power of ten, rounds and scales back."""
    if not DTYPES[x.dtype].is_float:
        return c.fill(c.operand(x, x.dtype))
    ten = 10.0 ** abs(decimals)

    def fn(v: Value) -> Value:
        if decimals >= 0:
            return div(scalar("round", mul(v, num(ten, v))), num(ten, v))
        return mul(scalar("round", div(v, num(ten, v))), num(ten, v))

    return elementwise(c, fn, x)


def xlog1py(x: Value, y: Value) -> Value:
    product = where(scalar("eq", x, zero(x)), zero(x), mul(x, scalar("log1p", y)))
    return where(scalar("isnan", y), y, product)


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


def overloads(name: str, rule: Rule, *overloads: str) -> dict[str, Rule]:
    return {f"aten.{name}.{o}": rule for o in overloads}


RULES: Table = {
    **{f"aten.{op}.default": unary(partial(scalar, op)) for op in _FLOAT_UNARY},
    **{f"aten.{op}.default": rounding(op) for op in ("floor", "ceil", "trunc", "round")},
    "aten.round.decimals": round_decimals,
    "aten.acosh.default": unary(acosh),
    "aten.asinh.default": unary(asinh),
    "aten.atanh.default": unary(atanh),
    "aten.neg.default": unary(partial(scalar, "neg")),
    "aten.abs.default": unary(partial(scalar, "abs")),
    "aten.sign.default": unary(sign),
    "aten.sgn.default": unary(sign),
    "aten.reciprocal.default": unary(lambda x: div(one(x), x)),
    "aten.square.default": unary(lambda x: mul(x, x)),
    "aten.frac.default": unary(lambda x: sub(x, scalar("trunc", x))),
    **overloads("add", add_rule, "Tensor", "Scalar"),
    **overloads("sub", sub_rule, "Tensor", "Scalar"),
    **overloads("rsub", rsub_rule, "Tensor", "Scalar"),
    **overloads("mul", mul_rule, "Tensor", "Scalar"),
    **overloads("div", div_rule, "Tensor", "Scalar"),
    **overloads("div", div_mode, "Tensor_mode", "Scalar_mode"),
    **overloads("floor_divide", floor_divide, "default", "Scalar"),
    **overloads("remainder", _modulo("remainder"), "Tensor", "Scalar", "Scalar_Tensor"),
    **overloads("fmod", _modulo("fmod"), "Tensor", "Scalar"),
    "aten.maximum.default": binary(extreme("maximum")),
    "aten.minimum.default": binary(extreme("minimum")),
    "aten.fmax.default": binary(_fextreme("maximum")),
    "aten.fmin.default": binary(_fextreme("minimum")),
    "aten.atan2.default": binary(partial(scalar, "atan2")),
    "aten.hypot.default": binary(hypot),
    **overloads("copysign", binary(copysign), "Tensor", "Scalar"),
    **overloads("xlogy", binary(xlogy), "Tensor", "Scalar_Self", "Scalar_Other"),
    **overloads("special_xlog1py", binary(xlog1py), "default", "self_scalar", "other_scalar"),
    "aten.pow.Tensor_Scalar": pow_scalar,
    **overloads("pow", pow_tensor, "Tensor_Tensor", "Scalar"),
    **overloads("lerp", lerp, "Scalar", "Tensor"),
    "aten.addcmul.default": addcmul,
    "aten.addcdiv.default": addcdiv,
    "aten._to_copy.default": copy_rule,
    "aten.clone.default": copy_rule,
    "aten.lift_fresh_copy.default": copy_rule,
    "aten.copy.default": copy_into,
}
