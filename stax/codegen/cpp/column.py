"""Column plans: a reduction whose innermost loop runs along an outer axis, in blocks of points.

Each point of a block has its own accumulator in an array, and the reduced loops stand outside the lane loop, so that memory
is walked along the contiguous outer axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stax.codegen.cpp.accumulator import Accumulator
from stax.codegen.cpp.flush import Flush, place_flush
from stax.codegen.cpp.index import spell_factor
from stax.codegen.cpp.nest import Lines, add_levels, for_loop, outer_nest, parallel, simd
from stax.codegen.cpp.plan import BLOCK, PARTS, Plan
from stax.codegen.cpp.reduced import Reduced, part_loop, reduced_loops
from stax.codegen.cpp.rows import Rows, choose_rows
from stax.codegen.cpp.stages import Stage
from stax.codegen.cpp.statements import accumulator, store_line, take
from stax.codegen.cpp.types import value_type
from stax.codegen.cpp.values import Loops, Names, inline_locals, place
from stax.ir.expr import product
from stax.ir.kernel import Kernel, Statement
from stax.ir.program import Axis
from stax.ir.ranges import positive
from stax.ir.value import local, walk

# Blocks, at the least, of a reduction that is shared among threads, and the least points of such a block: a cache line.
_SHARES = 16
_LEAST = 16


def print_column(kernel: Kernel, plan: Plan, names: Names) -> Lines:
    """The loops of the whole kernel, at function level."""
    assert plan.lane is not None
    block = _block(kernel, plan, plan.lane)
    levels: list[Lines] = [[] for _ in range(len(plan.outer))]
    body: Lines = []
    ranges = kernel.ranges
    extent = spell_factor(plan.lane.extent, ranges)
    begin, end = (f"{plan.lane.name}_from", f"{plan.lane.name}_to") if block else ("0", extent)
    width = block or _static(plan.lane)
    rows = choose_rows(kernel, plan.stages, plan.inlined, private=False)
    column = _Column(kernel, plan, names, plan.lane, begin, end, width, rows)
    for n, stage in enumerate(plan.stages):
        add_levels(levels, body, column.outer_statements(n, stage))
        if stage.xr:
            add_levels(levels, body, column.reduction(stage))
    if block:
        body.insert(0, f"const int64_t {end} = stax_imin<int64_t>({begin} + {block}, {extent});")
        body = for_loop(begin, "0", extent, body, step=block)
    nest = outer_nest(plan.outer, levels, body, ranges)
    loops = plan.shared + (block > 0 and plan.shared == len(plan.outer))
    if plan.parallel == "outer" and loops:
        nest.insert(0, parallel(loops, plan.work, kernel.bounds_checked, ranges))
    return [*(levels[0] if levels else []), *nest]


def _static(axis: Axis) -> int:
    return axis.extent.value if axis.extent.is_const else 0


def _block(kernel: Kernel, plan: Plan, lane: Axis) -> int:
    """Points in one block of the lane axis; 0 for one block of them all."""
    length = lane.extent.evaluate(kernel.hints)
    outer = product(a.extent for a in plan.outer).evaluate(kernel.hints)
    block = BLOCK
    while plan.parallel == "outer" and block > _LEAST and outer * length < _SHARES * block:
        block //= 2
    return 0 if lane.extent.is_const and length <= block else block


@dataclass
class _Column:
    """Prints the stages of one column plan. ``width`` is the length of its arrays, and ``kept`` grows: where in them the value
    of a statement (name, dtype) is."""

    kernel: Kernel
    plan: Plan
    names: Names
    lane: Axis
    begin: str
    end: str
    width: int
    rows: Rows
    kept: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    @property
    def outer(self) -> int:
        return len(self.plan.outer)

    @property
    def here(self) -> str:
        """The place of the current point in the block's arrays."""
        return self.lane.name if self.begin == "0" else f"{self.lane.name} - {self.begin}"

    def scope(self, depth: int) -> Names:
        """Names for one loop nest in which the lane loop is ``depth`` deep."""
        inner = self.names.inner()
        for (name, dtype), text in self.kept.items():
            inner.set_local(name, dtype, text, depth)
        return inner

    def lane_loop(self, body: Lines) -> Lines:
        return simd(
            for_loop(self.lane.name, self.begin, self.end, body), self.kernel.bounds_checked
        )

    def outer_statements(self, n: int, stage: Stage) -> list[Lines]:
        """Statements and stores between two reductions, in one lane loop."""
        axes = (*(a.name for a in self.plan.outer), self.lane.name)
        inner = self.scope(len(axes))
        lines: list[Lines] = [[] for _ in range(len(axes) + 1)]
        keep: Lines = []
        for s in stage.x:
            for depth, group in enumerate(place([s.body], Loops(axes, self.plan.shared), inner)):
                lines[depth].extend(group)
            text = inner.name_statement(s).text
            if self._used_after(n, s):
                keep.append(f"{s.name}_lane[{self.here}] = {text};")
                lines[self.outer].append(f"{value_type(s.dtype)} {s.name}_lane[{self.width}];")
        stores: Lines = []
        for s, store in stage.x_stores:
            known = inner.known[local(s.name, s.dtype).key]
            stores.append(store_line(self.kernel, s, store, known))
        self.names.absorb(inner, self.outer)
        for s in stage.x:
            if self._used_after(n, s):
                self.kept[s.name, s.dtype] = f"{s.name}_lane[{self.here}]"
        found = lines[: self.outer + 1]
        innermost = [*lines[-1], *keep, *stores]
        if innermost:
            found[-1].extend(self.lane_loop(innermost))
        return found

    def _used_after(self, n: int, s: Statement) -> bool:
        """Whether a later loop needs the value of an outer statement of stage ``n``."""
        key = local(s.name, s.dtype).key
        later = list(self.plan.stages[n].xr)
        for stage in self.plan.stages[n + 1 :]:
            later.extend((*stage.x, *stage.xr))
            if any(t.name == s.name for t, _ in stage.x_stores):
                return True
        return any(
            key in {v.key for v in walk(inline_locals(t.body, self.plan.inlined))} for t in later
        )

    def reduction(self, stage: Stage) -> list[Lines]:
        """The reduced loops of one stage around the lane loop."""
        reduced = self.plan.reduce
        may_be_empty = not all(positive(a.extent, self.kernel.ranges) for a in reduced)
        axes = (*(a.name for a in self.plan.outer), *(a.name for a in reduced), self.lane.name)
        loops = Loops(axes, self.plan.shared, self.outer + len(reduced) if may_be_empty else 0)
        inner = self.scope(len(axes))
        self.rows.offer(inner, len(axes))
        bodies = [inline_locals(s.body, self.rows.bodies()) for s in stage.xr]
        lines = place(bodies, loops, inner)
        self.names.absorb(inner, self.outer)
        lines[-1].extend(self.rows.keep(inner, bodies)[1])
        for s, body in zip(stage.xr, bodies):
            lines[-1].extend(take(self.kernel, s, inner.known[body.key], self.here))
        accumulators = [accumulator(s) for s in stage.xr if s.combine]
        found = lines[: self.outer + 1]
        found[-1].extend(self._print(accumulators, lines[self.outer + 1 :]))
        return found

    def _print(self, accumulators: list[Accumulator], levels: list[Lines]) -> Lines:
        """The loops with their accumulators; ``kept`` learns where the results are."""
        axes, parts = self.plan.reduce, self.plan.parallel == "parts"
        extents = [a.extent.value if a.extent.is_const else None for a in axes]
        flush = place_flush(extents) if any(a.is_float_sum for a in accumulators) else None

        def last(begin: str, end: str) -> Lines:
            return for_loop(axes[-1].name, begin, end, [*levels[-2], *self.lane_loop(levels[-1])])

        reduced = Reduced(
            kernel=self.kernel,
            axes=axes,
            levels=tuple(levels[:-2]),
            last=last,
            flush=flush,
            drain=[
                f"stax_flush<{self.width}>({a.name}_acc, {a.name}_sum);"
                for a in accumulators
                if a.is_float_sum
            ],
            work=self.plan.work,
            cut=self.plan.cut if parts else None,
        )
        inner = [*self._declared(accumulators, flush), *reduced_loops(reduced)]
        for a in accumulators:
            self.kept[a.name, "int64" if a.is_arg else a.dtype] = self._result(a, flush, parts)
        return self._parts(reduced, accumulators, inner) if parts else inner

    def _declared(self, accumulators: list[Accumulator], flush: Flush | None) -> Lines:
        lines: Lines = []
        for a in accumulators:
            lines.extend(a.declare(self.width))
            if flush and a.is_float_sum:
                lines.append(f"{a.wide_type} {a.name}_sum[{self.width}];")
                lines.append(f"stax_fill<{self.width}>({a.name}_sum, 0);")
        return lines

    def _parts(self, reduced: Reduced, accumulators: list[Accumulator], inner: Lines) -> Lines:
        """Each part keeps a row of results; the rows are merged in order."""
        lines: Lines = []
        merge: Lines = []
        for a in accumulators:
            row, total = f"{a.name}_part[part][{self.here}]", f"{a.name}_all[{self.here}]"
            array = "sum" if reduced.flush and a.is_float_sum else "acc"
            inner.extend(self.lane_loop([f"{row} = {a.name}_{array}[{self.here}];"]))
            lines.append(f"{a.wide_type} {a.name}_part[{PARTS}][{self.width}];")
            lines.append(f"{a.wide_type} {a.name}_all[{self.width}];")
            lines.append(f"stax_fill<{self.width}>({a.name}_all, {a.identity});")
            merge.append(f"{total} = {a.merged(total, row)};")
        lines.extend(part_loop(reduced, inner))
        if merge:
            lines.extend(for_loop("part", "0", str(PARTS), self.lane_loop(merge)))
        return lines

    def _result(self, a: Accumulator, flush: Flush | None, parts: bool) -> str:
        """Where the result of a reduction is found in each lane."""
        if a.is_arg:
            return f"stax_position({a.name}_pos[{self.here}])"
        wide = flush is not None and a.is_float_sum
        array = "all" if parts else "sum" if wide else "acc"
        kind = a.wide_type if parts or wide else a.lane_type
        cast = "" if kind == a.result_type else f"({a.result_type})"
        return f"{cast}{a.name}_{array}[{self.here}]"
