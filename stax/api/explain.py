"""explain(): what a call compiles to, kernel by kernel, and what each should cost. Builds and runs nothing, unless asked to
measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from stax.api.reports import CallReport, ExplainReport, KernelReport
from stax.api.session import Session
from stax.api.timing import Timed, measured, recorded
from stax.base.devices import NAMED_DEVICES, Device, device_of
from stax.base.errors import OptionError, StoreError
from stax.base.observe import Observer
from stax.base.options import Environment, Options
from stax.base.target import Target
from stax.build.job import Builder
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.codegen.backends import emitter, looper
from stax.codegen.triton.cost import grid_of, predict_s
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.ir.source import Source
from stax.ir.traffic import traffic
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from stax.store.base import Store
from stax.tune.isolate import Measurer


def explain(
    fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target,
    dynamic: bool = False,
    strict_native: bool = False,
    options: Options | None = None,
    device: str = "",
    measure: bool = False,
    store: str | Store | None = None,
    builder: Builder | None = None,
    measurer: Measurer | None = None,
    observer: Observer | None = None,
    environment: Environment | None = None,
) -> ExplainReport:
    """The kernels and calls to torch of ``fn(*args, **kwargs)`` on ``target``, whose device need not be here.

    ``device`` names the GPU whose facts are used: default, one of this machine that has the target's architecture, else
    the architecture's own row. Configurations and times come from the tuning records of ``store`` as far as there are
    any (of ``options.tune``, on that device); with ``measure`` every kernel is built and timed here, by ``measurer``.
    Raises CaptureError, MissingRule, OptionError; with ``measure`` also BuildError, LaunchError.
    """
    chosen = options or Options()
    if strict_native:
        chosen = chosen.with_(strict_native=True)
    wanted = target if isinstance(target, Target) else Target.parse(target)
    named, facts = _device(wanted, device, "" if measurer is None else measurer.device)
    captured = trace(
        fn, tuple(args), dict(kwargs or {}), dynamic=dynamic, target=wanted, decompositions=decompositions(),
    )  # fmt: skip
    plan = schedule(lower(captured, options=chosen), chosen)
    session = Session(
        store=store, builder=builder, observer=observer, environment=environment, measurer=measurer
    )
    with closing(session):
        rows = _kernels(plan, wanted, facts, chosen.tune, named, measure, session)
    calls = Counter(s.target for s in plan.steps if isinstance(s, Extern))
    return ExplainReport(
        target=str(wanted),
        device=named or (wanted.arch if facts else ""),
        floor_bytes_s=None if facts is None else facts.floor_bytes_s,
        kernels=rows,
        calls=tuple(CallReport(name, count) for name, count in calls.items()),
        decisions=tuple((d.subject, d.verdict, d.reason) for d in plan.decisions),
    )


def _device(target: Target, name: str, measuring: str) -> tuple[str, Device | None]:
    """(name, facts) of the device that predictions are for, the one that measures if there is one; "" is any of the
    architecture. No facts of CPUs are known."""
    if name and (target.kind != "cuda" or name not in NAMED_DEVICES):
        raise OptionError(
            "unknown device", expected=" | ".join(NAMED_DEVICES), found=repr(name),
            hint=f"leave it out for what is known of {target}",
        )  # fmt: skip
    if target.kind != "cuda":
        return "", None
    found = name or measuring or _present(target.arch)
    return found, device_of(target.arch, found)


def _present(arch: str) -> str:
    """The name of this machine's first GPU of an architecture, or ""."""
    for k in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(k)
        if arch == f"sm_{major}{minor}":
            return torch.cuda.get_device_name(k)
    return ""


def _kernels(
    plan: Schedule, target: Target, device: Device | None, tune: str, name: str, measure: bool, session: Session,
) -> tuple[KernelReport, ...]:  # fmt: skip
    """Distinct kernels in the order of first use."""
    launches = Counter(s.kernel for s in plan.steps if not isinstance(s, Extern))
    sources = {kernel: emitter(target)(kernel, target) for kernel in launches}
    times = {kernel: Timed(source.default) for kernel, source in sources.items()}
    if target.kind == "cuda":
        try:
            times = recorded(plan, sources, target, tune, name, session.records)
        except StoreError as error:
            session.degrade(error)
    if measure:
        times = measured(plan, sources, times, target, session)
    return tuple(
        _kernel(k, sources[k], times[k], count, target, device) for k, count in launches.items()
    )


def _kernel(
    kernel: Kernel, source: Source, timed: Timed, launches: int, target: Target, device: Device | None,
) -> KernelReport:  # fmt: skip
    moved = traffic(kernel, loops=looper(target)(kernel))
    config = timed.config
    return KernelReport(
        name=source.entry,
        form=kernel.form,
        launches=launches,
        grid=grid_of(source, config, kernel.hints),
        config=dict(config.values),
        read_bytes=moved.read_bytes,
        written_bytes=moved.written_bytes,
        reread_bytes=moved.reread_bytes,
        floor_s=None if device is None else moved.moved_bytes / device.floor_bytes_s,
        predicted_s=None if device is None else predict_s(kernel, source, config, moved, device),
        measured_s=timed.time_s,
        measured_on=timed.device,
    )
