"""Lifetimes: before which step each temp must exist and after which step nobody reads it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stax.ir.program import Extern, Program, TensorRef
from stax.schedule.inline import reads
from stax.schedule.loops import KernelCall


@dataclass(frozen=True)
class Lifetimes:
    """``born[k]``: temps that a kernel at step k writes first (an external call makes its own results);
    ``dead[k]``: temps last used at step k."""

    born: tuple[tuple[str, ...], ...]
    dead: tuple[tuple[str, ...], ...]


def lifetimes(program: Program, steps: Sequence[KernelCall | Extern]) -> Lifetimes:
    """Temps read by outputs or mutations live to the end."""
    kept = {o.buffer for o in program.outputs if isinstance(o, TensorRef)} | {
        m.source for m in program.mutations
    }
    temps = {b.name for b in program.buffers if b.kind == "temp"}
    last: dict[str, int] = {}
    born: list[tuple[str, ...]] = []
    for k, step in enumerate(steps):
        outs = step.outs if isinstance(step, Extern) else _written(step)
        used = reads(step) if isinstance(step, Extern) else set(step.tensors)
        for name in (*sorted(used), *outs):
            last[name] = k
        born.append(() if isinstance(step, Extern) else outs)
    dead: list[list[str]] = [[] for _ in steps]
    for name, k in last.items():
        if name in temps and name not in kept:
            dead[k].append(name)
    return Lifetimes(tuple(born), tuple(tuple(sorted(d)) for d in dead))


def _written(call: KernelCall) -> tuple[str, ...]:
    return tuple(n for n, p in zip(call.tensors, call.kernel.pointers) if p.kind == "out")
