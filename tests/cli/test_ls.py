"""ls over stores that are made by hand."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from stax.base.digest import sha256
from stax.cli import main
from stax.cli.warm import merged
from stax.store import Bundle, Record, Records, layout, open_store

KEY = "ab" * 32


def bundle_of(raw: bytes, target: str, variant: str) -> Bundle:
    record = Record("request", KEY, variant, {}, (sha256(raw),))
    return Bundle((target,), (record,), ((sha256(raw), len(raw)),))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one good tag, and one that names a bundle which is gone."""
    folder = (tmp_path / "store").as_uri()
    with closing(open_store(folder)) as store:
        records = Records(store, "dev")
        records.put_blob(b"x" * 1500)
        good = records.put_bundle(bundle_of(b"x" * 1500, "cpu:x86-64", "v"))
        records.set_tag("dev", "model@1", good)
        records.put_blob(b"y")
        lost = records.put_bundle(bundle_of(b"y", "cpu:x86-64", "w"))
        records.set_tag("dev", "lost", lost)
        store.delete(layout.bundle(lost))
    return folder


def test_lines(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--store", url]) == 0
    lost, good = capsys.readouterr().out.splitlines()
    assert lost.startswith("lost     broken: ")
    assert good.startswith("model@1  ") and good.endswith(
        "1 artifacts, 1 blobs, 1.5 kB  cpu:x86-64"
    )


def test_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--store", url, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["tag"], r["size_bytes"], bool(r["trouble"])) for r in rows] == [
        ("lost", 0, True),
        ("model@1", 1500, False),
    ]


def test_another_tier_is_empty(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--store", url, "--tier", "prod"]) == 0
    assert capsys.readouterr().out == f"no tags in tier prod of {url}\n"


def test_bundles_of_several_calls_become_one() -> None:
    one, two = bundle_of(b"x", "cpu:x86-64", "v"), bundle_of(b"yy", "cuda:sm_90", "w")
    both = merged([one, two, one])
    assert both.targets == ("cpu:x86-64", "cuda:sm_90")
    assert [r.variant for r in both.records] == ["v", "w"]
    assert dict(both.blobs) == {sha256(b"x"): 1, sha256(b"yy"): 2}
    assert Bundle.decode(both.encode(), "both") == both
