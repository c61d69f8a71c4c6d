"""The stages on one screen: each is a function of the one before, timed and shown to the observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stax.artifact.artifact import Artifact
from stax.base.errors import CaptureError
from stax.base.observe import Event, Observer
from stax.base.options import Options
from stax.base.target import Target, Toolchain
from stax.build.job import Builder, Built, Job, job_of
from stax.capture.captured import Captured
from stax.codegen.backends import emitter
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.lower.lower import lower
from stax.pipeline.assemble import Chosen, assemble
from stax.pipeline.kernels import OnStoreError, Ready, obtain
from stax.pipeline.tuning import tune_all
from stax.schedule.schedule import Schedule, schedule
from stax.store.records import Records
from stax.tune.isolate import Measurer
from stax.tune.tune import Bench

T = TypeVar("T")
Watch = Callable[[str, object], None]


def nobody(stage: str, value: object) -> None:
    """The watcher that looks at nothing."""


@dataclass(frozen=True)
class Workshop:
    """What the stages need from outside: who builds, where results are kept, who is told, who measures (None: nobody)."""

    records: Records
    builder: Builder
    toolchain: Toolchain
    observer: Observer
    on_store_error: OnStoreError
    timeout_s: float = 300.0
    watch: Watch = nobody
    measurer: Measurer | None = None


@dataclass(frozen=True)
class Product:
    """An artifact with what is known about its making. ``blobs``: its binaries and constants, by digest."""

    artifact: Artifact
    blobs: dict[str, bytes]
    kernels: tuple[Ready, ...]


def compile_captured(
    captured: Captured, target: Target, options: Options, shop: Workshop, origin: str
) -> Product:
    """Captured → Artifact. Raises MissingRule, BuildError; store errors go to ``shop.on_store_error``."""
    shop.watch("trace", captured)
    program = _stage("lower", lambda: lower(captured, options=options), shop)
    plan = _stage("schedule", lambda: schedule(program, options), shop)
    _check_devices(plan, target)
    chosen = _stage("emit", lambda: emit_all(plan, target, shop.toolchain, shop.timeout_s), shop)
    given: Mapping[str, Built] = {}
    if options.tune != "off":
        chosen, given = _stage(
            "tune", lambda: tune_all(plan, chosen, target, options.tune, bench_of(shop)), shop
        )
    jobs = [job for _, job in chosen.values()]
    ready = _stage(
        "build",
        lambda: obtain(jobs, shop.records, shop.builder, shop.observer, shop.on_store_error, given),
        shop,
    )
    per_step = [None if isinstance(s, Extern) else chosen[s.kernel][0] for s in plan.steps]
    artifact, blobs = _stage(
        "assemble",
        lambda: assemble(captured, plan, per_step, ready, target, shop.toolchain, origin),
        shop,
    )
    blobs |= {r.digest: r.data for r in ready.values()}
    return Product(artifact, blobs, tuple(ready[k] for k in sorted(ready)))


def _check_devices(plan: Schedule, target: Target) -> None:
    """A kernel of one target can not read the memory of another: of a call without tensors nothing says which is meant.
    Raises CaptureError."""
    table = plan.program.table
    for step in plan.steps:
        for name in () if isinstance(step, Extern) else step.tensors:
            if table[name].device != target.kind:
                raise CaptureError(
                    "a tensor made on another device than the target's",
                    expected=target.kind,
                    found=table[name].device,
                    hint=f"compile with a target of that kind, or give a tensor on {table[name].device}",
                )


def emit_all(
    plan: Schedule, target: Target, toolchain: Toolchain, timeout_s: float
) -> dict[Kernel, tuple[Chosen, Job]]:
    """One source and one job a distinct kernel, in the order of first use."""
    emit = emitter(target)
    out: dict[Kernel, tuple[Chosen, Job]] = {}
    for kernel in distinct_kernels(plan):
        source = emit(kernel, target)
        job = job_of(source, source.default, target, toolchain, timeout_s)
        out[kernel] = Chosen(source, job.config, job.key.digest), job
    return out


def bench_of(shop: Workshop) -> Bench:
    """What tuning may use of a workshop."""
    return Bench(
        records=shop.records,
        builder=shop.builder,
        toolchain=shop.toolchain,
        measurer=shop.measurer,
        observer=shop.observer,
        on_store_error=shop.on_store_error,
        timeout_s=shop.timeout_s,
    )


def distinct_kernels(plan: Schedule) -> Sequence[Kernel]:
    """The kernels of a schedule, each once."""
    return list(dict.fromkeys(s.kernel for s in plan.steps if not isinstance(s, Extern)))


def _stage(name: str, run: Callable[[], T], shop: Workshop) -> T:
    began = time.perf_counter()
    result = run()
    shop.observer(Event(f"stage.{name}", {"seconds": time.perf_counter() - began}))
    shop.watch(name, result)
    return result
