"""The farm as other processes see it: clients side by side, no CPUs, no cluster, a cluster of one's own, the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from farm_cluster import RayCluster
from suites.builder_suite import cpp_job, small_text

from farm import cluster
from farm.__main__ import main
from farm.client import RayBuilder
from farm.session import reach

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]

PRELUDE = """
import json, sys, time
sys.path[:0] = {paths!r}
from suites.builder_suite import cpp_job, slow_text, small_text
from farm.client import RayBuilder
from stax.base.errors import FarmError
from stax.build.job import Built
from stax.build.local import LocalBuilder
begun = time.monotonic()
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    """A Python process in a folder that has no Stax; its last line is JSON."""
    paths = [str(ROOT), str(ROOT / "tests")]
    command = [sys.executable, "-c", PRELUDE.format(paths=paths) + code]
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answer(process: subprocess.Popen[str]) -> Mapping[str, Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def counts() -> Mapping[str, int]:
    status = cluster.ask(reach().status.remote(), 30)
    return status["counts"]


def test_two_processes_that_warm_the_same_model_build_each_kernel_once(
    ray_address: str, tmp_path: Path
):
    salt = os.urandom(8).hex()
    code = f"""
builder = RayBuilder({ray_address!r}, {(tmp_path / "store").as_uri()!r})
jobs = [cpp_job(slow_text(f"{salt} {{number}}", 0.2)) for number in range(8)]
built = [r for r in builder.build(jobs) if isinstance(r, Built)]
builder.close()
print(json.dumps({{"built": len(built)}}))
"""
    before = counts()
    processes = [start(code, tmp_path) for _ in range(2)]
    assert [answer(p)["built"] for p in processes] == [8, 8]
    assert counts()["built"] - before.get("built", 0) == 8


def test_a_cluster_without_cpus_is_told_in_time_or_the_work_is_done_here(tmp_path: Path):
    empty = RayCluster(cpus=0)
    empty.start()
    code = f"""
told = []
builder = RayBuilder({empty.address!r}, patience_s=2)
try:
    list(builder.build([cpp_job(small_text("empty"))]))
except FarmError as error:
    told.append(str(error))
seconds = time.monotonic() - begun
events = []
local = LocalBuilder(1)
builder = RayBuilder({empty.address!r}, patience_s=2, fallback=local, observe=lambda e: events.append(e.name))
(result,) = builder.build([cpp_job(small_text("empty"))])
local.close()
print(json.dumps({{"told": told, "seconds": seconds, "built": isinstance(result, Built), "events": events}}))
"""
    try:
        said = answer(start(code, tmp_path))
    finally:
        empty.stop()
    (told,) = said["told"]
    assert "no worker came up within 2 s" in told and "cluster_resources" in told
    assert said["seconds"] < 30
    assert said["built"] and "farm.fallback" in said["events"]


def test_a_head_that_dies_ends_neither_the_work_nor_this_process(tmp_path: Path):
    """Ray ends every process that is still connected a minute later."""
    doomed = RayCluster(cpus=1)
    doomed.start()
    code = f"""
import ray
def observe(event):
    if event.name == "farm.progress" and event.fields["running"]:
        print("running", flush=True)
local = LocalBuilder(1)
builder = RayBuilder({doomed.address!r}, fallback=local, observe=observe)
(result,) = builder.build([cpp_job(slow_text("head", 4))])
local.close()
print(json.dumps({{"built": isinstance(result, Built), "connected": ray.is_initialized()}}))
"""
    try:
        process = start(code, tmp_path)
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        assert doomed.process is not None
        os.killpg(doomed.process.pid, signal.SIGKILL)
        said = answer(process)
    finally:
        doomed.stop()
    assert said == {"built": True, "connected": False}


def test_without_ray_the_work_is_done_here(tmp_path: Path):
    code = """
sys.modules["ray"] = None
try:
    list(RayBuilder("127.0.0.1:1").build([cpp_job(small_text("none"))]))
except FarmError as error:
    told = str(error)
local = LocalBuilder(1)
(result,) = RayBuilder("127.0.0.1:1", fallback=local).build([cpp_job(small_text("none"))])
local.close()
print(json.dumps({"told": told, "built": isinstance(result, Built)}))
"""
    said = answer(start(code, tmp_path))
    assert said["built"] and "Ray is not installed" in said["told"] and "stax[farm]" in said["told"]


def test_nobody_listens_at_the_address(tmp_path: Path):
    code = """
try:
    list(RayBuilder("127.0.0.1:1").build([cpp_job(small_text("nobody"))]))
except FarmError as error:
    print(json.dumps({"told": str(error), "seconds": time.monotonic() - begun}))
"""
    said = answer(start(code, tmp_path))
    assert "no Ray cluster" in said["told"] and "127.0.0.1:1" in said["told"]
    assert said["seconds"] < 15


def test_a_local_cluster_needs_no_installed_stax(tmp_path: Path):
    code = f"""
assert "ray" not in sys.modules
builder = RayBuilder("local", {(tmp_path / "store").as_uri()!r}, max_workers=1)
assert "ray" not in sys.modules, "it connects when the first job comes"
(result,) = builder.build([cpp_job(small_text("local"))])
builder.close()
print(json.dumps({{"built": isinstance(result, Built), "torch": "torch" in sys.modules}}))
"""
    assert answer(start(code, tmp_path)) == {"built": True, "torch": False}


def test_the_command_line_tells_how_the_farm_is(
    ray_address: str, capsys: pytest.CaptureFixture[str]
):
    def farm(*arguments: str) -> str:
        assert main([f"--address={ray_address}", *arguments]) == 0
        return capsys.readouterr().out

    builder = RayBuilder(ray_address)
    job = cpp_job(small_text(os.urandom(8).hex()))
    list(builder.build([job]))
    status = farm("status")
    assert "workers ready" in status and "worker w" in status
    why = farm("why", job.key.digest[:12])
    assert job.key.digest in why and "submitted by" in why and "built by" in why
    assert "nothing is known" in farm("why", "no such key")
    assert farm("down") == "ended\n"
    assert "no coordinator" in farm("status")
    assert "0 workers ready" in farm("up")
