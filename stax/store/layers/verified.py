"""Verified: what is stored is checked on every read, and compressed where that pays.

cas/ and bundle/ are stored as one zstd frame; the digest of what it holds is in the name. act/ and
tag/ are stored as "<sha256 hex>\\n" and the bytes themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import zstandard

from stax.base.digest import sha256
from stax.base.errors import Corrupt, Refused
from stax.base.observe import Event, Observer, ignore
from stax.store import layout
from stax.store.base import Store

_SEAL_BYTES = 65


@dataclass
class Damaged:
    """The names that were read damaged and not healed since: they count as missing, and a put heals them."""

    _names: set[str] = field(default_factory=set[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str) -> None:
        with self._lock:
            self._names.add(name)

    def discard(self, name: str) -> None:
        with self._lock:
            self._names.discard(name)

    def holds(self, name: str) -> bool:
        with self._lock:
            return name in self._names


@dataclass(frozen=True)
class Verified:
    """See Store. A damaged object is Corrupt when read, missing afterwards, and healed by the next put.

    Only the raw bytes cross this layer's upper side; the bound on their size is checked before they
    are unpacked, so a small object can not fill the memory.
    """

    inner: Store
    level: int = 3
    observer: Observer = ignore
    damaged: Damaged = field(default_factory=Damaged)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        below = self.inner.shared
        return self if below is self.inner else replace(self, inner=below)

    def get(self, name: str) -> bytes:
        layout.object_family(name)
        try:
            raw = _raw(name, self.inner.get(name), self._where(name))
        except Corrupt as error:
            self.damaged.add(name)
            self._tell_corrupt(name, error)
            raise
        self.damaged.discard(name)
        return raw

    def put(self, name: str, data: bytes) -> bool:
        stored = self._stored(name, data)
        if not self.damaged.holds(name):
            return self.inner.put(name, stored)
        self._overwrite(name, stored)
        return True

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = set(names)
        return self.inner.missing(wanted) | {name for name in wanted if self.damaged.holds(name)}

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)

    def delete(self, name: str) -> None:
        self.inner.delete(name)
        self.damaged.discard(name)

    def heal(self, name: str, data: bytes) -> None:
        self._overwrite(name, self._stored(name, data))

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        limit_bytes = layout.tag_family(name).max_bytes
        layout.check_written(len(data), limit_bytes, self._where(name))
        return self.inner.swap(name, _sealed(data), expect)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        layout.tag_family(name)
        try:
            stored, etag = self.inner.get_tag(name)
            return _unsealed(stored, self._where(name)), etag
        except Corrupt as error:
            self._tell_corrupt(name, error)
            raise

    def close(self) -> None:
        self.inner.close()

    def _stored(self, name: str, data: bytes) -> bytes:
        family = layout.object_family(name)
        layout.check_written(len(data), family.max_bytes, self._where(name))
        if not family.addressed:
            return _sealed(data)
        found = sha256(data)
        if found != name.rpartition("/")[2]:
            raise Refused(
                "the bytes are not those of the name",
                expected=f"sha256 {name.rpartition('/')[2]}",
                found=f"sha256 {found}",
                where=self._where(name),
            )
        return zstandard.ZstdCompressor(level=self.level).compress(data)

    def _overwrite(self, name: str, stored: bytes) -> None:
        self.inner.heal(name, stored)
        self.damaged.discard(name)
        self.observer(Event("store.heal", {"name": name, "url": self.url}))

    def _tell_corrupt(self, name: str, error: Corrupt) -> None:
        self.observer(Event("store.corrupt", {"name": name, "url": self.url, "reason": str(error)}))

    def _where(self, name: str) -> str:
        return f"{name} of {self.url}"


def _raw(name: str, stored: bytes, where: str) -> bytes:
    family = layout.family(name)
    if not family.addressed:
        return _unsealed(stored, where)
    raw = _decompressed(stored, family.max_bytes, where)
    digest, found = name.rpartition("/")[2], sha256(raw)
    if found != digest:
        raise Corrupt("damaged", expected=f"sha256 {digest}", found=f"sha256 {found}", where=where)
    return raw


def _sealed(data: bytes) -> bytes:
    return sha256(data).encode() + b"\n" + data


def _unsealed(stored: bytes, where: str) -> bytes:
    raw = stored[_SEAL_BYTES:]
    expected = sha256(raw)
    if stored[:_SEAL_BYTES] != expected.encode() + b"\n":
        found = stored[: _SEAL_BYTES - 1].decode("ascii", "replace")
        raise Corrupt("damaged", expected=f"seal {expected}", found=repr(found), where=where)
    return raw


def _decompressed(stored: bytes, limit_bytes: int, where: str) -> bytes:
    # The frame states its size; the library allocates exactly that and fails when it is a lie. A frame
    # that does not state it is none of ours.
    try:
        size_bytes = zstandard.frame_content_size(stored)
        if 0 <= size_bytes <= limit_bytes:
            return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt("damaged", expected="a zstd frame", found=str(error), where=where) from error
    raise Corrupt(
        "damaged",
        expected=f"a stated size of at most {limit_bytes} bytes",
        found="none" if size_bytes < 0 else f"{size_bytes} bytes",
        where=where,
    )
