"""Which Python functions of the user ran during a trace, and the digest of each one's code."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from stax.artifact.artifact import TracedSource
from stax.artifact.sources import code_digest
from stax.capture.where import Places


class Watcher:
    """A profile function while open. The recorder switches it off inside operators, so it sees the user's calls."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._seen: dict[int, CodeType] = {}
        self._found: dict[tuple[str, str, str], None] = {}
        self._before: Any = None

    def __enter__(self) -> Watcher:
        self._before = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _see(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if self._places.is_user(code) and not code.co_name.startswith("<"):
            module = str(frame.f_globals.get("__name__", ""))
            self._found[module, code.co_qualname, code_digest(code)] = None

    def sources(self) -> tuple[TracedSource, ...]:
        """What ran, sorted. Comprehensions are part of the function around them."""
        return tuple(TracedSource(*names) for names in sorted(self._found))
