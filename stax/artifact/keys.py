"""Lookup keys. A key hashes whole values, component by component, and can say what differs from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.base.digest import digest


@dataclass(frozen=True)
class Key:
    """``kind`` is request, program, kernel or tuning; ``components`` are (name, digest of the whole value), in order."""

    kind: str
    components: tuple[tuple[str, str], ...]

    @staticmethod
    def of(kind: str, values: Mapping[str, object]) -> Key:
        """Hash each named value whole (see :func:`stax.base.digest.canonical`)."""
        return Key(
            kind, tuple((name, digest(value, f"{kind}/{name}")) for name, value in values.items())
        )

    @property
    def digest(self) -> str:
        """64 hex digits; the name under which records of this key are stored."""
        return digest((self.kind, self.components), "key")

    def diff(self, other: Key) -> tuple[str, ...]:
        """Names of the components that differ from ``other``, for ``stax why``."""
        theirs = dict(other.components)
        mine = dict(self.components)
        names = [*mine, *(n for n in theirs if n not in mine)]
        return tuple(n for n in names if mine.get(n) != theirs.get(n))
