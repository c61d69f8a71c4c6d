"""Progress on standard error: a live panel on a terminal, plain lines elsewhere. Displays are observers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

from stax.base.observe import Event, Observer, ignore
from stax.cli.standing import Standing, advance, counts_text, eta_s, line_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_EVERY_S = 2.0


class Display(Protocol):
    """``show`` is called with the lock held, after every event that changed the standing."""

    def show(self, standing: Standing, event: Event, eta: float | None) -> None: ...


@dataclass
class Watcher:
    """The observer: moves the standing forward, from any thread, and shows it."""

    display: Display
    clock: Callable[[], float] = time.monotonic
    standing: Standing = field(default_factory=Standing)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _compiling_since_s: float | None = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            moved = advance(self.standing, event)
            if moved is self.standing:
                return
            self.standing = moved
            if event.name == "job.queued" and self._compiling_since_s is None:
                self._compiling_since_s = self.clock()
            begun_s = self._compiling_since_s
            eta = None if begun_s is None else eta_s(moved, self.clock() - begun_s)
            self.display.show(moved, event, eta)


class PlainDisplay:
    """A line for what has ended, and one every two seconds while kernels are compiled."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_s = 0.0

    def show(self, standing: Standing, event: Event, eta: float | None) -> None:
        if event.name == "stage.build":
            self._line(f"{line_of(event)} ({counts_text(standing, None)})")
        elif (line := line_of(event)) is not None:
            self._line(line)
        elif self._clock() >= self._next_s:
            self._line(counts_text(standing, eta))
            self._next_s = self._clock() + _LINE_EVERY_S

    def _line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class RichDisplay:
    """One bar, with what has ended above it."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar

    def show(self, standing: Standing, event: Event, eta: float | None) -> None:
        if (line := line_of(event)) is not None:
            self._progress.console.print(f"  {line}", highlight=False)
        self._progress.update(
            self._bar,
            total=standing.queued + standing.hits or None,
            completed=standing.done + standing.hits,
            counts=counts_text(standing, eta),
        )


@contextmanager
def watching(title: str, stream: TextIO | None = None) -> Generator[Observer]:
    """An observer that shows progress on standard error until the block ends."""
    out = stream or sys.stderr
    if out is None:  # closed by who started this process
        yield ignore
        return
    if not out.isatty():
        yield Watcher(PlainDisplay(out))
        return
    try:
        # 0.1 s that only a terminal pays, and a package that a cold node does not have.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ModuleNotFoundError:
        yield Watcher(PlainDisplay(out))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=Console(file=out)) as progress:
        bar = progress.add_task(title, total=None, counts="")
        yield Watcher(RichDisplay(progress, bar))
