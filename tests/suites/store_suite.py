"""What every store must do. A test class inherits StoreSuite and gives a ``place``."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from suites.store_doubles import (
    KEY,
    OTHER,
    Place,
    blob,
    bomb,
    damage,
    empty,
    flip,
    in_threads,
    liar,
    trailing,
    truncate,
    unsized,
)

from stax.base.errors import Corrupt, Missing, Refused
from stax.store import layout

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
