"""Artifacts in a store: the records that a request key leads to, and how they are published and found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stax.artifact.artifact import Artifact
from stax.artifact.codec import decode, encode
from stax.artifact.keys import Key
from stax.base.digest import digest, sha256
from stax.base.errors import Corrupt, Missing, SchemaError
from stax.base.observe import Event, fan_out
from stax.store.forms import Record
from stax.store.records import Records

KIND = "request"


@dataclass(frozen=True)
class Kept:
    """An artifact with the record that names it."""

    artifact: Artifact
    record: Record


def record_of(artifact: Artifact, key: Key) -> tuple[Record, bytes]:
    """The record of an artifact under a request key, and the artifact's bytes. One variant a guard set."""
    data = encode(artifact)
    own = sha256(data)
    blobs = (
        own,
        *sorted({b.digest for b in artifact.binaries} | {c.digest for c in artifact.constants}),
    )
    body: dict[str, object] = {
        "artifact": own,
        "target": str(artifact.target),
        "origin": artifact.origin,
        "components": [list(c) for c in key.components],
    }
    variant = digest((artifact.guards, artifact.signature, artifact.target), "variant")
    return Record(KIND, key.digest, variant, body, tuple(dict.fromkeys(blobs))), data


def publish(
    records: Records, artifact: Artifact, key: Key, blobs: Mapping[str, bytes]
) -> tuple[Record, dict[str, int]]:
    """Store blobs, then the record; returns it with the raw size of each of its blobs. ``blobs`` holds the binaries and
    constants by digest. Raises StoreError."""
    record, data = record_of(artifact, key)
    given = {d: blobs[d] for d in record.blobs if d in blobs}
    given[str(record.body["artifact"])] = data
    records.publish(record, given)
    return record, {d: len(raw) for d, raw in given.items()}


def find(records: Records, key: Key, tell: Callable[[str], None]) -> list[Kept]:
    """The readable artifacts under a request key; ``tell`` is told why any other is a miss. Raises StoreError when the
    store itself fails."""

    def skipped(event: Event) -> None:
        if event.name == "store.skip":
            tell(f"{event.fields['name']}: {event.fields['reason']}")

    kept: list[Kept] = []
    heard = replace(records, observer=fan_out(records.observer, skipped))
    for record in heard.find(KIND, key.digest):
        try:
            kept.append(read(records, record))
        except (Missing, Corrupt, SchemaError) as error:
            tell(f"artifact {record.body.get('artifact')} of request {record.key[:12]}: {error}")
    return kept


def read(records: Records, record: Record) -> Kept:
    """The artifact that a record names. Raises Missing, Corrupt or SchemaError."""
    own = record.body.get("artifact")
    if not isinstance(own, str) or own not in record.blobs:
        raise SchemaError(
            "bad request record", expected="artifact, one of its blobs", where=record.key
        )
    return Kept(decode(records.get_blob(own)), record)


def binaries(artifact: Artifact) -> Sequence[str]:
    """Digests of every blob that running the artifact needs."""
    return sorted({b.digest for b in artifact.binaries} | {c.digest for c in artifact.constants})
