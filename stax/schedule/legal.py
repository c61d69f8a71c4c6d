"""May two groups become one kernel? Pure predicates: each returns the joined group or the reason against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stax.ir.expr import Expr, const, sym
from stax.ir.program import Axis
from stax.ir.ranges import Range, simplify
from stax.schedule.items import Frame, Group, Placed, load_coords, move, numel

MAX_STATEMENTS = 48
MAX_OPS = 768


def join(a: Group, b: Group, symbols: Mapping[str, Range]) -> Group | str:
    """The group of both, in data-flow order, or why not. ``symbols``: ranges of the program's sizes."""
    if a.device != b.device:
        return f"devices differ: {a.device} and {b.device}"
    if len(a.members) + len(b.members) > MAX_STATEMENTS:
        return f"more than {MAX_STATEMENTS} statements"
    if sum(m.body.size for m in (*a.members, *b.members)) > MAX_OPS:
        return f"more than {MAX_OPS} operations"
    host, guest = (a, b) if _rank(a) >= _rank(b) else (b, a)
    reason = "iteration spaces differ"
    ranges = {**symbols, **host.frame.ranges}
    chained = not host.reads.isdisjoint(guest.produced) or not guest.reads.isdisjoint(host.produced)
    for env in placements(host, guest, symbols):
        if not chained and any(atom.op != "sym" for e in env.values() for atom in e.atoms):
            # Sharing a read saves its bytes; finding the axes by division would cost every access.
            reason = "axes of one would have to be divided out of the other's"
            continue
        if _counted(guest) and not _same_order(guest.frame.r, env, host.frame.r, ranges):
            reason = "a position would count in another order"
            continue
        placed = move(guest, env, host.frame, symbols)
        reason = objection(host, placed, symbols)
        if not reason:
            members = sorted((*host.members, *placed), key=lambda m: m.item.position)
            return Group(host.frame, tuple(members), host.device)
    return reason


def _counted(group: Group) -> bool:
    """True when the value of a member is a position among its reduced elements."""
    return any(m.item.combine in ("argmax", "argmin") for m in group.members)


def _same_order(
    guest: Sequence[Axis],
    env: Mapping[str, Expr],
    host: Sequence[Axis],
    ranges: Mapping[str, Range],
) -> bool:
    """The guest's row-major position is the host's."""
    theirs = ours = const(0)
    for axis in guest:
        theirs = theirs * axis.extent + env[axis.name]
    for axis in host:
        ours = ours * axis.extent + sym(axis.name)
    return simplify(theirs, ranges) == ours


def _rank(group: Group) -> tuple[bool, int, int]:
    """The group that lends its frame: one with a reduction, then the one with more axes, then the earlier."""
    return bool(group.frame.r), len(group.frame.axes), -group.position


def placements(
    host: Group, guest: Group, symbols: Mapping[str, Range]
) -> Iterator[dict[str, Expr]]:
    """Candidate meanings of the guest's axes on the host's frame: along shared buffers first, then row by row."""
    target = _target(host.frame, guest.frame)
    if target is None:
        return
    x_axes, r_axes = target
    ranges = {**symbols, **host.frame.ranges}
    tried: set[tuple[tuple[str, str], ...]] = set()
    for env in (*_along_buffers(host, guest), _row_major(guest.frame, x_axes, r_axes, ranges)):
        key = tuple(sorted((k, v.text) for k, v in env.items()))
        if key in tried:
            continue
        tried.add(key)
        if _bijective(guest.frame.x, env, x_axes, ranges) and _bijective(
            guest.frame.r, env, r_axes, ranges
        ):
            yield env


def _target(host: Frame, guest: Frame) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """Which host axes the guest's outer and reduced axes must cover exactly; None also for spaces without a point, which
    have no mixed-radix numbers."""
    if numel(host.axes) == 0 or numel(guest.axes) == 0:
        return None
    if guest.r:
        same = numel(guest.x) == numel(host.x) and numel(guest.r) == numel(host.r)
        return (host.x, host.r) if same else None
    if numel(guest.x) == numel(host.axes):
        return host.axes, ()
    if numel(guest.x) == numel(host.x):
        return host.x, ()
    return None


def _row_major(
    guest: Frame, x_axes: Sequence[Axis], r_axes: Sequence[Axis], ranges: Mapping[str, Range]
) -> dict[str, Expr]:
    return _unflatten(guest.x, x_axes, ranges) | _unflatten(guest.r, r_axes, ranges)


def _unflatten(
    guest: Sequence[Axis], host: Sequence[Axis], ranges: Mapping[str, Range]
) -> dict[str, Expr]:
    if [a.extent for a in guest] == [a.extent for a in host]:
        return {g.name: sym(h.name) for g, h in zip(guest, host)}
    flat = const(0)
    for axis in host:
        flat = flat * axis.extent + sym(axis.name)
    env: dict[str, Expr] = {}
    step = const(1)
    for axis in reversed(guest):
        env[axis.name] = simplify((flat // step) % axis.extent, ranges)
        step = step * axis.extent
    return env


def _along_buffers(host: Group, guest: Group) -> Iterator[dict[str, Expr]]:
    """Meanings under which both sides touch a common buffer at the same coordinates."""
    wanted = {a.name for a in guest.frame.axes}
    host_sites = list(_sites(host))
    for name, theirs in _sites(guest):
        for other, ours in host_sites:
            if name != other:
                continue
            env = {t.text: o for t, o in zip(theirs, ours) if t.text in wanted}
            if len(env) == len(wanted):
                yield env


def _sites(group: Group) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """(buffer, coordinates) of every write and every plain read."""
    for m in group.members:
        yield m.item.out, m.coords
    for m in group.members:
        for value in m.body.loads:
            coords = load_coords(value)
            if coords is not None:
                yield str(value.attr[0]), coords


def _bijective(
    guest: Sequence[Axis],
    env: Mapping[str, Expr],
    host: Sequence[Axis],
    ranges: Mapping[str, Range],
) -> bool:
    """The guest's row-major position, as a function of the host's axes, is a mixed-radix number over exactly those."""
    flat = const(0)
    for axis in guest:
        flat = flat * axis.extent + env[axis.name]
    flat = simplify(flat, ranges)
    left = {a.name: a.extent for a in host}
    step = const(1)
    while left:
        found = _digit(flat, step, left)
        if found is None:
            return False
        name, flat = found
        step = step * left.pop(name)
    return flat == 0


def _digit(flat: Expr, step: Expr, left: Mapping[str, Expr]) -> tuple[str, Expr] | None:
    """An axis whose coefficient in ``flat`` is ``step``, and ``flat`` without it."""
    for name in left:
        atom = sym(name).atoms[0]
        split = flat.linear(atom)
        if split is not None and split[0] == step:
            return name, split[1]
    return None


def objection(host: Group, placed: Sequence[Placed], symbols: Mapping[str, Range]) -> str:
    """Why the placed guest may not run point by point beside the host; "" when it may."""
    ranges = {**symbols, **host.frame.ranges}
    members = (*host.members, *placed)
    made = {m.item.out: m for m in members}
    for m in members:
        reason = _scatter_objection(m, made, host)
        if reason:
            return reason
        for value in m.body.loads:
            producer = made.get(str(value.attr[0]))
            if producer is None:
                continue
            reason = _read_objection(
                m, value_coords=load_coords(value), producer=producer, ranges=ranges
            )
            if reason:
                return reason
    return ""


def _scatter_objection(member: Placed, made: Mapping[str, Placed], host: Group) -> str:
    """Which points a scatter changes is data: all of its base must be there before, and nothing reads before all is done."""
    if any(made[name].body.op == "scatter" for name in member.body.buffers if name in made):
        return f"{member.item.out} reads what a scatter changes at computed places"
    if member.body.op != "scatter":
        return ""
    base = str(member.body.attr[0])
    if base in made:
        return f"{member.item.out} changes {base} at computed places"
    if host.device == "cpu" and host.frame.r:
        return "a scatter on the CPU runs in order, beside no reduction"
    return ""


def _read_objection(
    reader: Placed,
    *,
    value_coords: tuple[Expr, ...] | None,
    producer: Placed,
    ranges: Mapping[str, Range],
) -> str:
    if value_coords is None:
        return f"{reader.item.out} reads {producer.item.out} at computed places"
    if tuple(simplify(c, ranges) for c in value_coords) != tuple(
        simplify(c, ranges) for c in producer.coords
    ):
        return f"{reader.item.out} reads {producer.item.out} at other points than it is made"
    if producer.space == "xr" and producer.item.combine is None and reader.space == "x":
        return f"{reader.item.out} would need {producer.item.out} outside the reduction loop"
    return ""
