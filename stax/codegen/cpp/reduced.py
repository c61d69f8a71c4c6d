"""The loops over the reduced axes: where they are flushed, and how threads share one of them in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stax.codegen.cpp.flush import Flush
from stax.codegen.cpp.index import spell_factor
from stax.codegen.cpp.nest import Lines, for_loop, parallel
from stax.codegen.cpp.plan import PARTS
from stax.ir.expr import Expr, ceildiv
from stax.ir.kernel import Kernel
from stax.ir.program import Axis


@dataclass(frozen=True)
class Reduced:
    """``levels``: what stands first in each loop but the last, which ``last(begin, end)`` prints whole. ``drain``: the lines
    of a flush. ``cut``: the loop that runs over from .. to of a part, or None; ``grain``: its iterations in one group of
    lanes; ``work``: of the whole kernel."""

    kernel: Kernel
    axes: tuple[Axis, ...]
    levels: tuple[Lines, ...]
    last: Callable[[str, str], Lines]
    flush: Flush | None
    drain: Lines
    work: Expr
    cut: int | None = None
    grain: int = 1

    def extent(self, i: int) -> str:
        return spell_factor(self.axes[i].extent, self.kernel.ranges)


def reduced_loops(r: Reduced) -> Lines:
    """All of the loops."""
    return _loops(r, 0)


def _loops(r: Reduced, i: int) -> Lines:
    name = r.axes[i].name
    begin, end = ("from", "to") if i == r.cut else ("0", r.extent(i))
    if r.flush is None or r.flush.loop != i:
        return _loop(r, i, begin, end, [])
    if r.flush.every == 1:
        return _loop(r, i, begin, end, r.drain)
    upto = f"const int64_t {name}_to = stax_imin<int64_t>({name}_from + {r.flush.every}, {end});"
    inner = [upto, *_loop(r, i, f"{name}_from", f"{name}_to", []), *r.drain]
    return for_loop(f"{name}_from", begin, end, inner, step=r.flush.every)


def _loop(r: Reduced, i: int, begin: str, end: str, after: Lines) -> Lines:
    """Loop ``i`` over begin .. end, with ``after`` at the end of each iteration."""
    if i == len(r.axes) - 1:
        assert not after, "a flush after every iteration is of an outer loop"
        return r.last(begin, end)
    return for_loop(r.axes[i].name, begin, end, [*r.levels[i], *_loops(r, i + 1), *after])


def part_loop(r: Reduced, body: Lines) -> Lines:
    """The loop over PARTS parts of loop ``cut`` around ``body``, which reads from and to."""
    assert r.cut is not None
    extent = r.axes[r.cut].extent
    # A part is whole flush blocks long, so that only the last has a shorter block.
    flushed = r.flush is not None and r.flush.loop == r.cut
    grain = r.flush.every if flushed and r.flush else r.grain
    ranges = r.kernel.ranges
    step = spell_factor(ceildiv(extent, PARTS * grain) * grain, ranges)
    end = spell_factor(extent, ranges)
    inner = [
        f"const int64_t from = stax_imin<int64_t>({end}, part * {step});",
        f"const int64_t to = stax_imin<int64_t>({end}, from + {step});",
        *body,
    ]
    head = parallel(1, r.work, r.kernel.bounds_checked, ranges)
    return [head, *for_loop("part", "0", str(PARTS), inner)]
