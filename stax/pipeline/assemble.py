"""Captured + Schedule + binaries → Artifact: the steps a machine without a compiler follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stax.artifact.artifact import (
    SCHEMA,
    Alloc,
    Arena,
    Artifact,
    Binary,
    Call,
    Change,
    Constant,
    Constraints,
    CopyBack,
    Free,
    Launch,
    Layout,
    Place,
    Return,
    Step,
)
from stax.base.digest import sha256
from stax.base.target import Target, Toolchain
from stax.capture.captured import Captured
from stax.ir.expr import Expr
from stax.ir.program import Buffer, Extern
from stax.ir.source import Config, Source
from stax.pipeline.kernels import Ready
from stax.schedule.arena import Memory
from stax.schedule.loops import KernelCall
from stax.schedule.schedule import Schedule

LEAST_TORCH = "2.11"


@dataclass(frozen=True)
class Chosen:
    """A kernel's source with the launch configuration it was built for, and the key of that build."""

    source: Source
    config: Config
    key: str


def assemble(
    captured: Captured,
    schedule: Schedule,
    chosen: Sequence[Chosen | None],
    ready: Mapping[str, Ready],
    target: Target,
    toolchain: Toolchain,
    origin: str,
) -> tuple[Artifact, dict[str, bytes]]:
    """The artifact and the blobs of its constants by digest. ``chosen`` runs beside ``schedule.steps`` (None for calls)."""
    binaries, numbers = _binaries(chosen, ready)
    constants, blobs = _constants(captured.constants)
    artifact = Artifact(
        schema=SCHEMA,
        target=target,
        toolchain=toolchain,
        constraints=constraints_of(target, binaries),
        signature=captured.signature,
        symbols=captured.symbols,
        guards=captured.guards,
        inputs=captured.inputs,
        constants=constants,
        binaries=binaries,
        forward=_steps(schedule, chosen, numbers),
        backward=(),
        traced_sources=captured.traced_sources,
        origin=origin,
    )
    return artifact, blobs


def _binaries(
    chosen: Sequence[Chosen | None], ready: Mapping[str, Ready]
) -> tuple[tuple[Binary, ...], dict[str, int]]:
    numbers: dict[str, int] = {}
    binaries: list[Binary] = []
    for one in chosen:
        if one is None or one.key in numbers:
            continue
        numbers[one.key] = len(binaries)
        built = ready[one.key]
        binaries.append(
            Binary(
                name=f"{one.source.entry}_{len(binaries)}",
                language=one.source.language,
                entry=one.source.entry,
                key=one.key,
                digest=built.digest,
                params=one.source.params,
                grid=one.source.grid,
                config=one.config,
                meta=built.meta,
            )
        )
    return tuple(binaries), numbers


def _steps(
    schedule: Schedule, chosen: Sequence[Chosen | None], numbers: Mapping[str, int]
) -> tuple[Step, ...]:
    table, memory = schedule.program.table, schedule.memory
    steps: list[Step] = []
    for k, (step, one) in enumerate(zip(schedule.steps, chosen)):
        steps.extend(_made(name, table, memory) for name in memory.made[k])
        if isinstance(step, Extern):
            layouts = tuple(
                Layout(table[o].shape, table[o].strides) if o else None for o in step.outs
            )
            steps.append(Call(step.outs, step.target, step.args, step.kwargs, layouts))
        else:
            assert one is not None
            steps.extend(c for c in _changes(step, table) if c not in steps)
            steps.append(Launch(numbers[one.key], step.tensors, _sizes(step, one.source)))
        if memory.gone[k]:
            steps.append(Free(memory.gone[k]))
    steps.extend(CopyBack(m.target, m.source) for m in schedule.program.mutations)
    steps.append(Return(schedule.program.outputs))
    return tuple(steps)


def _changes(call: KernelCall, table: Mapping[str, Buffer]) -> Iterator[Change]:
    """The inputs that a kernel writes in place."""
    for name, pointer in zip(call.tensors, call.kernel.pointers):
        if pointer.kind == "update" and table[name].kind == "input":
            yield Change(name)


def _made(name: str, table: Mapping[str, Buffer], memory: Memory) -> Step:
    if name == memory.arena:
        return Arena(name, memory.slots)
    b, spot = table[name], memory.spots.get(name)
    if spot is None:
        return Alloc(name, b.dtype, b.shape, b.strides)
    return Place(name, spot.home, spot.slot, spot.offset, b.dtype, b.shape, b.strides)


def _sizes(call: KernelCall, source: Source) -> tuple[Expr, ...]:
    env: dict[str, Expr | int] = {s.name: e for s, e in zip(call.kernel.sizes, call.sizes)}
    return tuple(e.subs(env) for e in source.sizes)


def constraints_of(target: Target, binaries: Sequence[Binary]) -> Constraints:
    """What a machine needs to run all of ``binaries``."""
    if target.kind == "cuda":
        # "sm_100a" sorts after "sm_100": one binary with instructions of the exact device binds all of them to it.
        arch = max((str(dict(b.meta).get("arch", "")) for b in binaries), default="")
        return Constraints(cuda_arch=max(arch, target.arch), torch_min=LEAST_TORCH)
    glibc = [str(dict(b.meta).get("glibc", "")) for b in binaries]
    return Constraints(
        cpu_level=target.arch, glibc=max(glibc, key=_version, default=""), torch_min=LEAST_TORCH
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(p) for p in text.split(".") if p.isdigit())


def _constants(
    tensors: Sequence[tuple[str, Tensor]],
) -> tuple[tuple[Constant, ...], dict[str, bytes]]:
    constants: list[Constant] = []
    blobs: dict[str, bytes] = {}
    for name, tensor in tensors:
        raw = _raw_bytes(tensor)
        digest = sha256(raw)
        blobs[digest] = raw
        dtype = str(tensor.dtype).removeprefix("torch.")
        constants.append(Constant(name, dtype, tuple(tensor.shape), digest))
    return tuple(constants), blobs


def _raw_bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
