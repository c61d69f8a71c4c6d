"""Records, bundles and tags as bytes: equal values give equal bytes, and no bytes do harm."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suites.store_doubles import KEY, OTHER, make_record

from stax.base.errors import Refused, SchemaError
from stax.store import Bundle, Record, layout
from stax.store.forms import decode_tag, encode_tag

NAME = layout.act("dev", "kernel", KEY, OTHER)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
bodies = st.dictionaries(st.text(max_size=8), plain, max_size=4)


@given(bodies)
def test_any_plain_body_comes_back(body: dict[str, object]) -> None:
    record = Record("kernel", KEY, OTHER, body, (KEY,))
    assert Record.decode(record.encode(), NAME) == record


@given(bodies)
def test_order_of_a_map_does_not_matter(body: dict[str, object]) -> None:
    backward = dict(reversed(list(body.items())))
    first, second = (Record("kernel", KEY, OTHER, b).encode() for b in (body, backward))
    assert first == second


@given(st.binary(max_size=200) | plain.map(lambda value: msgpack.packb(value)))
def test_foreign_bytes_are_schema_errors(data: bytes) -> None:
    for decode in (Record.decode, Bundle.decode, decode_tag):
        with pytest.raises(SchemaError):
            decode(data, NAME)


@settings(max_examples=300)
@given(st.data())
def test_mutated_records_decode_to_records_or_schema_errors(data: st.DataObject) -> None:
    record, _ = make_record()
    name = layout.act("dev", record.kind, record.key, record.variant)
    stored = bytearray(record.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = Record.decode(bytes(stored), name)
    except SchemaError:
        return
    assert (found.kind, found.key, found.variant) == (record.kind, record.key, record.variant)
    assert all(len(digest) == 64 for digest in found.blobs)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000 + b"\xc0",  # nested a hundred thousand times
        b"\xdd\xff\xff\xff\xff",  # a list that says it has four milliard items
        b"\xc6\xff\xff\xff\xff",  # so many bytes
        b"\x81\xa6schema\xd4\x01\x00",  # an extension type
        b"\x81\xa6schema\xd6\xff\x00\x00\x00\x00",  # a time stamp
        b"\x81\x01\x01",  # a key that is no text
        b"\x81\xa6schema\xc3",  # True is no 1
        b"\x81\xa6schema\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00",  # 1.0 is no 1
        b"\xa4\xff\xff\xff\xff",  # text that is no UTF-8
        bytes(5 << 20),
    ],
)
def test_attacks(data: bytes) -> None:
    for decode in (Record.decode, Bundle.decode, decode_tag):
        with pytest.raises(SchemaError):
            decode(data, NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"kind": 1},
        {"kind": "../x"},
        {"key": OTHER},
        {"blobs": ["x"]},
        {"blobs": "x"},
        {"blobs": [KEY.upper()]},
        {"body": []},
        {"body": {"x": [1, {"y": msgpack.Timestamp(0)}]}},
    ],
)
def test_fields_are_checked(change: dict[str, object]) -> None:
    whole = {"schema": 1, "kind": "kernel", "key": KEY, "variant": OTHER, "body": {}, "blobs": []}
    Record.decode(msgpack.packb(whole), NAME)
    with pytest.raises(SchemaError):
        Record.decode(msgpack.packb({**whole, **change}), NAME)
    for field in whole:
        with pytest.raises(SchemaError):
            Record.decode(msgpack.packb({k: v for k, v in whole.items() if k != field}), NAME)


@pytest.mark.parametrize(
    "body",
    [
        {"x": object()},
        {"x": {1: 2}},
        {"x": {1, 2}},
        {"x": 2**64},
        {"x": "\ud800"},
        {"x": msgpack.Timestamp(0)},
        {"x": bytes(5 << 20)},
    ],
)
def test_what_could_not_be_read_again_is_not_written(body: dict[str, object]) -> None:
    with pytest.raises(SchemaError):
        Record("kernel", KEY, OTHER, body).encode()


def test_cyclic_body_is_refused() -> None:
    body: dict[str, object] = {}
    body["self"] = body
    with pytest.raises(SchemaError, match="deep"):
        Record("kernel", KEY, OTHER, body).encode()


def test_bad_record_names_are_refused() -> None:
    for record in (Record("a/b", KEY, OTHER), Record("kernel", "..", OTHER), Record("k", KEY, "")):
        with pytest.raises(Refused):
            record.encode()


def test_nan_and_infinity_keep_their_bits() -> None:
    record = Record("kernel", KEY, OTHER, {"x": [math.nan, math.inf, -0.0]})
    assert Record.decode(record.encode(), NAME).encode() == record.encode()


def test_bundle_must_list_what_its_records_name() -> None:
    record, blobs = make_record()
    sizes = tuple((digest, len(data)) for digest, data in blobs.items())
    whole = Bundle(("cpu:x86-64-v3",), (record,), sizes)
    assert Bundle.decode(whole.encode(), "bundle") == whole
    with pytest.raises(SchemaError, match="does not list"):
        Bundle(("cpu:x86-64-v3",), (record,), sizes[1:]).encode()
    for bad in ((KEY, -1), (KEY, True), (KEY, "1"), ("x", 1)):
        with pytest.raises(SchemaError):
            Bundle((), (), (bad,)).encode()  # type: ignore[arg-type]


def test_tag() -> None:
    assert decode_tag(encode_tag(KEY, "tag/dev/t"), "tag/dev/t") == KEY
    with pytest.raises(SchemaError):
        encode_tag("x", "tag/dev/t")
    for other in ("tag/dev/u", "tag/prod/t"):
        with pytest.raises(SchemaError, match="of another name"):
            decode_tag(encode_tag(KEY, "tag/dev/t"), other)
