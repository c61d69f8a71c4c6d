"""How a build goes, for a person: an Observer that adds events up and shows one line.

On a terminal a live bar (rich); elsewhere, as in a job's log, a plain line now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TextIO

from stax.base.observe import Event, Observer

_LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class Tally:
    """The counts so far. ``jobs`` is all that were asked for; ``hits`` and ``built`` are published, but for ``unpublished``."""

    traced: int = 0
    jobs: int = 0
    running: int = 0
    hits: int = 0
    built: int = 0
    failed: int = 0
    retried: int = 0
    unpublished: int = 0
    workers: int = 0
    size_bytes: int = 0

    @property
    def finished(self) -> int:
        return self.hits + self.built + self.failed

    @property
    def queued(self) -> int:
        return max(0, self.jobs - self.finished - self.running)


def add(tally: Tally, event: Event) -> Tally:
    """The counts after one more event; events of other rooms change nothing."""
    fold = _FOLDS.get(event.name)
    return fold(tally, event) if fold else tally


def line(tally: Tally, elapsed_s: float) -> str:
    """ "traced 3 | queued 10, compiling 2 on 2 workers | published 28 of 40 (12 hits), 1.2 MB | ETA 9 s"."""
    published = tally.hits + tally.built - tally.unpublished
    parts = [
        f"traced {tally.traced}" if tally.traced else "",
        f"queued {tally.queued}, compiling {tally.running}"
        + (f" on {tally.workers} workers" if tally.workers else ""),
        f"published {published} of {tally.jobs} ({tally.hits} hits), {tally.size_bytes / 1e6:.1f} MB",
        f"failed {tally.failed}" if tally.failed else "",
        f"retried {tally.retried}" if tally.retried else "",
        f"not published {tally.unpublished}" if tally.unpublished else "",
        f"ETA {eta_s(tally, elapsed_s):.0f} s"
        if tally.finished < tally.jobs
        else f"{elapsed_s:.1f} s",
    ]
    return " | ".join(part for part in parts if part)


def eta_s(tally: Tally, elapsed_s: float) -> float:
    """Seconds left at the pace so far; 0 before the first result."""
    if not tally.finished:
        return 0.0
    return elapsed_s / tally.finished * (tally.jobs - tally.finished)


@contextmanager
def progress(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Generator[Observer]:
    """An observer that shows on ``stream`` how the builds go, for as long as the block runs. Thread-safe enough for one
    builder: events come on the thread that reads its results."""
    display: _Display = _Bar(stream) if stream.isatty() else _Lines(stream, clock)
    tally, begun = Tally(), clock()

    def observe(event: Event) -> None:
        nonlocal tally
        before, tally = tally, add(tally, event)
        if tally != before:
            display.show(tally, clock() - begun)

    try:
        yield observe
    finally:
        display.end(tally, clock() - begun)


class _Display(Protocol):
    def show(self, tally: Tally, elapsed_s: float) -> None: ...

    def end(self, tally: Tally, elapsed_s: float) -> None: ...


class _Lines:
    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._last_s = clock()

    def show(self, tally: Tally, elapsed_s: float) -> None:
        if self._clock() - self._last_s >= _LINE_EVERY_S:
            self._last_s = self._clock()
            self._write(tally, elapsed_s)

    def end(self, tally: Tally, elapsed_s: float) -> None:
        if tally.jobs:
            self._write(tally, elapsed_s)

    def _write(self, tally: Tally, elapsed_s: float) -> None:
        self._stream.write(f"stax: {line(tally, elapsed_s)}\n")
        self._stream.flush()


class _Bar:
    def __init__(self, stream: TextIO) -> None:
        # Imported here: rich costs 0.1 s, and is not installed where nobody looks.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(24), TextColumn("{task.description}"), console=Console(file=stream)
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def show(self, tally: Tally, elapsed_s: float) -> None:
        self._bar.update(
            self._task,
            total=tally.jobs or None,
            completed=tally.finished,
            description=line(tally, elapsed_s),
        )

    def end(self, tally: Tally, elapsed_s: float) -> None:
        self.show(tally, elapsed_s)
        self._bar.stop()


def _number(event: Event, name: str) -> int:
    value = event.fields.get(name, 0)
    return value if isinstance(value, int) else 0


def _done(tally: Tally, event: Event) -> Tally:
    hit = bool(event.fields.get("hit"))
    return replace(
        tally,
        hits=tally.hits + hit,
        built=tally.built + (not hit),
        running=max(0, tally.running - 1),
        unpublished=tally.unpublished + bool(event.fields.get("unpublished")),
        size_bytes=tally.size_bytes + _number(event, "size_bytes"),
    )


def _failed(tally: Tally, event: Event) -> Tally:
    return replace(tally, failed=tally.failed + 1, running=max(0, tally.running - 1))


def _standing(tally: Tally, event: Event) -> Tally:
    mine = max(0, tally.jobs - tally.finished)  # the farm may run the jobs of others too
    running = min(mine, _number(event, "running"))
    return replace(tally, running=running, workers=_number(event, "workers"))


_FOLDS: dict[str, Callable[[Tally, Event], Tally]] = {
    "stage.trace": lambda t, e: replace(t, traced=t.traced + 1),
    "job.hit": lambda t, e: replace(t, jobs=t.jobs + 1, hits=t.hits + 1),
    "build.queued": lambda t, e: replace(t, jobs=t.jobs + _number(e, "count")),
    "build.begin": lambda t, e: replace(t, running=t.running + 1),
    "build.worker_lost": lambda t, e: replace(
        t, running=max(0, t.running - 1), retried=t.retried + 1
    ),
    "build.done": _done,
    "build.failed": _failed,
    "farm.progress": _standing,
}
