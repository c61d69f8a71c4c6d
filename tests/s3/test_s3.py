"""The store suite on a real S3 server (SeaweedFS), alone and behind a local tier; and the server going away."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from servers import S3Server, s3_server
from suites.record_suite import ProcessSuite, RecordSuite
from suites.store_doubles import KEY, Place, Seen, blob, flip, make_record, truncate
from suites.store_suite import StoreSuite

from stax.base.errors import Corrupt, Missing, Refused, StoreError, Transient
from stax.store import Counters, Records, Retrying, Store, Verified, layout, open_store
from stax.store.file import FileStore
from stax.store.s3 import S3Store, open_s3

if TYPE_CHECKING:
    from conftest import S3Access

pytestmark = pytest.mark.s3


def layered(raw: S3Store) -> Store:
    """As open_store does, but on a client that exists: making one costs 0.15 s."""
    return Verified(Retrying(raw, random.Random(0)))


@dataclass
class S3Place:
    raw: S3Store

    def open(self) -> Store:
        return layered(self.raw)


@pytest.fixture
def url(s3_server: S3Access) -> str:
    """An empty prefix of the server."""
    return s3_server.url(uuid.uuid4().hex)


class TestS3(StoreSuite, RecordSuite):
    @pytest.fixture
    def place(self, url: str) -> Iterator[Place]:
        raw = open_s3(url, "")
        yield S3Place(raw)
        raw.close()


class TestTieredOverS3(ProcessSuite):
    """Each process has a local tier of its own. The rest of the suite runs on tiers in tests/store."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[Place]:
        raw = open_s3(url, "")
        yield S3Place(raw)
        raw.close()


# ── what this server says of mistakes ────────────────────────────────────────────────────────────


def test_wrong_bucket(s3_server: S3Access) -> None:
    store = open_store(f"s3://no-such-bucket/x?endpoint={s3_server.endpoint}")
    for call in (lambda: store.put(*blob(b"x")), lambda: list(store.list("cas/"))):
        with pytest.raises(Refused, match="bucket") as caught:
            call()
        assert "no-such-bucket" in caught.value.where and s3_server.endpoint in caught.value.where


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials(url: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "wrong")
    store = open_store(url)
    calls = (
        lambda: store.put(*blob(b"x")),
        lambda: store.get(blob(b"x")[0]),
        lambda: store.missing([blob(b"x")[0]]),
        lambda: list(store.list("")),
        lambda: store.get_tag(layout.tag("dev", "t")),
    )
    for call in calls:
        with pytest.raises(Refused, match="credentials"):
            call()


def test_no_credentials(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match="AWS_ACCESS_KEY_ID"):
        open_store(url).put(*blob(b"x"))


def test_url_alone_opens_the_same_store(url: str) -> None:
    store = open_store(url)
    name, data = blob(b"x")
    store.put(name, data)
    assert open_store(store.url).get(name) == data
    bare, _, query = url.partition("?endpoint=")
    assert open_store(bare, s3_endpoint=query).get(name) == data
    assert open_store(bare, s3_endpoint=query).url == store.url


def test_prefixes_do_not_see_each_other(url: str) -> None:
    first, second = open_store(url), open_store(url.replace("?", "2?"))
    name, data = blob(b"x")
    first.put(name, data)
    assert list(second.list("")) == [] and second.missing([name]) == {name}


# ── two tiers ────────────────────────────────────────────────────────────────────────────────────


def test_second_read_is_local_and_damage_there_falls_through(url: str, tmp_path: Path) -> None:
    counters = Counters()
    name, data = blob(b"x" * 1000)
    open_store(url).put(name, data)
    store = open_store(url, cache_dir=tmp_path, observer=counters)
    assert store.get(name) == store.get(name) == data
    assert counters.read()["remote.get.ok"] == counters.read()["local.get.ok"] == 1
    for change in (flip, truncate):
        path = tmp_path / name
        path.write_bytes(change(path.read_bytes()))
        assert store.get(name) == data
    assert counters.read()["remote.get.ok"] == 3
    assert store.get(name) == data
    assert counters.read()["local.get.ok"] == 2
    assert counters.read()["degraded.local"] == 2


def test_damage_in_s3_heals_behind_a_tier(url: str, tmp_path: Path) -> None:
    raw = open_s3(url, "")
    record, blobs = make_record()
    first = Records(open_store(url, cache_dir=tmp_path / "a"), "dev")
    first.publish(record, blobs)
    name = layout.cas(record.blobs[0])
    raw.heal(name, flip(raw.get(name)))
    cold = Records(open_store(url, cache_dir=tmp_path / "b"), "dev")
    with pytest.raises(Corrupt, match=name):
        cold.fetch(record.blobs)
    assert cold.find("kernel", KEY) == []
    cold.publish(record, blobs)
    assert cold.find("kernel", KEY) == [record]
    assert Records(open_store(url), "dev").fetch(record.blobs) == blobs


def test_publishing_does_not_trust_the_local_tier(url: str, tmp_path: Path) -> None:
    """The shared store was emptied behind a warm local tier: publishing fills it again."""
    store = open_store(url, cache_dir=tmp_path)
    record, blobs = make_record()
    Records(store, "dev").publish(record, blobs)
    raw = open_s3(url, "")
    for name in list(raw.list("")):
        raw.delete(name)
    assert Records(store, "dev").publish(record, blobs) is True
    assert Records(open_store(url), "dev").fetch(record.blobs) == blobs


# ── the server goes away ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server that a test may kill."""
    with s3_server(tmp_path / "own") as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


def test_server_killed_during_a_publish(own_server: S3Server) -> None:
    url = f"s3://{own_server.bucket}/x?endpoint={own_server.endpoint}"
    made = [make_record(key=f"{i}", seed=i, count=6) for i in range(200)]
    seen = Seen()
    records = Records(open_store(url, observer=seen), "dev")

    def kill_soon() -> None:
        while len(seen.events) < 60:
            time.sleep(0.001)
        own_server.kill()

    killer = threading.Thread(target=kill_soon)
    killer.start()
    start_s = time.monotonic()
    with pytest.raises(Transient) as caught:
        for record, blobs in made:
            records.publish(record, blobs)
    spent_s = time.monotonic() - start_s
    killer.join()
    assert spent_s < 30
    assert own_server.endpoint in caught.value.where and "server" in str(caught.value)

    own_server.start()
    fresh = Records(open_store(url), "dev")
    written = [name.split("/")[3] for name in fresh.store.list("act/")]
    assert 0 < len(written) < len(made)
    for key in written:  # no record names an absent or damaged blob
        (record,) = fresh.find("kernel", key)
        assert fresh.fetch(record.blobs) == made[int(key)][1]
    for record, blobs in made[:40]:  # publishing takes up where it ended
        fresh.publish(record, blobs)
        assert fresh.find("kernel", record.key) == [record]


def test_server_down_with_a_warm_local_tier(own_server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{own_server.bucket}/x?endpoint={own_server.endpoint}"
    counters = Counters()
    store = open_store(url, cache_dir=tmp_path / "cache", observer=counters)
    records = Records(store, "dev")
    record, blobs = make_record()
    records.publish(record, blobs)
    records.put_blob(b"bundle")
    store.swap(layout.tag("dev", "t"), b"value", None)
    own_server.kill()
    start_s = time.monotonic()
    assert records.find("kernel", KEY) == [record]
    assert records.fetch(record.blobs) == blobs
    assert store.get_tag(layout.tag("dev", "t"))[0] == b"value"
    for index in range(100):
        with pytest.raises(StoreError):
            records.get_blob(f"{index:064}")
    other, other_blobs = make_record(key="other", seed=5)
    with pytest.raises(Transient):
        records.publish(other, other_blobs)
    assert time.monotonic() - start_s < 15
    assert counters.read()["degraded.remote"] == 2
    assert counters.read()["outage"] >= 1
    assert records.store.list(layout.act_prefix("dev", "kernel", "other"))
    with pytest.raises(Missing):
        FileStore(tmp_path / "cache").get(layout.cas(other.blobs[0]))


def test_acknowledged_puts_survive_kill_minus_nine(own_server: S3Server) -> None:
    store = Verified(S3Store(own_server.bucket, "x", own_server.endpoint))
    held = [blob(b"%d" % i * 1000) for i in range(50)]
    for name, data in held:
        assert store.put(name, data)
    own_server.kill()
    own_server.start()
    for name, data in held:
        assert store.get(name) == data
