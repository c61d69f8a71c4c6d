"""The text of one loop over the reduced axes in lanes: whole, or cut into parts that threads share."""

from __future__ import annotations

from dataclasses import dataclass

from stax.codegen.cpp.accumulator import Accumulator
from stax.codegen.cpp.flush import Flush
from stax.codegen.cpp.nest import Lines, for_loop, scoped, simd
from stax.codegen.cpp.plan import PARTS, Plan
from stax.codegen.cpp.reduced import Reduced, part_loop, reduced_loops
from stax.ir.kernel import Kernel


@dataclass(frozen=True)
class Phase:
    """``levels``: what stands in each reduced loop, of which the last is in ``lanes`` lanes."""

    kernel: Kernel
    plan: Plan
    accumulators: tuple[Accumulator, ...]
    levels: tuple[Lines, ...]
    lanes: int
    flush: Flush | None


def print_phase(phase: Phase) -> Lines:
    """The loops, and a constant for the result of each reduction."""
    parts = phase.plan.parallel == "parts"
    reduced = _reduced(phase, parts)
    if parts:
        return _print_parts(phase, reduced)
    lines = _declared(phase)
    lines.extend(reduced_loops(reduced))
    for a in phase.accumulators:
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){_total(phase, a)};")
    return lines


def _reduced(phase: Phase, parts: bool) -> Reduced:
    last = phase.plan.reduce[-1].name
    drain: Lines = []
    for a in phase.accumulators:
        if a.is_float_sum:
            drain.append(f"{a.name}_sum += {a.fold(phase.lanes)};")
            drain.extend(a.reset(phase.lanes))
    cut_lanes = phase.plan.cut == len(phase.plan.reduce) - 1
    return Reduced(
        kernel=phase.kernel,
        axes=phase.plan.reduce,
        levels=phase.levels[:-1],
        last=lambda begin, end: _lane_loop(phase, last, begin, end),
        flush=phase.flush,
        drain=drain,
        work=phase.plan.work,
        cut=phase.plan.cut if parts else None,
        grain=phase.lanes if cut_lanes else 1,
    )


def _declared(phase: Phase) -> Lines:
    lines: Lines = []
    for a in phase.accumulators:
        lines.extend(a.declare(phase.lanes))
        if phase.flush and a.is_float_sum:
            lines.append(f"{a.wide_type} {a.name}_sum = 0;")
    return lines


def _total(phase: Phase, a: Accumulator) -> str:
    if phase.flush and a.is_float_sum:
        return f"{a.name}_sum"
    return a.fold(phase.lanes)


def _print_parts(phase: Phase, reduced: Reduced) -> Lines:
    """The parts run in any order and are folded in a fixed one."""
    lines: Lines = []
    inner = [*_declared(phase), *reduced_loops(reduced)]
    for a in phase.accumulators:
        lines.append(f"{a.wide_type} {a.name}_part[{PARTS}];")
        if a.is_arg:
            lines.append(f"int64_t {a.name}_place[{PARTS}];")
        inner.extend(_keep_part(phase, a))
    lines.extend(part_loop(reduced, inner))
    for a in phase.accumulators:
        folded = a.fold(PARTS, f"{a.name}_part", f"{a.name}_place")
        lines.append(f"const {a.result_type} {a.name} = ({a.result_type}){folded};")
    return lines


def _keep_part(phase: Phase, a: Accumulator) -> Lines:
    if not a.is_arg:
        return [f"{a.name}_part[part] = {_total(phase, a)};"]
    return [
        f"{a.fold(phase.lanes)};",
        f"{a.name}_part[part] = {a.name}_acc[0];",
        f"{a.name}_place[part] = {a.name}_pos[0];",
    ]


def _lane_loop(phase: Phase, name: str, begin: str, end: str) -> Lines:
    """The innermost loop: whole groups of lanes, then the rest in the first lanes."""
    checked, body, lanes = phase.kernel.bounds_checked, phase.levels[-1], phase.lanes
    if not phase.accumulators:
        return simd(for_loop(name, begin, end, body), checked)
    if lanes == 1:
        return for_loop(name, begin, end, ["const int64_t l = 0;", *body])
    if begin == "0" and end.isdigit():
        whole, rest = str(int(end) // lanes * lanes), str(int(end) % lanes)
    else:
        whole, rest = f"{name}_whole", f"{end} - {name}_whole"
    lines: Lines = []
    if whole != "0":
        point = f"const int64_t {name} = {name}_group + l;"
        group = simd(for_loop("l", "0", str(lanes), [point, *body]), checked)
        lines.extend(for_loop(f"{name}_group", begin, whole, group, step=lanes))
    if rest != "0":
        point = f"const int64_t {name} = {whole} + l;"
        lines.extend(simd(for_loop("l", "0", rest, [point, *body]), checked))
    if whole.isdigit():
        return lines
    first = f"{end} / {lanes}" if begin == "0" else f"{begin} + ({end} - {begin}) / {lanes}"
    return scoped([f"const int64_t {whole} = {first} * {lanes};", *lines])
