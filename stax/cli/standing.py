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
    "stage.tune": "tuned",
    "stage.build": "compiled",
    "stage.assemble": "assembled",
}


@dataclass(frozen=True)
class Standing:
    """Counts so far. ``seconds`` is what each stage took in all."""

    seconds: tuple[tuple[str, float], ...] = ()
    queued: int = 0
    hits: int = 0
    built: int = 0
    failed: int = 0
    running: int = 0
    workers: int = 0
    built_bytes: int = 0
    published: int = 0
    published_bytes: int = 0
    already: int = 0

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


def _published(standing: Standing, fields: Mapping[str, object]) -> Standing:
    size = standing.published_bytes + _int(fields, "bytes")
    return replace(standing, published=standing.published + 1, published_bytes=size)


def _already(standing: Standing, fields: Mapping[str, object]) -> Standing:
    return replace(standing, already=standing.already + 1)


MOVES: Mapping[str, Move] = {
    "job.queued": _queued,
    "job.hit": _hit,
    "job.done": _done,
    "job.failed": _failed,
    "farm.progress": _farm,
    "record.published": _published,
    "artifact.hit": _already,
}


def advance(standing: Standing, event: Event) -> Standing:
    """The standing after an event; events that say nothing about progress leave it as it is."""
    if event.name in STAGES:
        spent = dict(standing.seconds)
        name = STAGES[event.name]
        spent[name] = spent.get(name, 0.0) + seconds_of(event)
        return replace(standing, seconds=tuple(spent.items()))
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


def line_of(event: Event) -> str | None:
    """What one event says by itself; None for those that only count."""
    match event.name:
        case name if name in STAGES:
            return f"{STAGES[name]} in {seconds_of(event):.2f} s"
        case "record.published":
            key, size = str(event.fields.get("key", "")), bytes_text(_int(event.fields, "bytes"))
            return f"published {size} under request {key[:12]}"
        case "artifact.hit":
            return f"already there for {event.fields.get('target')}"
        case "job.failed":
            return f"failed: kernel {str(event.fields.get('key'))[:12]}, {event.fields.get('kind')}"
        case _:
            return None


def counts_text(standing: Standing, eta: float | None) -> str:
    """ "compiled 12 of 40, 26 queued, 2 running on 2 workers, 3 hits, 1.2 MB, 8 s to go" """
    queued = max(standing.queued - standing.done - standing.running, 0)
    parts = [f"compiled {standing.done} of {standing.queued}"]
    if queued:
        parts.append(f"{queued} queued")
    if standing.running:
        parts.append(f"{standing.running} running on {standing.workers} workers")
    parts += [f"{standing.hits} hits", bytes_text(standing.built_bytes)]
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
