"""Bytes from an enemy: whatever is read, only SchemaError comes out, soon and in little memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from stax.artifact.artifact import SCHEMA, Artifact
from stax.artifact.codec import decode, encode
from stax.base.errors import SchemaError
from tests.artifacts import changed, counter, linear_relu, shared, strided, take

SEEDS: tuple[Artifact, ...] = (
    linear_relu(),
    counter(),
    changed(),
    strided(),
    take(b"\0" * 20, 5),
    shared(),
)
ROUNDS = 1500
MAX_SECONDS = 2.0
MAX_BYTES = 8 << 20


def survives(data: bytes) -> bool:
    """Whether the bytes are read. Any error but SchemaError is a failure of the test."""
    try:
        again = decode(data)
    except SchemaError:
        return False
    assert encode(again)
    return True


def bounded(data: bytes) -> None:
    """Refused within the bounds of time and memory."""
    tracemalloc.start()
    begun = time.perf_counter()
    try:
        with pytest.raises(SchemaError):
            decode(data)
        assert time.perf_counter() - begun < MAX_SECONDS
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES + 3 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_flipped_bytes(seed: int) -> None:
    own = random.Random(seed)
    good = encode(SEEDS[seed])
    for _ in range(ROUNDS):
        data = bytearray(good)
        for _ in range(own.randint(1, 4)):
            data[own.randrange(len(data))] = own.randrange(256)
        survives(bytes(data))


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_cut_and_glued_bytes(seed: int) -> None:
    own = random.Random(seed)
    good = encode(SEEDS[seed])
    for end in range(len(good)):
        assert not survives(good[:end])
    assert not survives(good + b"\0")
    for _ in range(ROUNDS):
        a, b = sorted(own.randrange(len(good)) for _ in range(2))
        survives(good[:a] + good[b:])
        survives(good[:b] + good[a:])
        survives(good[:a] + own.randbytes(own.randint(1, 8)) + good[a:])


def places(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield path
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from places(item, (*path, i))


def replaced(value: Any, path: tuple[int, ...], new: Any) -> Any:
    if not path:
        return new
    copy = list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


STRANGERS: list[Any] = [
    None,
    True,
    -1,
    2**63,
    1.5,
    float("nan"),
    "",
    "x" * 100_000,
    b"",
    b"\xff",
    [],
    {},
    [[]],
    {"a": 1},
    msgpack.ExtType(5, b""),
    msgpack.Timestamp(1),
]


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_a_stranger_in_every_place(seed: int) -> None:
    """Each value of a real artifact replaced by values of other types and sizes."""
    own = random.Random(seed)
    plain = msgpack.unpackb(encode(SEEDS[seed]))
    for path in places(plain):
        for new in own.sample(STRANGERS, 5):
            survives(msgpack.packb(replaced(plain, path, new)))


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_values_swapped_between_places(seed: int) -> None:
    """Well-formed pieces where others belong: only a verifier can tell."""
    own = random.Random(seed)
    plain = msgpack.unpackb(encode(SEEDS[seed]))
    paths = [p for p in places(plain) if p]
    for _ in range(ROUNDS):
        a, b = own.choice(paths), own.choice(paths)
        piece: Any = plain
        for i in a:
            piece = piece[i]
        survives(msgpack.packb(replaced(plain, b, piece)))


def test_lengths_that_lie() -> None:
    head = bytes([0x92, SCHEMA])
    for lie in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ):
        bounded(lie)
        bounded(head + lie)
        bounded(head + lie * 1000)
        good = encode(SEEDS[0])
        for at in range(2, len(good), 7):
            bounded(good[:at] + lie + good[at:])


def test_deep_nesting() -> None:
    for depth in (10, 1_000, 100_000):
        bounded(b"\x91" * depth)
        bounded(bytes([0x92, SCHEMA]) + b"\x91" * depth)
        bounded(b"\x81\xa0" * depth)
    tree: Any = ["leaf", [], [], "", ""]
    for _ in range(500):
        tree = ["tuple", [tree], [], "", ""]
    plain = msgpack.unpackb(encode(SEEDS[1]))
    index = 4  # the signature
    for field in (0, 2):
        bounded(msgpack.packb(replaced(plain, (1, index, field), tree)))


@pytest.mark.parametrize(
    "text",
    [
        "*".join(["(a + b + c + d + e + f + g + h)"] * 100),
        "((((a + b)*(a + b)) // (1))*(((a + b)*(a + b)) // (1)))" * 20,
        "((" * 90 + "a" + ") // (2))" * 90,
        "min(a, " * 80 + "b" + ")" * 80,
        "9" * 4000,
        "9" * 4000 + "*" + "9" * 90,
        " + ".join(f"a{i}*b{i}" for i in range(400)),
        "a" + "*a" * 2000,
    ],
)
def test_expressions_that_explode(text: str) -> None:
    plain = msgpack.unpackb(encode(SEEDS[0]))
    spots = [p for p in places(plain) if len(p) > 2 and at(plain, p) == "s0"]
    assert spots
    for path in spots[:6]:
        begun = time.perf_counter()
        survives(msgpack.packb(replaced(plain, path, text)))
        assert time.perf_counter() - begun < MAX_SECONDS


def at(value: Any, path: tuple[int, ...]) -> Any:
    for i in path:
        value = value[i]
    return value


def test_other_formats() -> None:
    for data in (
        b"",
        b"\x80\x04\x95",
        b"PK\x03\x04",
        b"\x7fELF",
        b"{}",
        b"null",
        struct.pack("<Q", 2**60),
        bytes(5000),
    ):
        bounded(data)


def test_noise() -> None:
    own = random.Random(0)
    for _ in range(ROUNDS):
        survives(own.randbytes(own.randint(0, 300)))
        survives(bytes([0x92, SCHEMA, 0x9E]) + own.randbytes(own.randint(0, 300)))
