"""What tests of stores hand in: places, observers, faulty layers, records, and ways to damage bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import zstandard

from stax.base.digest import sha256
from stax.base.observe import Event
from stax.store import Record, Store, Verified, layout

KEY = sha256(b"key")
OTHER = sha256(b"other key")


class Place(Protocol):
    """Where a store lives. ``raw`` is what is under its layers."""

    @property
    def raw(self) -> Store: ...

    def open(self) -> Store: ...


@dataclass
class Seen:
    """An observer that keeps the events."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@dataclass
class Faulty:
    """A layer that asks ``fault(verb, name)`` before each call: it may raise, or do something else to the store."""

    inner: Store
    fault: Callable[[str, str], None]

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        return self

    def get(self, name: str) -> bytes:
        self.fault("get", name)
        return self.inner.get(name)

    def put(self, name: str, data: bytes) -> bool:
        self.fault("put", name)
        return self.inner.put(name, data)

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = set(names)
        absent = self.inner.missing(wanted)
        for name in wanted:
            self.fault("missing", name)
        return absent

    def list(self, prefix: str) -> Iterator[str]:
        for name in self.inner.list(prefix):
            self.fault("list", name)
            yield name

    def delete(self, name: str) -> None:
        self.fault("delete", name)
        self.inner.delete(name)

    def heal(self, name: str, data: bytes) -> None:
        self.fault("heal", name)
        self.inner.heal(name, data)

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        self.fault("swap", name)
        return self.inner.swap(name, data, expect)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        self.fault("get_tag", name)
        return self.inner.get_tag(name)

    def close(self) -> None:
        self.inner.close()


def blob(data: bytes) -> tuple[str, bytes]:
    """Name and bytes of a blob."""
    return layout.cas(sha256(data)), data


def make_record(key: str = KEY, seed: int = 0, count: int = 3) -> tuple[Record, dict[str, bytes]]:
    """A record with blobs, all functions of ``seed``."""
    rng = random.Random(seed)
    blobs = [rng.randbytes(rng.randrange(1, 5000)) for _ in range(count)]
    held = {sha256(data): data for data in blobs}
    body = {"seed": seed, "grid": [seed, 1, 1], "name": "poi_0"}
    return Record("kernel", key, sha256(str(seed).encode()), body, tuple(held)), held


def in_threads(count: int, run: Callable[[int], object]) -> list[object]:
    """Results of run(0) … run(count - 1), all released at the same moment."""
    gate = threading.Barrier(count)

    def start(index: int) -> object:
        gate.wait(30)
        return run(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def damage(place: Place, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change the stored bytes behind the back of the layers."""
    place.raw.heal(name, change(place.raw.get(name)))


def flip(data: bytes) -> bytes:
    if not data:
        return b"x"
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(data: bytes) -> bytes:
    return b""


def frame(size_bytes: int, blocks: int) -> bytes:
    """A zstd frame that states a size, and holds so many blocks of 128 KiB of zeros (4 bytes each)."""
    run = 1 << 17
    block, last = ((run << 3 | 1 << 1 | end).to_bytes(3, "little") + b"\0" for end in (0, 1))
    head = b"\x28\xb5\x2f\xfd\xc0\x50" + size_bytes.to_bytes(8, "little")
    return head + block * (blocks - 1) + last


def bomb(data: bytes) -> bytes:
    """4 GiB in 131 kB, honestly stated."""
    return frame(4 << 30, 4 << 13)


def liar(data: bytes) -> bytes:
    """4 GiB in 131 kB, stated as 10 kB."""
    return frame(10_000, 4 << 13)


def unsized(data: bytes) -> bytes:
    """A frame that does not state how large it becomes."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(bytes(1000)) + packer.flush()


def trailing(data: bytes) -> bytes:
    return data + b"more"


def fresh(place: Place) -> Store:
    """A store without a warm local tier: what another machine sees."""
    return Verified(place.raw)
