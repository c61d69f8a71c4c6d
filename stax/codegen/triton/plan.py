"""In which pass over the reduced elements each statement runs: one loop for every level of reductions that depend on
one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from stax.codegen.triton.pairs import Pair, pairs_of
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.value import walk


@dataclass(frozen=True)
class Phase:
    """``before``: statements over x alone, computed once. ``inside``: statements of the loop that follows, some again
    from an earlier loop; those in ``finished`` reduce in it, those of ``pairs`` two at once. Stores come at the end of
    each part."""

    before: tuple[Statement, ...]
    before_stores: tuple[tuple[str, Store], ...]
    inside: tuple[Statement, ...]
    inside_stores: tuple[tuple[str, Store], ...]
    finished: frozenset[str]
    pairs: tuple[Pair, ...] = ()


def plan(kernel: Kernel, pairs: Sequence[Pair] | None = None) -> tuple[Phase, ...]:
    """The phases of a looped kernel; the last one has no loop. ``pairs``: reductions that one loop gives together
    (default: all there are).

    A pointer that is read and written is stored to in the last pass, when nothing will read it any more.
    """
    pairs = pairs_of(kernel) if pairs is None else pairs
    ready, loop = _levels(kernel, {p.second: p.first for p in pairs})
    second = {p.second for p in pairs}
    count = 1 + max(loop.values(), default=-1)
    changed = {p.name for p in kernel.pointers if p.kind == "inout"}
    before: list[list[tuple[str, Store]]] = [[] for _ in range(count + 1)]
    inside: list[list[tuple[str, Store]]] = [[] for _ in range(count + 1)]
    for s in kernel.statements:
        for store in s.stores:
            if s.name in loop and s.combine is None:
                at = count - 1 if store.pointer in changed else loop[s.name]
                inside[at].append((s.name, store))
            else:
                at = count if store.pointer in changed else ready[s.name]
                before[at].append((s.name, store))
    return tuple(
        Phase(
            before=tuple(s for s in kernel.statements if s.space == "x" and ready[s.name] == k),
            before_stores=tuple(before[k]),
            inside=_inside(kernel, k, loop, [name for name, _ in inside[k]], second),
            inside_stores=tuple(inside[k]),
            finished=frozenset(
                s.name for s in kernel.statements if s.combine and loop[s.name] == k
            ),
            pairs=tuple(p for p in pairs if loop[p.first] == k),
        )
        for k in range(count + 1)
    )


def _levels(kernel: Kernel, together: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """(number of loops after which a value over x is known, index of the first loop in which an xr statement can run).
    ``together``: reductions that run in the loop of another."""
    ready: dict[str, int] = {}
    loop: dict[str, int] = {}
    for s in kernel.statements:
        used = locals_of(s)
        level = max((ready[n] if n in ready else loop[n] for n in used), default=0)
        if s.space == "x":
            ready[s.name] = level
            continue
        level = loop[together[s.name]] if s.name in together else level
        loop[s.name] = level
        if s.combine:
            ready[s.name] = level + 1
    return ready, loop


def _inside(
    kernel: Kernel, k: int, loop: dict[str, int], stored: Iterable[str], second: Set[str]
) -> tuple[Statement, ...]:
    """What loop k evaluates: its reductions but the second ones of pairs, its scatters, what it stores, and the values
    over xr that these use."""
    needed = {
        s.name
        for s in kernel.statements
        if (s.combine or s.body.op == "scatter") and loop.get(s.name) == k
    }
    needed = (needed - second) | set(stored)
    for s in reversed(kernel.statements):
        if s.name in needed:
            needed |= {n for n in locals_of(s) if n in loop and not _is_reduced(kernel, n)}
    return tuple(s for s in kernel.statements if s.name in needed)


def _is_reduced(kernel: Kernel, name: str) -> bool:
    return any(s.name == name and s.combine for s in kernel.statements)


def locals_of(s: Statement) -> tuple[str, ...]:
    """Names of the statements that ``s`` uses."""
    return tuple(str(v.attr[0]) for v in walk(s.body) if v.op == "local")


def loops(kernel: Kernel) -> tuple[tuple[Statement, ...], ...]:
    """What each loop over the reduced elements evaluates; a kernel of another form has none."""
    if kernel.form != "red":
        return ()
    return tuple(phase.inside for phase in plan(kernel) if phase.inside)
