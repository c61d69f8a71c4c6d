"""tune(): a configuration for each kernel, from records where there are any, else measured here and recorded.

All kernels go through their searches side by side: what the searches ask for in one round is built in one batch, and
measured while the rest of the batch is still being built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from math import inf, isfinite

from stax.base.errors import OptionError, SchemaError, StoreError
from stax.base.observe import Event, Observer
from stax.base.target import Toolchain
from stax.build.job import Builder, BuildResult, Built, Job, job_of
from stax.ir.source import Config
from stax.store.records import Records
from stax.tune.isolate import Measurer
from stax.tune.measurement import Measurement, failed
from stax.tune.record import KIND, Finding, publish, read, variant_of
from stax.tune.search import Search, Trial
from stax.tune.subject import Subject
from stax.tune.work import Work

_LOOKUPS = 16


@dataclass(frozen=True)
class Bench:
    """What tuning needs from outside; ``measurer`` is None where nothing can be measured."""

    records: Records
    builder: Builder
    toolchain: Toolchain
    measurer: Measurer | None
    observer: Observer
    on_store_error: Callable[[StoreError], None]
    timeout_s: float


@dataclass(frozen=True)
class Tuned:
    """``configs`` beside the subjects; ``built``: what has been built of them on the way, by kernel key."""

    configs: tuple[Config, ...]
    built: Mapping[str, Built]


def tune(subjects: Sequence[Subject], bench: Bench) -> Tuned:
    """Choose. A kernel with one candidate is not looked up, built or measured. Raises OptionError when something must be
    measured and nothing here can."""
    chosen = {s: s.source.default for s in subjects if len(s.source.space) == 1}
    chosen |= _look_up([s for s in subjects if s not in chosen], bench)
    absent = [s for s in dict.fromkeys(subjects) if s not in chosen]
    run = _Run(bench)
    if absent:
        if bench.measurer is None:
            raise _nowhere_to_measure(absent)
        with bench.measurer.alone() as busy_percent:
            # Another process may have measured them while we waited for the device.
            chosen |= _look_up(absent, bench)
            searches = [(s, s.search(bench.measurer.device)) for s in absent if s not in chosen]
            run.finish(searches)
        for subject, search in searches:
            chosen[subject] = _settle(subject, search, busy_percent, bench)
    return Tuned(tuple(chosen[s] for s in subjects), run.winners(chosen))


def _nowhere_to_measure(absent: Sequence[Subject]) -> OptionError:
    arch, option = absent[0].target.arch, absent[0].strategy
    return OptionError(
        f"tune={option!r} must measure and can not",
        expected=f"a GPU of {arch} here, or a store with tuning records of these kernels",
        found=f"neither for {len(absent)} kernels, the first {absent[0].source.entry}",
        hint="tune once on a machine with such a GPU and the same store, or compile with tune='off'",
    )


# -- records


def _look_up(subjects: Sequence[Subject], bench: Bench) -> dict[Subject, Config]:
    """The recorded choices, looked up side by side."""
    if not subjects:
        return {}
    with ThreadPoolExecutor(min(_LOOKUPS, len(subjects))) as pool:
        found = list(pool.map(_recorded, subjects, repeat(bench)))
    chosen: dict[Subject, Config] = {}
    for subject, finding in zip(subjects, found):
        if isinstance(finding, StoreError):
            bench.on_store_error(finding)
        elif finding is not None:
            chosen[subject] = finding.config
            fields = {"entry": subject.source.entry, "device": finding.device}
            bench.observer(Event("tune.hit", fields))
    return chosen


def _recorded(subject: Subject, bench: Bench) -> Finding | StoreError | None:
    """The finding of this machine's device; where nothing can be measured, of any device of the architecture."""
    findings: list[Finding] = []
    try:
        held = bench.records.find(KIND, subject.key.digest)
    except StoreError as error:
        return error
    own = None if bench.measurer is None else variant_of(bench.measurer.device)
    for record in held:
        if own is not None and record.variant != own:
            continue
        try:
            findings.append(read(record, subject.space, subject.source))
        except SchemaError as error:
            bench.observer(Event("miss", {"reason": f"tuning {record.key[:12]}: {error}"}))
    return min(findings, key=lambda f: f.device, default=None)


def _settle(subject: Subject, search: Search, busy_percent: int | None, bench: Bench) -> Config:
    """The winner, recorded; the default, not recorded, when nothing could run."""
    assert bench.measurer is not None
    known = search.notebook.known
    fields: dict[str, object] = {"entry": subject.source.entry, "measured": len(known)}
    if search.best is None:
        reasons = sorted({f"{m.status}: {m.detail[:200]}" for m in known.values()})
        bench.observer(Event("tune.failed", {**fields, "reason": "; ".join(reasons)}))
        return subject.source.default
    best = known[search.best]
    bench.observer(
        Event(
            "tune.done",
            {
                **fields,
                "config": dict(search.best.values),
                "time_us": best.time_us,
                "noise": best.noise,
                "reason": _told(subject, search.best, best, len(known)),
            },
        )
    )
    finding = Finding(
        device=bench.measurer.device,
        config=search.best,
        measurements=tuple(known.items()),
        tools=bench.toolchain.for_kernel(subject.target.kind),
        busy_percent=busy_percent,
    )
    try:
        publish(bench.records, subject.key, finding, subject.space, subject.source)
    except StoreError as error:
        bench.on_store_error(error)
    return search.best


def _told(subject: Subject, config: Config, best: Measurement, count: int) -> str:
    values = " ".join(f"{name} {value}" for name, value in config.values)
    time = f"{best.time_us:.2f} us ± {100 * best.noise:.1f} %"
    return f"{subject.source.entry}: {values} takes {time}, the best of {count}"


# -- building and measuring


@dataclass
class _Run:
    """What has been built and measured so far, for all searches."""

    bench: Bench
    built: dict[str, BuildResult] = field(default_factory=dict[str, BuildResult])
    timed: dict[object, Measurement] = field(default_factory=dict[object, Measurement])

    def finish(self, searches: Sequence[tuple[Subject, Search]]) -> None:
        """Ask and tell until no search asks any more."""
        while asked := [(s, found, t) for s, found in searches for t in found.ask()]:
            ahead = [(s, c) for s, found in searches for c in found.notebook.ahead]
            self._round(asked, ahead)

    def _round(
        self,
        asked: Sequence[tuple[Subject, Search, Trial]],
        ahead: Sequence[tuple[Subject, Config]],
    ) -> None:
        waiting: dict[str, list[tuple[Subject, Search, Trial]]] = {}
        jobs: dict[str, Job] = {}
        for subject, search, trial in asked:
            job = self._job(subject, trial.config)
            jobs[job.key.digest] = job
            waiting.setdefault(job.key.digest, []).append((subject, search, trial))
        for subject, config in ahead:
            job = self._job(subject, config)
            jobs.setdefault(job.key.digest, job)
        absent = [job for key, job in jobs.items() if key not in self.built]
        for result in self.bench.builder.build(absent) if absent else ():
            self.built[result.key] = result
            for each in waiting.pop(result.key, ()):
                self._answer(*each)
        for each in (e for left in waiting.values() for e in left):
            self._answer(*each)

    def _job(self, subject: Subject, config: Config) -> Job:
        bench = self.bench
        return job_of(subject.source, config, subject.target, bench.toolchain, bench.timeout_s)

    def _answer(self, subject: Subject, search: Search, trial: Trial) -> None:
        measurement = self._measured(subject, search, trial)
        search.tell(trial.config, measurement)

    def _measured(self, subject: Subject, search: Search, trial: Trial) -> Measurement:
        """Failed builds and spilled registers cost infinity (Algorithm 9.1, line 4), and so does what does not run."""
        result = self.built[self._job(subject, trial.config).key.digest]
        if not isinstance(result, Built):
            return failed("build", f"{result.kind}: {result.message}"[:500])
        if spilled := dict(result.meta).get("spills"):
            return failed("spills", f"{spilled} bytes a thread")
        known = search.notebook.known
        if trial.config in known and not known[trial.config].is_finite:
            return known[trial.config]
        work = subject.work(trial.config, result.data, result.meta)
        # Parameters that the compiler has no use for give equal binaries, which are measured once.
        same = (work, trial.budget_us)
        if same not in self.timed:
            best_us = min((m.time_us for m in known.values()), default=inf)
            self.timed[same] = self._time(work, trial, best_us if isfinite(best_us) else 0.0)
        return self.timed[same]

    def _time(self, work: Work, trial: Trial, best_us: float) -> Measurement:
        assert self.bench.measurer is not None
        measurement = self.bench.measurer.measure(work, trial.budget_us, best_us)
        fields: dict[str, object] = {
            "entry": work.entry, "config": dict(trial.config.values), "time_us": measurement.time_us,
            "noise": measurement.noise, "status": measurement.status, "detail": measurement.detail,
        }  # fmt: skip
        self.bench.observer(Event("tune.measure", fields))
        return measurement

    def winners(self, chosen: Mapping[Subject, Config]) -> dict[str, Built]:
        """The builds of the chosen configurations."""
        keys = {self._job(s, config).key.digest for s, config in chosen.items()}
        found = {key: self.built[key] for key in keys if key in self.built}
        return {key: result for key, result in found.items() if isinstance(result, Built)}
