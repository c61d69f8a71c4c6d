"""Measured times of kernels, for explain(): those of a store's tuning records, or taken now on a GPU of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.api.session import Session
from stax.base.errors import LaunchError, OptionError, SchemaError
from stax.base.target import Target
from stax.build.job import job_of
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.pipeline.kernels import obtain
from stax.pipeline.tuning import elements_of
from stax.schedule.schedule import Schedule
from stax.store.records import Records
from stax.tune.record import KIND, Finding, read
from stax.tune.search import BUDGET_US, OF_OPTION
from stax.tune.subject import Subject


@dataclass(frozen=True)
class Timed:
    """The configuration of a kernel, and its time where some is known, with the device it was taken on."""

    config: Config
    time_s: float | None = None
    device: str = ""


def recorded(
    plan: Schedule, sources: Mapping[Kernel, Source], target: Target, tune: str, device: str, records: Records,
) -> dict[Kernel, Timed]:  # fmt: skip
    """What tuning records say: the configuration that ``tune`` (Options.tune) would take, and its time. ``device``: whose
    records, "" for any device of the architecture. Raises StoreError."""
    elements = elements_of(plan)
    found: dict[Kernel, Timed] = {}
    for kernel, source in sources.items():
        subjects = {s: Subject(kernel, source, elements[kernel], target, s) for s in OF_OPTION}
        findings = {s: _finding(subject, device, records) for s, subject in subjects.items()}
        own = findings.get(tune)
        config = source.default if own is None else own.config
        known = [f for f in (own, *findings.values()) if f is not None]
        found[kernel] = next((t for t in (_timed(config, f) for f in known) if t), Timed(config))
    return found


def _finding(subject: Subject, device: str, records: Records) -> Finding | None:
    """The record of a device; damaged ones are no records."""
    found: list[Finding] = []
    for record in records.find(KIND, subject.key.digest):
        try:
            found.append(read(record, subject.space, subject.source))
        except SchemaError:
            continue
    fitting = [f for f in found if device in ("", f.device)]
    return min(fitting, key=lambda f: f.device, default=None)


def _timed(config: Config, finding: Finding) -> Timed | None:
    measured = dict(finding.measurements).get(config)
    if measured is None or not measured.is_finite:
        return None
    return Timed(config, measured.time_us / 1e6, finding.device)


def measured(
    plan: Schedule, sources: Mapping[Kernel, Source], chosen: Mapping[Kernel, Timed], target: Target, session: Session,
) -> dict[Kernel, Timed]:  # fmt: skip
    """Build and time every kernel under its chosen configuration, with a cold cache. Raises OptionError without a GPU of
    the target, BuildError, LaunchError for a kernel that does not run."""
    measurer = session.measurer(target)
    if measurer is None:
        raise OptionError(
            "nothing to measure on", expected=f"a GPU in this machine for {target}", found="none",
            hint="without --measure (measure=True) no GPU is needed",
        )  # fmt: skip
    tools, limit_s = session.toolchain, session.environment.build_timeout_s
    jobs = [job_of(s, chosen[k].config, target, tools, limit_s) for k, s in sources.items()]
    ready = obtain(jobs, session.records, session.builder, session.observer, session.degrade)
    elements = elements_of(plan)
    found: dict[Kernel, Timed] = {}
    with measurer.alone():
        for (kernel, source), job in zip(sources.items(), jobs):
            config, built = chosen[kernel].config, ready[job.key.digest]
            subject = Subject(kernel, source, elements[kernel], target, next(iter(OF_OPTION)))
            one = measurer.measure(subject.work(config, built.data, built.meta), BUDGET_US, 0.0)
            if not one.is_finite:
                raise LaunchError(
                    "a kernel could not be measured", found=f"{one.status}: {one.detail}", where=source.entry
                )  # fmt: skip
            found[kernel] = Timed(config, one.time_us / 1e6, measurer.device)
    return found
