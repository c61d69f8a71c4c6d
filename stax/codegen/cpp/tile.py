"""Tile plans: a pointwise kernel that reads some memory across its innermost axis.

Such a load is copied, a small square at a time, into an array on the stack: contiguously out of memory, transposed into the
array. Each cache line is then read once, whatever the strides.
"""

from __future__ import annotations

from stax.codegen.cpp.index import spell_expr, spell_factor
from stax.codegen.cpp.nest import Lines, for_loop, outer_nest, parallel, simd
from stax.codegen.cpp.plan import TILE, Plan
from stax.codegen.cpp.spell import spell_load
from stax.codegen.cpp.statements import store_line
from stax.codegen.cpp.types import memory_type
from stax.codegen.cpp.values import Known, Loops, Names, place
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel
from stax.ir.program import Axis
from stax.ir.value import Value, load_parts, local


def print_tile(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """The loops of the whole kernel, at function level."""
    across, lane = plan.across, plan.lane
    assert across is not None and lane is not None
    outer = len(plan.outer)
    axes = (*(a.name for a in plan.outer), across.name, lane.name)
    copies: Lines = []
    for n, load in enumerate(plan.tiled):
        place_in = f"tile{n}[{across.name} - {across.name}_from][{lane.name} - {lane.name}_from]"
        text = spell_load(place_in, load.dtype)
        names.known[load.key] = Known(text, len(axes), place_in)
        copies.extend(_copy(kernel, load, f"tile{n}", place_in, across, lane))
    lines, stores = _statements(kernel, plan, Loops(axes, plan.shared), names)
    innermost = simd(_over(lane, [*lines[-1], *stores]), kernel.bounds_checked)
    square = [*_ends(kernel, across, lane), *lines[outer], *copies]
    square.extend(_over(across, [*lines[outer + 1], *innermost]))
    body = _steps(kernel, across, _steps(kernel, lane, square))
    nest = outer_nest(plan.outer, lines[:outer], body, kernel.ranges)
    if plan.parallel == "outer":
        loops = plan.shared + (2 if plan.shared == outer else 0)
        nest.insert(0, parallel(loops, plan.work, kernel.bounds_checked, kernel.ranges))
    return [*(lines[0] if outer else []), *nest]


def _statements(
    kernel: Kernel, plan: Plan, loops: Loops, names: Names
) -> tuple[list[Lines], Lines]:
    lines: list[Lines] = [[] for _ in range(len(loops.axes) + 1)]
    stores: Lines = []
    for stage in plan.stages:
        for s in stage.x:
            for depth, group in enumerate(place([s.body], loops, names)):
                lines[depth].extend(group)
            names.name_statement(s)
        for s, store in stage.x_stores:
            known = names.known[local(s.name, s.dtype).key]
            stores.append(store_line(kernel, s, store, known))
    return lines, stores


def _copy(kernel: Kernel, load: Value, tile: str, place_in: str, across: Axis, lane: Axis) -> Lines:
    pointer = load_parts(load)[0]
    offset = load.args[0].attr[0]
    assert isinstance(offset, Expr)
    line = f"{place_in} = {pointer}[{spell_expr(offset, kernel.ranges)}];"
    declared = f"{memory_type(load.dtype)} {tile}[{TILE}][{TILE}];"
    return [declared, *_over(lane, _over(across, [line]))]


def _over(axis: Axis, body: Lines) -> Lines:
    return for_loop(axis.name, f"{axis.name}_from", f"{axis.name}_to", body)


def _steps(kernel: Kernel, axis: Axis, body: Lines) -> Lines:
    end = spell_factor(axis.extent, kernel.ranges)
    return for_loop(f"{axis.name}_from", "0", end, body, step=TILE)


def _ends(kernel: Kernel, *axes: Axis) -> Lines:
    return [
        f"const int64_t {a.name}_to = stax_imin<int64_t>"
        f"({a.name}_from + {TILE}, {spell_factor(a.extent, kernel.ranges)});"
        for a in axes
    ]
