"""Retrying repeats what may pass; Breaker stops asking a server that is down."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stax.base.errors import Refused, StoreError, Transient
from stax.base.observe import Event, Observer, ignore
from stax.store.base import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Retrying:
    """See Store. Repeats a call that raised Transient, and nothing else.

    At most ``attempts`` calls; between them waits of base_s, 2·base_s, 4·base_s … up to cap_s, each times a
    random number in [0.5, 1], so that many clients do not come back at once. No attempt starts
    later than ``deadline_s`` after the first.
    """

    inner: Store
    rng: random.Random
    attempts: int = 4
    base_s: float = 0.1
    cap_s: float = 2.0
    deadline_s: float = 20.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    observer: Observer = ignore

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        below = self.inner.shared
        return self if below is self.inner else replace(self, inner=below)

    def get(self, name: str) -> bytes:
        return self._call("get", name, lambda: self.inner.get(name))

    def put(self, name: str, data: bytes) -> bool:
        return self._call("put", name, lambda: self.inner.put(name, data))

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = sorted(set(names))
        return self._call("missing", f"{len(wanted)} names", lambda: self.inner.missing(wanted))

    def list(self, prefix: str) -> Iterator[str]:
        """A listing that breaks starts again and skips what it has already given."""
        last = ""
        pending = self._call("list", prefix, lambda: self.inner.list(prefix))

        def advance() -> str | None:
            nonlocal pending
            try:
                return next((name for name in pending if name > last), None)
            except Transient:
                pending = self.inner.list(prefix)
                raise

        while (name := self._call("list", prefix, advance)) is not None:
            last = name
            yield name

    def delete(self, name: str) -> None:
        self._call("delete", name, lambda: self.inner.delete(name))

    def heal(self, name: str, data: bytes) -> None:
        self._call("heal", name, lambda: self.inner.heal(name, data))

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        """A swap whose answer was lost may have won: then its repetition loses against itself."""
        tried = 0

        def swap() -> str:
            nonlocal tried
            tried += 1
            try:
                return self.inner.swap(name, data, expect)
            except Refused:
                if tried == 1:
                    raise
                held, etag = self.inner.get_tag(name)
                if held != data:
                    raise
                return etag

        return self._call("swap", name, swap)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        return self._call("get_tag", name, lambda: self.inner.get_tag(name))

    def close(self) -> None:
        self.inner.close()

    def _call(self, verb: str, name: str, run: Callable[[], T]) -> T:
        start_s = self.clock()
        for attempt in range(1, self.attempts):
            try:
                return run()
            except Transient as error:
                wait_s = min(self.cap_s, self.base_s * 2 ** (attempt - 1)) * self.rng.uniform(
                    0.5, 1
                )
                if self.clock() + wait_s - start_s > self.deadline_s:
                    raise
                fields = {"verb": verb, "name": name, "attempt": attempt, "wait_s": wait_s}
                self.observer(Event("store.retry", {**fields, "reason": str(error)}))
            self.sleep(wait_s)
        return run()


@dataclass
class Outage:
    """What a Breaker remembers: how many calls failed in a row, and until when it does not ask again."""

    failures: int = 0
    until_s: float = 0.0
    reason: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Breaker:
    """See Store. After ``failures`` Transient errors in a row, or one that took ``slow_s``, calls fail at once.

    A compile asks a store hundreds of times; a server that is gone must cost it one time-out, not
    hundreds. The pause is ``pause_s`` or, if that is more, ``share`` times what the error took, so that
    time-outs never cost more than that share of the whole. After it one call is let through, whose
    success ends the outage; the others go on failing until it has an answer.
    """

    inner: Store
    failures: int = 2
    slow_s: float = 5.0
    pause_s: float = 15.0
    share: float = 8.0
    clock: Callable[[], float] = time.monotonic
    observer: Observer = ignore
    outage: Outage = field(default_factory=Outage)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        below = self.inner.shared
        return self if below is self.inner else replace(self, inner=below)

    def get(self, name: str) -> bytes:
        return self._call(lambda: self.inner.get(name))

    def put(self, name: str, data: bytes) -> bool:
        return self._call(lambda: self.inner.put(name, data))

    def missing(self, names: Iterable[str]) -> set[str]:
        return self._call(lambda: self.inner.missing(names))

    def list(self, prefix: str) -> Iterator[str]:
        names: Iterator[str] | None = None

        def advance() -> str | None:
            # One call with the first name: that a listing was begun is no sign of life.
            nonlocal names
            names = self.inner.list(prefix) if names is None else names
            return next(names, None)

        while (name := self._call(advance)) is not None:
            yield name

    def delete(self, name: str) -> None:
        self._call(lambda: self.inner.delete(name))

    def heal(self, name: str, data: bytes) -> None:
        self._call(lambda: self.inner.heal(name, data))

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        return self._call(lambda: self.inner.swap(name, data, expect))

    def get_tag(self, name: str) -> tuple[bytes, str]:
        return self._call(lambda: self.inner.get_tag(name))

    def close(self) -> None:
        self.inner.close()

    def _call(self, run: Callable[[], T]) -> T:
        self._check()
        start_s = self.clock()
        try:
            result = run()
        except Transient as error:
            self._failed(error, self.clock() - start_s)
            raise
        except StoreError:
            self._answered()
            raise
        self._answered()
        return result

    def _check(self) -> None:
        with self.outage.lock:
            left_s = self.outage.until_s - self.clock()
            reason = self.outage.reason
            if self.outage.until_s and left_s <= 0:
                self.outage.until_s += self.pause_s - left_s  # this call finds out for all
        if left_s > 0:
            raise Transient(
                "the store did not answer a moment ago and is not asked again yet",
                found=reason,
                where=self.url,
                hint=f"it is asked again in {left_s:.0f} s",
            )

    def _failed(self, error: Transient, spent_s: float) -> None:
        with self.outage.lock:
            self.outage.failures += 1
            opened = self.outage.failures >= self.failures or spent_s >= self.slow_s
            if opened:
                pause_s = max(self.pause_s, self.share * spent_s)
                self.outage.until_s = self.clock() + pause_s
                self.outage.reason = str(error)
        if opened:
            self.observer(Event("store.outage", {"url": self.url, "reason": str(error)}))

    def _answered(self) -> None:
        with self.outage.lock:
            self.outage.failures = 0
            self.outage.until_s = 0.0
