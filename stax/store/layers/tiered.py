"""Tiered: a local store in front of a remote one. The remote is the truth; the local only saves time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stax.base.errors import Corrupt, Missing, StoreError, Transient
from stax.base.observe import Event, Observer, ignore
from stax.store import layout
from stax.store.base import Store


@dataclass(frozen=True)
class Tiered:
    """See Store.

    Reads ask local first and fill it from remote; a local object that is damaged or can not be read
    counts as absent and is replaced. Writes go to remote first: when remote raises, the caller gets
    that error and local is untouched. Local trouble (a full disk) never reaches the caller.
    list, get_tag and swap ask remote; while it does not answer, list and get_tag give what local has.
    Each fall-back is a "store.degraded" event.
    missing counts what either tier holds; ``shared`` is the remote, for those who publish.
    """

    local: Store
    remote: Store
    observer: Observer = ignore

    @property
    def url(self) -> str:
        return self.remote.url

    @property
    def shared(self) -> Store:
        return self.remote.shared

    def get(self, name: str) -> bytes:
        layout.object_family(name)
        try:
            return self.local.get(name)
        except Missing:
            pass
        except StoreError as error:
            self._degraded("local", "get", name, error)
        data = self.remote.get(name)
        self._fill(name, data)
        return data

    def put(self, name: str, data: bytes) -> bool:
        created = self.remote.put(name, data)
        # A record that existed may differ from this one: local must not hold what remote does not.
        if created or layout.family(name).addressed:
            self._fill(name, data)
        return created

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = {layout.checked(name) for name in names}
        try:
            wanted = self.local.missing(wanted)
        except StoreError as error:
            self._degraded("local", "missing", f"{len(wanted)} names", error)
        return self.remote.missing(wanted) if wanted else wanted

    def list(self, prefix: str) -> Iterator[str]:
        last = ""
        try:
            for name in self.remote.list(prefix):
                last = name
                yield name
        except Transient as error:
            self._degraded("remote", "list", prefix, error)
            yield from (name for name in self.local.list(prefix) if name > last)

    def delete(self, name: str) -> None:
        self.remote.delete(name)
        self._forget(name)

    def heal(self, name: str, data: bytes) -> None:
        self.remote.heal(name, data)
        try:
            self.local.heal(name, data)
        except StoreError as error:
            self._degraded("local", "heal", name, error)

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        etag = self.remote.swap(name, data, expect)
        self._keep_tag(name, data)
        return etag

    def get_tag(self, name: str) -> tuple[bytes, str]:
        try:
            value, etag = self.remote.get_tag(name)
        except Missing:
            self._forget(name)
            raise
        except Transient as error:
            return self._old_tag(name, error)
        self._keep_tag(name, value)
        return value, etag

    def close(self) -> None:
        self.local.close()
        self.remote.close()

    def _fill(self, name: str, data: bytes) -> None:
        try:
            self.local.put(name, data)
        except StoreError as error:
            self._degraded("local", "put", name, error)

    def _forget(self, name: str) -> None:
        try:
            self.local.delete(name)
        except StoreError as error:
            self._degraded("local", "delete", name, error)

    def _keep_tag(self, name: str, value: bytes) -> None:
        """Remember a tag for when remote does not answer. A lost race keeps what the winner read."""
        try:
            held, etag = self._local_tag(name)
            if held != value:
                self.local.swap(name, value, etag)
        except StoreError as error:
            self._degraded("local", "swap", name, error)

    def _local_tag(self, name: str) -> tuple[bytes | None, str | None]:
        try:
            return self.local.get_tag(name)
        except Missing:
            return None, None
        except Corrupt:
            self.local.delete(name)
            return None, None

    def _old_tag(self, name: str, error: Transient) -> tuple[bytes, str]:
        try:
            value = self.local.get_tag(name)
        except StoreError:
            raise error from None
        self._degraded("remote", "get_tag", name, error)
        return value

    def _degraded(self, tier: str, verb: str, name: str, error: StoreError) -> None:
        fields = {"tier": tier, "verb": verb, "name": name, "reason": str(error)}
        self.observer(Event("store.degraded", fields))
