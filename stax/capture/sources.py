"""Which Python functions of the user ran during a trace, and the digest of each one's code."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

from stax.artifact.artifact import TracedSource
from stax.artifact.sources import code_digest
from stax.capture.where import Places

_INNER = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})


class Watcher:
    """Sees the calls of the thread that opened it. Python 3.12 and later tell once of each function; before, a profile
    function is told of every call, and the recorder switches it off inside operators."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._seen: dict[int, CodeType] = {}
        self._found: dict[tuple[str, str, str], None] = {}
        self._before: Any = None
        self._thread = 0
        self._tool: int | None = None

    def __enter__(self) -> Watcher:
        self._thread = threading.get_ident()
        monitoring: Any = getattr(sys, "monitoring", None)
        free = [i for i in range(6) if monitoring and monitoring.get_tool(i) is None]
        if free:
            self._tool = free[-1]
            monitoring.use_tool_id(self._tool, "stax.capture")
            monitoring.register_callback(self._tool, monitoring.events.PY_START, self._start)
            monitoring.set_events(self._tool, monitoring.events.PY_START)
            monitoring.restart_events()
        else:
            self._before = sys.getprofile()
            sys.setprofile(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        if self._tool is None:
            sys.setprofile(self._before)
            return
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        monitoring.set_events(self._tool, 0)
        monitoring.register_callback(self._tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(self._tool)

    def _start(self, code: CodeType, offset: int) -> Any:
        """A function starts, for the first time since the watcher was opened."""
        if not self._places.is_user(code):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        if threading.get_ident() == self._thread:
            self._see(code, sys._getframe(1))
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        return None

    def _call(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            self._see(frame.f_code, frame)

    def _see(self, code: CodeType, frame: FrameType) -> None:
        if id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if self._places.is_user(code) and code.co_name not in _INNER:
            module = str(frame.f_globals.get("__name__", ""))
            self._found[module, code.co_qualname, code_digest(code)] = None

    def sources(self) -> tuple[TracedSource, ...]:
        """What ran, sorted. Comprehensions are part of the function around them."""
        return tuple(TracedSource(*names) for names in sorted(self._found))
