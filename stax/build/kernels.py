"""Kernels in a store: the record that a kernel key leads to, and the binary it names.

    act/<tier>/kernel/<kernel key>/built  →  body {meta, size_bytes}, one blob

One variant a key, created once: whoever builds the same kernel later finds it there, or loses the race and keeps the
first one's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from stax.base.digest import sha256
from stax.base.errors import SchemaError
from stax.build.job import Built
from stax.store import layout
from stax.store.forms import Record
from stax.store.records import Records

KIND = "kernel"
_VARIANT = "built"


@dataclass(frozen=True)
class Kernel:
    """A built kernel by name: its key, the digest and size of its binary, and what a launcher needs (see Built.meta)."""

    key: str
    digest: str
    size_bytes: int
    meta: tuple[tuple[str, int | str], ...]


def find_kernel(records: Records, key: str) -> Kernel | None:
    """The kernel under a key, whose binary exists; None when there is none. Raises StoreError."""
    for record in records.find(KIND, key):
        try:
            return _kernel(record)
        except SchemaError:
            continue  # a miss, which the next publish of this key heals
    return None


def publish_kernel(records: Records, built: Built) -> Kernel:
    """Store binary and record; returns what stands there afterwards, which may be another's. Raises StoreError."""
    digest = sha256(built.data)
    body = {"meta": dict(built.meta), "size_bytes": len(built.data)}
    record = Record(KIND, built.key, _VARIANT, body, (digest,))
    if records.publish(record, {digest: built.data}):
        return _kernel(record)
    if found := find_kernel(records, built.key):
        return found
    # What stands there is whole, but no kernel: it would be a miss for ever.
    records.store.heal(layout.act(records.tier, KIND, built.key, _VARIANT), record.encode())
    return _kernel(record)


def _kernel(record: Record) -> Kernel:
    meta, size_bytes = record.body.get("meta"), record.body.get("size_bytes")
    if not isinstance(meta, dict) or not isinstance(size_bytes, int) or len(record.blobs) != 1:
        raise SchemaError(
            "bad kernel record", expected="meta, size_bytes, one blob", where=record.key
        )
    pairs: list[tuple[str, int | str]] = []
    for name, value in sorted(cast("dict[str, object]", meta).items()):
        if not isinstance(value, int | str):
            raise SchemaError("bad kernel record", expected=f"{name}: int or str", where=record.key)
        pairs.append((name, value))
    return Kernel(record.key, record.blobs[0], size_bytes, tuple(pairs))
