"""Program → Schedule: fused kernels and external calls in order, with the lifetimes of every buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stax.base.options import Options
from stax.ir.program import Extern, Program, TensorRef
from stax.schedule.adopt import adopt
from stax.schedule.arena import Memory, memory
from stax.schedule.fuse import fuse
from stax.schedule.inline import Decision, drop_dead, inline, reads
from stax.schedule.items import Group
from stax.schedule.loops import KernelCall, kernel_of
from stax.schedule.memory import Lifetimes, lifetimes, settled
from stax.schedule.rows import rows_first
from stax.schedule.split import split


@dataclass(frozen=True)
class Schedule:
    """``program`` is the program after inlining and splitting: its buffers, outputs and mutations are those that the steps speak of (the
    result of a scatter under the name of its base, whose memory it takes over). ``memory`` says where what ``lifetimes``
    tells of lies."""

    program: Program
    steps: tuple[KernelCall | Extern, ...]
    lifetimes: Lifetimes
    memory: Memory
    decisions: tuple[Decision, ...]


def schedule(program: Program, options: Options) -> Schedule:
    """Inline, split by rows and by processors, fuse, build kernels, and find when each buffer begins and ends."""
    small, inlined = inline(
        adopt(drop_dead(program)), joining=options.fusion, wide=options.numerics == "fast"
    )
    small, by_rows = rows_first(small) if options.fusion else (small, ())
    small, halved = split(small) if options.fusion else (small, ())
    fused = fuse(small, enabled=options.fusion)
    needed = _needed(small, fused.steps)
    steps = tuple(
        s if isinstance(s, Extern) else kernel_of(s, small, needed & s.produced.keys())
        for s in fused.steps
    )
    small, steps = settled(small, steps)
    lives = lifetimes(small, steps)
    plan = memory(small, steps, lives)
    decisions = (*inlined, *by_rows, *halved, *fused.decisions)
    return Schedule(small, steps, lives, plan, decisions)


def _needed(program: Program, steps: Iterable[Group | Extern]) -> frozenset[str]:
    """Buffers that something outside the group that makes them reads."""
    needed = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    needed |= {m.source for m in program.mutations}
    for step in steps:
        needed |= reads(step) if isinstance(step, Extern) else step.reads - step.produced.keys()
    return frozenset(needed)
