"""The text of one loop over the reduced axes in lanes: whole, or cut into parts that threads share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stax.codegen.cpp.flush import Flush
from stax.codegen.cpp.index import spell_factor
from stax.codegen.cpp.nest import Lines, for_loop, parallel, scoped, simd
from stax.codegen.cpp.plan import PARTS
from stax.codegen.cpp.reduce import Accumulator
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel
from stax.ir.program import Axis


@dataclass(frozen=True)
class Phase:
    """``reduce``: the loop order, the lane axis last; ``levels``: what stands in each of these loops; ``work``: of the whole
    kernel, for deciding at run time whether threads pay."""

    kernel: Kernel
    reduce: tuple[Axis, ...]
    accumulators: tuple[Accumulator, ...]
    levels: tuple[tuple[str, ...], ...]
    lanes: int
    flush: Flush | None
    work: Expr

    def extent(self, i: int) -> str:
        return spell_factor(self.reduce[i].extent, self.kernel.ranges)


def print_whole(phase: Phase) -> Lines:
    """Lanes, loops, results."""
    lines: Lines = []
    for a in phase.accumulators:
        lines.extend(a.declare(phase.lanes))
        if phase.flush and a.is_float_sum:
            lines.append(f"{a.wide_type} {a.name}_sum = 0;")
    lines.extend(_loops(phase, 0, "0", phase.extent(0)))
    for a in phase.accumulators:
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){_total(phase, a)};")
    return lines


def _total(phase: Phase, a: Accumulator) -> str:
    if phase.flush and a.is_float_sum:
        return f"{a.name}_sum"
    return a.fold(phase.lanes)


def print_parts(phase: Phase) -> Lines:
    """The same in PARTS independent parts of the first reduced loop, folded in order."""
    extent = phase.extent(0)
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
    head = parallel(1, phase.work, phase.kernel.bounds_checked, phase.kernel.ranges)
    loop = [f"const int64_t part_step = {step};", head, *for_loop("part", "0", str(PARTS), inner)]
    lines.extend(loop if not phase.accumulators else scoped(loop))
    for a in phase.accumulators:
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){_merge_parts(a)};")
    return lines if phase.accumulators else scoped(lines)


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
    name = phase.reduce[i].name
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
    axis = phase.reduce[i]
    if i == len(phase.reduce) - 1:
        return _lane_loop(phase, axis.name, begin, end, list(phase.levels[i]))
    inner = [
        *phase.levels[i],
        *_loops(phase, i + 1, "0", phase.extent(i + 1)),
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
    return lines if begin.isdigit() and end.isdigit() else scoped(lines)
