"""The Store protocol: one interface, its rules in the docstring. Every store and every layer keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class Store(Protocol):
    """Named immutable bytes, and a few mutable tags. Names are those of :mod:`stax.store.layout`.

    Concurrency: every method may be called from many threads at once, and many processes may use one
    store. A store is opened in the process that uses it: it does not cross a fork or a pickle, its
    ``url`` does.
    Atomicity: a name is either absent or whole. No reader ever sees a part of a put, whatever dies.
    Ordering: a name whose put, heal or swap has returned is seen by every later get, missing and list.
    Between names there is no order but the caller's: put what is named before what names it.
    Idempotence: get, missing, list, get_tag, delete and heal may be repeated freely. A put that is
    repeated because its answer was lost may return False for bytes that it stored itself.
    Retries: stores never retry; the Retrying layer does, and only for Transient.
    Errors: Missing, Corrupt, Refused, Transient of :mod:`stax.base.errors`, nothing else. A bad name
    is Refused by every method. ``where`` names the store and the object.
    """

    @property
    def url(self) -> str:
        """Canonical URL: ``open_store(url)`` in another process gives the same contents (memory: excepted)."""
        ...

    @property
    def shared(self) -> Store:
        """The store whose contents other machines see: itself, but for a tiered store its remote tier.

        Publishing asks this one what exists: what only the local tier holds does not count there.
        """
        ...

    def get(self, name: str) -> bytes:
        """The bytes. Raises Missing when absent; Refused for a tag (use get_tag)."""
        ...

    def put(self, name: str, data: bytes) -> bool:
        """Create once: True when this call created it, False when it existed and was left alone."""
        ...

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those of ``names`` that get would not find."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Committed names that begin with ``prefix``, in the order of their bytes.

        Names created or deleted while the listing runs may be in it or not.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove it. Deleting what is absent is no error."""
        ...

    def heal(self, name: str, data: bytes) -> None:
        """Overwrite a damaged object, atomically; the last writer wins. Refused for a tag.

        Safe for cas/ and bundle/: a verified layer refuses bytes that do not have the digest in the
        name, so all that a race can do is to replace good bytes by equal ones. For act/ the caller
        must hold a record that is as good as the lost one: only records that can not be read, or that
        name absent blobs, are healed.
        """
        ...

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        """Set a tag if its etag is still ``expect`` (None: if it does not exist); returns the new etag.

        Raises Refused when it lost: read the tag again and decide.
        """
        ...

    def get_tag(self, name: str) -> tuple[bytes, str]:
        """Value and etag of a tag. Raises Missing when absent."""
        ...

    def close(self) -> None:
        """Release connections. Further calls are errors of the caller."""
        ...
