"""Row plans: for every outer point, loops over the reduced axes whose innermost, contiguous one runs in lanes."""

from __future__ import annotations

from stax.codegen.cpp.flush import place_flush
from stax.codegen.cpp.nest import Lines, add_levels, outer_nest, parallel
from stax.codegen.cpp.phase import Phase, print_phase
from stax.codegen.cpp.plan import Plan
from stax.codegen.cpp.rows import Rows, choose_rows
from stax.codegen.cpp.stages import Stage
from stax.codegen.cpp.statements import accumulator, store_line, take
from stax.codegen.cpp.values import Loops, Names, inline_locals, place
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.ranges import positive
from stax.ir.value import local


def print_row(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """The loops of the whole kernel, at function level."""
    depth = len(plan.outer)
    levels: list[Lines] = [[] for _ in range(depth)]
    body: Lines = []
    private = plan.parallel != "parts"
    rows = choose_rows(kernel, plan.stages, plan.inlined, private=private)
    for stage in plan.stages:
        add_levels(levels, body, _outer_statements(kernel, plan, stage, names))
        if stage.xr:
            add_levels(levels, body, _reduction(kernel, plan, stage, names, rows))
    nest = outer_nest(plan.outer, levels, body, kernel.ranges)
    if plan.shared:
        nest.insert(0, parallel(plan.shared, plan.work, kernel.bounds_checked, kernel.ranges))
    return [*(levels[0] if levels else []), *nest]


def _outer_statements(kernel: Kernel, plan: Plan, stage: Stage, names: Names) -> list[Lines]:
    """Lines by depth of the statements and stores between two reductions."""
    axes = tuple(a.name for a in plan.outer)
    loops = Loops(axes, plan.shared)
    lines: list[Lines] = [[] for _ in range(len(axes) + 1)]
    for s in stage.x:
        for depth, group in enumerate(place([s.body], loops, names)):
            lines[depth].extend(group)
        names.name_statement(s)
    for s, store in stage.x_stores:
        known = names.known[local(s.name, s.dtype).key]
        lines[-1].append(store_line(kernel, s, store, known))
    return lines


def _reduction(kernel: Kernel, plan: Plan, stage: Stage, names: Names, rows: Rows) -> list[Lines]:
    """Lines by depth of the loop of one stage; ``names`` learns the results."""
    outer, reduced = len(plan.outer), len(plan.reduce)
    may_be_empty = not all(positive(a.extent, kernel.ranges) for a in plan.reduce)
    axes = (*(a.name for a in plan.outer), *(a.name for a in plan.reduce))
    loops = Loops(axes, plan.shared, outer + reduced if may_be_empty else 0)
    inner = names.inner()
    rows.offer(inner, outer + reduced)
    bodies = [inline_locals(s.body, rows.bodies()) for s in stage.xr]
    lines = place(bodies, loops, inner)
    names.absorb(inner, outer)
    declared, kept = rows.keep(inner, bodies)
    found = [*lines[:outer], [*lines[outer], *declared]]
    innermost = [*lines[-1], *kept]
    for s, body in zip(stage.xr, bodies):
        innermost.extend(take(kernel, s, inner.known[body.key], "l"))
    phase = _phase(kernel, plan, stage, [*lines[outer + 1 : -1], innermost])
    found[-1].extend(print_phase(phase))
    for a in phase.accumulators:
        names.set_local(a.name, "int64" if a.is_arg else a.dtype, a.name, outer)
    return found


def _phase(kernel: Kernel, plan: Plan, stage: Stage, levels: list[Lines]) -> Phase:
    accumulators = tuple(accumulator(s) for s in stage.xr if s.combine)
    lanes = lane_count(plan.reduce[-1].extent, stage.xr) if accumulators else 1
    extents = [a.extent.value if a.extent.is_const else None for a in plan.reduce]
    sums = any(a.is_float_sum for a in accumulators)
    return Phase(
        kernel=kernel,
        plan=plan,
        accumulators=accumulators,
        levels=tuple(levels),
        lanes=lanes,
        flush=place_flush(extents, lanes) if sums else None,
    )


def lane_count(extent: Expr, statements: tuple[Statement, ...]) -> int:
    """Lanes of the innermost loop: several vectors where it is long, one scalar where it is short."""
    widest = max(DTYPES[s.dtype].itemsize for s in statements if s.combine)
    most = 64 if widest <= 4 else 32
    if not extent.is_const:
        return most
    n = extent.value
    if n < 16:
        return 1
    for lanes in (most, most // 2, 16):
        if n % lanes == 0:
            return lanes
    return most if n >= 4 * most else max(16, most // 2) if n >= most else 16
