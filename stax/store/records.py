"""Records, bundles and tags over a Store: what the rest of Stax publishes and finds.

    blobs first, then the record that names them, then the tag that names the bundle

A record counts only if every blob it names exists. What can not be read is skipped with a reason and
replaced by the next publish of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from stax.base.digest import sha256
from stax.base.errors import Corrupt, Missing, Refused, SchemaError, StoreError, Transient
from stax.base.observe import Event, Observer, ignore
from stax.store import layout
from stax.store.base import Store
from stax.store.forms import Bundle, Record, decode_tag, encode_tag

T = TypeVar("T")
R = TypeVar("R")

_SET_TAG_ATTEMPTS = 16


@dataclass(frozen=True)
class Records:
    """What one trust tier of a store holds. Thread-safe; opening one costs nothing.

    Raises what the store raises: callers for whom the store is only a cache turn StoreError into a miss.
    """

    store: Store
    tier: str
    observer: Observer = ignore
    workers: int = 8

    def put_blob(self, raw: bytes) -> str:
        """Store bytes under their digest, which is returned."""
        digest = sha256(raw)
        self.store.put(layout.cas(digest), raw)
        return digest

    def get_blob(self, digest: str) -> bytes:
        """The bytes with this digest. Raises Missing or Corrupt, after which the next publish heals it."""
        return self.store.get(layout.cas(digest))

    def fetch(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Many blobs at once, by digest. Raises the first error when all others have been read too."""
        wanted = sorted(set(digests))
        return dict(zip(wanted, self._each(self.get_blob, wanted)))

    def publish(
        self, record: Record, blobs: Mapping[str, bytes] | None = None, *, rewrite: bool = False
    ) -> bool:
        """Store the absent ones of ``blobs`` (digest to raw bytes), then the record. True when it is new.

        A record that exists is kept: if it says something else, a "store.nondeterminism" event tells.
        It is replaced only when it can not be read or names blobs that are gone. ``rewrite`` writes
        every given blob again: for those who know that what is stored is damaged.
        Raises Missing when the record names a blob that is neither given nor stored; then nothing
        is written. May be called again after any error: it takes up where it ended.
        """
        given = dict(blobs or {})
        name = layout.act(self.tier, record.kind, record.key, record.variant)
        data = record.encode()
        absent = self._absent_blobs(record.blobs, given)
        if rewrite:
            self._each(lambda d: self.store.heal(layout.cas(d), given[d]), sorted(given))
        else:
            self._each(lambda d: self.store.put(layout.cas(d), given[d]), sorted(absent))
        return self.store.put(name, data) or self._settle(name, record, data)

    def find(self, kind: str, key: str) -> list[Record]:
        """The whole records under a key, in the order of their variants."""
        names = list(self.store.list(layout.act_prefix(self.tier, kind, key)))
        read = [r for r in self._each(self._read, names) if r is not None]
        wanted = {layout.cas(d) for record in read for d in record.blobs}
        absent = self.store.missing(wanted) if wanted else set[str]()
        return [record for record in read if self._complete(record, absent)]

    def put_bundle(self, bundle: Bundle) -> str:
        """Store a manifest; returns its digest. Raises Missing when a blob it names is not there.

        One that exists is read, and replaced when it is damaged: a tag must not point at it.
        """
        self._absent_blobs((digest for digest, _ in bundle.blobs), {})
        data = bundle.encode()
        digest = sha256(data)
        name = layout.bundle(digest)
        if not self.store.put(name, data):
            try:
                self.store.shared.get(name)
            except (Missing, Corrupt):
                self.store.heal(name, data)
        return digest

    def get_bundle(self, digest: str) -> Bundle:
        """Raises Missing, Corrupt, or SchemaError for a manifest of another version."""
        return Bundle.decode(self.store.get(layout.bundle(digest)), layout.bundle(digest))

    def set_tag(self, tier: str, name: str, digest: str) -> None:
        """Point a tag at a bundle; the last one to call wins. Raises Missing when there is no such bundle."""
        tag, bundle = layout.tag(tier, name), layout.bundle(digest)
        if self.store.shared.missing([bundle]):
            raise Missing(
                "no such bundle", where=f"{bundle} of {self.store.url}", hint="put it first"
            )
        etag = self._etag(tag)
        for _ in range(_SET_TAG_ATTEMPTS):
            try:
                self.store.swap(tag, encode_tag(digest, tag), etag)
                return
            except Refused:
                expected, etag = etag, self._etag(tag)
                if etag == expected:  # nobody was faster: the store does not let us
                    raise
        raise Transient("others keep changing the tag", where=f"{tag} of {self.store.url}")

    def get_tag(self, tier: str, name: str) -> str:
        """Digest of the bundle that a tag points at. Raises Missing, Corrupt or SchemaError."""
        tag = layout.tag(tier, name)
        return decode_tag(self.store.get_tag(tag)[0], tag)

    def list_tags(self, tier: str) -> list[str]:
        """Names of the tags of a tier, sorted."""
        prefix = layout.tag_prefix(tier)
        return [name.removeprefix(prefix) for name in self.store.list(prefix)]

    def _absent_blobs(self, named: Iterable[str], given: Mapping[str, bytes]) -> set[str]:
        """Digests of ``named`` and ``given`` that the shared store lacks, all of which are given."""
        names = {layout.cas(digest) for digest in (*named, *given)}
        absent = {name.removeprefix("cas/") for name in self.store.shared.missing(names)}
        lost = sorted(absent - given.keys())
        if lost:
            raise Missing(
                "a record or bundle names blobs that are neither given nor stored",
                found=", ".join(lost[:3]) + (" …" if len(lost) > 3 else ""),
                where=self.store.url,
                hint="publish the blobs with it",
            )
        return absent

    def _settle(self, name: str, record: Record, data: bytes) -> bool:
        """The record's name is taken: keep what is there unless it is worth nothing."""
        try:
            held = self.store.shared.get(name)
            found = Record.decode(held, name)
        except Missing:
            return self.store.put(name, data)  # deleted since
        except (Corrupt, SchemaError) as error:
            return self._replace(name, data, str(error))
        if held == data:
            return False
        if self.store.shared.missing(layout.cas(digest) for digest in found.blobs):
            return self._replace(name, data, "names blobs that are gone")
        self.observer(Event("store.nondeterminism", {"name": name, "kept": sha256(held)}))
        return False

    def _replace(self, name: str, data: bytes, reason: str) -> bool:
        self.store.heal(name, data)
        self.observer(Event("store.replace", {"name": name, "reason": reason}))
        return True

    def _read(self, name: str) -> Record | None:
        try:
            return Record.decode(self.store.get(name), name)
        except (Missing, Corrupt, SchemaError) as error:
            self._skip(name, str(error))
            return None

    def _complete(self, record: Record, absent: set[str]) -> bool:
        gone = [digest for digest in record.blobs if layout.cas(digest) in absent]
        if not gone:
            return True
        name = layout.act(self.tier, record.kind, record.key, record.variant)
        self._skip(name, f"{len(gone)} of its {len(record.blobs)} blobs are gone, first {gone[0]}")
        return False

    def _skip(self, name: str, reason: str) -> None:
        self.observer(Event("store.skip", {"name": name, "reason": reason}))

    def _etag(self, tag: str) -> str | None:
        try:
            return self.store.shared.get_tag(tag)[1]
        except Missing:
            return None
        except Corrupt:
            self.store.delete(tag)
            return None

    def _each(self, run: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Results in order, or the first error once the others have ended.

        Missing and Corrupt do not stop the others: the store then knows of all that is damaged, and
        one publish heals it. Transient does: the rest would only wait for the same server.
        """
        if len(items) < 2:
            return [run(item) for item in items]
        with ThreadPoolExecutor(min(self.workers, len(items))) as pool:
            futures = [pool.submit(run, item) for item in items]
            try:
                errors = [error for error in map(_settled, futures) if error is not None]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def _settled(future: Future[R]) -> StoreError | None:
    """None, or the error that need not stop the others; any other error is raised."""
    try:
        future.result()
    except Transient:
        raise
    except StoreError as error:
        return error
    return None
