"""Memory of temps: which take over another's, before which step each must exist and after which nobody reads it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stax.ir.program import Computation, Extern, Program, TensorRef
from stax.schedule.inline import reads, rename_node
from stax.schedule.loops import KernelCall


@dataclass(frozen=True)
class Lifetimes:
    """``born[k]``: temps that a kernel at step k writes first (an external call makes its own results);
    ``dead[k]``: temps last used at step k."""

    born: tuple[tuple[str, ...], ...]
    dead: tuple[tuple[str, ...], ...]


def settled(
    program: Program, steps: Sequence[KernelCall | Extern]
) -> tuple[Program, tuple[KernelCall | Extern, ...]]:
    """The result of a scatter lives in the memory of its base: the steps, outputs and mutations name that one. An input
    that is a base needs no mutation any more. The nodes of the program are as they were."""
    homes: dict[str, str] = {}
    for node in program.nodes:
        if isinstance(node, Computation) and node.body.op == "scatter":
            base = str(node.body.attr[0])
            homes[node.out] = homes.get(base, base)
    if not homes:
        return program, tuple(steps)
    outputs = tuple(
        replace(o, buffer=homes.get(o.buffer, o.buffer)) if isinstance(o, TensorRef) else o
        for o in program.outputs
    )
    mutations = [replace(m, source=homes.get(m.source, m.source)) for m in program.mutations]
    mutations = tuple(m for m in mutations if m.source != m.target)
    moved = [_settled_step(s, homes) for s in steps]
    return replace(program, outputs=outputs, mutations=mutations), tuple(moved)


def _settled_step(step: KernelCall | Extern, homes: Mapping[str, str]) -> KernelCall | Extern:
    if isinstance(step, KernelCall):
        return replace(step, tensors=tuple(homes.get(n, n) for n in step.tensors))
    moved = rename_node(step, homes)
    assert isinstance(moved, Extern)
    return moved


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
