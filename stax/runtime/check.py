"""A guard set as one generated straight-line function: metadata of a call in, values of the size symbols out, or None.

The text is made from indices, integers and local names alone; every other value of a guard enters as an object. It
agrees with :func:`stax.runtime.guards.holds` on every call. A tensor that is like the one of a call that was accepted is
accepted by torch's own comparison of metadata, where this torch has it: a fraction of the cost of asking Python for each
property. Guards of parameters and buffers are not even looked at while these are the same objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stax.artifact.guards import (
    ConstantGuard,
    DistinctGuard,
    GuardSet,
    RelationGuard,
    StateGuard,
    TensorGuard,
)
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.program import Symbol
from stax.runtime.guards import overlaps, storage_extent
from stax.runtime.literals import from_literal, same
from stax.runtime.spell import spell, spell_tuple
from stax.runtime.state import AUTOCAST, STATES, any_autocast, is_plain, raw_value

Values = tuple[int, ...]
Check = Callable[[Sequence[Any], Sequence[Any]], "Values | None"]
Same = Callable[..., bool]
# (leaves, tensors, comparison with an accepted call, the values that this one gave)
Again = Callable[[Sequence[Any], Sequence[Any], Same, Values], "Values | None"]
# A comparison costs several checks to make: the more often it was made in vain, the longer until the next.
MAX_PATIENCE = 1 << 10
_FAIL = "return None"


def compile_guards(
    guards: GuardSet, symbols: Sequence[Symbol] = (), static: frozenset[int] = frozenset()
) -> FastGuards:
    """The fast form of ``holds(guards, call, symbols)``. ``static``: inputs that rarely change between calls
    (parameters, buffers). The result gives the symbols' values in the order of ``symbols``, or of their bindings."""
    bound = {b.input for b in guards.bindings}
    tensors = [g for g in guards.guards if isinstance(g, TensorGuard)]
    fixed = [g for g in tensors if g.input in static and g.input not in bound and _is_fixed(g)]
    told_inputs = {g.input for g in fixed}
    others = [g for g in tensors if g.input not in told_inputs]
    first = next((g for g in fixed if g.device == "cuda"), None)
    dynamic = _Emitter(guards, symbols).function(others, first, whole=True)
    again = _Emitter(guards, symbols).again(others, first) if others and _native() else None
    told = _Emitter(GuardSet((), ()), ()).function(fixed, None, whole=False)
    pairs = [pair for g in guards.guards if isinstance(g, DistinctGuard) for pair in g.pairs]
    return FastGuards(
        Repeated(dynamic, again, tuple(g.input for g in others)),
        told,
        tuple(g.input for g in fixed),
        _distinct_check(pairs) if pairs else None,
    )


def _is_fixed(guard: TensorGuard) -> bool:
    exprs = (*guard.shape, *(s for s in guard.strides if s is not None), guard.offset)
    return all(e.is_const for e in exprs)


class Repeated:
    """A check that compares a call with one that was accepted first, so that calls of the same sizes cost little. Safe to
    call from several threads: what was seen is replaced whole."""

    def __init__(self, full: Check, again: Again | None, indices: tuple[int, ...]) -> None:
        self._full = full
        self._again = again
        self._indices = indices
        self._seen: tuple[Same, Values] | None = None
        self._patience = self._waits = 1

    def __call__(self, leaves: Sequence[Any], tensors: Sequence[Any]) -> Values | None:
        seen = self._seen
        if seen is not None:
            values = self._again(leaves, tensors, *seen)  # type: ignore[misc]
            if values is not None:
                return values
        values = self._full(leaves, tensors)
        if values is not None and self._again is not None:
            self._learn(tensors, values)
        return values

    def _learn(self, tensors: Sequence[Any], values: Values) -> None:
        self._waits -= 1
        if self._waits > 0:
            return
        self._waits = self._patience = min(2 * self._patience, MAX_PATIENCE)
        self._seen = (_metadata_comparison(tuple(tensors[i] for i in self._indices)), values)


class FastGuards:
    """Callable: (leaves, tensors, token) → values of the symbols, or None when some guard fails.

    ``token`` is an object that stays the same one as long as the static tensors do (None: unknown, check them all). Safe
    to call from several threads: what was seen is replaced whole.
    """

    def __init__(
        self,
        dynamic: Repeated,
        static: Check,
        indices: tuple[int, ...],
        distinct: Callable[[Sequence[Tensor]], bool] | None,
    ) -> None:
        self._dynamic = dynamic
        self._static = static
        self._indices = indices
        self._distinct = distinct
        self._seen: tuple[object, Same, tuple[Tensor, ...]] | None = None

    @property
    def alone(self) -> Repeated | None:
        """The check of (leaves, tensors), when that is all there is: nothing static, none that must be distinct."""
        return None if self._indices or self._distinct else self._dynamic

    def __call__(
        self, leaves: Sequence[Any], tensors: Sequence[Any], token: object = None
    ) -> Values | None:
        values = self._dynamic(leaves, tensors)
        if values is None or (self._indices and not self._static_hold(leaves, tensors, token)):
            return None
        if self._distinct is not None and not self._distinct(tensors):
            return None
        return values

    def _static_hold(self, leaves: Sequence[Any], tensors: Sequence[Any], token: object) -> bool:
        seen = self._seen
        if seen is not None and token is not None and seen[0] is token and seen[1](*seen[2]):
            return True
        if self._static(leaves, tensors) is None:
            return False
        self._seen = None if token is None else self._remember(token, tensors)
        return True

    def _remember(
        self, token: object, tensors: Sequence[Any]
    ) -> tuple[object, Same, tuple[Tensor, ...]]:
        distinct = tuple({id(tensors[i]): tensors[i] for i in self._indices}.values())
        return token, _metadata_comparison(distinct), distinct


def _native() -> Any:
    """torch's comparison of metadata; part of torch._C, so it imports nothing."""
    return getattr(torch._C._dynamo.guards, "TensorGuards", None)  # type: ignore[attr-defined]


def _metadata_comparison(tensors: tuple[Tensor, ...]) -> Same:
    """A function of as many tensors: whether dtype, device, sizes and strides are what those of these are now. Not the
    storage offset."""
    native = _native()
    if native is not None:
        # NOTE: it compares types, layouts and pending negations too, whether gradients are recorded, and the thread's
        # dispatch state: a false alarm under inference mode, answered by the full check.
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        return native(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    expected = [_metadata(t) for t in tensors]
    return lambda *now: [_metadata(t) for t in now] == expected


def _metadata(t: Tensor) -> tuple[object, ...]:
    return t.dtype, t.device, t.shape, t.stride()


class _Emitter:
    """Collects the lines of one check function and the objects that they name."""

    def __init__(self, guards: GuardSet, symbols: Sequence[Symbol]) -> None:
        self.guards = guards
        self.symbols = symbols
        self.lines: list[str] = []
        self.objects: dict[str, Any] = {
            "Tensor": Tensor,
            "Parameter": torch.nn.Parameter,
            "strided": torch.strided,
            "is_plain": is_plain,
            "any_autocast": any_autocast,
        }
        self.bindings: dict[str, tuple[int, int]] = {}
        for b in guards.bindings:
            self.bindings.setdefault(b.symbol, (b.input, b.dim))
        self.names = {name: f"s{k}" for k, name in enumerate(self.bindings)}

    def function(
        self, tensors: Sequence[TensorGuard], device: TensorGuard | None, *, whole: bool
    ) -> Check:
        """The compiled function: tensors, then symbols, then all other guards."""
        if whole:
            self.refuse("not is_plain()")
        for guard in tensors:
            self.kind(guard)
        self.devices(tensors, device)
        for name, (index, dim) in self.bindings.items():
            self.lines.append(f"{self.names[name]} = z{index}_{dim}")
        self.ranges()
        for guard in tensors:
            self.geometry(guard)
        self.others()
        self.lines.append(f"return ({self.order()})")
        return self.compile("leaves, tensors")

    def again(self, tensors: Sequence[TensorGuard], device: TensorGuard | None) -> Again:
        """The compiled function for tensors that are like accepted ones: relations and ranges speak of sizes alone, so
        they hold; offsets, other arguments and states are looked at."""
        self.refuse("not is_plain()")
        self.refuse(f"not same({', '.join(f'tensors[{g.input}]' for g in tensors)})")
        self.devices([g for g in tensors[:1] if device is not None], device, "tensors[{}]")
        if self.names and not all(g.offset.is_const for g in tensors):
            self.lines.append(f"{self.order()}= values")
        for g in tensors:
            offset = spell(g.offset, self.names)
            self.refuse(f"tensors[{g.input}].storage_offset() != {offset}")
        self.others(sizes=False)
        self.lines.append("return values")
        return self.compile("leaves, tensors, same, values")

    def order(self) -> str:
        names = [self.names[s.name] for s in self.symbols] or list(self.names.values())
        return "".join(f"{name}, " for name in names)

    def compile(self, params: str) -> Any:
        body = "\n  ".join(self.lines)
        text = f"def check({params}):\n try:\n  {body}\n except ZeroDivisionError:\n  {_FAIL}\n"
        exec(text, self.objects)
        return self.objects["check"]

    def refuse(self, *conditions: str) -> None:
        if conditions:
            self.lines.append(f"if {' or '.join(conditions)}: {_FAIL}")

    def hold(self, value: object) -> str:
        """A name for an object."""
        name = f"o{len(self.objects)}"
        self.objects[name] = value
        return name

    def kind(self, guard: TensorGuard) -> None:
        x = f"x{guard.input}"
        self.lines.append(f"{x} = tensors[{guard.input}]")
        self.refuse(f"type({x}) is not Tensor and type({x}) is not Parameter")
        dtype = self.hold(getattr(torch, guard.dtype))
        tests = [
            f"{x}.dtype is not {dtype}",
            f"not {x}.is_{guard.device}",
            f"{x}.layout is not strided",
        ]
        family = DTYPES[guard.dtype].kind
        if family in ("float", "complex"):
            tests.append(f"{x}.is_neg()")
        if family == "complex":
            tests.append(f"{x}.is_conj()")
        self.refuse(*tests)
        if self.is_open(guard):
            dims = "".join(f"z{guard.input}_{d}, " for d in range(len(guard.shape)))
            self.lines.append(f"z = {x}.shape")
            self.refuse(f"len(z) != {len(guard.shape)}")
            self.lines.append(f"{dims}= z")
        else:
            self.refuse(f"{x}.shape != {spell_tuple(guard.shape, {})}")

    def is_open(self, guard: TensorGuard) -> bool:
        """Some size is a symbol's value or depends on one."""
        bound = any(index == guard.input for index, _ in self.bindings.values())
        return bound or not all(e.is_const for e in guard.shape)

    def devices(
        self, tensors: Sequence[TensorGuard], device: TensorGuard | None, spelled: str = "x{}"
    ) -> None:
        cuda = [spelled.format(g.input) for g in tensors if g.device == "cuda"]
        if device is not None and cuda:
            cuda.insert(0, f"tensors[{device.input}]")
        if len(cuda) > 1:
            self.lines.append(f"d = {cuda[0]}.get_device()")
            self.refuse(*(f"{x}.get_device() != d" for x in cuda[1:]))

    def ranges(self) -> None:
        for s in self.symbols:
            name = self.names[s.name]
            self.refuse(f"{name} < {s.lo}", *([] if s.hi is None else [f"{name} > {s.hi}"]))

    def geometry(self, guard: TensorGuard) -> None:
        i, x = guard.input, f"x{guard.input}"
        if self.is_open(guard):
            own = {dim for index, dim in self.bindings.values() if index == i}
            sizes = [
                (d, e)
                for d, e in enumerate(guard.shape)
                if d not in own or not self.is_own(i, d, e)
            ]
            self.refuse(*(f"z{i}_{d} != {spell(e, self.names)}" for d, e in sizes))
        self.strides(guard)
        self.refuse(f"{x}.storage_offset() != {spell(guard.offset, self.names)}")

    def is_own(self, index: int, dim: int, expr: Expr) -> bool:
        """The size is the very symbol that was bound from it."""
        return any(
            place == (index, dim) and expr.text == name for name, place in self.bindings.items()
        )

    def strides(self, guard: TensorGuard) -> None:
        x = f"x{guard.input}"
        constrained = [(d, e) for d, e in enumerate(guard.strides) if e is not None]
        if not constrained:
            return
        if len(constrained) == len(guard.strides):
            self.refuse(f"{x}.stride() != {spell_tuple((e for _, e in constrained), self.names)}")
            return
        self.lines.append(f"t = {x}.stride()")
        self.refuse(*(f"t[{d}] != {spell(e, self.names)}" for d, e in constrained))

    def others(self, *, sizes: bool = True) -> None:
        tests: list[str] = []
        autocast: list[str] = []
        for guard in self.guards.guards:
            if isinstance(guard, RelationGuard):
                if not sizes:
                    continue
                left, right = spell(guard.left, self.names), spell(guard.right, self.names)
                self.refuse(f"not {left} {guard.relation} {right}")
            elif isinstance(guard, ConstantGuard):
                self.constant(guard)
            elif isinstance(guard, StateGuard):
                read, value = self.hold(STATES[guard.name].read), self.hold(raw_value(guard))
                off = guard.name in AUTOCAST and guard.value == "off"
                (autocast if off else tests).append(f"{read}() != {value}")
        if autocast:
            # NOTE: one question answers for all devices, a quarter of the cost of a single one by name.
            tests.append(f"any_autocast() and ({' or '.join(autocast)})")
        self.refuse(*tests)

    def constant(self, guard: ConstantGuard) -> None:
        leaf, value = f"leaves[{guard.leaf}]", from_literal(guard.value)
        name = self.hold(value)
        if value is None or isinstance(
            value, (bool, torch.dtype, torch.layout, torch.memory_format)
        ):
            self.refuse(f"{leaf} is not {name}")
        elif isinstance(value, (int, str, torch.device)) or (
            isinstance(value, float) and _is_simple(value)
        ):
            self.refuse(f"type({leaf}) is not {self.hold(type(value))}", f"{leaf} != {name}")
        else:
            self.refuse(f"not {self.hold(same)}({leaf}, {name})")


def _is_simple(value: float) -> bool:
    """Equality tells it apart from every other float."""
    return value != 0 and not math.isnan(value)


def _distinct_check(pairs: Iterable[tuple[int, int]]) -> Callable[[Sequence[Tensor]], bool]:
    fixed = tuple(pairs)
    involved = tuple(sorted({i for pair in fixed for i in pair}))

    def distinct(tensors: Sequence[Tensor]) -> bool:
        extents: Mapping[int, tuple[int, int]] = {i: storage_extent(tensors[i]) for i in involved}
        return not any(overlaps(extents[a], extents[b]) for a, b in fixed)

    return distinct
