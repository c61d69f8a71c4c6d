"""What lies where in shared memory as the steps go by: nothing outside it, no two at one place, each only while it lives.
Pure; made for steps from an enemy, so each costs little."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterable

from stax.artifact.artifact import Alloc, Arena, Free, Launch, Place, Step
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.extent import ALIGNMENT, extent_bytes

# Tensors at once in one slot: keeping them in order costs time.
MAX_TENANTS = 1 << 12
Refusal = tuple[str, str]
Slot = tuple[str, int]
_Tenant = tuple[int, int, str]


class Tenancy:
    """Follows the steps of one artifact."""

    def __init__(self) -> None:
        self._arenas: dict[str, tuple[Expr, ...]] = {}
        self._unused: dict[str, Alloc] = {}
        self._placed: dict[str, tuple[Slot, _Tenant]] = {}
        self._tenants: dict[Slot, list[_Tenant]] = {}
        self._busy: dict[str, int] = {}

    def follow(self, step: Step, reads: Iterable[str]) -> Refusal | None:
        """(expected, found) when the step breaks a rule. ``reads``: the live names that it uses."""
        if isinstance(step, Alloc):
            self._unused[step.name] = step
        elif isinstance(step, Arena):
            return self._arena(step)
        elif isinstance(step, Place):
            return self._place(step)
        elif isinstance(step, Free):
            return self._free(step)
        else:
            return self._use(reads, by_kernel=isinstance(step, Launch))
        return None

    def _arena(self, step: Arena) -> Refusal | None:
        self._arenas[step.name] = step.slots
        bad = next((s for s in step.slots if s.is_const and s.value < 0), None)
        return None if bad is None else ("slots of >= 0 bytes", bad.text)

    def _place(self, step: Place) -> Refusal | None:
        if step.dtype not in DTYPES:
            return "a dtype", step.dtype
        if len(step.strides) != len(step.shape):
            return f"{len(step.shape)} strides", str(len(step.strides))
        if any(e.is_const and e.value < 0 for e in (*step.shape, *step.strides)):
            return "sizes and strides >= 0", "a negative one"
        slots = self._slots_of(step.home)
        if step.slot >= len(slots):
            return "a slot of an arena, or an allocation that nothing has used", repr(step.home)
        size = extent_bytes(step.dtype, step.shape, step.strides)
        if size is None:
            return "short size expressions", "longer ones"
        if step.offset % ALIGNMENT or not _fits(step.offset, size, slots[step.slot]):
            found = f"{size} at {step.offset}"
            return f"a place in {slots[step.slot]} bytes, at a multiple of {ALIGNMENT}", found
        return self._settle(step, size)

    def _slots_of(self, home: str) -> tuple[Expr, ...]:
        found = self._unused.get(home)
        if found is None:
            return self._arenas.get(home, ())
        size = extent_bytes(found.dtype, found.shape, found.strides)
        return () if size is None else (size,)

    def _settle(self, step: Place, size: Expr) -> Refusal | None:
        slot = (step.home, step.slot)
        tenants = self._tenants.setdefault(slot, [])
        end = step.offset + size.value if size.is_const else step.offset
        own = (step.offset, end, step.name)
        at = bisect(tenants, own)
        apart = (at == 0 or tenants[at - 1][1] <= step.offset) and (
            at == len(tenants) or end <= tenants[at][0]
        )
        if (tenants and not size.is_const) or not apart or len(tenants) >= MAX_TENANTS:
            return "a place that nothing lies in", f"{slot[0]}[{slot[1]}] at {step.offset}"
        insort(tenants, own)
        self._placed[step.name] = (slot, own)
        self._busy[step.home] = self._busy.get(step.home, 0) + 1
        return None

    def _free(self, step: Free) -> Refusal | None:
        for name in step.names:
            slot, own = self._placed.pop(name, (("", 0), None))
            if own is not None:
                tenants = self._tenants[slot]
                del tenants[bisect(tenants, own) - 1]
                self._busy[slot[0]] -= 1
        for name in step.names:
            if self._busy.get(name):
                return "a home that nothing lies in", repr(name)
        return None

    def _use(self, reads: Iterable[str], *, by_kernel: bool) -> Refusal | None:
        for name in reads:
            if name in self._arenas or (name in self._placed and not by_kernel):
                return "a tensor of its own", repr(name)
            if self._busy.get(name):
                return "a tensor that nothing else lies in", repr(name)
            self._unused.pop(name, None)
        return None


def _fits(offset: int, size: Expr, slot: Expr) -> bool:
    if size.is_const and slot.is_const:
        return offset + size.value <= slot.value
    return offset == 0 and size == slot
