"""Program → Program: a reduction with too few outputs becomes two, over (outputs x segments) and over the segments.

Where a size is a symbol, the hint chooses the length of a segment and the size their number: every length is right, none
has an empty segment, and longer ones have more. What :mod:`segments` decides on sizes, :mod:`pairs` on dependence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, ceildiv, const, minimum, product, sym
from stax.ir.program import (
    Axis,
    Buffer,
    Computation,
    Node,
    Origin,
    Program,
    axis_ranges,
    contiguous,
)
from stax.ir.ranges import Range
from stax.ir.value import (
    Value,
    cast,
    constant,
    index,
    load,
    load_parts,
    rebuild,
    rewrite,
    scalar,
    where,
)
from stax.schedule import merge
from stax.schedule.inline import Decision, drop_dead, masked_load, share
from stax.schedule.items import substitute
from stax.schedule.pairs import Family, Member, Shifted, absorbed, families, touches
from stax.schedule.segments import Cut, Reduction, cut, memory_order

POSITIONS = {"argmax": "max", "argmin": "min"}


def split(program: Program) -> tuple[Program, tuple[Decision, ...]]:
    """Split the reductions of the program's CUDA buffers that :mod:`segments` finds worth it."""
    table = program.table
    hints = {s.name: s.hint for s in program.symbols}
    decisions: list[Decision] = []
    candidates: set[str] = set()
    for node in program.nodes:
        if not isinstance(node, Computation) or node.combine is None:
            continue
        if table[node.out].device != "cuda":
            continue
        found = cut(_sizes(node, table, hints, read_again=False), hints)
        if isinstance(found, Cut):
            candidates.add(node.out)
        else:
            decisions.append(Decision(_subject(node), False, found))
    if not candidates:
        return program, tuple(decisions)
    halves: dict[str, tuple[Computation, ...]] = {}
    buffers: list[Buffer] = []
    for family in families(program, frozenset(candidates)):
        chosen = _cut_of(family, table, hints)
        for member in family.members:
            subject = _subject(member.node)
            if isinstance(chosen, str):
                decisions.append(Decision(subject, False, chosen))
            else:
                decisions.append(Decision(subject, True, _told(member.node, chosen, hints)))
        if isinstance(chosen, Cut):
            maker = _Halves(absorbed(family, program) if chosen.masked else family, chosen, program)
            halves |= maker.made
            buffers += maker.buffers
    nodes: list[Node] = []
    for node in program.nodes:
        nodes += halves.get(node.out, (node,)) if isinstance(node, Computation) else (node,)
    whole = replace(program, buffers=(*program.buffers, *buffers), nodes=tuple(nodes))
    return drop_dead(share(whole)), tuple(decisions)


def _subject(node: Computation) -> str:
    return f"split {node.out} ({node.origin.op})"


def _told(node: Computation, chosen: Cut, hints: Mapping[str, int]) -> str:
    outputs = product(a.extent for a in node.axes).evaluate(hints)
    pieces = product(a.extent for a in _Frame.of(node, chosen).segments).evaluate(hints)
    points = product(a.extent for a in node.reduce_axes).evaluate(hints)
    return f"{outputs} outputs of {points} elements in {pieces} segments each"


# -- what decides


def _cut_of(family: Family, table: Mapping[str, Buffer], hints: Mapping[str, int]) -> Cut | str:
    first = family.members[0].node
    sizes = _sizes(first, table, hints, read_again=family.read_again)
    if any(m.node.combine in POSITIONS for m in family.members):
        sizes = replace(sizes, over=first.reduce_axes, in_order=True)
    return cut(sizes, hints)


def _sizes(
    node: Computation, table: Mapping[str, Buffer], hints: Mapping[str, int], *, read_again: bool
) -> Reduction:
    over, outer = (frozenset(a.name for a in axes) for axes in (node.reduce_axes, node.axes))
    read = [v for v in node.body.loads if touches(v, over)]
    read = [v for v in read if touches(v, outer)] or read  # vectors beside a matrix decide nothing
    strides = [_strides(v, table, hints) for v in read]
    along = [sum(_steps_by_one(s, axes) for s in strides) for axes in (node.reduce_axes, node.axes)]
    widest = max(strides, key=len, default=dict[str, int]())
    return Reduction(
        outputs=tuple(a.extent for a in node.axes),
        over=memory_order(node.reduce_axes, widest),
        inner=along[0] >= along[1],
        element_bytes=max((DTYPES[v.dtype].itemsize for v in read), default=0),
        read_again=read_again,
    )


def _strides(read: Value, table: Mapping[str, Buffer], hints: Mapping[str, int]) -> dict[str, int]:
    """Elements between neighbours along each axis that the place of a load is linear in."""
    name, indices, _, _ = load_parts(read)
    at = const(0)
    for i, stride in zip(indices, table[name].strides):
        if i.op == "index" and isinstance(i.attr[0], Expr):
            at = at + i.attr[0] * stride
    found: dict[str, int] = {}
    for atom in at.atoms:
        parts = at.linear(atom) if atom.op == "sym" and atom.name not in hints else None
        if parts is not None and parts[0].symbols <= hints.keys():
            found[atom.name] = parts[0].evaluate(hints)
    return found


def _steps_by_one(strides: Mapping[str, int], axes: Sequence[Axis]) -> bool:
    return any(strides.get(a.name) == 1 for a in axes)


# -- the axes of both levels


@dataclass(frozen=True)
class _Frame:
    """The loops of a family's partial results: ``outer`` are the axes of the outputs, ``segments`` number the segments,
    ``loops`` walk inside one. ``env``: the reduced axes by those. ``inside``: false past the end of the data, which
    depends on the axes ``sticking``; None when nothing sticks out. ``count``: elements of a segment. ``base``: row-major
    position of a segment's first element."""

    outer: tuple[Axis, ...]
    segments: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    env: Mapping[str, Expr]
    inside: Value | None
    sticking: frozenset[str]
    count: Expr
    base: Expr
    inner: bool

    @staticmethod
    def of(node: Computation, chosen: Cut) -> _Frame:
        segments = [Axis(f"piece{k}", a.extent) for k, a in enumerate(chosen.over[: chosen.whole])]
        loops = list(chosen.over[chosen.whole :])
        env = {a.name: sym(s.name) for a, s in zip(chosen.over, segments)}
        inside: Value | None = None
        sticking = frozenset[str]()
        count = product(a.extent for a in loops)
        base = const(0)
        for s in segments:
            base = base * s.extent + sym(s.name)
        base = base * count
        if chosen.length is not None:
            axis, length = loops[0], chosen.length
            piece = Axis(f"piece{len(segments)}", ceildiv(axis.extent, length))
            start = sym(piece.name) * length
            rest = product(a.extent for a in loops[1:])
            base = base + start * rest
            if chosen.masked:
                # As a position among all that follows: axes that are one in memory stay one.
                flat = start + sym(axis.name)
                for a in loops[1:]:
                    flat = flat * a.extent + sym(a.name)
                inside = scalar("lt", index(flat), index(axis.extent * rest))
                sticking = frozenset((axis.name, piece.name))
            # NOTE: a segment holds an element at least, since there are ceil(extent / length) of them.
            held = minimum(length, axis.extent - start) if chosen.masked else length
            count = held * rest
            env[axis.name] = start + sym(axis.name)
            if chosen.dealt:
                env[axis.name] = sym(axis.name) * piece.extent + sym(piece.name)
            loops[0] = Axis(axis.name, length)
            segments.append(piece)
        outer = node.axes
        return _Frame(
            outer, tuple(segments), tuple(loops), env, inside, sticking, count, base, chosen.inner
        )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of partial results."""
        return (*self.outer, *self.segments) if self.inner else (*self.segments, *self.outer)

    @property
    def at(self) -> tuple[Expr, ...]:
        return tuple(sym(a.name) for a in self.axes)


class _Halves:
    """Both levels of each member of a family. Mutable; lives inside one call of :func:`split`."""

    def __init__(self, family: Family, chosen: Cut, program: Program) -> None:
        self.frame = _Frame.of(family.members[0].node, chosen)
        self.table = program.table
        inside = (*self.frame.axes, *self.frame.loops)
        self.ranges: dict[str, Range] = {**program.ranges, **axis_ranges(inside)}
        self.buffers: list[Buffer] = []
        self.made: dict[str, tuple[Computation, ...]] = {}
        self.bodies: dict[str, Value] = {}
        self.partials: dict[str, Value] = {}
        for member in family.members:
            self.made[member.node.out] = tuple(self._halves(member))

    def _halves(self, member: Member) -> list[Computation]:
        node, combine = member.node, member.node.combine
        assert combine is not None
        if member.shifted is not None:
            return self._shifted(node, member.shifted)
        body = self._padded(self._moved(node.body), POSITIONS.get(combine, combine))
        if combine in POSITIONS:
            return self._positions(node, combine, body)
        first, part = self._partial(node, "partial", combine, body)
        self.bodies[node.out], self.partials[node.out] = body, part
        return [first, self._second(node, combine, part)]

    # -- pieces

    def _moved(self, body: Value) -> Value:
        """A body on the axes of the partial results; nothing is read past the end."""
        body = substitute(body, self.frame.env, self.ranges)
        inside = self.frame.inside
        if inside is None:
            return body

        def swap(value: Value, args: tuple[Value, ...]) -> Value:
            here = rebuild(value, args)
            return (
                masked_load(here, inside)
                if value.op == "load" and touches(here, self.frame.sticking)
                else here
            )

        return rewrite(body, swap)

    def _padded(self, body: Value, combine: str) -> Value:
        inside = self.frame.inside
        return body if inside is None else where(inside, body, identity(combine, body.dtype))

    def _partial(
        self, node: Computation, label: str, combine: str | None, body: Value
    ) -> tuple[Computation, Value]:
        """A result of each segment, and how to read it."""
        dtype = "int64" if combine in POSITIONS else body.dtype
        shape = tuple(a.extent for a in self.frame.axes)
        device = self.table[node.out].device
        name = f"{node.out}_{label}"
        self.buffers.append(Buffer(name, "temp", dtype, shape, contiguous(shape), const(0), device))
        over = () if combine is None else self.frame.loops
        made = Computation(name, self.frame.axes, over, combine, body, node.origin)
        return made, load(name, dtype, self.frame.at)

    def _second(self, node: Computation, combine: str, body: Value) -> Computation:
        origin = Origin(node.origin.op, node.origin.where)
        return Computation(node.out, node.axes, self.frame.segments, combine, body, origin)

    # -- rules

    def _positions(self, node: Computation, combine: str, body: Value) -> list[Computation]:
        """The extreme of each segment and where its first is; then the extreme of all, and the first place that has it."""
        extreme = POSITIONS[combine]
        place, at = self._partial(node, "place", combine, body)
        value, held = self._partial(node, "extreme", extreme, body)
        name = f"{node.out}_best"
        shape = tuple(a.extent for a in node.axes)
        device = self.table[node.out].device
        self.buffers.append(
            Buffer(name, "temp", body.dtype, shape, contiguous(shape), const(0), device)
        )
        best = replace(self._second(node, extreme, held), out=name)
        has_it = scalar("eq", held, load(name, body.dtype, [sym(a.name) for a in node.axes]))
        if DTYPES[body.dtype].is_float:
            has_it = scalar("or", has_it, scalar("isnan", held))
        everything = product(a.extent for a in node.reduce_axes)
        first = where(has_it, scalar("add", at, index(self.frame.base)), index(everything))
        return [place, value, best, self._second(node, "min", first)]

    def _shifted(self, node: Computation, shifted: Shifted) -> list[Computation]:
        if shifted.kind == "exp":
            return self._exponentials(node, shifted)
        return self._squares(node, shifted)

    def _exponentials(self, node: Computation, shifted: Shifted) -> list[Computation]:
        """Exponentials of the distance to the segment's own maximum. Past the end the padded inner is -inf: adds nothing."""
        inner, top = self.bodies[shifted.mate], self.partials[shifted.mate]
        made, summed = self._partial(
            node, "powers", "sum", scalar("exp", scalar("sub", inner, top))
        )
        return [made, self._second(node, "sum", merge.powers(top, summed, shifted.shift))]

    def _squares(self, node: Computation, shifted: Shifted) -> list[Computation]:
        """Squares of the distance to the segment's own mean."""
        inner, summed = self.bodies[shifted.mate], self.partials[shifted.mate]
        count = _number(self.frame.count, inner.dtype)
        own = scalar("truediv", summed, count)
        mean, centre = self._partial(node, "centre", None, own)
        gap = scalar("sub", inner, centre)
        body = self._padded(scalar("mul", gap, gap), "sum")
        made, squares = self._partial(node, "squares", "sum", body)
        whole = merge.squares(count, own, squares, shifted.shift)
        return [mean, made, self._second(node, "sum", whole)]


def _number(e: Expr, dtype: str) -> Value:
    return constant(e.value, dtype) if e.is_const else cast(index(e), dtype)


def identity(combine: str, dtype: str) -> Value:
    """What changes no result of ``combine``."""
    d = DTYPES[dtype]
    if combine in ("max", "min"):
        low, high = (-math.inf, math.inf) if d.is_float else _limits(dtype)
        return constant(low if combine == "max" else high, dtype)
    return constant({"sum": 0, "prod": 1, "any": False, "all": True}[combine], dtype)


def _limits(dtype: str) -> tuple[int, int]:
    d = DTYPES[dtype]
    bits = 8 * d.itemsize
    if d.kind == "bool":
        return 0, 1
    return (0, (1 << bits) - 1) if d.kind == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
