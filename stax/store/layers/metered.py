"""Metered tells an observer about every call of a store; Counters adds such events up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from stax.base.errors import StoreError
from stax.base.observe import Event, Observer
from stax.store.base import Store

T = TypeVar("T")


class Counters:
    """An Observer that counts: read() gives "<tier>.<verb>.<outcome>", ".bytes" and ".us" of each call,
    and "<event>[.<tier>]" of every other store event (degraded, retry, heal, corrupt, outage, …).

    Outcomes are ok, created, existed, and for errors missing, corrupt, refused, transient. So
    ``local.get.ok`` and ``remote.get.ok`` are the hits by tier. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        if event.name == "store.call":
            self._count_call(event)
        elif event.name.startswith("store."):
            tier = event.fields.get("tier")
            self.add(event.name.removeprefix("store.") + (f".{tier}" if tier else ""))

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def read(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))

    def _count_call(self, event: Event) -> None:
        stem = f"{event.fields['tier']}.{event.fields['verb']}"
        self.add(f"{stem}.{event.fields['outcome']}")
        for unit in ("bytes", "us"):
            self.add(f"{stem}.{unit}", int(str(event.fields[unit])))


@dataclass(frozen=True)
class Metered:
    """See Store. One "store.call" event a call: tier, verb, name, outcome, bytes, us."""

    inner: Store
    tier: str
    observer: Observer
    clock: Callable[[], float] = time.perf_counter

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        below = self.inner.shared
        return self if below is self.inner else replace(self, inner=below)

    def get(self, name: str) -> bytes:
        return self._call("get", name, lambda: self.inner.get(name), len)

    def put(self, name: str, data: bytes) -> bool:
        return self._call("put", name, lambda: self.inner.put(name, data), lambda _: len(data))

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = sorted(set(names))
        return self._call("missing", f"{len(wanted)} names", lambda: self.inner.missing(wanted))

    def list(self, prefix: str) -> Iterator[str]:
        """One event at the end of the listing; its bytes are those of the names."""
        start_s, size_bytes, outcome = self.clock(), 0, "ok"
        try:
            for name in self.inner.list(prefix):
                size_bytes += len(name)
                yield name
        except StoreError as error:
            outcome = type(error).__name__.lower()
            raise
        finally:
            self._tell("list", prefix, outcome, size_bytes, start_s)

    def delete(self, name: str) -> None:
        self._call("delete", name, lambda: self.inner.delete(name))

    def heal(self, name: str, data: bytes) -> None:
        self._call("heal", name, lambda: self.inner.heal(name, data), lambda _: len(data))

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        return self._call("swap", name, lambda: self.inner.swap(name, data, expect))

    def get_tag(self, name: str) -> tuple[bytes, str]:
        return self._call("get_tag", name, lambda: self.inner.get_tag(name))

    def close(self) -> None:
        self.inner.close()

    def _call(
        self, verb: str, name: str, run: Callable[[], T], size: Callable[[T], int] = lambda _: 0
    ) -> T:
        start_s = self.clock()
        try:
            result = run()
        except StoreError as error:
            self._tell(verb, name, type(error).__name__.lower(), 0, start_s)
            raise
        self._tell(verb, name, _outcome(verb, result), size(result), start_s)
        return result

    def _tell(self, verb: str, name: str, outcome: str, size_bytes: int, start_s: float) -> None:
        spent_us = round((self.clock() - start_s) * 1e6)
        fields = {"tier": self.tier, "verb": verb, "name": name, "outcome": outcome}
        self.observer(Event("store.call", {**fields, "bytes": size_bytes, "us": spent_us}))


def _outcome(verb: str, result: object) -> str:
    if verb != "put":
        return "ok"
    return "created" if result else "existed"
