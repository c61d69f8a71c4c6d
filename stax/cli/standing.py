"""How far a compile is: a value that events move forward, and its text. Pure; the displays are in progress.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stax.base.observe import Event

STAGES = {
    "stage.trace": "traced",
    "stage.lower": "lowered",
    "stage.schedule": "scheduled",
    "stage.emit": "written",
    "stage.build": "compiled",
    "stage.assemble": "assembled",
}


@dataclass(frozen=True)
class Standing:
    """Counts so far. ``stage`` is the last one that ended, ``seconds`` what each took in all."""

    stage: str = ""
    seconds: tuple[tuple[str, float], ...] = ()
    queued: int = 0
    hits: int = 0
    built: int = 0
    failed: int = 0
    running: int = 0
    workers: int = 0
    built_bytes: int = 0
    published_bytes: int = 0

    @property
    def done(self) -> int:
        """Jobs that have an answer."""
        return self.built + self.failed


Move = Callable[[Standing, Mapping[str, object]], Standing]


def _queued(standing: Standing, fields: Mapping[str, object]) -> Standing:
    return replace(standing, queued=standing.queued + _int(fields, "count"))


def _hit(standing: Standing, fields: Mapping[str, object]) -> Standing:
    return replace(standing, hits=standing.hits + 1)


def _done(standing: Standing, fields: Mapping[str, object]) -> Standing:
    size = standing.built_bytes + _int(fields, "bytes")
    return replace(standing, built=standing.built + 1, built_bytes=size)


def _failed(standing: Standing, fields: Mapping[str, object]) -> Standing:
    return replace(standing, failed=standing.failed + 1)


def _farm(standing: Standing, fields: Mapping[str, object]) -> Standing:
    return replace(standing, running=_int(fields, "running"), workers=_int(fields, "workers"))


def _store_call(standing: Standing, fields: Mapping[str, object]) -> Standing:
    if fields.get("outcome") != "created":
        return standing
    return replace(standing, published_bytes=standing.published_bytes + _int(fields, "bytes"))


MOVES: Mapping[str, Move] = {
    "job.queued": _queued,
    "job.hit": _hit,
    "job.done": _done,
    "job.failed": _failed,
    "farm.progress": _farm,
    "store.call": _store_call,
}


def advance(standing: Standing, event: Event) -> Standing:
    """The standing after an event; events that say nothing about progress leave it as it is."""
    if event.name in STAGES:
        spent = dict(standing.seconds)
        name = STAGES[event.name]
        spent[name] = spent.get(name, 0.0) + seconds_of(event)
        return replace(standing, stage=name, seconds=tuple(spent.items()))
    move = MOVES.get(event.name)
    return standing if move is None else move(standing, event.fields)


def seconds_of(event: Event) -> float:
    """What a stage took."""
    value = event.fields.get("seconds", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def eta_s(standing: Standing, compiling_s: float) -> float | None:
    """Seconds until the last job, at the pace so far; None while nothing can be said."""
    left = standing.queued - standing.done
    if left <= 0 or not standing.done:
        return None
    return left * compiling_s / standing.done


def counts_text(standing: Standing, eta: float | None) -> str:
    """ "compiled 12 of 40, 3 hits, 1.2 MB, 8 s to go" """
    parts = [f"compiled {standing.done} of {standing.queued}", f"{standing.hits} hits"]
    if standing.workers:
        parts.append(f"{standing.running} running on {standing.workers} workers")
    parts.append(f"{bytes_text(standing.built_bytes)} built")
    parts.append(f"{bytes_text(standing.published_bytes)} published")
    if eta is not None:
        parts.append(f"{eta:.0f} s to go")
    return ", ".join(parts)


def bytes_text(count: int) -> str:
    """ "950 B", "1.2 MB" (powers of ten)."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _int(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name, 0)
    return value if isinstance(value, int) else 0
