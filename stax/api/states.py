"""What a callable reads besides its arguments: attributes, globals, closures, hooks, modes. A trace bakes it in, so each
state that the callable has been called in has artifacts of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from stax.artifact.fingerprint import Fingerprint, fingerprint
from stax.artifact.places import Places
from stax.base.errors import CaptureError
from stax.runtime.dispatch import Dispatcher

MAX_STATES = 64


@dataclass(frozen=True, eq=False)
class State:
    """``holds`` says fast whether the callable still reads the very same objects; ``parts`` is what they mean, None when it
    can not be told; ``wants_grad``: a tensor that is no argument requires grad."""

    parts: Fingerprint | None
    holds: Callable[[], bool]
    wants_grad: bool
    dispatcher: Dispatcher


class States:
    """The states of one callable, found again when it returns to one. Safe to use from several threads."""

    def __init__(self, fn: Callable[..., Any], module: nn.Module | None) -> None:
        self._fn = fn
        self._module = module
        self._lock = threading.Lock()
        self._known: tuple[State, ...] = ()

    def current(self) -> State:
        """The state that the callable is in now."""
        known = self._known
        return known[0] if known and known[0].holds() else self._find()

    def settle(self, state: State) -> None:
        """After a trace: what the program changed itself, as it ran, is no other state."""
        if not state.holds():
            now = self._read(state.dispatcher)
            with self._lock:
                self._known = (now, *(s for s in self._known if s is not state))

    def _find(self) -> State:
        with self._lock:
            found = next((s for s in self._known if s.holds()), None) or self._read_known()
            others = (s for s in self._known if s.dispatcher is not found.dispatcher)
            self._known = (found, *others)[:MAX_STATES]
            return found

    def _read_known(self) -> State:
        """The present state, with the artifacts of the one that means the same."""
        now = self._read(Dispatcher(self._module))
        same = (s for s in self._known if s.parts is not None and s.parts == now.parts)
        twin = next(same, None)
        return now if twin is None else replace(now, dispatcher=twin.dispatcher)

    def _read(self, dispatcher: Dispatcher) -> State:
        places = Places()
        try:
            parts = fingerprint(self._fn, places)
        except CaptureError:
            parts = None
        return State(parts, places.unchanged(), places.wants_grad(), dispatcher)

    def __len__(self) -> int:
        """Artifacts in all states."""
        return sum(len(s.dispatcher) for s in self._known)
