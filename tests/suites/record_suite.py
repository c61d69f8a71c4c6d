"""What records, bundles and tags must do on every store, and what must hold between processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from suites.store_doubles import (
    KEY,
    OTHER,
    Faulty,
    Place,
    Seen,
    damage,
    empty,
    flip,
    fresh,
    make_record,
    truncate,
)

from stax.base.digest import sha256
from stax.base.errors import Corrupt, Missing, SchemaError
from stax.store import Bundle, Record, Records, layout, open_store


class RecordSuite:
    """The promises of Records, one a test."""

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
        assert Records(fresh(place), "dev", seen).find("kernel", KEY) == []
        assert record.blobs[1] in str(seen.named("store.skip")[0].fields["reason"])
        assert Records(fresh(place), "dev").publish(record, blobs) is False
        assert Records(fresh(place), "dev").find("kernel", KEY) == [record]

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

        Records(Faulty(fresh(place), evict), "dev").publish(record, blobs)
        assert Records(fresh(place), "dev").find("kernel", KEY) == []
        Records(fresh(place), "dev").publish(record, blobs)
        assert Records(fresh(place), "dev").find("kernel", KEY) == [record]

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
        assert Records(fresh(place), "dev").publish(other, other_blobs) is True
        assert Records(fresh(place), "dev").find("kernel", KEY) == [other]

    @pytest.mark.parametrize("change", [flip, truncate, empty])
    def test_damaged_record_is_skipped_and_replaced(
        self, place: Place, change: Callable[[bytes], bytes]
    ) -> None:
        seen = Seen()
        record, blobs = make_record()
        name = layout.act("dev", record.kind, record.key, record.variant)
        Records(place.open(), "dev").publish(record, blobs)
        damage(place, name, change)
        records = Records(fresh(place), "dev", seen)
        assert records.find("kernel", KEY) == []
        assert len(seen.named("store.skip")) == 1
        assert records.publish(record, blobs) is True
        assert Records(fresh(place), "dev").find("kernel", KEY) == [record]

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
        assert Records(fresh(place), "dev").publish(record, blobs, rewrite=True) is False
        assert Records(fresh(place), "dev").fetch(record.blobs) == blobs

    def test_damaged_blobs_make_their_record_a_miss_until_republished_once(
        self, place: Place
    ) -> None:
        record, blobs = make_record()
        Records(place.open(), "dev").publish(record, blobs)
        for digest in record.blobs[:2]:
            damage(place, layout.cas(digest), flip)
        records = Records(fresh(place), "dev")
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

    def test_tag_copied_to_another_name_is_refused_and_set_again(self, place: Place) -> None:
        records = Records(place.open(), "dev")
        first, second = (records.put_bundle(Bundle((), (), (), {"n": n})) for n in (1, 2))
        records.set_tag("dev", "t", first)
        stolen, _ = place.raw.get_tag(layout.tag("dev", "t"))
        place.raw.swap(layout.tag("dev", "u"), stolen, None)
        with pytest.raises(SchemaError, match="of another name"):
            records.get_tag("dev", "u")
        records.set_tag("dev", "u", second)
        assert Records(fresh(place), "dev").get_tag("dev", "u") == second

    @pytest.mark.parametrize("change", [flip, truncate, empty])
    def test_damaged_bundle_is_put_again(
        self, place: Place, change: Callable[[bytes], bytes]
    ) -> None:
        bundle = Bundle((), (), (), {"n": 3})
        digest = Records(place.open(), "dev").put_bundle(bundle)
        damage(place, layout.bundle(digest), change)
        assert Records(fresh(place), "dev").put_bundle(bundle) == digest
        assert Records(fresh(place), "dev").get_bundle(digest) == bundle


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
