"""Canonical bytes of plain data and their sha256: same value, same bytes, on every machine."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Protocol, cast, runtime_checkable


def sha256(data: bytes) -> str:
    """Content digest: 64 lower-case hex digits of the raw bytes."""
    return hashlib.sha256(data).hexdigest()


def digest(value: object, domain: str = "") -> str:
    """Digest of a plain value (see :func:`canonical`); ``domain`` separates kinds of key."""
    return sha256(canonical((domain, value)))


def canonical(value: object) -> bytes:
    """Length-prefixed, type-tagged bytes of None, bool, int, float, str, bytes, sequences, mappings,
    sets, enums and dataclasses. Mappings and sets are sorted by their canonical bytes, so iteration
    order never matters. Raises TypeError for anything else."""
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


def _write(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif isinstance(value, bool):
        out.append(b"t" if value else b"f")
    elif isinstance(value, Enum):
        _chunk(b"e", str(value.value).encode(), out)
    elif isinstance(value, int):
        _chunk(b"i", str(value).encode(), out)
    elif isinstance(value, float):
        _chunk(b"d", struct.pack(">d", value), out)
    elif isinstance(value, str):
        _chunk(b"s", value.encode("utf-8", "surrogatepass"), out)
    elif isinstance(value, (bytes, bytearray)):
        _chunk(b"b", bytes(value), out)
    else:
        _write_compound(value, out)


def _write_compound(value: object, out: list[bytes]) -> None:
    if isinstance(value, (tuple, list)):
        _chunk(b"l", b"".join(map(canonical, cast("Iterable[object]", value))), out)
    elif isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        _chunk(b"m", b"".join(sorted(canonical(k) + canonical(v) for k, v in pairs)), out)
    elif isinstance(value, (set, frozenset)):
        _chunk(b"u", b"".join(sorted(map(canonical, cast("Iterable[object]", value)))), out)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _chunk(b"c", canonical((type(value).__name__, _compared_fields(value))), out)
    elif isinstance(value, HasData):
        _chunk(b"x", canonical((type(value).__name__, value.to_data())), out)
    else:
        raise TypeError(f"no canonical bytes for {type(value).__name__}: {value!r}")


@runtime_checkable
class HasData(Protocol):
    """A value that says what it is made of, for example an expression by its text."""

    def to_data(self) -> object: ...


def _compared_fields(value: object) -> tuple[tuple[str, object], ...]:
    fields = dataclasses.fields(cast("Any", value))
    return tuple((f.name, getattr(value, f.name)) for f in fields if f.compare)


def _chunk(tag: bytes, body: bytes, out: list[bytes]) -> None:
    out.append(tag + str(len(body)).encode() + b":")
    out.append(body)
