"""What records, bundles and tags are made of, and their msgpack forms.

Encoding is canonical: equal values give equal bytes. Decoding treats its input as hostile: sizes,
depth, types, names and the set of fields are checked, and anything else is a SchemaError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from stax.base.errors import SchemaError
from stax.store import layout

_codec: Any = msgpack  # it has no types

RECORD_SCHEMA = 1
BUNDLE_SCHEMA = 1
TAG_SCHEMA = 2

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_ITEMS = 1 << 20
_MAX_DEPTH = 32


def _no_body() -> dict[str, object]:
    return {}


@dataclass(frozen=True)
class Record:
    """What an action key leads to. ``body`` is plain data (None, bool, int, float, str, bytes, lists,
    string-keyed dicts; tuples come back as lists); ``blobs`` are the digests it needs; ``variant`` is
    a digest that the caller gives."""

    kind: str
    key: str
    variant: str
    body: Mapping[str, object] = field(default_factory=_no_body)
    blobs: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Canonical bytes. Raises SchemaError for a value that could not be decoded again."""
        where = f"record {self.kind}/{self.key}/{self.variant}"
        data = _pack({"schema": RECORD_SCHEMA, **_record_fields(self, where)}, where)
        limit_bytes = layout.FAMILIES["act"].max_bytes
        if len(data) > limit_bytes:
            _fail(
                "record too large", f"at most {limit_bytes} bytes", f"{len(data)} bytes", where,
                "put the large part into a blob",
            )  # fmt: skip
        return data

    @staticmethod
    def decode(data: bytes, name: str) -> Record:
        """Read the record stored under ``name``. Raises SchemaError, also when it is that of another name."""
        fields = _unpack(data, "act", RECORD_SCHEMA, name)
        record = _record(fields, name)
        if name.split("/")[2:] != [record.kind, record.key, record.variant]:
            _fail(
                "record of another name",
                name,
                f"{record.kind}/{record.key}/{record.variant}",
                name,
            )
        return record


@dataclass(frozen=True)
class Bundle:
    """Everything a model needs on a machine that has nothing: the records themselves, and digest and
    raw size in bytes of each blob. ``body`` is free plain data, for example what the model is."""

    targets: tuple[str, ...]
    records: tuple[Record, ...]
    blobs: tuple[tuple[str, int], ...]
    body: Mapping[str, object] = field(default_factory=_no_body)

    def encode(self) -> bytes:
        """Canonical bytes. Raises SchemaError for a value that could not be decoded again."""
        where = "bundle"
        fields = {
            "schema": BUNDLE_SCHEMA,
            "targets": list(self.targets),
            "records": [_record_fields(record, where) for record in self.records],
            "blobs": [[digest, size_bytes] for digest, size_bytes in self.blobs],
            "body": _plain(self.body, where),
        }
        data = _pack(fields, where)
        Bundle.decode(data, where)
        return data

    @staticmethod
    def decode(data: bytes, name: str) -> Bundle:
        """Read a manifest. Raises SchemaError, also when a record names a blob that it does not list."""
        fields = _unpack(data, "bundle", BUNDLE_SCHEMA, name)
        _expect_fields(fields, ("blobs", "body", "records", "targets"), name)
        bundle = Bundle(
            targets=_texts(fields["targets"], "targets", name),
            records=tuple(_record(r, name) for r in _dicts(fields["records"], "records", name)),
            blobs=tuple(_sized(item, name) for item in _items(fields["blobs"], "blobs", name)),
            body=_dict(fields["body"], "body", name),
        )
        listed = {digest for digest, _ in bundle.blobs}
        for record in bundle.records:
            if not listed.issuperset(record.blobs):
                _fail("a record names a blob that the bundle does not list", "", record.key, name)
        return bundle


def encode_tag(digest: str, name: str) -> bytes:
    """The value of the tag called ``name`` (as the store calls it) that points at a bundle."""
    return _pack({"schema": TAG_SCHEMA, "bundle": _digest(digest, name), "name": name}, name)


def decode_tag(data: bytes, name: str) -> str:
    """Digest of the bundle that a tag points at. Raises SchemaError, also when it is that of another name."""
    fields = _unpack(data, "tag", TAG_SCHEMA, name)
    _expect_fields(fields, ("bundle", "name"), name)
    own = _text(fields["name"], "name", name)
    if own != name:
        _fail("tag of another name", name, repr(own)[:200], name, "set the tag again")
    return _digest(fields["bundle"], name)


def _record_fields(record: Record, where: str) -> dict[str, object]:
    blobs = [_digest(digest, where) for digest in record.blobs]
    body = _plain(record.body, where)
    names = {"kind": record.kind, "key": record.key, "variant": record.variant}
    layout.act("t", record.kind, record.key, record.variant)
    return {**names, "body": body, "blobs": blobs}


def _record(fields: Mapping[str, object], where: str) -> Record:
    _expect_fields(fields, ("blobs", "body", "key", "kind", "variant"), where)
    kind, key, variant = (_text(fields[n], n, where) for n in ("kind", "key", "variant"))
    if not layout.is_name(f"act/t/{kind}/{key}/{variant}"):
        _fail("bad record name", "kind/key/variant", f"{kind}/{key}/{variant}"[:400], where)
    blobs = tuple(_digest(item, where) for item in _items(fields["blobs"], "blobs", where))
    return Record(kind, key, variant, _dict(fields["body"], "body", where), blobs)


def _pack(value: dict[str, object], where: str) -> bytes:
    try:
        return cast("bytes", _codec.packb(dict(sorted(value.items())), use_bin_type=True))
    except (ValueError, OverflowError, UnicodeEncodeError) as error:
        raise SchemaError("can not be encoded", found=str(error), where=where) from error


def _unpack(data: bytes, family: str, schema: int, where: str) -> dict[str, object]:
    """The fields but "schema", which is checked."""
    limit_bytes = layout.FAMILIES[family].max_bytes
    if len(data) > limit_bytes:
        _fail("too large", f"at most {limit_bytes} bytes", f"{len(data)} bytes", where)
    try:
        value: object = _codec.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise SchemaError("not msgpack", found=str(error), where=where) from error
    fields = dict(_dict(value, "the whole", where))
    found = fields.pop("schema", None)
    if type(found) is not int or found != schema:
        _fail("another schema", f"{family} schema {schema}", repr(found)[:80], where)
    return fields


def _plain(value: object, where: str, depth: int = 0) -> object:
    """A copy with sorted maps. Raises SchemaError for what msgpack would change or refuse."""
    if depth > _MAX_DEPTH:
        _fail("nested too deeply", f"at most {_MAX_DEPTH} levels", "more", where)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v, where, depth + 1) for v in cast("Sequence[object]", value)]
    if not isinstance(value, Mapping):
        _fail(
            "not plain data",
            "None, bool, int, float, str, bytes, list, dict",
            type(value).__name__,
            where,
        )
    items = cast("Mapping[object, object]", value).items()
    named = [(_text(k, "key of a map", where), v) for k, v in items]
    return {k: _plain(v, where, depth + 1) for k, v in sorted(named, key=lambda item: item[0])}


def _expect_fields(fields: Mapping[str, object], names: tuple[str, ...], where: str) -> None:
    if tuple(sorted(fields)) != names:
        _fail("another set of fields", ", ".join(names), ", ".join(sorted(fields))[:400], where)


def _dict(value: object, what: str, where: str) -> Mapping[str, object]:
    """A plain string-keyed map: maps, lists and scalars all the way down."""
    if not isinstance(value, dict):
        _fail(f"bad {what}", "a map", type(value).__name__, where)
    return cast("dict[str, object]", _plain(cast("object", value), where))


def _items(value: object, what: str, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        _fail(f"bad {what}", "a list", type(value).__name__, where)
    items = cast("Sequence[object]", value)
    if len(items) > _MAX_ITEMS:
        _fail(f"bad {what}", f"at most {_MAX_ITEMS} items", str(len(items)), where)
    return items


def _dicts(value: object, what: str, where: str) -> Sequence[Mapping[str, object]]:
    return [_dict(item, what, where) for item in _items(value, what, where)]


def _texts(value: object, what: str, where: str) -> tuple[str, ...]:
    return tuple(_text(item, what, where) for item in _items(value, what, where))


def _text(value: object, what: str, where: str) -> str:
    if not isinstance(value, str):
        _fail(f"bad {what}", "text", type(value).__name__, where)
    return value


def _digest(value: object, where: str) -> str:
    text = _text(value, "digest", where)
    if not _DIGEST.fullmatch(text):
        _fail("bad digest", "64 lower-case hex digits", repr(text[:80]), where)
    return text


def _sized(value: object, where: str) -> tuple[str, int]:
    pair = _items(value, "blob", where)
    if len(pair) != 2 or type(pair[1]) is not int or pair[1] < 0:
        _fail("bad blob", "[digest, size in bytes]", repr(pair)[:200], where)
    return _digest(pair[0], where), pair[1]


def _fail(what: str, expected: str, found: str, where: str, hint: str = "") -> NoReturn:
    raise SchemaError(what, expected=expected, found=found, where=where, hint=hint)
