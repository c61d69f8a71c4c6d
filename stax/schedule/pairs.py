"""Reductions to be split, with what binds them: a sum of exponentials to its maximum, a sum of squares to its mean.

Such a second reduction needs the result of the first, yet both can be made in one pass over the data: a segment shifts by
its own maximum or mean, and the combination of segments corrects for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stax.ir.expr import Expr
from stax.ir.program import Computation, Extern, Node, Program, axis_ranges
from stax.ir.ranges import Range
from stax.ir.value import Value, rebuild, rewrite, walk
from stax.schedule.inline import MAX_INLINED_OPS, canonical_axes, inlined, pinned_buffers, reads
from stax.schedule.items import numel


@dataclass(frozen=True)
class Shifted:
    """``kind`` "exp": the reduction is a sum of exp(inner - shift), and ``mate`` makes the maximum of inner. "square": a sum
    of (inner - shift)**2, and ``mate`` makes the sum of inner. ``shift`` is one value an output, known once ``mate`` is."""

    kind: str
    mate: str
    shift: Value


@dataclass(frozen=True)
class Member:
    """A reduction of a family; the body of one with ``shifted`` has its producers inlined."""

    node: Computation
    shifted: Shifted | None


@dataclass(frozen=True)
class Family:
    """Reductions of equal extents that read common data or depend on each other, in order: split alike or not at all.
    ``read_again``: their elements are read again by something that needs a result."""

    members: tuple[Member, ...]
    read_again: bool


def families(program: Program, candidates: frozenset[str]) -> tuple[Family, ...]:
    """The families of the reductions that make the buffers ``candidates``, in program order."""
    survey = _Survey(program, candidates)
    for node in program.nodes:
        survey.visit(node)
    return tuple(Family(tuple(f), any(m.node.out in survey.again for m in f)) for f in survey.found)


def absorbed(family: Family, program: Program) -> Family:
    """The family with those producers inlined that nothing else reads: they can not run beside segments that stick out, and
    would be written and read once more."""
    inside = {m.node.out for m in family.members}
    pinned = pinned_buffers(program)
    readers: dict[str, set[str]] = {}
    producers: dict[str, Computation] = {}
    for node in program.nodes:
        outs = (node.out,) if isinstance(node, Computation) else node.outs
        for name in reads(node):
            readers.setdefault(name, set()).update(outs)
        if isinstance(node, Computation) and _pointwise(node) and node.out not in pinned:
            producers[node.out] = node
    for name in reversed(list(producers)):  # readers before what they read
        if not readers.get(name, set()) <= inside | producers.keys():
            del producers[name]
    members = (
        m if m.shifted else replace(m, node=opened(m.node, producers, program.ranges))
        for m in family.members
    )
    return replace(family, members=tuple(members))


def _pointwise(node: Computation) -> bool:
    return node.combine is None and node.body.op != "scatter"


def opened(
    node: Computation, producers: Mapping[str, Computation], ranges: Mapping[str, Range]
) -> Computation:
    """The reduction with ``producers`` inlined where they are read along its reduced axes; as it was when too large."""
    over = frozenset(a.name for a in node.reduce_axes)
    inside = {**ranges, **axis_ranges((*node.axes, *node.reduce_axes))}

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        here = rebuild(value, args)
        producer = producers.get(str(value.attr[0])) if value.op == "load" else None
        if producer is None or not touches(here, over):
            return here
        body = inlined(here, producer, inside)
        return body if body.key == here.key else rewrite(body, swap)

    body = rewrite(node.body, swap)
    return node if body.size > MAX_INLINED_OPS else replace(node, body=body)


class _Survey:
    """One walk over the nodes. Mutable; lives inside one call of :func:`families`."""

    def __init__(self, program: Program, candidates: frozenset[str]) -> None:
        self.ranges: Mapping[str, Range] = program.ranges
        self.candidates = candidates
        self.depends: dict[str, frozenset[str]] = {}
        self.dependent: dict[str, Computation] = {}
        self.points: dict[str, Expr] = {}
        self.again: set[str] = set()
        self.found: list[list[Member]] = []

    def visit(self, node: Node) -> None:
        if isinstance(node, Extern):
            return
        needs = frozenset[str]().union(*(self.depends.get(n, frozenset()) for n in reads(node)))
        points = numel((*node.axes, *node.reduce_axes))
        if node.out not in self.candidates:
            self.depends[node.out] = needs
            self._read_again(needs, points)
            if needs and _pointwise(node):
                self.dependent[node.out] = node
            return
        node = canonical_axes(node)
        family = self._family(node, needs)
        member = self._member(node, family)
        self._read_again(
            needs - ({m.node.out for m in family} if member.shifted else set()), points
        )
        family.append(member)
        self.points[node.out] = points
        self.depends[node.out] = needs | {node.out}

    def _read_again(self, needs: frozenset[str], points: Expr) -> None:
        self.again |= {n for n in needs if self.points[n] == points}

    def _family(self, node: Computation, needs: frozenset[str]) -> list[Member]:
        """The family that ``node`` joins; the families that it binds become one."""
        bound = [f for f in self.found if any(_bound(node, needs, m) for m in f)]
        joined = [m for f in bound for m in f]
        self.found = [f for f in self.found if f not in bound]
        self.found.append(joined)
        return joined

    def _member(self, node: Computation, family: list[Member]) -> Member:
        whole = opened(node, self.dependent, self.ranges)
        parts = _parts(whole)
        if parts is None:
            return Member(node, None)
        kind, inner, shift = parts
        combine = "max" if kind == "exp" else "sum"
        needed = {d for v in shift.loads for d in self.depends.get(str(v.attr[0]), ())}
        for mate in family:
            known = mate.node.combine == combine and mate.node.body.key == inner.key
            if known and mate.node.out in needed:
                return Member(whole, Shifted(kind, mate.node.out, shift))
        return Member(node, None)


def _bound(node: Computation, needs: frozenset[str], other: Member) -> bool:
    theirs = other.node
    if _extents(node) != _extents(theirs):
        return False
    return theirs.out in needs or not reads(node).isdisjoint(reads(theirs))


def _extents(node: Computation) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    return tuple(a.extent for a in node.axes), tuple(a.extent for a in node.reduce_axes)


def _parts(node: Computation) -> tuple[str, Value, Value] | None:
    """(kind, inner, shift) as in Shifted."""
    body = node.body
    if node.combine != "sum" or body.op not in ("exp", "mul") or body.args[0].op != "sub":
        return None
    if body.op == "mul" and body.args[0] != body.args[1]:
        return None
    inner, shift = body.args[0].args
    if touches(shift, frozenset(a.name for a in node.reduce_axes)):
        return None
    return "exp" if body.op == "exp" else "square", inner, shift


def touches(value: Value, names: frozenset[str]) -> bool:
    """True when the value depends on one of these axes."""
    return any(
        v.op in ("index", "bound") and isinstance(v.attr[0], Expr) and v.attr[0].symbols & names
        for v in walk(value)
    )
