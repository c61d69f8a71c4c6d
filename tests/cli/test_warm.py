"""warm, pull and ls as commands, in processes and folders of their own; and what an interrupt leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stax.store import Records, open_store

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch

def f(a, b):
    return (torch.relu(a + b) * 2).sum(-1)

def many(a, b):
    out = []
    for n in range(12):
        out.append((torch.sin(a) * n).cumsum(0).amax(n % 2) + torch.exp(b).sum(n % 2))
        a = a.softmax(n % 2) + n
    return out

def one():
    return (torch.ones(64, 64), torch.ones(64, 64)), {}

def two():
    return [one(), ((torch.ones(3, 5), torch.ones(3, 5)), {})]
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stax", *arguments]


def environ(folder: Path) -> dict[str, str]:
    """A person of their own: another HOME and cache."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "STAX_CACHE_DIR": str(folder / "cache"),
    }


def stax(folder: Path, *arguments: str) -> str:
    """Standard output of a command run in ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(PROGRAM)
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def warm(
    folder: Path, store: str, inputs: str = "mine:one", name: str = "mine:f"
) -> dict[str, object]:
    """The report of one warm, of its only call."""
    out = stax(
        folder, "warm", name, "--inputs", inputs, "--target", "cpu:x86-64-v2", "--target", "cuda:sm_90",
        "--store", store, "--tag", "mine@1", "--json", "-",
    )  # fmt: skip
    return json.loads(out)[0]


def test_second_warm_hits_and_a_pull_brings_all(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    first = warm(tmp_path / "a", store)
    assert (first["artifacts"], first["kernels_built"], first["artifacts_hit"]) == (2, 2, 0)
    second = warm(tmp_path / "b", store)
    assert (second["kernels_built"], second["artifacts_hit"], second["bytes_published"]) == (
        0,
        2,
        0,
    )
    assert second["bundle"] == first["bundle"] and second["keys"] == first["keys"]

    copy = tmp_path / "copy"
    pulled = json.loads(
        stax(tmp_path / "c", "pull", "mine@1", "--store", store, "--to", str(copy), "--json")
    )
    assert (pulled["artifacts"], pulled["bundle"]) == (2, first["bundle"])
    rows = json.loads(stax(tmp_path / "c", "ls", "--store", copy.as_uri(), "--json"))
    assert [(r["tag"], r["bundle"], r["trouble"]) for r in rows] == [
        ("mine@1", first["bundle"], "")
    ]


def test_two_people_publish_the_same_bytes(tmp_path: Path) -> None:
    """Other folders, another HOME, two empty stores: the same keys and byte-identical blobs."""
    reports = [warm(tmp_path / who, (tmp_path / f"store-{who}").as_uri()) for who in "ab"]
    assert reports[0]["keys"] == reports[1]["keys"] and reports[0]["bundle"] == reports[1]["bundle"]
    blobs = [
        sorted(
            p.relative_to(tmp_path / f"store-{who}")
            for p in (tmp_path / f"store-{who}/cas").rglob("*")
        )
        for who in "ab"
    ]
    assert blobs[0] == blobs[1] and blobs[0]


def test_one_tag_holds_several_calls(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    report = warm(tmp_path / "a", store, inputs="mine:two")
    bundle = Records(open_store(store), "dev").get_bundle(str(report["bundle"]))
    assert len(bundle.records) == 4
    assert bundle.targets == ("cpu:x86-64-v2", "cuda:sm_90")


@pytest.mark.ray
def test_a_farm_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Who asks for a farm does not get hours of local builds instead."""
    (tmp_path / "mine.py").write_text(PROGRAM)
    done = subprocess.run(
        command(
            "warm", "mine:f", "--inputs", "mine:one", "--target", "cpu:x86-64-v2", "--ray", "127.0.0.1:9",
            "--store", (tmp_path / "store").as_uri(), "--tag", "mine@1",
        ),
        cwd=tmp_path, env=environ(tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "stax: no Ray cluster" in done.stderr and "127.0.0.1:9" in done.stderr
    assert Records(open_store((tmp_path / "store").as_uri()), "dev").list_tags("dev") == []


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_children_and_publishes_no_tag(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    store = (tmp_path / "store").as_uri()
    # However fast the machine, the compiles outlast the moment between seeing one and sending the signal.
    slow = tmp_path / "slow-g++"
    slow.write_text('#!/bin/sh\ng++ "$@" || exit $?\ncase "$*" in *-dump*) ;; *) sleep 2 ;; esac\n')
    slow.chmod(0o755)
    process = subprocess.Popen(
        command(
            "warm", "mine:many", "--inputs", "mine:one", "--target", "cpu:x86-64-v2", "--store", store,
            "--tag", "mine@1",
        ),
        cwd=tmp_path, env=environ(tmp_path) | {"STAX_CXX": str(slow)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    below = compilers_of(process)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive
    assert Records(open_store(store), "dev").list_tags("dev") == []


def compilers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Everything below the process, once one of them compiles."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        if any("cc1plus" in name_of(child) for child in below):
            return below
        time.sleep(0.02)
    raise AssertionError("no compiler was seen")


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
