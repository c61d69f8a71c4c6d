"""A store in a dict: for tests and for programs that keep nothing. Its contents end with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from stax.base.digest import sha256
from stax.base.errors import Missing, OptionError, Refused
from stax.store import layout
from stax.store.base import Store


class MemoryStore:
    """See Store. One lock around one dict."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def shared(self) -> Store:
        return self

    def get(self, name: str) -> bytes:
        layout.object_family(name)
        return self._read(name)

    def put(self, name: str, data: bytes) -> bool:
        limit_bytes = layout.object_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        with self._lock:
            if name in self._held:
                return False
            self._held[name] = bytes(data)
            return True

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = {layout.checked(name) for name in names}
        with self._lock:
            return wanted - self._held.keys()

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        with self._lock:
            names = sorted(name for name in self._held if name.startswith(prefix))
        return iter(names)

    def delete(self, name: str) -> None:
        layout.checked(name)
        with self._lock:
            self._held.pop(name, None)

    def heal(self, name: str, data: bytes) -> None:
        limit_bytes = layout.object_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        with self._lock:
            self._held[name] = bytes(data)

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        limit_bytes = layout.tag_family(name).stored_limit_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        with self._lock:
            held = self._held.get(name)
            found = None if held is None else sha256(held)
            if found != expect:
                raise Refused(
                    "the tag changed meanwhile",
                    expected=f"etag {expect}",
                    found=f"etag {found}",
                    where=self._where(name),
                    hint="read the tag again",
                )
            self._held[name] = bytes(data)
        return sha256(data)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        layout.tag_family(name)
        data = self._read(name)
        return data, sha256(data)

    def close(self) -> None:
        return None

    def _read(self, name: str) -> bytes:
        with self._lock:
            data = self._held.get(name)
        if data is None:
            raise Missing("no such object", where=self._where(name))
        return data

    def _where(self, name: str) -> str:
        return f"memory:{name}"


def open_memory(url: str, endpoint: str) -> MemoryStore:
    """A new, empty store. Raises OptionError for anything after the colon."""
    if url.removeprefix("memory:").strip("/") or endpoint:
        raise OptionError("bad store URL", expected="memory:", found=repr(url))
    return MemoryStore()
