"""Costly values of the inner space that several loops over the reduced axes need: kept by the first, read by the later ones.

A value is kept in an array on the stack when a row is short, else in an output that a later loop overwrites at the same
point, else it is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stax.codegen.cpp.cost import operations
from stax.codegen.cpp.index import spell_expr
from stax.codegen.cpp.nest import Lines
from stax.codegen.cpp.stages import Stage
from stax.codegen.cpp.statements import position
from stax.codegen.cpp.types import value_type
from stax.codegen.cpp.values import Names, inline_locals
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.ranges import bounds
from stax.ir.value import Value, walk

# Elements of all arrays on the stack together, at most; and what computing a value again must cost for keeping it to pay.
ROW_LIMIT = 16384
WORTH_KEEPING = 10


@dataclass
class Rows:
    """``places``: where each kept statement's value is, by name, as C++ text valid in every reduced loop. ``arrays``: those that
    need an array, and its length. ``inlined``: the bodies of all statements that are otherwise computed where they are used.
    ``kept`` grows as the loops are printed."""

    kernel: Kernel
    inlined: Mapping[str, Value]
    places: Mapping[str, str]
    arrays: Mapping[str, int]
    kept: set[str] = field(default_factory=set[str])

    def bodies(self) -> dict[str, Value]:
        """What is still computed where it is used."""
        return {name: body for name, body in self.inlined.items() if name not in self.kept}

    def offer(self, names: Names, depth: int) -> None:
        """Tell ``names`` where the kept values are, for a loop nest ``depth`` deep."""
        for s in self.kernel.statements:
            if s.name in self.kept:
                names.set_local(s.name, s.dtype, self.places[s.name], depth)

    def keep(self, names: Names, roots: list[Value]) -> tuple[Lines, Lines]:
        """Keep what the ``roots`` compute: declarations to stand before the loops, and lines for the innermost one."""
        bodies = self.bodies()
        computed = {v.key for root in roots for v in walk(root)}
        declared: Lines = []
        lines: Lines = []
        for s in self.kernel.statements:
            if s.name not in self.places or s.name in self.kept:
                continue
            key = inline_locals(s.body, bodies).key
            if key not in computed:
                continue
            if s.name in self.arrays:
                declared.append(f"{value_type(s.dtype)} {s.name}_row[{self.arrays[s.name]}];")
            lines.append(f"{self.places[s.name]} = {names.known[key].text};")
            self.kept.add(s.name)
        return declared, lines


def choose_rows(
    kernel: Kernel,
    stages: tuple[Stage, ...],
    inlined: Mapping[str, Value],
    *,
    private: bool,
) -> Rows:
    """Which values to keep, and where. ``private``: one thread runs all loops of a row, so that arrays are possible."""
    limit = bounds(kernel.rnumel, kernel.ranges)[1]
    places: dict[str, str] = {}
    arrays: dict[str, int] = {}
    taken: set[str] = set()
    for s in kernel.statements:
        users = _users(s, stages, inlined)
        cost = sum(operations(v) for v in walk(inline_locals(s.body, inlined)))
        if len(users) < 2 or cost < WORTH_KEEPING:
            continue
        store = _overwritten(kernel, s, stages[users[0] + 1 :], taken)
        room = limit is not None and 0 < limit <= ROW_LIMIT - sum(arrays.values())
        if private and room and limit is not None:
            places[s.name], arrays[s.name] = f"{s.name}_row[{position(kernel)}]", limit
        elif store is not None:
            taken.add(store.pointer)
            places[s.name] = f"{store.pointer}[{spell_expr(store.offset, kernel.ranges)}]"
    return Rows(kernel, inlined, places, arrays)


def _users(s: Statement, stages: tuple[Stage, ...], inlined: Mapping[str, Value]) -> list[int]:
    """The stages whose loop over the reduced axes needs the value of ``s``."""
    if s.name not in inlined:
        return []
    key = inline_locals(s.body, inlined).key
    return [
        n
        for n, stage in enumerate(stages)
        if any(key in {v.key for v in walk(inline_locals(t.body, inlined))} for t in stage.xr)
    ]


def _overwritten(
    kernel: Kernel, s: Statement, later: tuple[Stage, ...], taken: set[str]
) -> Store | None:
    """A store of a later loop, at every point, to an output of the same type that nothing else touches."""
    usable = {p.name for p in kernel.pointers if p.kind == "out" and p.dtype == s.dtype} - taken
    for stage in later:
        for t in stage.xr:
            for store in t.stores if t.combine is None else ():
                if store.pointer in usable:
                    return store
    return None
