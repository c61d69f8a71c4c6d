"""Progress is a pure function of events, and its displays print what it says."""

from __future__ import annotations

import io
from functools import reduce

import pytest

from stax.base.observe import Event
from stax.cli.progress import PlainDisplay, Watcher, watching
from stax.cli.standing import Standing, advance, bytes_text, counts_text, eta_s

EVENTS = (
    Event("stage.trace", {"seconds": 0.5}),
    Event("job.hit", {"key": "a"}),
    Event("job.queued", {"count": 3}),
    Event("farm.progress", {"queued": 1, "running": 2, "workers": 2}),
    Event("job.done", {"key": "b", "seconds": 1.0, "bytes": 1500}),
    Event("record.published", {"key": "d" * 64, "bytes": 1200}),
    Event("artifact.hit", {"target": "cpu:x86-64"}),
    Event("job.failed", {"key": "c", "kind": "timeout"}),
    Event("unheard.of", {}),
    Event("stage.trace", {"seconds": 0.25}),
)


def test_events_add_up() -> None:
    assert reduce(advance, EVENTS, Standing()) == Standing(
        seconds=(("traced", 0.75),),
        queued=3,
        hits=1,
        built=1,
        failed=1,
        running=2,
        workers=2,
        built_bytes=1500,
        published=1,
        published_bytes=1200,
        already=1,
    )


def test_events_that_say_nothing_change_nothing() -> None:
    standing = Standing()
    assert advance(standing, Event("unheard.of", {})) is standing


@pytest.mark.parametrize(
    ("queued", "built", "expected"), [(0, 0, None), (4, 0, None), (4, 1, 30.0), (4, 4, None)]
)
def test_eta(queued: int, built: int, expected: float | None) -> None:
    assert eta_s(Standing(queued=queued, built=built), 10.0) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (5 * 10**12, "5000.0 GB"),
    ],
)
def test_bytes_text(count: int, expected: str) -> None:
    assert bytes_text(count) == expected


def test_plain_lines_are_few() -> None:
    """One line at once, then at most one in two seconds, and every stage."""
    clock = iter(range(1000))
    now_s = [0.0]
    stream = io.StringIO()
    watcher = Watcher(PlainDisplay(stream, lambda: now_s[0]), lambda: float(next(clock)))
    watcher(Event("job.queued", {"count": 100}))
    for _ in range(100):
        now_s[0] += 0.1
        watcher(Event("job.done", {"bytes": 1}))
    watcher(Event("stage.build", {"seconds": 10.0}))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "compiled 0 of 100, 100 queued, 0 hits, 0 B"
    assert 5 <= len(lines) <= 7
    assert lines[-1] == "compiled in 10.00 s (compiled 100 of 100, 0 hits, 100 B)"


def test_without_a_terminal_there_are_no_escape_codes() -> None:
    stream = io.StringIO()
    with watching("warm", stream) as observer:
        for event in EVENTS:
            observer(event)
    text = stream.getvalue()
    assert "\x1b" not in text
    for line in (
        "traced in 0.50 s",
        "published 1.2 kB under request dddddddddddd",
        "already there for cpu:x86-64",
        "failed: kernel c, timeout",
    ):
        assert f"{line}\n" in text


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with watching("warm it", stream) as observer:
        for event in EVENTS:
            observer(event)
    assert "warm it" in stream.getvalue() and "compiled 2 of 3" in stream.getvalue()


def test_counts_text() -> None:
    standing = Standing(queued=40, built=12, hits=3, workers=2, running=1, built_bytes=1_200_000)
    assert counts_text(standing, 8.2) == (
        "compiled 12 of 40, 27 queued, 1 running on 2 workers, 3 hits, 1.2 MB, 8 s to go"
    )
