"""Python arithmetic on sizes that left the integers: x.shape[-1] ** -0.5 is a float64 value without axes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial

import torch

from stax.ir.expr import Expr
from stax.ir.value import Value, cast, scalar
from stax.lower.scalars import number

Scalar = Value | Expr | int | float


def _lift(fn: Callable[..., Value]) -> Callable[..., Value]:
    return lambda *args: fn(*(number(a, "float64") for a in args))


def _as_float(x: Scalar) -> Value:
    return number(x, "float64")


def _truncated(x: Scalar) -> Value:
    return cast(number(x, "float64"), "int64")


def _torch_functions() -> dict[object, str]:
    """torch._sym_sqrt and its kin, by the scalar operator each is."""
    names = {
        "sqrt": "sqrt",
        "exp": "exp",
        "log2": "log2",
        "sin": "sin",
        "cos": "cos",
        "tanh": "tanh",
    }
    found = {op: getattr(torch, f"_sym_{name}", None) for name, op in names.items()}
    return {fn: op for op, fn in found.items() if fn is not None}


FUNCTIONS: Mapping[object, Callable[..., Value]] = {
    torch.sym_float: _as_float,
    torch.sym_int: _truncated,
    operator.add: _lift(partial(scalar, "add")),
    operator.sub: _lift(partial(scalar, "sub")),
    operator.mul: _lift(partial(scalar, "mul")),
    operator.truediv: _lift(partial(scalar, "truediv")),
    operator.pow: _lift(partial(scalar, "pow")),
    operator.neg: _lift(partial(scalar, "neg")),
    math.sqrt: _lift(partial(scalar, "sqrt")),
    torch.sym_max: _lift(partial(scalar, "maximum")),
    torch.sym_min: _lift(partial(scalar, "minimum")),
    **{fn: _lift(partial(scalar, op)) for fn, op in _torch_functions().items()},
}
