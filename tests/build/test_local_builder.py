"""LocalBuilder: the suite of all builders, and what only processes of one's own can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from suites.builder_suite import (
    Background,
    BuilderSuite,
    Workshop,
    cpp_job,
    ended,
    slow_text,
    small_text,
    worker_of,
)

from stax.base.errors import BuildError
from stax.base.observe import Event
from stax.build.child import remove_left_over
from stax.build.compile import compile_job
from stax.build.job import Built, Failed
from stax.build.local import LocalBuilder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workshop() -> Iterator[Workshop]:
    events: list[Event] = []
    builder = LocalBuilder(2, observe=events.append)
    yield Workshop(builder, events, lambda: builder.pids)
    builder.close()


class TestLocalBuilder(BuilderSuite):
    """Runs the suite."""


def test_a_job_that_kills_its_process_every_time_is_given_up(workshop: Workshop):
    work = Background(lambda: workshop.one(cpp_job(slow_text("poison", 5))))
    for _ in range(3):
        worker_of(workshop.await_compiler()).kill()
        time.sleep(0.05)
    result = work.result()
    assert isinstance(result, Failed) and result.kind == "worker-lost"
    assert "died 3 times" in result.message and result.text == slow_text("poison", 5)
    assert workshop.count("build.worker_lost") == 3


def test_nothing_starts_before_the_first_job():
    builder = LocalBuilder(2)
    assert builder.pids == ()
    builder.close()


def test_processes_stay_warm(workshop: Workshop):
    workshop.build(*[cpp_job(small_text("warm", number)) for number in range(6)])
    first = set(workshop.builder.pids)  # type: ignore[attr-defined]
    workshop.build(*[cpp_job(small_text("again", number)) for number in range(6)])
    assert set(workshop.builder.pids) == first and 1 <= len(first) <= 2  # type: ignore[attr-defined]


def test_a_worker_for_cpp_imports_neither_torch_nor_triton(workshop: Workshop):
    workshop.one(cpp_job(small_text("light")))
    (pid, *_) = workshop.builder.pids  # type: ignore[attr-defined]
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" not in mapped and "libtriton" not in mapped
    assert psutil.Process(pid).memory_info().rss < 100e6


def test_close_leaves_no_process_and_no_file(workshop: Workshop):
    work = Background(lambda: workshop.one(cpp_job(slow_text("closed", 60))))
    compiler = workshop.await_compiler()
    pids = workshop.builder.pids  # type: ignore[attr-defined]
    scratch = [
        Path(arg) for pid in pids for arg in psutil.Process(pid).cmdline() if "stax-build-" in arg
    ]
    assert scratch and all(path.is_dir() for path in scratch)
    workshop.builder.close()
    result = work.result()
    assert (
        isinstance(result, Failed) and result.kind == "worker-lost" and "closed" in result.message
    )
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert ended([compiler])
    assert not any(path.exists() for path in scratch)
    with pytest.raises(BuildError, match="closed"):
        list(workshop.builder.build([cpp_job(small_text("late"))]))


SCRIPT = """
import sys, time
sys.path[:0] = [{root!r}, {tests!r}]
from suites.builder_suite import cpp_job, slow_text
from stax.build.local import LocalBuilder
builder = LocalBuilder(2)
print("ready", flush=True)
list(builder.build([cpp_job(slow_text(str(i), 100)) for i in range(8)]))
"""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_compiler_outlives_its_asker(signal_number: signal.Signals):
    script = SCRIPT.format(root=str(ROOT), tests=str(ROOT / "tests"))
    asker = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert asker.stdout is not None
    asker.stdout.readline()
    events: list[Event] = []
    below = Workshop(LocalBuilder(1), events, lambda: [asker.pid])
    below.await_compiler()
    descendants = psutil.Process(asker.pid).children(recursive=True)
    assert len(descendants) >= 3
    os.kill(asker.pid, signal_number)
    begun = time.monotonic()
    asker.communicate(timeout=30)
    assert ended(descendants)
    assert time.monotonic() - begun < 10


def test_what_dead_builders_left_is_removed_and_what_is_in_use_is_not(
    workshop: Workshop, tmp_path: Path
):
    work = Background(lambda: workshop.one(cpp_job(slow_text("in use", 1.0))))
    scratch = Path(worker_of(workshop.await_compiler()).environ()["TMPDIR"])
    dead, foreign, young = (
        tmp_path / f"stax-build-{name}" for name in ("dead", "foreign", "young")
    )
    for folder in (dead, foreign, young):
        folder.mkdir()
    for folder in (dead, young):
        (folder / "stderr").touch()
    (tmp_path / "stax-build-used").symlink_to(scratch)
    hour_ago = time.time() - 3600
    for folder in (dead, foreign, scratch):
        os.utime(folder, (hour_ago, hour_ago))
    assert remove_left_over(str(tmp_path)) == 1
    assert not dead.exists() and foreign.exists() and young.exists() and scratch.exists()
    assert isinstance(work.result(), Built)


def test_a_child_that_floods_its_stderr_does_not_block():
    text = "\n".join(f'#warning "{number} {"x" * 200}"' for number in range(3000))
    builder = LocalBuilder(1)
    result = list(builder.build([cpp_job(text + small_text("flood"), timeout_s=60)]))
    builder.close()
    assert isinstance(result[0], Built), result


def test_an_observer_is_called_where_the_results_are_read():
    threads: set[int] = set()
    builder = LocalBuilder(2, observe=lambda event: threads.add(threading.get_ident()))
    list(builder.build([cpp_job(small_text("observed"))]))
    builder.close()
    assert threads == {threading.get_ident()}


def test_compile_job_alone_gives_what_the_pool_gives(workshop: Workshop):
    job = cpp_job(small_text("alone"))
    alone, pooled = compile_job(job, cxx="g++"), workshop.one(job)
    assert isinstance(alone, Built) and isinstance(pooled, Built)
    assert alone.data == pooled.data
