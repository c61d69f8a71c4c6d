"""In which loop each statement of a kernel runs.

A kernel runs as stages X(0) R(0) X(1) R(1) …: R(n) is one loop over the reduced axes, X(n) the statements in between. A
reduction of R(n) can be used from X(n+1) on.
"""

from __future__ import annotations

from dataclasses import dataclass

from stax.codegen.cpp.values import inline_locals
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.value import Value, load_parts, walk


@dataclass(frozen=True)
class Stage:
    """``x``: statements of the outer space to compute, then ``x_stores``; ``xr``: statements of one loop over the
    reduced axes, each a reduction or a statement with stores."""

    x: tuple[Statement, ...]
    x_stores: tuple[tuple[Statement, Store], ...]
    xr: tuple[Statement, ...]


def stages(kernel: Kernel, inlined: dict[str, Value]) -> tuple[Stage, ...]:
    """The stages in order; ``inlined`` are the bodies that are recomputed where they are used."""
    levels = _levels(kernel)
    writes = _store_levels(kernel, levels, inlined)
    count = max([*levels.values(), *writes.values()], default=0) + 1
    found: list[Stage] = []
    for level in range(count):
        x = [s for s in kernel.statements if s.space == "x" and levels[s.name] == level]
        stores = [
            (s, store)
            for s in kernel.statements
            for store in s.stores
            if (s.space == "x" or s.combine) and writes[s.name, store.pointer] == level
        ]
        xr = [
            s for s in kernel.statements if s.space == "xr" and _runs_at(s, levels, writes) == level
        ]
        found.append(Stage(tuple(x), tuple(stores), tuple(xr)))
    return tuple(found)


def _runs_at(s: Statement, levels: dict[str, int], writes: dict[tuple[str, str], int]) -> int:
    """The level whose loop runs an "xr" statement, -1 for one that is only inlined elsewhere."""
    if s.combine or s.space == "x":
        return levels[s.name]
    return max((writes[s.name, store.pointer] for store in s.stores), default=-1)


def _levels(kernel: Kernel) -> dict[str, int]:
    """The first stage at which each statement can be computed."""
    reduced = {s.name for s in kernel.statements if s.combine}
    levels: dict[str, int] = {}
    for s in kernel.statements:
        used = [v.attr[0] for v in walk(s.body) if v.op == "local"]
        levels[s.name] = max((levels[str(u)] + (u in reduced) for u in used), default=0)
    return levels


def _store_levels(
    kernel: Kernel, levels: dict[str, int], inlined: dict[str, Value]
) -> dict[tuple[str, str], int]:
    """The stage of each store. One to an "inout" pointer waits until nothing later reads the pointer."""
    inout = {p.name for p in kernel.pointers if p.kind == "inout"}
    runs = dict(levels)
    while True:
        found: dict[tuple[str, str], int] = {}
        for s in kernel.statements:
            for store in s.stores:
                wait = (
                    _first_write(kernel, store.pointer, runs, inlined, s)
                    if store.pointer in inout
                    else 0
                )
                found[s.name, store.pointer] = max(levels[s.name] + bool(s.combine), wait)
        # Waiting moves a statement of the inner space, and with it what it reads, to a later loop.
        moved = {s.name: max(runs[s.name], _runs_at(s, levels, found)) for s in kernel.statements}
        if moved == runs:
            return found
        runs = moved


def _first_write(
    kernel: Kernel, pointer: str, runs: dict[str, int], inlined: dict[str, Value], writer: Statement
) -> int:
    """The first stage at which ``writer`` may overwrite ``pointer``."""
    outer = writer.space == "x" or writer.combine is not None
    first = 0
    for s in kernel.statements:
        if any(load_parts(v)[0] == pointer for v in inline_locals(s.body, inlined).loads):
            # A store between loops comes before the loop of its own stage.
            first = max(first, runs[s.name] + (outer and s.space == "xr"))
    return first
