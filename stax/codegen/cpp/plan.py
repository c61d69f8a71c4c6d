"""What the loops of a kernel will be: their order, the lane axis, and how threads share the work.

The *lane* axis is the innermost loop, the one that vectorises: a reduced axis in a "row" plan, an outer axis in a "column" plan.
A kernel without reduced axes has a "pointwise" plan, or a "tile" plan when it reads some memory across the lane axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from stax.base.errors import VerifyError
from stax.codegen.cpp.apart import keeps_apart, plain_part
from stax.codegen.cpp.cost import work
from stax.codegen.cpp.stages import Stage, stages
from stax.codegen.cpp.values import inline_locals
from stax.ir.expr import Atom, Expr, product
from stax.ir.kernel import Kernel, Statement
from stax.ir.program import Axis
from stax.ir.value import Value

# Work, in operations, from which starting the threads (some microseconds) pays.
PARALLEL_WORK = 200_000
# Parts into which one long reduction is cut. Fixed, so that the result does not depend on the number of threads.
PARTS = 64
# Points of the lane axis in one block of a column plan: a few arrays of this length fit the first-level cache.
BLOCK = 256
# Side of a square of a tile plan, and the points from which it pays: what fits the cache needs none.
TILE = 32
TILED_POINTS = 16_384
# A lane axis of fewer points fills no vectors.
SHORT = 16
# Fewer outer points than this leave threads idle: a long reduction is then cut into parts instead.
FEW_POINTS = 16
# Outer points that occupy the threads of any machine.
ENOUGH_POINTS = 512


@dataclass(frozen=True)
class Plan:
    """``kind``: "row", "column", "pointwise" or "tile". ``outer`` and ``reduce`` are loop orders; ``lane`` is in neither, but the last of
    ``reduce`` in a row plan; None without any axis. ``work``: operations in all.

    ``parallel``: "none", "outer" (threads share the outer points) or "parts" (they share loop ``cut`` of each reduction).
    ``shared``: how many of the outer loops threads share, as one loop; no more than give each thread enough.
    ``inlined``: bodies of the "xr" statements without a reduction, which are computed where they are used. ``across``: in a
    tile plan, the axis along which the ``tiled`` loads are contiguous. ``lanes``: the points of the lane axis are independent."""

    kind: str
    outer: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    lane: Axis | None
    stages: tuple[Stage, ...]
    work: Expr
    inlined: dict[str, Value]
    parallel: str = "none"
    shared: int = 0
    cut: int = 0
    across: Axis | None = None
    tiled: tuple[Value, ...] = ()
    lanes: bool = True


def plan(kernel: Kernel) -> Plan:
    """The loop plan of a kernel."""
    inlined = {s.name: s.body for s in kernel.statements if s.space == "xr" and s.combine is None}
    kind, lane = _lane(kernel)
    outer = tuple(a for a in kernel.axes if kind == "row" or a != lane)
    reduce = kernel.reduce_axes
    if kind == "row" and lane is not None:
        reduce = (*(a for a in reduce if a != lane), lane)
    found = Plan(kind, outer, reduce, lane, stages(kernel, inlined), work(kernel), inlined)
    if any(s.body.op == "scatter" for s in kernel.statements):
        return _in_order(kernel, found)
    found = replace(found, **_parallel(kernel, found))
    return found if kernel.reduce_axes or lane is None else _with_tiles(kernel, found, lane)


def _in_order(kernel: Kernel, found: Plan) -> Plan:
    """A plan with scatters: axes along which no element is written twice come first, and threads share these alone.
    Raises VerifyError for a kernel that also reduces."""
    if kernel.reduce_axes:
        raise VerifyError("a scatter beside a reduction has no C++ form")
    apart = tuple(a for a in found.outer if keeps_apart(kernel, a))
    lanes = found.lane is not None and keeps_apart(kernel, found.lane)
    outer = (*apart, *(a for a in found.outer if a not in apart))
    shared = (
        _parallel(kernel, replace(found, outer=apart)) if apart or (lanes and not outer) else {}
    )
    return replace(found, outer=outer, lanes=lanes, **shared)


def _with_tiles(kernel: Kernel, found: Plan, lane: Axis) -> Plan:
    """Loads that jump along the lane axis and are contiguous along another one go through a small square."""
    hints = kernel.hints
    if kernel.xnumel.evaluate(hints) < TILED_POINTS or lane.extent.evaluate(hints) < TILE:
        return found
    jumping = [
        v
        for s in kernel.statements
        for v in s.body.loads
        if len(v.args) == 1 and v.args[0].op == "index" and _jumps(v.args[0].attr[0], lane)
    ]
    best: tuple[int, Axis | None, tuple[Value, ...]] = (0, None, ())
    for axis in found.outer:
        tiled = tuple(dict.fromkeys(v for v in jumping if _step(v.args[0].attr[0], axis) == 1))
        if axis.extent.evaluate(hints) >= TILE and len(tiled) > best[0]:
            best = (len(tiled), axis, tiled)
    _, across, tiled = best
    if across is None:
        return found
    outer = tuple(a for a in found.outer if a != across)
    shared = _shared(outer, hints) if found.parallel == "outer" else 0
    return replace(found, kind="tile", outer=outer, shared=shared, across=across, tiled=tiled)


def _jumps(offset: object, lane: Axis) -> bool:
    return _worth(_step(offset, lane)) < 0


def _lane(kernel: Kernel) -> tuple[str, Axis | None]:
    if not kernel.reduce_axes:
        return "pointwise", _best(kernel, kernel.axes)
    fixed_order = any(s.combine in ("argmax", "argmin") for s in kernel.statements)
    row = kernel.reduce_axes[-1] if fixed_order else _best(kernel, kernel.reduce_axes)
    column = _best(kernel, kernel.axes)
    if row is None or column is None or _score(kernel, row) >= _score(kernel, column):
        return "row", row
    return "column", column


def _best(kernel: Kernel, axes: tuple[Axis, ...]) -> Axis | None:
    """The axis along which most memory is contiguous; the last of equals."""
    best: Axis | None = None
    for axis in axes:
        if best is None or _score(kernel, axis) >= _score(kernel, best):
            best = axis
    return best


def _score(kernel: Kernel, axis: Axis) -> float:
    """How much memory is walked well along the axis, less what is walked in jumps; less, too, for a short axis."""
    extents = {a.name: a.extent.evaluate(kernel.hints) for a in (*kernel.axes, *kernel.reduce_axes)}
    offsets = [
        v.args[0].attr[0]
        for s in kernel.statements
        for v in s.body.loads
        if v.args[0].op == "index"
    ]
    offsets += [store.offset for s in kernel.statements for store in s.stores]
    offsets += [plain_part(s.body) for s in kernel.statements if s.body.op == "scatter"]
    total = 0.0
    for offset in offsets:
        assert isinstance(offset, Expr)
        touched = prod(extents[name] for name in offset.symbols if name in extents)
        total += touched * _worth(_step(offset, axis))
    return total * min(1.0, extents[axis.name] / SHORT)


def _worth(step: int | None) -> float:
    """Of a step between neighbours on the lane axis: contiguous is best, and a small step still shares cache lines."""
    if step == 0:
        return 0.0
    if step is None or not 0 < step <= 4:
        return -1.0
    return 1.0 if step == 1 else 0.25


def _step(offset: object, axis: Axis) -> int | None:
    """The constant step of an offset along the axis; None for another one."""
    assert isinstance(offset, Expr)
    if axis.name not in offset.symbols:
        return 0
    split = offset.linear(Atom("sym", axis.name))
    return split[0].value if split is not None and split[0].is_const else None


def _parallel(kernel: Kernel, found: Plan) -> dict[str, Any]:
    """How threads share the work; decided by the hints where sizes are symbols."""
    if found.work.is_const and found.work.value < PARALLEL_WORK:
        return {}
    hints = kernel.hints
    outer = product(a.extent for a in found.outer).evaluate(hints)
    blocks = outer
    if found.kind == "column" and found.lane is not None:
        blocks = outer * -(-found.lane.extent.evaluate(hints) // BLOCK)
    lengths = [a.extent.evaluate(hints) for a in found.reduce]
    longest = max(range(len(lengths)), key=lambda i: lengths[i], default=0)
    arg = any(s.combine in ("argmax", "argmin") for s in kernel.statements)
    long = (
        bool(lengths)
        and lengths[longest] >= PARTS
        and kernel.rnumel.evaluate(hints) > blocks * 4096
    )
    if long and blocks < FEW_POINTS and not (arg and found.kind == "column"):
        return {"parallel": "parts", "cut": longest}
    return {"parallel": "outer", "shared": _shared(found.outer, hints)}


def _shared(outer: tuple[Axis, ...], hints: dict[str, int]) -> int:
    points = 1
    for count, axis in enumerate(outer):
        if points >= ENOUGH_POINTS:
            return count
        points *= axis.extent.evaluate(hints)
    return len(outer)


def loops(kernel: Kernel) -> tuple[tuple[Statement, ...], ...]:
    """What each loop over the reduced elements evaluates, locals spelled out."""
    found = plan(kernel)
    return tuple(
        tuple(replace(s, body=inline_locals(s.body, found.inlined)) for s in stage.xr)
        for stage in found.stages
        if stage.xr
    )
