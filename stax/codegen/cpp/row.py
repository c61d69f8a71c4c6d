"""Row plans: for every outer point, loops over the reduced axes whose innermost, contiguous one runs in lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stax.codegen.cpp.flush import Flush, place_flush
from stax.codegen.cpp.index import spell_expr, spell_factor
from stax.codegen.cpp.nest import Lines, block, for_loop, outer_nest, parallel, simd
from stax.codegen.cpp.plan import PARTS, Plan, Stage
from stax.codegen.cpp.reduce import Accumulator
from stax.codegen.cpp.spell import spell_store
from stax.codegen.cpp.types import value_type
from stax.codegen.cpp.values import Loops, Names, inline_locals, place
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const, sym
from stax.ir.kernel import Kernel, Statement
from stax.ir.ranges import Ranges, positive
from stax.ir.value import local


@dataclass(frozen=True)
class Phase:
    """One loop over the reduced axes: its accumulators, and the lines to stand at each depth below the outer loops."""

    kernel: Kernel
    plan: Plan
    accumulators: tuple[Accumulator, ...]
    levels: tuple[tuple[str, ...], ...]
    lanes: int
    flush: Flush | None
    parts: bool

    @property
    def ranges(self) -> Ranges:
        return self.kernel.ranges


def print_row(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """The loops of the whole kernel, at function level."""
    depth = len(plan.outer)
    shared = depth if plan.parallel == "outer" else 0
    levels: list[Lines] = [[] for _ in range(depth)]
    body: Lines = []
    for stage in plan.stages:
        _add(levels, body, _outer_statements(kernel, plan, stage, shared, names))
        if stage.xr:
            _add(levels, body, _reduction(kernel, plan, stage, shared, names))
    nest = outer_nest(plan.outer, levels, body, kernel.ranges)
    if plan.parallel == "outer" and depth:
        nest.insert(0, parallel(depth, plan.work, kernel.bounds_checked, kernel.ranges))
    return [*(levels[0] if levels else []), *nest]


def _add(levels: list[Lines], body: Lines, lines: list[Lines]) -> None:
    for depth, group in enumerate(lines):
        (levels[depth] if depth < len(levels) else body).extend(group)


def _outer_statements(
    kernel: Kernel, plan: Plan, stage: Stage, shared: int, names: Names
) -> list[Lines]:
    axes = tuple(a.name for a in plan.outer)
    loops = Loops(axes, shared)
    lines: list[Lines] = [[] for _ in range(len(axes) + 1)]
    for s in stage.x:
        for depth, group in enumerate(place([s.body], loops, names)):
            lines[depth].extend(group)
        found = names.known[s.body.key]
        names.set_local(s.name, s.dtype, found.text, len(axes))
    for s, store in stage.x_stores:
        text = names.known[local(s.name, s.dtype).key].text
        where = spell_expr(store.offset, kernel.ranges)
        lines[-1].append(f"{store.pointer}[{where}] = {spell_store(text, s.dtype)};")
    return lines


def _reduction(kernel: Kernel, plan: Plan, stage: Stage, shared: int, names: Names) -> list[Lines]:
    """Lines by depth of the loop of one stage; ``names`` learns the results."""
    outer, reduced = len(plan.outer), len(plan.reduce)
    may_be_empty = not all(positive(a.extent, kernel.ranges) for a in plan.reduce)
    axes = (*(a.name for a in plan.outer), *(a.name for a in plan.reduce))
    loops = Loops(axes, shared, outer + reduced if may_be_empty else 0)
    inner = names.inner()
    bodies = [inline_locals(s.body, plan.inlined) for s in stage.xr]
    lines = place(bodies, loops, inner)
    _keep_outer(names, inner, outer)
    accumulators = tuple(
        Accumulator(s.name, str(s.combine), s.body.dtype) for s in stage.xr if s.combine
    )
    lanes = lane_count(plan.reduce[-1].extent, stage.xr) if accumulators else 1
    for s, body in zip(stage.xr, bodies):
        lines[-1].extend(_take(kernel, s, inner.known[body.key].text, plan))
    sums = any(a.is_float_sum for a in accumulators)
    extents = [a.extent.value if a.extent.is_const else None for a in plan.reduce]
    flush = place_flush(extents, lanes) if sums else None
    parts = plan.parallel == "parts"
    phase = Phase(
        kernel, plan, accumulators, tuple(tuple(g) for g in lines[outer + 1 :]), lanes, flush, parts
    )
    lines = lines[: outer + 1]
    lines[-1].extend(_print_parts(phase) if parts else _print_whole(phase))
    for a in accumulators:
        names.set_local(a.name, "int64" if a.is_arg else a.dtype, a.name, outer)
    return lines


def _keep_outer(names: Names, inner: Names, depth: int) -> None:
    """Values declared above the reduced loops stay at hand for later stages."""
    for key, known in inner.known.items():
        if known.depth <= depth:
            names.known[key] = known
            if key in inner.checks:
                names.checks[key] = inner.checks[key]


def _take(kernel: Kernel, s: Statement, text: str, plan: Plan) -> Lines:
    """What the innermost loop does with a statement's value."""
    if not s.combine:
        return [
            f"{store.pointer}[{spell_expr(store.offset, kernel.ranges)}] = {spell_store(text, s.dtype)};"
            for store in s.stores
        ]
    position = const(0)
    for axis in kernel.reduce_axes:
        position = position * axis.extent + sym(axis.name)
    accumulator = Accumulator(s.name, s.combine, s.body.dtype)
    return accumulator.update("l", text, spell_expr(position, kernel.ranges))


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


# -- printing


def _print_whole(phase: Phase) -> Lines:
    """Lanes, loops, results."""
    lines: Lines = []
    for a in phase.accumulators:
        lines.extend(a.declare(phase.lanes))
        if phase.flush and a.is_float_sum:
            lines.append(f"{a.wide_type} {a.name}_sum = 0;")
    lines.extend(_loops(phase, 0, "0", spell_factor(phase.plan.reduce[0].extent, phase.ranges)))
    for a in phase.accumulators:
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){_total(phase, a)};")
    return lines


def _total(phase: Phase, a: Accumulator) -> str:
    if phase.flush and a.is_float_sum:
        return f"{a.name}_sum"
    return a.fold(phase.lanes)


def _print_parts(phase: Phase) -> Lines:
    """The same in PARTS independent parts of the first reduced loop, folded in order."""
    first = phase.plan.reduce[0]
    extent = spell_factor(first.extent, phase.ranges)
    inner: Lines = [
        f"const int64_t from = stax_imin<int64_t>({extent}, part * part_step);",
        f"const int64_t to = stax_imin<int64_t>({extent}, from + part_step);",
    ]
    lines: Lines = []
    for a in phase.accumulators:
        lines.append(f"{a.wide_type} {a.name}_part[{PARTS}];")
        inner.extend(a.declare(phase.lanes))
        if a.is_arg:
            lines.append(f"int64_t {a.name}_place[{PARTS}];")
        if phase.flush and a.is_float_sum:
            inner.append(f"{a.wide_type} {a.name}_sum = 0;")
    inner.extend(_loops(phase, 0, "from", "to"))
    for a in phase.accumulators:
        inner.extend(_keep_part(phase, a))
    # A part is whole flush blocks long, so that only the last has a shorter block.
    grain = phase.flush.every if phase.flush and phase.flush.loop == 0 else phase.lanes
    step = f"(({extent}) + {PARTS * grain - 1}) / {PARTS * grain} * {grain}"
    head = parallel(1, phase.plan.work, phase.kernel.bounds_checked, phase.ranges)
    loop = [f"const int64_t part_step = {step};", head, *for_loop("part", "0", str(PARTS), inner)]
    lines.extend(loop if not phase.accumulators else _scoped(loop))
    for a in phase.accumulators:
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){_merge_parts(a)};")
    return lines if phase.accumulators else _scoped(lines)


def _scoped(lines: Lines) -> Lines:
    return ["{", *(f"    {line}" for line in lines), "}"]


def _keep_part(phase: Phase, a: Accumulator) -> Lines:
    if not a.is_arg:
        return [f"{a.name}_part[part] = {_total(phase, a)};"]
    return [
        f"{a.fold(phase.lanes)};",
        f"{a.name}_part[part] = {a.name}_acc[0];",
        f"{a.name}_place[part] = {a.name}_pos[0];",
    ]


def _merge_parts(a: Accumulator) -> str:
    return (
        a.fold(PARTS)
        .replace(f"{a.name}_acc", f"{a.name}_part")
        .replace(f"{a.name}_pos", f"{a.name}_place")
    )


def _loops(phase: Phase, i: int, begin: str, end: str) -> Lines:
    """Reduced loop ``i`` over begin .. end and those inside it."""
    name = phase.plan.reduce[i].name
    flush = phase.flush if phase.flush and phase.flush.loop == i else None
    if flush is None:
        return _one_loop(phase, i, begin, end)
    rest = replace(phase, flush=None)
    if flush.every == 1:
        return _one_loop(rest, i, begin, end, after=_flush_lines(phase))
    cut = [f"const int64_t {name}_to = stax_imin<int64_t>({name}_from + {flush.every}, {end});"]
    inner = [*cut, *_one_loop(rest, i, f"{name}_from", f"{name}_to"), *_flush_lines(phase)]
    return for_loop(f"{name}_from", begin, end, inner, step=flush.every)


def _flush_lines(phase: Phase) -> Lines:
    lines: Lines = []
    for a in phase.accumulators:
        if a.is_float_sum:
            lines.append(f"{a.name}_sum += {a.fold(phase.lanes)};")
            lines.extend(a.reset(phase.lanes))
    return lines


def _one_loop(phase: Phase, i: int, begin: str, end: str, after: Lines | None = None) -> Lines:
    axis = phase.plan.reduce[i]
    if i == len(phase.plan.reduce) - 1:
        return _lane_loop(phase, axis.name, begin, end, list(phase.levels[i]))
    nxt = phase.plan.reduce[i + 1]
    inner = [
        *phase.levels[i],
        *_loops(phase, i + 1, "0", spell_factor(nxt.extent, phase.ranges)),
        *(after or []),
    ]
    return for_loop(axis.name, begin, end, inner)


def _lane_loop(phase: Phase, name: str, begin: str, end: str, body: Lines) -> Lines:
    """The innermost loop: whole groups of lanes, then the rest in the first lanes."""
    checked = phase.kernel.bounds_checked
    if not phase.accumulators:
        return simd(for_loop(name, begin, end, body), checked)
    if phase.lanes == 1:
        return for_loop(name, begin, end, ["const int64_t l = 0;", *body])
    lanes = phase.lanes
    if begin.isdigit() and end.isdigit():
        whole: str = str(int(end) // lanes * lanes)
        rest = str(int(end) % lanes)
        lines: Lines = []
    else:
        whole, rest = f"{name}_whole", f"{end} - {name}_whole"
        count = end if begin == "0" else f"({end} - {begin})"
        lines = [
            f"const int64_t {whole} = {'' if begin == '0' else begin + ' + '}{count} / {lanes} * {lanes};"
        ]
    group = simd(
        for_loop("l", "0", str(lanes), [f"const int64_t {name} = {name}_group + l;", *body]),
        checked,
    )
    if whole != "0":
        lines.extend(for_loop(f"{name}_group", begin, whole, group, step=lanes))
    if rest != "0":
        lines.extend(
            simd(for_loop("l", "0", rest, [f"const int64_t {name} = {whole} + l;", *body]), checked)
        )
    return lines if begin.isdigit() and end.isdigit() else _scoped(lines)


__all__ = ["block", "print_row", "value_type"]
