"""Structured events. A component is handed an Observer and calls it; nothing here prints or keeps state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """``name`` is dotted ("store.miss", "build.done", "stage.lower"); ``fields`` are plain values with units in their names."""

    name: str
    fields: Mapping[str, object] = field(default_factory=dict[str, object])


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that drops everything."""


def fan_out(*observers: Observer) -> Observer:
    """One observer that tells several, in order."""

    def tell(event: Event) -> None:
        for observer in observers:
            observer(event)

    return tell
