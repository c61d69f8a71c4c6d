"""The debug ladder: what STAX_DEBUG shows of each stage, on standard error and as numbered files in STAX_DUMP_DIR.

1 stages and times, 2 decisions with reasons, 3 the IR of each stage, verified, 4 generated sources, 5 host functions of what is loaded.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stax.base.errors import OptionError
from stax.base.observe import Event
from stax.ir.program import Extern, Program
from stax.ir.source import Source
from stax.ir.text import kernel_text, program_text
from stax.ir.verify import verify_kernel, verify_program

LOGGER = logging.getLogger("stax")
# Events of level 2, which say why.
TOLD = ("miss", "eager", "store.degraded", "tune.done", "tune.failed", "tune.waiting")


class Dumps:
    """Shows results of stages. ``watch`` takes a stage's name and its value; ``observe`` takes events. At level 0 only the
    first trouble with a store is told, as a warning."""

    def __init__(self, level: int, folder: str) -> None:
        self.level = level
        self._warned = False
        self._numbers = itertools.count()
        self._folder = Path(folder) if folder and level >= 3 else None
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OptionError(
                    "can not write dumps", found=str(error), where="STAX_DUMP_DIR",
                    hint="name a folder that can be made",
                ) from error  # fmt: skip
        if level and not LOGGER.handlers:
            LOGGER.addHandler(logging.StreamHandler())
            LOGGER.setLevel(logging.INFO)

    def observe(self, event: Event) -> None:
        if event.name == "store.degraded" and not self._warned:
            self._warned = True
            reason = event.fields.get("error") or event.fields.get("reason")
            LOGGER.warning("stax: the store does not work as it should: %s", reason)
        if self.level >= 1 and event.name.startswith("stage."):
            LOGGER.info("%s %.3f s", event.name, event.fields["seconds"])
        elif self.level >= 2 and event.name in TOLD:
            LOGGER.info(
                "%s %s", event.name, event.fields.get("reason") or event.fields.get("error")
            )

    def watch(self, stage: str, value: object) -> None:
        if self.level < 2:
            return
        for level, name, text in _texts(stage, value):
            if level <= self.level:
                self._show(f"{stage}.{name}", text)

    def _show(self, name: str, text: str) -> None:
        if self._folder is None:
            LOGGER.info("-- %s\n%s", name, text)
            return
        path = self._folder / f"{next(self._numbers):03d}.{name}.txt"
        path.write_text(text + "\n", encoding="utf-8")
        LOGGER.info("-- %s: %s", name, path)


def _texts(stage: str, value: object) -> Iterator[tuple[int, str, str]]:
    """(level, name, text) of everything that a stage's value can show."""
    show = _SHOW.get(stage)
    return iter(()) if show is None else show(value)


def _trace(captured: Any) -> Iterator[tuple[int, str, str]]:
    yield 3, "graph", str(captured.graph)
    yield 2, "guards", "\n".join(map(str, captured.guards.guards))


def _lower(program: Any) -> Iterator[tuple[int, str, str]]:
    assert isinstance(program, Program)
    yield 3, "program", program_text(program)
    verify_program(program)


def _schedule(plan: Any) -> Iterator[tuple[int, str, str]]:
    lines = [f"{'yes' if d.verdict else 'no ':3} {d.subject}: {d.reason}" for d in plan.decisions]
    yield 2, "decisions", "\n".join(lines)
    parts = [s.target if isinstance(s, Extern) else kernel_text(s.kernel) for s in plan.steps]
    yield 3, "kernels", "\n\n".join(parts)
    yield 3, "memory", plan.memory.text
    for step in plan.steps:
        if not isinstance(step, Extern):
            verify_kernel(step.kernel)


def _emit(chosen: Any) -> Iterator[tuple[int, str, str]]:
    for one, _ in chosen.values():
        source: Source = one.source
        yield 4, source.entry, source.text


def _load(executable: Any) -> Iterator[tuple[int, str, str]]:
    yield 5, "host", executable.text


_SHOW: Mapping[str, Callable[[Any], Iterator[tuple[int, str, str]]]] = {
    "trace": _trace,
    "lower": _lower,
    "schedule": _schedule,
    "emit": _emit,
    "load": _load,
}
