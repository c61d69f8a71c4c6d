"""Rules of the gradients of activations and softmax: one formula each, in float32 for half types as eager has it."""

from __future__ import annotations

import math
from collections.abc import Callable

from stax.ir.dtypes import accumulator
from stax.ir.value import Value, cast, scalar, where
from stax.lower.activation import sigmoid
from stax.lower.build import Call, Rule, Table
from stax.lower.pointwise import both, elementwise, num, one, zero
from stax.lower.reduce import nest, spread
from stax.lower.scalars import add, div, mul, read, sub
from stax.lower.views import View


def gelu_backward(c: Call, grad: View, x: View, *, approximate: str = "none") -> View:
    slope = _gelu_tanh_slope if approximate == "tanh" else _gelu_erf_slope
    return elementwise(c, lambda g, v: mul(g, slope(v)), grad, x)


def _gelu_erf_slope(x: Value) -> Value:
    """Φ(x) + x φ(x)."""
    below = mul(num(0.5, x), add(one(x), scalar("erf", mul(x, num(math.sqrt(0.5), x)))))
    power = scalar("exp", mul(num(-0.5, x), mul(x, x)))
    return add(below, mul(x, mul(num(1 / math.sqrt(2 * math.pi), x), power)))


def _gelu_tanh_slope(x: Value) -> Value:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = mul(x, x)
    inner = mul(num(scale, x), add(x, mul(num(cubic, x), mul(square, x))))
    bent = scalar("tanh", inner)
    inner_slope = mul(num(scale, x), add(one(x), mul(num(3 * cubic, x), square)))
    rest = mul(mul(num(0.5, x), x), mul(sub(one(x), mul(bent, bent)), inner_slope))
    return add(mul(num(0.5, x), add(one(x), bent)), rest)


def silu_backward(g: Value, x: Value) -> Value:
    rate = sigmoid(x)
    return mul(mul(g, rate), add(one(x), mul(x, sub(one(x), rate))))


def mish_backward(g: Value, x: Value) -> Value:
    bent = scalar("tanh", scalar("log1p", scalar("exp", x)))
    return mul(g, add(bent, mul(mul(x, sigmoid(x)), sub(one(x), mul(bent, bent)))))


def hardswish_backward(c: Call, grad: View, x: View) -> View:
    def fn(g: Value, v: Value) -> Value:
        middle = mul(g, add(div(v, num(3, v)), num(0.5, v)))
        inner = where(_meets(c, "ge", v, 3), g, middle)
        return where(scalar("le", v, num(-3, v)), zero(g), inner)

    return elementwise(c, fn, grad, x)


OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge"}


def _meets(c: Call, op: str, x: Value, bound: float) -> Value:
    """x op bound; NaN meets it where eager's kernel asks for the opposite, as those of GPUs do."""
    if c.out.device == "cpu":
        return scalar(op, x, num(bound, x))
    return scalar("not", scalar(OPPOSITE[op], x, num(bound, x)))


def hardsigmoid_backward(g: Value, x: Value) -> Value:
    inside = both(scalar("gt", x, num(-3, x)), scalar("lt", x, num(3, x)))
    return where(inside, div(g, num(6, x)), zero(g))


def leaky_relu_backward(
    c: Call, grad: View, x: View, negative_slope: float, is_result: bool
) -> View:
    """The sign of the result is that of the input."""

    def fn(g: Value, v: Value) -> Value:
        return where(scalar("gt", v, zero(v)), g, mul(g, num(negative_slope, g)))

    return elementwise(c, fn, grad, x)


def elu_backward(
    c: Call, grad: View, alpha: float, scale: float, input_scale: float, is_result: bool, x: View
) -> View:
    """``x`` is the result of elu when ``is_result``, its input otherwise."""

    def fn(g: Value, v: Value) -> Value:
        lowest = num(alpha * scale, v)
        power = scalar("exp", mul(v, num(input_scale, v)))
        height = add(v, lowest) if is_result else mul(lowest, power)
        below = mul(mul(g, num(input_scale, v)), height)
        return where(_meets(c, "gt", v, 0), mul(g, num(scale, v)), below)

    return elementwise(c, fn, grad, x)


def hardtanh_backward(c: Call, grad: View, x: View, low: float, high: float) -> View:
    def fn(g: Value, v: Value) -> Value:
        inside = both(_meets(c, "gt", v, low), _meets(c, "lt", v, high))
        return where(inside, g, zero(g))

    return elementwise(c, fn, grad, x)


def shrink_backward(c: Call, grad: View, x: View, bound: float) -> View:
    """Of hardshrink and of softshrink."""

    def fn(g: Value, v: Value) -> Value:
        outside = scalar("or", _meets(c, "gt", v, bound), _meets(c, "lt", v, -bound))
        return where(outside, g, zero(g))

    return elementwise(c, fn, grad, x)


def softplus_backward(c: Call, grad: View, x: View, beta: float, threshold: float) -> View:
    def fn(g: Value, v: Value) -> Value:
        scaled = mul(v, num(beta, v))
        power = scalar("exp", scaled)
        bent = div(mul(g, power), add(power, one(v)))
        return where(scalar("gt", scaled, num(threshold, v)), g, bent)

    return elementwise(c, fn, grad, x)


# -- softmax


def softmax_backward(c: Call, grad: View, out: View, dim: int, dtype: object) -> View:
    """(g - sum(g * y)) * y."""
    n, wide = nest(out, dim), accumulator(c.out.dtype)
    product = mul(cast(read(grad, n.at), wide), cast(read(out, n.at), wide))
    summed = spread(c, c.reduce("sum", n.kept, n.over, product), n, out.shape)
    return c.fill(
        cast(mul(sub(cast(read(grad), wide), summed), cast(read(out), wide)), c.out.dtype)
    )


def log_softmax_backward(c: Call, grad: View, out: View, dim: int, dtype: object) -> View:
    """g - exp(y) * sum(g)."""
    n, wide = nest(out, dim), accumulator(c.out.dtype)
    summed = c.reduce("sum", n.kept, n.over, cast(read(grad, n.at), wide))
    power = scalar("exp", cast(read(out), wide))
    value = sub(cast(read(grad), wide), mul(power, spread(c, summed, n, out.shape)))
    return c.fill(cast(value, c.out.dtype))


def _of_two(fn: Callable[[Value, Value], Value]) -> Rule:
    return lambda c, grad, x: elementwise(c, fn, grad, x)


RULES: Table = {
    "aten.gelu_backward.default": gelu_backward,
    "aten.silu_backward.default": _of_two(silu_backward),
    "aten.mish_backward.default": _of_two(mish_backward),
    "aten.hardswish_backward.default": hardswish_backward,
    "aten.hardsigmoid_backward.default": _of_two(hardsigmoid_backward),
    "aten.leaky_relu_backward.default": leaky_relu_backward,
    "aten.elu_backward.default": elu_backward,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.softplus_backward.default": softplus_backward,
    "aten.hardshrink_backward.default": shrink_backward,
    "aten.softshrink_backward.default": shrink_backward,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
}
