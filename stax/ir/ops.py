"""The scalar operators: one row each. A target's emitter must spell every row or be refused by the completeness test.

``result``: "same" is the common dtype of the arguments (they must agree), "bool" is bool. Half-typed values never reach
an operator: lowering casts them to float32 first. Integer floordiv and remainder round and sign as Python does; shifts
are arithmetic. maximum and minimum return NaN when either side is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stax.ir.philox import random32, random64


@dataclass(frozen=True)
class ScalarOp:
    """``domain``: any, float, int (also bool for and/or/xor/not) or int64. ``reference`` is the numpy meaning on arrays."""

    name: str
    arity: int
    result: str
    domain: str
    reference: Callable[..., Any]


Row = tuple[str, int, str, str, Any]


def _reciprocal_root(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _elementwise(fn: Callable[[float], float]) -> Callable[..., Any]:
    def apply(x: Any) -> Any:
        return np.vectorize(fn, otypes=[np.float64])(x).astype(np.asarray(x).dtype)

    return apply


def _logical_not(x: Any) -> Any:
    return np.logical_not(x) if np.asarray(x).dtype == np.bool_ else np.invert(x)


_ROWS: tuple[Row, ...] = (
    # arithmetic
    ("add", 2, "same", "any", np.add),
    ("sub", 2, "same", "any", np.subtract),
    ("mul", 2, "same", "any", np.multiply),
    ("truediv", 2, "same", "float", np.divide),
    ("floordiv", 2, "same", "any", np.floor_divide),
    ("remainder", 2, "same", "any", np.mod),
    ("fmod", 2, "same", "any", np.fmod),
    ("neg", 1, "same", "any", np.negative),
    ("abs", 1, "same", "any", np.abs),
    ("sign", 1, "same", "any", np.sign),
    ("maximum", 2, "same", "any", np.maximum),
    ("minimum", 2, "same", "any", np.minimum),
    ("pow", 2, "same", "any", np.power),
    # roots, exponentials, logarithms
    ("sqrt", 1, "same", "float", np.sqrt),
    ("rsqrt", 1, "same", "float", _reciprocal_root),
    ("exp", 1, "same", "float", np.exp),
    ("exp2", 1, "same", "float", np.exp2),
    ("expm1", 1, "same", "float", np.expm1),
    ("log", 1, "same", "float", np.log),
    ("log2", 1, "same", "float", np.log2),
    ("log10", 1, "same", "float", np.log10),
    ("log1p", 1, "same", "float", np.log1p),
    ("erf", 1, "same", "float", _elementwise(math.erf)),
    ("erfc", 1, "same", "float", _elementwise(math.erfc)),
    # trigonometry
    ("sin", 1, "same", "float", np.sin),
    ("cos", 1, "same", "float", np.cos),
    ("tan", 1, "same", "float", np.tan),
    ("asin", 1, "same", "float", np.arcsin),
    ("acos", 1, "same", "float", np.arccos),
    ("atan", 1, "same", "float", np.arctan),
    ("atan2", 2, "same", "float", np.arctan2),
    ("sinh", 1, "same", "float", np.sinh),
    ("cosh", 1, "same", "float", np.cosh),
    ("tanh", 1, "same", "float", np.tanh),
    # rounding
    ("floor", 1, "same", "float", np.floor),
    ("ceil", 1, "same", "float", np.ceil),
    ("trunc", 1, "same", "float", np.trunc),
    ("round", 1, "same", "float", np.rint),
    # comparison
    ("eq", 2, "bool", "any", np.equal),
    ("ne", 2, "bool", "any", np.not_equal),
    ("lt", 2, "bool", "any", np.less),
    ("le", 2, "bool", "any", np.less_equal),
    ("gt", 2, "bool", "any", np.greater),
    ("ge", 2, "bool", "any", np.greater_equal),
    ("isnan", 1, "bool", "float", np.isnan),
    ("isinf", 1, "bool", "float", np.isinf),
    # bits
    ("and", 2, "same", "int", np.bitwise_and),
    ("or", 2, "same", "int", np.bitwise_or),
    ("xor", 2, "same", "int", np.bitwise_xor),
    ("not", 1, "same", "int", _logical_not),
    ("lshift", 2, "same", "int", np.left_shift),
    ("rshift", 2, "same", "int", np.right_shift),
    # random bits of (key, position)
    ("random32", 2, "same", "int64", random32),
    ("random64", 2, "same", "int64", random64),
)

SCALAR_OPS = {row[0]: ScalarOp(*row) for row in _ROWS}

# Leaves and structure of a Value, besides the scalar operators.
STRUCTURAL_OPS = ("const", "index", "load", "local", "cast", "where", "bound", "scatter")

# What a scatter does with the element at its place, and the dtypes in which every target can add without a lock.
SCATTER_MODES = ("set", "add")
ADDED_DTYPES = ("int32", "int64", "float32", "float64")

# How a reduction combines: its identity is spelled by each target.
COMBINES = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
