"""What the loops of a kernel will be: stages in order, the lane axis, and whether threads share the work.

A kernel runs as stages X(0) R(0) X(1) R(1) …: R(n) is one loop over the reduced axes, X(n) the statements in between. A
reduction of R(n) can be used from X(n+1) on. The *lane* axis is the innermost loop, the one that vectorises: a reduced
axis in a "row" plan, an outer axis in a "column" plan. A kernel without reduced axes has a column plan with X(0) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from stax.codegen.cpp.values import inline_locals
from stax.ir.expr import Atom, Expr
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.program import Axis
from stax.ir.ranges import bounds
from stax.ir.value import Value, load_parts, walk

# Work, in operations, from which starting the threads (some microseconds) pays.
PARALLEL_WORK = 200_000
# Parts into which one long reduction is cut. Fixed, so that the result does not depend on the number of threads.
PARTS = 64
# Fewer outer points than this leave threads idle: a long reduction is then cut into parts instead.
FEW_POINTS = 16
# A value of the inner space is kept for later loops when a row has no more elements than this, and when computing it again
# would cost this many operations.
ROW_LIMIT = 16384
WORTH_A_ROW = 10
_HEAVY = {
    "exp": 6, "exp2": 6, "expm1": 8, "log": 6, "log2": 6, "log10": 6, "log1p": 8, "erf": 10, "erfc": 30, "sin": 12,
    "cos": 12, "tan": 40, "asin": 30, "acos": 30, "atan": 30, "atan2": 40, "sinh": 30, "cosh": 30, "tanh": 8, "pow": 40,
    "fmod": 20, "remainder": 20, "floordiv": 20, "truediv": 2, "sqrt": 2, "rsqrt": 3, "load": 3, "bound": 2,
}  # fmt: skip
_FREE = ("const", "index", "local")


@dataclass(frozen=True)
class Stage:
    """``x``: statements of the outer space to compute, then ``x_stores``; ``xr``: statements of one loop over the
    reduced axes, each a reduction or a statement with stores."""

    x: tuple[Statement, ...]
    x_stores: tuple[tuple[Statement, Store], ...]
    xr: tuple[Statement, ...]


@dataclass(frozen=True)
class Plan:
    """``outer`` and ``reduce`` are loop orders; ``lane`` is in neither for a column plan, and the last of ``reduce`` for a
    row plan; None without any axis. ``parallel``: "none", "outer" (over outer points) or "parts" (over one reduction).
    ``work``: operations in all. ``inlined``: bodies of the "xr" statements that are recomputed where they are used, except
    that those in ``rows`` are kept by the first loop, in an array of ``row_limit`` elements, for the later ones."""

    kind: str
    outer: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    lane: Axis | None
    stages: tuple[Stage, ...]
    parallel: str
    work: Expr
    inlined: dict[str, Value]
    rows: tuple[str, ...] = ()
    row_limit: int = 0


def plan(kernel: Kernel) -> Plan:
    """The loop plan of a kernel."""
    inlined = {s.name: s.body for s in kernel.statements if s.space == "xr" and s.combine is None}
    stages = _stages(kernel, inlined)
    kind, lane = _lane(kernel)
    outer = tuple(a for a in kernel.axes if kind == "row" or a != lane)
    reduce = kernel.reduce_axes
    if kind == "row" and lane is not None:
        reduce = (*(a for a in reduce if a != lane), lane)
    work = _work(kernel)
    parallel = _parallel(kernel, kind, work)
    limit = bounds(kernel.rnumel, kernel.ranges)[1]
    keep = kind == "row" and parallel != "parts" and limit is not None and limit <= ROW_LIMIT
    rows = _rows(kernel, stages, inlined) if keep else ()
    return Plan(kind, outer, reduce, lane, stages, parallel, work, inlined, rows, limit or 1)


def _rows(kernel: Kernel, stages: tuple[Stage, ...], inlined: dict[str, Value]) -> tuple[str, ...]:
    """Costly values that several loops over the reduced axes need."""
    found: list[str] = []
    for s in kernel.statements:
        if s.name not in inlined or sum(_HEAVY.get(v.op, 1) for v in walk(s.body)) < WORTH_A_ROW:
            continue
        key = inline_locals(s.body, inlined).key
        users = [
            stage
            for stage in stages
            if any(key in {v.key for v in walk(inline_locals(t.body, inlined))} for t in stage.xr)
        ]
        if len(users) > 1:
            found.append(s.name)
    return tuple(found)


def _stages(kernel: Kernel, inlined: dict[str, Value]) -> tuple[Stage, ...]:
    levels = _levels(kernel)
    writes = _store_levels(kernel, levels, inlined)
    count = max([*levels.values(), *writes.values()], default=0) + 1
    stages: list[Stage] = []
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
        stages.append(Stage(tuple(x), tuple(stores), tuple(xr)))
    return tuple(stages)


def _runs_at(s: Statement, levels: dict[str, int], writes: dict[tuple[str, str], int]) -> int:
    """The level whose loop runs an "xr" statement, -1 for one that is only inlined elsewhere."""
    if s.combine:
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
    """The stage of each store. One to an "inout" pointer waits until the last stage that still reads the pointer."""
    last_read: dict[str, int] = {}
    for s in kernel.statements:
        for v in inline_locals(s.body, inlined).loads:
            pointer = load_parts(v)[0]
            last_read[pointer] = max(last_read.get(pointer, 0), levels[s.name])
    inout = {p.name for p in kernel.pointers if p.kind == "inout"}
    found: dict[tuple[str, str], int] = {}
    for s in kernel.statements:
        ready = levels[s.name] + (1 if s.combine else 0)
        for store in s.stores:
            wait = last_read.get(store.pointer, 0) if store.pointer in inout else 0
            # A store of the outer space at stage n comes before the loop of stage n: wait one stage more.
            after_loop = 1 if wait and (s.space == "x" or s.combine) else 0
            found[s.name, store.pointer] = max(ready, wait + after_loop)
    return found


def _lane(kernel: Kernel) -> tuple[str, Axis | None]:
    if not kernel.reduce_axes:
        return "column", _best(kernel, kernel.axes)
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


def _score(kernel: Kernel, axis: Axis) -> int:
    """Accesses that are contiguous along the axis, less those that jump. Accesses of the inner space count double."""
    total = 0
    for s in kernel.statements:
        weight = 2 if s.space == "xr" else 1
        total += weight * sum(
            _step(v.args[0].attr[0], axis) for v in s.body.loads if v.args[0].op == "index"
        )
        total += (weight if s.combine is None else 1) * sum(
            _step(store.offset, axis) for store in s.stores
        )
    return total


def _step(offset: object, axis: Axis) -> int:
    assert isinstance(offset, Expr)
    if axis.name not in offset.symbols:
        return 0
    split = offset.linear(Atom("sym", axis.name))
    return 1 if split is not None and split[0] == 1 else -1


def _work(kernel: Kernel) -> Expr:
    per_x = sum(_cost(s) for s in kernel.statements if s.space == "x")
    per_xr = sum(_cost(s) for s in kernel.statements if s.space == "xr")
    return kernel.xnumel * (kernel.rnumel * per_xr + per_x)


def _cost(s: Statement) -> int:
    return 3 * len(s.stores) + sum(_HEAVY.get(v.op, 1) for v in walk(s.body) if v.op not in _FREE)


def _parallel(kernel: Kernel, kind: str, work: Expr) -> str:
    """How threads share the work; decided by the hints where sizes are symbols."""
    hints = kernel.hints
    if work.is_const and work.value < PARALLEL_WORK:
        return "none"
    points, length = kernel.xnumel.evaluate(hints), kernel.rnumel.evaluate(hints)
    if kind == "row" and points < FEW_POINTS and length > points * 4096:
        return "parts"
    return "outer"
