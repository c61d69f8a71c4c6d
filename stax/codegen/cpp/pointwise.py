"""Pointwise plans: a nest over the outer axes whose innermost loop vectorises along the lane axis, cut where masks change."""

from __future__ import annotations

from dataclasses import replace

from stax.codegen.cpp.index import spell_factor
from stax.codegen.cpp.nest import Lines, add_levels, for_loop, outer_nest, parallel, simd
from stax.codegen.cpp.plan import Plan
from stax.codegen.cpp.segments import Piece, in_piece, pieces
from stax.codegen.cpp.statements import roots, scatter_line, store_line
from stax.codegen.cpp.values import Loops, Names, place
from stax.ir.expr import const, product
from stax.ir.kernel import Kernel
from stax.ir.program import Axis
from stax.ir.value import local

# Points of a block of the lane axis when the outer axes alone have too few points to share among threads.
SHARE = 16384
_FEW = 64


def print_pointwise(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """The loops of the whole kernel, at function level."""
    if plan.lane is None:
        return _single(kernel, plan, names)
    threads = plan.parallel == "outer"
    head = parallel(plan.shared, plan.work, kernel.bounds_checked, kernel.ranges)
    levels: list[Lines] = [[] for _ in range(len(plan.outer))]
    body: Lines = []
    block = _block(kernel, plan, plan.lane)
    for piece in pieces(kernel, plan.lane):
        lines = _statements(kernel, plan, plan.lane, piece, names)
        add_levels(levels, body, lines[:-1])
        loop = _lane_loop(kernel, plan.lane, piece, lines[-1], block)
        loop = simd(loop, kernel.bounds_checked) if plan.lanes else loop
        flat = threads and not plan.outer
        body.extend([head.replace("for", "for simd", 1), *loop[1:]] if flat else loop)
    if block:
        body = _in_blocks(kernel, plan.lane, body)
        head = parallel(plan.shared + 1, plan.work, kernel.bounds_checked, kernel.ranges)
    nest = outer_nest(plan.outer, levels, body, kernel.ranges)
    if threads and plan.outer:
        nest.insert(0, head)
    return [*(levels[0] if levels else []), *nest]


def _block(kernel: Kernel, plan: Plan, lane: Axis) -> int:
    """Points of one block of the lane axis; 0 for one block of them all."""
    outer = product(a.extent for a in plan.outer).evaluate(kernel.hints)
    if not plan.lanes or plan.shared < len(plan.outer):
        return 0
    few = plan.parallel == "outer" and plan.outer and outer < _FEW
    return SHARE if few and lane.extent.evaluate(kernel.hints) >= 2 * SHARE else 0


def _in_blocks(kernel: Kernel, lane: Axis, body: Lines) -> Lines:
    begin, end = f"{lane.name}_from", f"{lane.name}_to"
    extent = spell_factor(lane.extent, kernel.ranges)
    cut = f"const int64_t {end} = stax_imin<int64_t>({begin} + {SHARE}, {extent});"
    return for_loop(begin, "0", extent, [cut, *body], step=SHARE)


def _lane_loop(kernel: Kernel, lane: Axis, piece: Piece, body: Lines, block: int) -> Lines:
    begin = spell_factor(piece.begin, kernel.ranges)
    end = spell_factor(piece.end, kernel.ranges)
    if block:
        first, last = f"{lane.name}_from", f"{lane.name}_to"
        begin = first if piece.begin == 0 else f"stax_imax<int64_t>({begin}, {first})"
        end = last if piece.end == lane.extent else f"stax_imin<int64_t>({end}, {last})"
    return for_loop(lane.name, begin, end, body)


def _statements(kernel: Kernel, plan: Plan, lane: Axis, piece: Piece, names: Names) -> list[Lines]:
    """Lines by depth of every statement in one piece of the lane loop."""
    axes = (*(a.name for a in plan.outer), lane.name)
    whole = piece == Piece(const(0), lane.extent)
    loops = Loops(axes, plan.shared)
    # Each piece has its own names: the same local can be another value there.
    inner = names.inner()
    lines: list[Lines] = [[] for _ in range(len(axes) + 1)]
    stores: Lines = []
    for s in (s for stage in plan.stages for s in stage.x):
        cut = s if whole else replace(s, body=in_piece(s.body, kernel, lane, piece))
        for depth, group in enumerate(place(roots(cut.body), loops, inner)):
            lines[depth].extend(group)
        if cut.body.op == "scatter":
            stores.append(scatter_line(cut.body, inner))
        else:
            inner.name_statement(cut)
    for s, store in (pair for stage in plan.stages for pair in stage.x_stores):
        known = inner.known[local(s.name, s.dtype).key]
        stores.append(store_line(kernel, s, store, known))
    return [*lines[:-1], [*lines[-1], *stores]]


def _single(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """A kernel without axes: one value of everything."""
    lines: Lines = []
    for stage in plan.stages:
        for s in stage.x:
            lines.extend(place(roots(s.body), Loops(()), names)[0])
            if s.body.op == "scatter":
                lines.append(scatter_line(s.body, names))
            else:
                names.name_statement(s)
        for s, store in stage.x_stores:
            known = names.known[local(s.name, s.dtype).key]
            lines.append(store_line(kernel, s, store, known))
    return lines
