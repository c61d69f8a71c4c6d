"""What every store must do. A test class inherits StoreSuite (and ProcessSuite, if other processes can open it) and gives a ``place``."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
import zstandard

from stax.base.digest import sha256
from stax.base.errors import Corrupt, Missing, Refused, SchemaError
from stax.base.observe import Event
from stax.store import Bundle, Record, Records, Store, Verified, layout, open_store

KEY = sha256(b"key")
OTHER = sha256(b"other key")

BAD_NAMES = (
    "",
    "cas",
    "cas/",
    "cas/../../etc/passwd",
    "cas/" + "g" * 64,
    "cas/" + "A" * 64,
    "cas/" + "a" * 63,
    "cas/" + "a" * 64 + "/x",
    "cas/" + "a" * 64 + "\n",
    "/cas/" + "a" * 64,
    "blob/" + "a" * 64,
    "bundle/x",
    "act/dev/kernel/k",
    "act/dev/kernel/k/v/w",
    "act/dev/kernel/../v",
    "act/dev/kernel/./v",
    "act/dev//k/v",
    "act/dev/kernel/k/.hidden",
    "act/dev/kernel/k/" + "v" * 129,
    "act/dev/kernel/k/v\x00",
    "act/dev/kernel/k/v w",
    "act/dev/kernel/k/ü",
    "act\\dev\\kernel\\k\\v",
    "tmp/0123",
)


class Place(Protocol):
    """Where a store lives. ``raw`` is what is under its layers."""

    @property
    def raw(self) -> Store: ...

    def open(self) -> Store: ...


@dataclass
class Seen:
    """An observer that keeps the events."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@dataclass
class Faulty:
    """A layer that asks ``fault(verb, name)`` before each call: it may raise, or do something else to the store."""

    inner: Store
    fault: Callable[[str, str], None]

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def shared(self) -> Store:
        return self

    def get(self, name: str) -> bytes:
        self.fault("get", name)
        return self.inner.get(name)

    def put(self, name: str, data: bytes) -> bool:
        self.fault("put", name)
        return self.inner.put(name, data)

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = set(names)
        absent = self.inner.missing(wanted)
        for name in wanted:
            self.fault("missing", name)
        return absent

    def list(self, prefix: str) -> Iterator[str]:
        for name in self.inner.list(prefix):
            self.fault("list", name)
            yield name

    def delete(self, name: str) -> None:
        self.fault("delete", name)
        self.inner.delete(name)

    def heal(self, name: str, data: bytes) -> None:
        self.fault("heal", name)
        self.inner.heal(name, data)

    def swap(self, name: str, data: bytes, expect: str | None) -> str:
        self.fault("swap", name)
        return self.inner.swap(name, data, expect)

    def get_tag(self, name: str) -> tuple[bytes, str]:
        self.fault("get_tag", name)
        return self.inner.get_tag(name)

    def close(self) -> None:
        self.inner.close()


def blob(data: bytes) -> tuple[str, bytes]:
    """Name and bytes of a blob."""
    return layout.cas(sha256(data)), data


def make_record(key: str = KEY, seed: int = 0, count: int = 3) -> tuple[Record, dict[str, bytes]]:
    """A record with blobs, all functions of ``seed``."""
    rng = random.Random(seed)
    blobs = [rng.randbytes(rng.randrange(1, 5000)) for _ in range(count)]
    held = {sha256(data): data for data in blobs}
    body = {"seed": seed, "grid": [seed, 1, 1], "name": "poi_0"}
    return Record("kernel", key, sha256(str(seed).encode()), body, tuple(held)), held


def in_threads(count: int, run: Callable[[int], object]) -> list[object]:
    """Results of run(0) … run(count - 1), all released at the same moment."""
    gate = threading.Barrier(count)

    def start(index: int) -> object:
        gate.wait(30)
        return run(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def damage(place: Place, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change the stored bytes behind the back of the layers."""
    place.raw.heal(name, change(place.raw.get(name)))


def flip(data: bytes) -> bytes:
    if not data:
        return b"x"
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(data: bytes) -> bytes:
    return b""


def frame(size_bytes: int, blocks: int) -> bytes:
    """A zstd frame that states a size, and holds so many blocks of 128 KiB of zeros (4 bytes each)."""
    run = 1 << 17
    block, last = ((run << 3 | 1 << 1 | end).to_bytes(3, "little") + b"\0" for end in (0, 1))
    head = b"\x28\xb5\x2f\xfd\xc0\x50" + size_bytes.to_bytes(8, "little")
    return head + block * (blocks - 1) + last


def bomb(data: bytes) -> bytes:
    """4 GiB in 131 kB, honestly stated."""
    return frame(4 << 30, 4 << 13)


def liar(data: bytes) -> bytes:
    """4 GiB in 131 kB, stated as 10 kB."""
    return frame(10_000, 4 << 13)


def unsized(data: bytes) -> bytes:
    """A frame that does not state how large it becomes."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(bytes(1000)) + packer.flush()


def trailing(data: bytes) -> bytes:
    return data + b"more"


class StoreSuite:
    """The protocol's promises, one a test."""

    def test_round_trip(self, place: Place) -> None:
        store = place.open()
        for data in (b"", b"x", bytes(100_000), random.Random(1).randbytes(3 << 20)):
            name, _ = blob(data)
            assert store.put(name, data) is True
            assert store.get(name) == data
            assert store.put(name, data) is False
            assert place.open().get(name) == data

    def test_record_names_keep_their_first_bytes(self, place: Place) -> None:
        store = place.open()
        name = layout.act("dev", "kernel", KEY, "v.1_a@b-c")
        assert store.put(name, b"first") is True
        assert store.put(name, b"second") is False
        assert store.get(name) == b"first"

    def test_create_once_has_one_winner(self, place: Place) -> None:
        store = place.open()
        name = layout.act("dev", "kernel", KEY, OTHER)
        won = in_threads(16, lambda i: store.put(name, b"writer %d" % i))
        assert won.count(True) == 1
        assert store.get(name) == b"writer %d" % won.index(True)

    def test_missing(self, place: Place) -> None:
        store = place.open()
        held = [blob(bytes([i])) for i in range(20)]
        for name, data in held[::2]:
            store.put(name, data)
        names = [name for name, _ in held]
        assert store.missing(names) == set(names[1::2])
        assert store.missing(name for name in names[:1]) == set()
        assert store.missing([]) == set()

    def test_absent_is_missing_with_its_name(self, place: Place) -> None:
        store = place.open()
        name = layout.cas(KEY)
        with pytest.raises(Missing) as caught:
            store.get(name)
        assert name in caught.value.where
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        with pytest.raises(Missing):
            store.get_tag(layout.tag("dev", "absent"))

    def test_delete(self, place: Place) -> None:
        store = place.open()
        name, data = blob(b"to delete")
        store.put(name, data)
        store.delete(name)
        store.delete(name)
        assert store.missing([name]) == {name}
        assert store.put(name, data) is True

    def test_list_is_sorted_and_only_of_the_prefix(self, place: Place) -> None:
        store = place.open()
        names = [
            layout.act("dev", kind, key, variant)
            for kind in ("kernel", "kernel-2", "kernel.x", "kernels")
            for key in ("a", "a-b", "a.b", "ab")
            for variant in ("v", "V", "_")
        ]
        names.append(layout.act("prod", "kernel", "a", "v"))
        names.append(layout.cas(KEY))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: place.raw.heal(name, b"data"), names))
        store.swap(layout.tag("dev", "t"), b"tag", None)
        everything = sorted([*names, "tag/dev/t"])
        for prefix in (
            "",
            "a",
            "act/dev/kernel/",
            "act/dev/kernel",
            "act/dev/kernel/a-b/v",
            "tag/",
        ):
            assert list(store.list(prefix)) == [n for n in everything if n.startswith(prefix)]
        assert list(store.list("bundle/")) == []

    def test_list_of_2500_names(self, place: Place) -> None:
        names = [layout.act("big", "kernel", f"{i % 7}", f"{i:04}") for i in range(2500)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: place.raw.heal(name, b"d"), names))
        assert list(place.open().list("act/big/")) == sorted(names)

    @pytest.mark.parametrize("prefix", ["../", "/", "cas/../", "cas//x", "cas/\x00", "a" * 700])
    def test_bad_prefix_is_refused(self, place: Place, prefix: str) -> None:
        with pytest.raises(Refused):
            list(place.open().list(prefix))

    def test_bad_names_are_refused_by_every_verb(self, place: Place) -> None:
        store = place.open()
        calls: tuple[Callable[[str], object], ...] = (
            store.get,
            store.get_tag,
            store.delete,
            lambda name: store.put(name, b""),
            lambda name: store.heal(name, b""),
            lambda name: store.swap(name, b"", None),
            lambda name: store.missing([name]),
        )
        for name in BAD_NAMES:
            for call in calls:
                with pytest.raises(Refused):
                    call(name)

    def test_tags_and_objects_do_not_mix(self, place: Place) -> None:
        store = place.open()
        tag, (name, data) = layout.tag("dev", "t"), blob(b"x")
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get(tag),
            lambda: store.put(tag, b"x"),
            lambda: store.heal(tag, b"x"),
            lambda: store.get_tag(name),
            lambda: store.swap(name, data, None),
            lambda: store.swap(tag, bytes(5000), None),
        )
        for call in calls:
            with pytest.raises(Refused):
                call()

    def test_swap(self, place: Place) -> None:
        store = place.open()
        tag = layout.tag("prod", "llama-8b@2026-11")
        with pytest.raises(Refused):
            store.swap(tag, b"zero", "no such etag")
        one = store.swap(tag, b"one", None)
        with pytest.raises(Refused):
            store.swap(tag, b"two", None)
        assert store.get_tag(tag) == (b"one", one)
        two = store.swap(tag, b"two", one)
        with pytest.raises(Refused):
            store.swap(tag, b"three", one)
        assert place.open().get_tag(tag) == (b"two", two)
        assert list(store.list("tag/prod/")) == [tag]
        store.delete(tag)
        assert store.swap(tag, b"one", None) == one

    def test_swap_loses_no_update(self, place: Place) -> None:
        store = place.open()
        tag = layout.tag("dev", "count")
        store.swap(tag, b"0", None)

        def add_one(_: int) -> None:
            while True:
                value, etag = store.get_tag(tag)
                try:
                    store.swap(tag, b"%d" % (int(value) + 1), etag)
                    return
                except Refused:
                    continue

        in_threads(4, add_one)
        assert store.get_tag(tag)[0] == b"4"

    def test_bytes_of_another_name_are_refused(self, place: Place) -> None:
        store = place.open()
        for name in (layout.cas(KEY), layout.bundle(KEY)):
            for write in (store.put, store.heal):
                with pytest.raises(Refused):
                    write(name, b"not these")
        assert store.missing([layout.cas(KEY)]) == {layout.cas(KEY)}

    @pytest.mark.parametrize("change", [flip, truncate, empty, bomb, liar, unsized, trailing])
    def test_damaged_blob_is_corrupt_then_missing_then_healed(
        self, place: Place, change: Callable[[bytes], bytes]
    ) -> None:
        store = place.open()
        name, data = blob(random.Random(2).randbytes(10_000))
        store.put(name, data)
        damage(place, name, change)
        with pytest.raises(Corrupt) as caught:
            store.get(name)
        assert name in str(caught.value)
        assert store.missing([name]) == {name}
        assert store.put(name, data) is True
        assert store.get(name) == place.open().get(name) == data
        assert store.missing([name]) == set()

    def test_heal_by_one_who_has_not_seen_the_damage(self, place: Place) -> None:
        name, data = blob(b"good bytes" * 100)
        place.open().put(name, data)
        damage(place, name, flip)
        place.open().heal(name, data)
        assert place.open().get(name) == data

    @pytest.mark.parametrize("change", [flip, truncate, empty])
    def test_damaged_record_and_tag_are_corrupt(
        self, place: Place, change: Callable[[bytes], bytes]
    ) -> None:
        store = place.open()
        name, tag = layout.act("dev", "kernel", KEY, OTHER), layout.tag("dev", "t")
        store.put(name, b"a record")
        damage(place, name, change)
        with pytest.raises(Corrupt, match=name):
            store.get(name)
        place.raw.swap(tag, change(b"no seal"), None)
        with pytest.raises(Corrupt, match=tag):
            store.get_tag(tag)

    def test_listing_and_reading_beside_writers(self, place: Place) -> None:
        store = place.open()
        blobs = [blob(random.Random(i).randbytes(50_000)) for i in range(30)]
        done = threading.Event()

        def write(_: int) -> None:
            for name, data in blobs:
                store.put(name, data)

        def read() -> set[str]:
            seen: set[str] = set()
            while not done.is_set():
                for name in place.open().list("cas/"):
                    assert store.get(name) == dict(blobs)[name]
                    seen.add(name)
            return seen

        with ThreadPoolExecutor(2) as pool:
            reader = pool.submit(read)
            try:
                in_threads(2, write)
            finally:
                done.set()
            assert reader.result() <= dict(blobs).keys()
        assert set(store.list("")) == dict(blobs).keys()

    # ── records ──────────────────────────────────────────────────────────────────────────────────

    def test_publish_and_find(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        record, blobs = make_record()
        assert records.find("kernel", KEY) == []
        assert records.publish(record, blobs) is True
        assert records.publish(record, blobs) is False
        assert Records(place.open(), "dev").find("kernel", KEY) == [record]
        assert records.fetch(record.blobs) == blobs
        assert records.find("kernel", OTHER) == []
        assert Records(place.open(), "prod").find("kernel", KEY) == []

    def test_variants_are_found_in_order(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        made = [make_record(seed=seed, count=1) for seed in range(5)]
        for record, blobs in made:
            records.publish(record, blobs)
        expected = sorted((record for record, _ in made), key=lambda r: r.variant)
        assert records.find("kernel", KEY) == expected

    def test_record_without_its_blob_does_not_count(self, place: Place) -> None:
        seen = Seen()
        records = Records(place.open(), "dev", seen)
        record, blobs = make_record()
        records.publish(record, blobs)
        place.raw.delete(layout.cas(record.blobs[1]))
        assert Records(_fresh(place), "dev", seen).find("kernel", KEY) == []
        assert record.blobs[1] in str(seen.named("store.skip")[0].fields["reason"])
        assert Records(_fresh(place), "dev").publish(record, blobs) is False
        assert Records(_fresh(place), "dev").find("kernel", KEY) == [record]

    def test_record_that_names_nothing_given_nor_stored_is_not_written(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        record, blobs = make_record()
        lost = dict(list(blobs.items())[1:])
        with pytest.raises(Missing, match=record.blobs[0]):
            records.publish(record, lost)
        assert list(place.open().list("")) == []

    def test_blob_evicted_after_it_was_seen(self, place: Place) -> None:
        """The next publish asks again instead of trusting what it knew."""
        record, blobs = make_record()
        gone = layout.cas(record.blobs[0])
        records = Records(place.open(), "dev")
        records.put_blob(blobs[record.blobs[0]])

        def evict(verb: str, name: str) -> None:
            if verb == "missing" and name == gone:
                place.raw.delete(gone)

        Records(Faulty(_fresh(place), evict), "dev").publish(record, blobs)
        assert Records(_fresh(place), "dev").find("kernel", KEY) == []
        Records(_fresh(place), "dev").publish(record, blobs)
        assert Records(_fresh(place), "dev").find("kernel", KEY) == [record]

    def test_first_record_stays_and_the_difference_is_told(self, place: Place) -> None:
        seen = Seen()
        records = Records(place.open(), "dev", seen)
        record, blobs = make_record()
        other = Record(record.kind, record.key, record.variant, {"other": True}, ())
        records.publish(record, blobs)
        assert records.publish(other) is False
        assert records.find("kernel", KEY) == [record]
        assert len(seen.named("store.nondeterminism")) == 1

    def test_other_record_replaces_one_whose_blobs_are_gone(self, place: Place) -> None:
        record, blobs = make_record()
        Records(place.open(), "dev").publish(record, blobs)
        place.raw.delete(layout.cas(record.blobs[0]))
        other, other_blobs = make_record(seed=7)
        other = Record(record.kind, record.key, record.variant, other.body, other.blobs)
        assert Records(_fresh(place), "dev").publish(other, other_blobs) is True
        assert Records(_fresh(place), "dev").find("kernel", KEY) == [other]

    @pytest.mark.parametrize("change", [flip, truncate, empty])
    def test_damaged_record_is_skipped_and_replaced(
        self, place: Place, change: Callable[[bytes], bytes]
    ) -> None:
        seen = Seen()
        record, blobs = make_record()
        name = layout.act("dev", record.kind, record.key, record.variant)
        Records(place.open(), "dev").publish(record, blobs)
        damage(place, name, change)
        records = Records(_fresh(place), "dev", seen)
        assert records.find("kernel", KEY) == []
        assert len(seen.named("store.skip")) == 1
        assert records.publish(record, blobs) is True
        assert Records(_fresh(place), "dev").find("kernel", KEY) == [record]

    def test_record_of_another_schema_is_skipped_and_replaced(self, place: Place) -> None:
        seen = Seen()
        record, blobs = make_record()
        store = place.open()
        name = layout.act("dev", record.kind, record.key, record.variant)
        for foreign in (b"\x81\xa6schema\x63", b"\x90", b"\xc1", record.encode() + b"\xc0", b""):
            store.heal(name, foreign)
            records = Records(store, "dev", seen)
            assert records.find("kernel", KEY) == []
            assert records.publish(record, blobs) is True
            assert records.find("kernel", KEY) == [record]
        assert len(seen.named("store.skip")) == len(seen.named("store.replace")) == 5

    def test_record_copied_to_another_key_is_skipped(self, place: Place) -> None:
        store = place.open()
        record, blobs = make_record()
        Records(store, "dev").publish(record, blobs)
        copied = store.get(layout.act("dev", "kernel", KEY, record.variant))
        store.put(layout.act("dev", "kernel", OTHER, record.variant), copied)
        assert Records(store, "dev").find("kernel", OTHER) == []

    def test_rewrite_heals_without_having_seen_the_damage(self, place: Place) -> None:
        record, blobs = make_record()
        Records(place.open(), "dev").publish(record, blobs)
        for digest in record.blobs:
            damage(place, layout.cas(digest), flip)
        assert Records(_fresh(place), "dev").publish(record, blobs, rewrite=True) is False
        assert Records(_fresh(place), "dev").fetch(record.blobs) == blobs

    def test_damaged_blobs_make_their_record_a_miss_until_republished_once(
        self, place: Place
    ) -> None:
        record, blobs = make_record()
        Records(place.open(), "dev").publish(record, blobs)
        for digest in record.blobs[:2]:
            damage(place, layout.cas(digest), flip)
        records = Records(_fresh(place), "dev")
        with pytest.raises(Corrupt):
            records.fetch(record.blobs)
        assert records.find("kernel", KEY) == []
        records.publish(record, blobs)
        assert records.find("kernel", KEY) == [record]
        assert records.fetch(record.blobs) == blobs

    def test_bundles_and_tags(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        record, blobs = make_record()
        sizes = tuple((digest, len(data)) for digest, data in blobs.items())
        bundle = Bundle(("cuda:sm_90", "cpu:x86-64-v3"), (record,), sizes, {"model": "tiny"})
        with pytest.raises(Missing):
            records.put_bundle(bundle)
        records.publish(record, blobs)
        digest = records.put_bundle(bundle)
        assert records.put_bundle(bundle) == digest
        assert Records(place.open(), "dev").get_bundle(digest) == bundle
        with pytest.raises(Missing):
            records.set_tag("prod", "tiny@2026-11", OTHER)
        with pytest.raises(Missing):
            records.get_tag("prod", "tiny@2026-11")
        records.set_tag("prod", "tiny@2026-11", digest)
        second = records.put_bundle(Bundle((), (), (), {"n": 2}))
        records.set_tag("prod", "tiny@2026-11", second)
        assert Records(place.open(), "dev").get_tag("prod", "tiny@2026-11") == second
        assert records.list_tags("prod") == ["tiny@2026-11"]
        assert records.list_tags("dev") == []

    def test_damaged_tag_is_set_again(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        digest = records.put_bundle(Bundle((), (), ()))
        place.raw.swap(layout.tag("dev", "t"), b"garbage", None)
        with pytest.raises((Corrupt, SchemaError)):
            records.get_tag("dev", "t")
        records.set_tag("dev", "t", digest)
        assert Records(place.open(), "dev").get_tag("dev", "t") == digest


def _fresh(place: Place) -> Store:
    """A store without a warm local tier: what another machine sees."""
    return Verified(place.raw)


PROCESSES = 8
KEYS = 12


class ProcessSuite:
    """What must hold when many processes use one store."""

    def test_concurrent_publishers(self, place: Place, tmp_path: Path) -> None:
        """Eight processes publish the same keys: no error, every record whole, one creator each."""
        url = place.raw.url
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            jobs = [(url, str(tmp_path / f"cache{i}"), KEYS) for i in range(PROCESSES)]
            created = pool.starmap_async(publish_all, jobs, chunksize=1).get(120)
        records = Records(place.open(), "dev")
        for index in range(KEYS):
            record, blobs = make_record(sha256(b"key %d" % index), seed=index)
            assert records.find("kernel", record.key) == [record]
            assert records.fetch(record.blobs) == blobs
            assert sum(counts[index] for counts in created) == 1
        assert len(list(place.open().list("act/"))) == KEYS


def publish_all(url: str, cache_dir: str, count: int) -> list[bool]:
    """Runs in a child process."""
    records = Records(open_store(url, cache_dir=cache_dir), "dev")
    made = [make_record(sha256(b"key %d" % index), seed=index) for index in range(count)]
    return [records.publish(record, blobs) for record, blobs in made]
