"""stax warm and its readers against a real S3 server: resuming, damage, and the same bytes wherever it runs."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
import warm_model
import zstandard
from servers import S3Server
from warm_cli import finished, report, start, warm

import stax
from stax.api.session import Session
from stax.base.errors import StoreError
from stax.base.options import Environment
from stax.store.open import open_store
from stax.store.records import Records


def objects(root: Path) -> dict[str, str]:
    """Name and digest of what each object says, compression and folders of the store itself aside."""
    found: dict[str, str] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if data[:4] == b"\x28\xb5\x2f\xfd":
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 28)
        found[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest()
    return found


def test_two_places_same_keys_same_bytes(tmp_path: Path) -> None:
    seen = []
    for name, seed in (("here", "1"), ("elsewhere/deeper", "2")):
        folder = tmp_path / name
        store = folder / "store"
        done = warm(folder, store.as_uri(), environ={"PYTHONHASHSEED": seed, "STAX_JOBS": "2"})
        assert done.returncode == 0, done.stderr
        seen.append((report(folder), objects(store)))
    (one, left), (two, right) = seen
    assert one["keys"] == two["keys"] and one["bundle"] == two["bundle"]
    assert left == right and any(n.startswith("cas/") for n in left)


def test_a_second_warm_builds_nothing(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    first, second = tmp_path / "a", tmp_path / "b"
    assert warm(first, store).returncode == 0
    assert warm(second, store).returncode == 0
    assert report(first)["kernels_built"] > 0
    assert report(second)["kernels_built"] == 0 and report(second)["artifacts_hit"] == 2


@pytest.mark.s3
def test_server_stopped_half_way_then_resumed(tmp_path: Path) -> None:
    server = S3Server(tmp_path / "weed", base_port=_port())
    server.start()
    try:
        _stopped_half_way(server, tmp_path)
    finally:
        server.stop()


def _stopped_half_way(server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{server.bucket}/half?endpoint={server.endpoint}"
    os.environ.update(server.environ)
    process = start(tmp_path / "a", url)
    _wait_for_some(url)
    server.kill()
    began = time.monotonic()
    dead = finished(process)
    assert dead.returncode == 1 and time.monotonic() - began < 120
    assert server.endpoint in dead.stderr and "hint" in dead.stderr, dead.stderr
    assert "Traceback" not in dead.stderr
    server.start()
    assert not list(_all_whole(url)), "a tag points at a bundle of a warm that did not finish"
    again = warm(tmp_path / "b", url)
    assert again.returncode == 0, again.stderr
    assert report(tmp_path / "b")["kernels_hit"] > 0
    assert list(_all_whole(url)) == ["small"]


def _wait_for_some(url: str) -> None:
    """Until the first kernel is published."""
    store = open_store(url)
    deadline = time.monotonic() + 120
    while not list(store.list("act/")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    store.close()


def _all_whole(url: str) -> list[str]:
    """The tags, when every record's blobs exist, and every tag's bundle."""
    store = open_store(url)
    records = Records(store, Environment.read().tier)
    names = [n for n in store.list("act/")]
    for kind, key in {tuple(n.split("/")[2:4]) for n in names}:
        assert records.find(kind, key), f"{kind}/{key} is not whole"
    for tag in records.list_tags(records.tier):
        records.get_bundle(records.get_tag(records.tier, tag))
    tags = records.list_tags(records.tier)
    store.close()
    return tags


def _port() -> int:
    from servers import free_ports

    return free_ports()


@pytest.mark.parametrize("kind", ["request", "kernel"])
def test_a_flipped_byte_is_a_named_miss_and_heals(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    url = root.as_uri()
    x = torch.randn(5, 48)
    with torch.no_grad():
        expected = warm_model.model(x)
        compiled = stax.compile(warm_model.model, store=url)
        torch.testing.assert_close(compiled(x), expected)
        blob = _blob_of(url, kind)
        _flip(root / "cas" / blob)
        victim = stax.compile(warm_model.model, store=url)
        torch.testing.assert_close(victim(x), expected)
        assert any(blob in reason for reason in victim.stats().misses), victim.stats().misses
        healed = stax.compile(warm_model.model, store=url, mode="require-hit")
        torch.testing.assert_close(healed(x), expected)
        assert healed.stats().captures == 0


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["request", "kernel"])
def test_a_byte_flipped_on_the_server(kind: str, s3_server: Any, tmp_path: Path) -> None:
    """One machine publishes, the server's bytes rot, a second machine notices and mends, a third only pulls."""
    prefix = uuid.uuid4().hex
    url, x = s3_server.url(prefix), torch.randn(5, 48)

    def machine(name: str, mode: str) -> stax.Compiled:
        environment = Environment(store=url, cache_dir=tmp_path / name, mode=mode)
        return stax.Compiled(
            warm_model.model, dynamic=False, fullgraph=True, options=stax.Options(), target=None,
            session=Session(environment=environment),
        )  # fmt: skip

    with torch.no_grad():
        expected = warm_model.model(x)
        torch.testing.assert_close(machine("one", "auto")(x), expected)
        blob = _blob_of(url, kind)
        server = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")
        where = {"Bucket": s3_server.bucket, "Key": f"{prefix}/cas/{blob}"}
        data = bytearray(server.get_object(**where)["Body"].read())
        data[len(data) // 2] ^= 0x40
        server.put_object(**where, Body=bytes(data))
        second = machine("two", "auto")
        torch.testing.assert_close(second(x), expected)
        assert any(blob in reason for reason in second.stats().misses), second.stats().misses
        third = machine("three", "require-hit")
        torch.testing.assert_close(third(x), expected)
        assert third.stats().captures == 0 and third.stats().hits["remote"] > 0


def _blob_of(url: str, kind: str) -> str:
    store = open_store(url)
    records = Records(store, Environment.read().tier)
    name = next(n for n in store.list("act/") if n.split("/")[2] == kind)
    (record,) = records.find(*name.split("/")[2:4])
    return record.blobs[0]


def _flip(path: Path) -> None:
    if not path.exists():
        (path,) = [p for p in path.parent.parent.rglob(path.name)]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(bytes(data))


def test_require_hit_says_what_it_missed(tmp_path: Path) -> None:
    compiled = stax.compile(warm_model.model, store=tmp_path.as_uri(), mode="require-hit")
    with torch.no_grad(), pytest.raises(stax.StaxError, match="no record under request"):
        compiled(torch.randn(2, 48))


def test_store_down_costs_the_saving_and_not_the_call(tmp_path: Path) -> None:
    compiled = stax.compile(warm_model.model, store="s3://artifacts/x?endpoint=http://127.0.0.1:9")
    x = torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), warm_model.model(x))
    assert compiled.stats().degraded > 0


def test_errors_of_the_store_reach_who_warms(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        stax.warm(
            warm_model.model, *warm_model.inputs(), targets=["cpu:x86-64-v3"],
            store="s3://artifacts/x?endpoint=http://127.0.0.1:9",
        )  # fmt: skip
