"""Guards: the slow reference that names the guard which fails, and one generated function that only decides.

Both read metadata alone. Beside the guards themselves both demand what every artifact relies on: plain strided tensors
(no subclass, no pending negation or conjugation) that lie on one device, and no dispatch mode or functorch transform.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stax.artifact.guards import (
    ConstantGuard,
    DistinctGuard,
    Guard,
    GuardSet,
    RelationGuard,
    StateGuard,
    TensorGuard,
)
from stax.ir.expr import Expr
from stax.ir.program import Symbol
from stax.runtime.literals import from_literal, same
from stax.runtime.state import STATES, is_plain, raw_value

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Bound:
    """A call bound to an artifact: its leaves, its flat tensor inputs, and how the user would write each."""

    leaves: Sequence[Any]
    tensors: Sequence[Any]
    leaf_names: Sequence[str] = ()
    tensor_names: Sequence[str] = ()

    def leaf_name(self, index: int) -> str:
        return self.leaf_names[index] if index < len(self.leaf_names) else f"leaf {index}"

    def tensor_name(self, index: int) -> str:
        return self.tensor_names[index] if index < len(self.tensor_names) else f"input {index}"


@dataclass(frozen=True)
class Reason:
    """Why a guard does not hold, in the user's terms; ``where`` is the user's file:line when the guard has one."""

    text: str
    where: str = ""
    guard: Guard | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text


def holds(guards: GuardSet, call: Bound, symbols: Sequence[Symbol] = ()) -> Reason | None:
    """The first guard that fails, or None when all hold. ``symbols`` adds their proven ranges."""
    if not is_plain():
        return Reason("a dispatch mode or functorch transform is active")
    tensors = [g for g in guards.guards if isinstance(g, TensorGuard)]
    for guard in tensors:
        reason = _kind_reason(guard, call)
        if reason is not None:
            return Reason(reason, guard=guard)
    device = _device_reason(tensors, call)
    if device is not None:
        return Reason(device)
    env: dict[str, int] = {}
    for b in guards.bindings:
        env.setdefault(b.symbol, call.tensors[b.input].shape[b.dim])
    reason = _range_reason(guards, call, symbols, env)
    if reason is not None:
        return Reason(reason)
    for guard in guards.guards:
        found = _reason(guard, call, env)
        if found is not None:
            return found
    return None


def _kind_reason(guard: TensorGuard, call: Bound) -> str | None:
    """What does not depend on symbols: type, layout, dtype, device kind, rank."""
    x, name = call.tensors[guard.input], call.tensor_name(guard.input)
    if type(x) not in PLAIN_TYPES:
        return f"{name} is a {type(x).__name__}, expected a plain Tensor"
    if x.layout is not torch.strided:
        return f"{name} has layout {x.layout}, expected torch.strided"
    if x.is_neg() or x.is_conj():
        return f"{name} is a lazy negation or conjugate, expected a resolved tensor"
    if x.dtype is not getattr(torch, guard.dtype):
        return f"{name} has dtype {x.dtype}, expected torch.{guard.dtype}"
    if x.device.type != guard.device:
        return f"{name} is on {x.device.type}, expected {guard.device}"
    if x.dim() != len(guard.shape):
        return f"{name} has {x.dim()} dimensions, expected {len(guard.shape)}"
    return None


def _device_reason(guards: Sequence[TensorGuard], call: Bound) -> str | None:
    cuda = [g.input for g in guards if g.device == "cuda"]
    indices = {call.tensors[i].get_device() for i in cuda}
    return None if len(indices) < 2 else f"tensors are on several CUDA devices: {sorted(indices)}"


def _range_reason(
    guards: GuardSet, call: Bound, symbols: Sequence[Symbol], env: Mapping[str, int]
) -> str | None:
    places = {
        b.symbol: f"{call.tensor_name(b.input)}.size({b.dim})" for b in reversed(guards.bindings)
    }
    for s in symbols:
        value = env[s.name]
        if value < s.lo or (s.hi is not None and value > s.hi):
            bound = f"{s.lo} .. {'' if s.hi is None else s.hi}"
            return f"{places[s.name]} is {value}, expected {bound}"
    return None


def _reason(guard: Guard, call: Bound, env: Mapping[str, int]) -> Reason | None:
    """Why one guard fails under bound symbols."""
    if isinstance(guard, TensorGuard):
        text = _geometry_reason(guard, call, env)
    elif isinstance(guard, RelationGuard):
        text = _relation_reason(guard, env)
        return None if text is None else Reason(text, guard.where, guard)
    elif isinstance(guard, ConstantGuard):
        text = _constant_reason(guard, call)
    elif isinstance(guard, DistinctGuard):
        text = _distinct_reason(guard, call)
    else:
        text = _state_reason(guard)
    return None if text is None else Reason(text, guard=guard)


def _geometry_reason(guard: TensorGuard, call: Bound, env: Mapping[str, int]) -> str | None:
    x, name = call.tensors[guard.input], call.tensor_name(guard.input)
    for i, (found, expr) in enumerate(zip(x.shape, guard.shape)):
        if found != _value(expr, env):
            return f"{name}.size({i}) is {found}, expected {_told(expr, env)}"
    for i, (found, expr) in enumerate(zip(x.stride(), guard.strides)):
        if expr is not None and found != _value(expr, env):
            return f"{name}.stride({i}) is {found}, expected {_told(expr, env)}"
    if x.storage_offset() != _value(guard.offset, env):
        return (
            f"{name}.storage_offset() is {x.storage_offset()}, expected {_told(guard.offset, env)}"
        )
    return None


def _value(expr: Expr, env: Mapping[str, int]) -> int | None:
    try:
        return expr.evaluate(env)
    except ZeroDivisionError:
        return None


def _told(expr: Expr, env: Mapping[str, int]) -> str:
    return expr.text if expr.is_const else f"{expr.text} = {_value(expr, env)}"


def _relation_reason(guard: RelationGuard, env: Mapping[str, int]) -> str | None:
    left, right = _value(guard.left, env), _value(guard.right, env)
    if left is not None and right is not None and _RELATIONS[guard.relation](left, right):
        return None
    text = guard.text or f"{guard.left.text} {guard.relation} {guard.right.text}"
    values = ", ".join(f"{s} = {env[s]}" for s in sorted(guard.left.symbols | guard.right.symbols))
    return f"expected {text}" + (f" with {values}" if values else "")


_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def _constant_reason(guard: ConstantGuard, call: Bound) -> str | None:
    found = call.leaves[guard.leaf]
    expected = from_literal(guard.value)
    if same(found, expected):
        return None
    return f"{call.leaf_name(guard.leaf)} is {_shown(found)}, expected {_shown(expected)}"


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)[:80]


def _distinct_reason(guard: DistinctGuard, call: Bound) -> str | None:
    for a, b in guard.pairs:
        if overlaps(storage_extent(call.tensors[a]), storage_extent(call.tensors[b])):
            return f"{call.tensor_name(a)} and {call.tensor_name(b)} share memory, and one of them is written"
    return None


Extent = tuple[int, int]


def storage_extent(x: Tensor) -> Extent:
    """First byte of the storage and the one past its end."""
    storage = x.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def overlaps(a: Extent, b: Extent) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _state_reason(guard: StateGuard) -> str | None:
    state = STATES[guard.name]
    found = state.read()
    if found == raw_value(guard):
        return None
    return f"{guard.name} is {state.text(found)}, expected {guard.value}"
