"""Building values: constants, reads of views at expressions or values, arithmetic on values, torch's type promotion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.value import Value, cast, constant, evaluate, index, load, scalar
from stax.lower.views import Hints, Shape, View, axis_name, broadcast

Number = bool | int | float
Operand = View | Expr | Number
HALVES = ("float16", "bfloat16")


def add(a: Value, b: Value) -> Value:
    return scalar("or" if a.dtype == "bool" else "add", a, b)


def sub(a: Value, b: Value) -> Value:
    return scalar("sub", a, b)


def mul(a: Value, b: Value) -> Value:
    return scalar("and" if a.dtype == "bool" else "mul", a, b)


def div(a: Value, b: Value) -> Value:
    return scalar("truediv", a, b)


def number(value: Operand, dtype: str) -> Value:
    """A Python number or a size as a value of ``dtype``; a float is truncated for an integer dtype."""
    if isinstance(value, View):
        raise TypeError("a tensor is not a number")
    if isinstance(value, Expr):
        return constant(value.value, dtype) if value.is_const else cast(index(value), dtype)
    if DTYPES[dtype].is_integral and not isinstance(value, bool):
        return constant(wrap(int(value), dtype), dtype)
    return constant(value, dtype)


def wrap(value: int, dtype: str) -> int:
    """The two's complement value of an integer dtype."""
    bits = 8 * DTYPES[dtype].itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if DTYPES[dtype].kind == "int" and value >> (bits - 1) else value


def rounded(value: Operand, storage: str) -> Operand:
    """A Python number as eager sees it after conversion to a half dtype."""
    if isinstance(value, (int, float)) and storage in HALVES:
        return _round_half(float(value), storage)
    return value


@lru_cache(maxsize=1024)
def _round_half(value: float, storage: str) -> float:
    return torch.tensor(value, dtype=torch_dtype(storage)).item()


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype, without the prefix."""
    return str(dtype).removeprefix("torch.")


def read(
    view: View,
    at: Sequence[Expr | Value] | None = None,
    mask: Value | None = None,
    other: Number = 0,
) -> Value:
    """Element ``at`` of the view (default: at the axes i0, i1, …) in its storage dtype; no bounds are checked."""
    if at is None:
        return load(view.buffer.name, view.dtype, view.coords, mask, other)
    values = {axis_name(k): p for k, p in enumerate(at) if isinstance(p, Value)}
    env = {axis_name(k): p for k, p in enumerate(at) if isinstance(p, Expr)}
    coords: list[Expr | Value] = []
    for c in view.coords:
        if values.keys() & c.symbols:
            coords.append(evaluate(c, {**{k: index(e) for k, e in env.items()}, **values}))
        else:
            coords.append(c.subs(env))
    return load(view.buffer.name, view.dtype, coords, mask, other)


def common_dtype(*operands: Operand) -> str:
    """The dtype in which eager computes these operands: tensors before 0-dim tensors before numbers."""
    dimmed: torch.dtype | None = None
    zero: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, View) and operand.rank:
            dimmed = _promote(dimmed, torch_dtype(operand.dtype))
        elif isinstance(operand, View):
            zero = _promote(zero, torch_dtype(operand.dtype))
        else:
            wrapped = _promote(wrapped, _wrapped_dtype(operand))
    found = _combine(dimmed, _combine(zero, wrapped))
    assert found is not None
    return dtype_name(found)


def _wrapped_dtype(operand: Operand) -> torch.dtype:
    if isinstance(operand, bool):
        return torch.bool
    return torch.int64 if isinstance(operand, (int, Expr)) else torch.float32


def _promote(a: torch.dtype | None, b: torch.dtype | None) -> torch.dtype | None:
    if a is None or b is None:
        return b if a is None else a
    return torch.promote_types(a, b)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def operand_value(operand: Operand, dtype: str, shape: Shape, hints: Hints) -> Value:
    """An operand as a value of ``dtype`` at the axes of an output of ``shape``, broadcast from the right."""
    if not isinstance(operand, View):
        return number(operand, dtype)
    at = None if operand.shape == shape else broadcast(operand.shape, shape, hints)
    return cast(read(operand, at), dtype)
