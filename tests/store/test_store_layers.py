"""The layers one by one, over memory stores and scripted faults, with a clock that only moves when slept on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from suites.store_doubles import KEY, Faulty, Seen, blob, flip, make_record

from stax.base.errors import Corrupt, Missing, OptionError, Refused, StoreError, Transient
from stax.base.observe import fan_out
from stax.store import (
    Breaker,
    Counters,
    MemoryStore,
    Metered,
    Records,
    Retrying,
    Store,
    Tiered,
    Verified,
    layout,
    open_store,
)


@dataclass
class Clock:
    now_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s


@dataclass
class Script:
    """Raises the errors in turn, then no more."""

    errors: list[StoreError | None]
    calls: int = 0

    def __call__(self, verb: str, name: str) -> None:
        self.calls += 1
        if self.errors and (error := self.errors.pop(0)):
            raise error


def retrying(inner: Store, clock: Clock, **options: float) -> Retrying:
    return Retrying(inner, random.Random(0), sleep=clock.sleep, clock=clock, **options)  # type: ignore[arg-type]


# ── Retrying ─────────────────────────────────────────────────────────────────────────────────────


def test_transient_is_repeated_with_growing_jittered_waits() -> None:
    clock, script = Clock(), Script([Transient("1"), Transient("2"), Transient("3")])
    name, data = blob(b"x")
    assert retrying(Faulty(MemoryStore(), script), clock).put(name, data) is True
    assert script.calls == 4 and len(clock.waits_s) == 3
    for wait_s, base_s in zip(clock.waits_s, (0.1, 0.2, 0.4)):
        assert base_s / 2 <= wait_s <= base_s
    assert len({round(w / b, 6) for w, b in zip(clock.waits_s, (0.1, 0.2, 0.4))}) == 3


def test_attempts_are_bounded_and_the_last_error_is_raised() -> None:
    clock, script = Clock(), Script([Transient(str(i)) for i in range(1, 10)])
    with pytest.raises(Transient, match="4"):
        retrying(Faulty(MemoryStore(), script), clock).get(blob(b"x")[0])
    assert script.calls == 4


def test_no_attempt_starts_after_the_deadline() -> None:
    clock = Clock()

    def stall(verb: str, name: str) -> None:
        clock.now_s += 15.0
        raise Transient("timed out")

    with pytest.raises(Transient):
        retrying(Faulty(MemoryStore(), stall), clock).get(blob(b"x")[0])
    assert clock.now_s < 31


@pytest.mark.parametrize("error", [Missing("m"), Refused("r"), Corrupt("c")])
def test_other_errors_are_not_repeated(error: StoreError) -> None:
    clock, script = Clock(), Script([error])
    with pytest.raises(type(error)):
        retrying(Faulty(MemoryStore(), script), clock).get(blob(b"x")[0])
    assert script.calls == 1 and not clock.waits_s


def test_broken_listing_goes_on_where_it_was() -> None:
    inner = MemoryStore()
    names = sorted(layout.act("dev", "k", "key", f"{i:03}") for i in range(50))
    for name in names:
        inner.put(name, b"x")
    script = Script([None] * 20 + [Transient("reset")] + [None] * 30 + [Transient("reset")])
    assert list(retrying(Faulty(inner, script), Clock()).list("act/")) == names


def test_swap_whose_answer_was_lost_has_won() -> None:
    inner, clock = MemoryStore(), Clock()
    tag = layout.tag("dev", "t")

    @dataclass
    class AnswerLost(Faulty):
        lost: bool = False

        def swap(self, name: str, data: bytes, expect: str | None) -> str:
            etag = self.inner.swap(name, data, expect)
            if not self.lost:
                self.lost = True
                raise Transient("connection reset after the write")
            return etag

    etag = retrying(AnswerLost(inner, Script([])), clock).swap(tag, b"one", None)
    assert inner.get_tag(tag) == (b"one", etag)
    with pytest.raises(Refused):
        retrying(AnswerLost(inner, Script([])), clock).swap(tag, b"two", None)


# ── Breaker ──────────────────────────────────────────────────────────────────────────────────────


def test_outage_costs_two_calls_and_ends_by_itself() -> None:
    inner, clock, seen = MemoryStore(), Clock(), Seen()
    name, data = blob(b"x")
    inner.put(name, data)
    script = Script([Transient("down")] * 3)
    store = Breaker(Faulty(inner, script), clock=clock, observer=seen)
    for _ in range(100):
        with pytest.raises(Transient, match="down"):
            store.get(name)
    assert script.calls == 2 and len(seen.named("store.outage")) == 1
    clock.now_s += 16
    with pytest.raises(Transient):  # still down: one more call, and the next pause
        store.get(name)
    with pytest.raises(Transient, match="not asked again"):
        store.get(name)
    assert script.calls == 3
    clock.now_s += 16
    assert store.get(name) == store.get(name) == data


def test_one_time_out_is_an_outage_and_the_pause_is_a_multiple_of_it() -> None:
    inner, clock, asked = MemoryStore(), Clock(), list[str]()
    name, data = blob(b"x")
    inner.put(name, data)

    def time_out(verb: str, name: str) -> None:
        asked.append(verb)
        clock.now_s += 20
        raise Transient("no answer")

    store = Breaker(Faulty(inner, time_out), clock=clock)
    start_s = clock.now_s
    while clock.now_s - start_s < 1800:
        clock.now_s += 1
        with pytest.raises(Transient):
            list(store.list("cas/")) if len(asked) % 2 else store.get(name)
    assert 20 * len(asked) < 1800 / 8


def test_after_the_pause_one_call_finds_out_for_all() -> None:
    inner, clock = MemoryStore(), Clock()
    name, data = blob(b"x")
    inner.put(name, data)
    script = Script([Transient("down")] * 2)
    store = Breaker(Faulty(inner, script), clock=clock)
    for _ in range(2):
        with pytest.raises(Transient):
            store.get(name)
    clock.now_s += 16

    def meanwhile(verb: str, name: str) -> None:
        with pytest.raises(Transient, match="not asked again"):
            store.missing([name])

    probing = Breaker(Faulty(inner, meanwhile), clock=clock, outage=store.outage)
    assert probing.get(name) == store.get(name) == data


def test_answers_of_any_kind_are_no_outage() -> None:
    script = Script([Transient("t"), Missing("m")] * 10)
    store = Breaker(Faulty(MemoryStore(), script), clock=Clock())
    for _ in range(20):
        with pytest.raises((Transient, Missing)):
            store.get(blob(b"x")[0])
    assert script.calls == 20


# ── Tiered ───────────────────────────────────────────────────────────────────────────────────────


def tiers(
    local_fault: Callable[[str, str], None], remote_fault: Callable[[str, str], None]
) -> tuple[Tiered, MemoryStore, MemoryStore, Counters]:
    local, remote, counters = MemoryStore(), MemoryStore(), Counters()
    store = Tiered(
        Verified(Faulty(local, local_fault)), Verified(Faulty(remote, remote_fault)), counters
    )
    return store, local, remote, counters


def fine(verb: str, name: str) -> None:
    return None


def broken(verb: str, name: str) -> None:
    raise Transient("broken")


def forbidden(verb: str, name: str) -> None:
    raise Refused("forbidden")


@pytest.mark.parametrize("fault", [broken, forbidden])
def test_a_broken_local_tier_fails_nobody(fault: Callable[[str, str], None]) -> None:
    store, _, remote, counters = tiers(fault, fine)
    records = Records(store, "dev")
    record, blobs = make_record()
    assert records.publish(record, blobs) is True
    assert records.find("kernel", KEY) == [record]
    assert records.fetch(record.blobs) == blobs
    tag = layout.tag("dev", "t")
    store.swap(tag, b"1", None)
    assert store.get_tag(tag)[0] == b"1"
    store.heal(*blob(b"x"))
    store.delete(tag)
    assert list(store.list("cas/")) == list(remote.list("cas/"))
    assert counters.read()["degraded.local"] > 8


def test_a_write_that_remote_refused_is_nowhere() -> None:
    name, data = blob(b"x")
    for fault in (broken, forbidden):
        store, local, _, _ = tiers(fine, fault)
        for write in (store.put, store.heal):
            with pytest.raises((Transient, Refused)):
                write(name, data)
        assert list(local.list("")) == []


def test_reads_without_remote_use_what_local_has() -> None:
    store, local, remote, _ = tiers(fine, fine)
    record, blobs = make_record()
    Records(store, "dev").publish(record, blobs)
    store.swap(layout.tag("dev", "t"), b"1", None)
    seen = Seen()
    cut = Tiered(Verified(local), Verified(Faulty(remote, broken)), seen)
    records = Records(cut, "dev")
    assert records.find("kernel", KEY) == [record]
    assert records.fetch(record.blobs) == blobs
    assert cut.get_tag(layout.tag("dev", "t"))[0] == b"1"
    assert [event.fields["verb"] for event in seen.named("store.degraded")] == ["list", "get_tag"]
    with pytest.raises(Transient):
        cut.get(blob(b"absent")[0])
    with pytest.raises(Transient):
        cut.get_tag(layout.tag("dev", "absent"))
    with pytest.raises(Transient):
        cut.missing([blob(b"absent")[0]])


def test_listing_that_breaks_half_way_is_completed_by_local() -> None:
    store, local, remote, _ = tiers(fine, fine)
    names = sorted(layout.act("dev", "k", "key", f"{i}") for i in range(9))
    for name in names:
        store.put(name, b"x")
    cut = Tiered(Verified(local), Faulty(remote, Script([None] * 5 + [Transient("cut")])))
    assert list(cut.list("act/")) == names


def test_a_record_that_lost_the_race_is_not_kept_locally() -> None:
    store, local, _, _ = tiers(fine, fine)
    name = layout.act("dev", "k", "key", "v")
    store.remote.put(name, b"theirs")
    assert store.put(name, b"ours") is False
    assert list(local.list("")) == []
    assert store.get(name) == b"theirs"


def test_a_tag_deleted_remotely_is_forgotten_locally() -> None:
    store, local, remote, _ = tiers(fine, fine)
    tag = layout.tag("dev", "t")
    store.swap(tag, b"1", None)
    remote.delete(tag)
    with pytest.raises(Missing):
        store.get_tag(tag)
    assert list(local.list("")) == []


def test_a_damaged_local_tag_is_written_again() -> None:
    store, local, remote, _ = tiers(fine, fine)
    tag = layout.tag("dev", "t")
    etag = store.swap(tag, b"1", None)
    local.swap(tag, b"damaged", local.get_tag(tag)[1])
    assert store.get_tag(tag) == (b"1", etag)
    assert store.get_tag(tag) == (b"1", etag)
    assert local.get_tag(tag)[0] == remote.get_tag(tag)[0]


def test_both_tiers_damaged_is_corrupt_and_one_publish_heals_both() -> None:
    store, local, remote, _ = tiers(fine, fine)
    name, data = blob(b"x" * 1000)
    store.put(name, data)
    for tier in (local, remote):
        tier.heal(name, flip(tier.get(name)))
    with pytest.raises(Corrupt):
        store.get(name)
    assert store.shared.missing([name]) == store.missing([name]) == {name}
    assert store.put(name, data) is True
    assert Verified(local).get(name) == Verified(remote).get(name) == data


def test_shared_is_seen_through_every_layer() -> None:
    store, _, remote, counters = tiers(fine, fine)
    name, data = blob(b"x")
    store.local.put(name, data)
    wrapped: tuple[Store, ...] = (
        Metered(store, "all", counters),
        Retrying(store, random.Random(0)),
        Breaker(store),
        Metered(Breaker(Retrying(store, random.Random(0))), "all", counters),
    )
    for layer in wrapped:
        assert layer.missing([name]) == set()
        assert layer.shared.missing([name]) == {name}
        assert layer.url == remote.url
    assert open_store("memory:").shared.missing([name]) == {name}


# ── Metered and Counters ─────────────────────────────────────────────────────────────────────────


def test_counters() -> None:
    counters, seen = Counters(), Seen()
    store = open_store("memory:", observer=fan_out(counters, seen))
    name, data = blob(b"x" * 1000)
    store.put(name, data)
    store.put(name, data)
    store.get(name)
    with pytest.raises(Missing):
        store.get(blob(b"absent")[0])
    with pytest.raises(Refused):
        store.get("bad name")
    list(store.list(""))
    counts = {k: v for k, v in counters.read().items() if not k.endswith(".us")}
    assert counts == {
        "local.get.bytes": 1000,
        "local.get.missing": 1,
        "local.get.ok": 1,
        "local.get.refused": 1,
        "local.list.bytes": len(name),
        "local.list.ok": 1,
        "local.put.bytes": 2000,
        "local.put.created": 1,
        "local.put.existed": 1,
    }
    assert len(seen.named("store.call")) == 6


# ── open_store ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "/a/path",
        "file:relative",
        "file://host/path",
        "file:///",
        "file:///x?y=1",
        "memory:x",
        "s3:",
        "s3://",
        "s3:///prefix",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/" + "x" * 300,
        "s3://bucket/x?region=eu",
        "http://host/",
        "s3://bucket/x?endpoint=nonsense",
    ],
)
def test_bad_urls_say_what_is_accepted(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_store(url)
    assert caught.value.expected


def test_empty_url_is_the_local_tier(tmp_path) -> None:
    store = open_store("", cache_dir=tmp_path / "my cache")
    name, data = blob(b"x")
    store.put(name, data)
    assert store.url == (tmp_path / "my cache").as_uri()
    assert open_store(store.url).get(name) == data
