"""Rules of activation functions and of the few of their backwards that are one formula."""

from __future__ import annotations

import math

from stax.ir.value import Value, scalar, where
from stax.lower.build import Call, Table
from stax.lower.logic import clamp
from stax.lower.pointwise import elementwise, num, one, unary, zero
from stax.lower.scalars import Operand, add, div, mul, sub
from stax.lower.views import View


def sigmoid(x: Value) -> Value:
    return div(one(x), add(one(x), scalar("exp", scalar("neg", x))))


def silu(x: Value) -> Value:
    return div(x, add(one(x), scalar("exp", scalar("neg", x))))


def relu(x: Value) -> Value:
    return scalar("maximum", x, zero(x))


def gelu(c: Call, x: View, *, approximate: str = "none") -> View:
    return elementwise(c, _gelu_tanh if approximate == "tanh" else _gelu_erf, x)


def _gelu_erf(x: Value) -> Value:
    return mul(mul(num(0.5, x), x), add(one(x), scalar("erf", mul(x, num(math.sqrt(0.5), x)))))


def _gelu_tanh(x: Value) -> Value:
    inner = mul(num(math.sqrt(2 / math.pi), x), add(x, mul(num(0.044715, x), mul(mul(x, x), x))))
    return mul(mul(num(0.5, x), x), add(one(x), scalar("tanh", inner)))


def leaky_relu(c: Call, x: View, negative_slope: Operand = 0.01) -> View:
    return elementwise(
        c, lambda v, s: where(scalar("gt", v, zero(v)), v, mul(v, s)), x, negative_slope
    )


def prelu(c: Call, x: View, weight: View) -> View:
    return elementwise(c, lambda v, w: where(scalar("gt", v, zero(v)), v, mul(w, v)), x, weight)


def elu(c: Call, x: View, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> View:
    def fn(v: Value) -> Value:
        below = mul(scalar("expm1", mul(v, num(input_scale, v))), num(alpha * scale, v))
        return where(scalar("gt", v, zero(v)), mul(v, num(scale, v)), below)

    return elementwise(c, fn, x)


def hardtanh(c: Call, x: View, min_val: float = -1.0, max_val: float = 1.0) -> View:
    return clamp(c, x, min_val, max_val)


def hardsigmoid(x: Value) -> Value:
    inner = scalar("minimum", scalar("maximum", add(x, num(3, x)), zero(x)), num(6, x))
    return div(inner, num(6, x))


def hardswish(x: Value) -> Value:
    inner = scalar("minimum", scalar("maximum", add(x, num(3, x)), zero(x)), num(6, x))
    return div(mul(x, inner), num(6, x))


def softplus(c: Call, x: View, beta: float = 1.0, threshold: float = 20.0) -> View:
    def fn(v: Value) -> Value:
        scaled = mul(v, num(beta, v))
        soft = div(scalar("log1p", scalar("exp", scaled)), num(beta, v))
        return where(scalar("gt", scaled, num(threshold, v)), v, soft)

    return elementwise(c, fn, x)


def mish(x: Value) -> Value:
    return mul(x, scalar("tanh", scalar("log1p", scalar("exp", x))))


def threshold(c: Call, x: View, threshold: float, value: float) -> View:
    return elementwise(c, lambda v: where(scalar("le", v, num(threshold, v)), num(value, v), v), x)


def threshold_backward(c: Call, grad: View, x: View, threshold: float) -> View:
    return elementwise(
        c, lambda g, v: where(scalar("le", v, num(threshold, v)), zero(g), g), grad, x
    )


def sigmoid_backward(g: Value, y: Value) -> Value:
    return mul(g, mul(sub(one(y), y), y))


def tanh_backward(g: Value, y: Value) -> Value:
    return mul(g, sub(one(y), mul(y, y)))


RULES: Table = {
    "aten.sigmoid.default": unary(sigmoid),
    "aten.silu.default": unary(silu),
    "aten.relu.default": unary(relu),
    "aten.gelu.default": gelu,
    "aten.leaky_relu.default": leaky_relu,
    "aten._prelu_kernel.default": prelu,
    "aten.elu.default": elu,
    "aten.hardtanh.default": hardtanh,
    "aten.hardsigmoid.default": unary(hardsigmoid),
    "aten.hardswish.default": unary(hardswish),
    "aten.softplus.default": softplus,
    "aten.mish.default": unary(mish),
    "aten.threshold.default": threshold,
    "aten.threshold_backward.default": threshold_backward,
    "aten.sigmoid_backward.default": lambda c, g, y: elementwise(c, sigmoid_backward, g, y),
    "aten.tanh_backward.default": lambda c, g, y: elementwise(c, tanh_backward, g, y),
}
