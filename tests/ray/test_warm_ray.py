"""``stax warm --ray``: two at once build each kernel once, and a killed worker costs a retry, not the job."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from warm_cli import finished, report, start

from farm import cluster
from farm.session import reach
from stax.store.open import open_store

pytestmark = pytest.mark.ray


def status() -> dict[str, object]:
    return cluster.ask(reach().status.remote(), 30)


def built() -> int:
    counts = status()["counts"]
    assert isinstance(counts, dict)
    return int(counts.get("built", 0))


def test_two_warms_at_once_build_each_kernel_once(ray_address: str, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    before = built()
    runs = [start(tmp_path / name, store, "--ray", ray_address) for name in ("a", "b")]
    for run in runs:
        done = finished(run)
        assert done.returncode == 0, done.stderr
    opened = open_store(store)
    kernels = [n for n in opened.list("act/") if n.split("/")[2] == "kernel"]
    assert built() - before == len(kernels) > 0
    assert report(tmp_path / "a")["bundle"] == report(tmp_path / "b")["bundle"]


def test_a_worker_killed_during_warm(ray_address: str, tmp_path: Path) -> None:
    before = built()
    run = start(tmp_path / "a", (tmp_path / "store").as_uri(), "--ray", ray_address, "--dynamic")
    killed = _kill_a_busy_worker(before)
    done = finished(run)
    assert killed and done.returncode == 0, done.stderr
    assert report(tmp_path / "a")["kernels_built"] == report(tmp_path / "a")["kernels_total"]


def _kill_a_busy_worker(before: int) -> bool:
    """SIGKILL the process of a worker as soon as this warm's first kernel is built, while others are under way."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        now = status()
        workers = now["each_worker"]
        assert isinstance(workers, dict)
        pids = [int(str(w["place"]).rpartition(":")[2]) for w in workers.values() if w["place"]]
        if built() > before and pids:
            os.kill(pids[0], signal.SIGKILL)
            return True
        time.sleep(0.02)
    return False
