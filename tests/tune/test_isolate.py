"""Measuring in a real child process, on a device that hangs, crashes and faults when told to."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from stax.base.errors import SchemaError
from stax.base.observe import Event
from stax.tune.isolate import MOST_FAILURES, IsolatedMeasurer
from stax.tune.measurement import Measurement
from stax.tune.present import Present, busy_percent, present
from stax.tune.work import (
    Memory,
    Reply,
    Request,
    Work,
    pack_reply,
    pack_request,
    unpack_reply,
    unpack_request,
)

PRESENT = Present(0, "Played GPU", "0000-1", "sm_90")
PLAYED = "tests.tune.devices:Played"


def work(entry: str, size: int = 7) -> Work:
    memory = (Memory("float32", 16, "normal"), Memory("int64", 4, "below", 10))
    return Work(entry, b"binary", (("num_warps", 4), ("symbol", entry)), memory, (1, 2, 3), (size,))


class Bench:
    """A measurer with its events."""

    def __init__(self, folder: Path, maker: str = PLAYED, limit_s: float = 20.0) -> None:
        self.events: list[Event] = []
        self.measurer = IsolatedMeasurer(
            PRESENT, folder / "locks", observe=self.events.append, maker=maker, limit_s=limit_s
        )

    def measure(self, entry: str) -> Measurement:
        return self.measurer.measure(work(entry), 1000.0, 0.0)

    def count(self, name: str) -> int:
        return sum(e.name == name for e in self.events)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.measurer.close()


def test_a_time_is_the_median_with_its_noise(bench: Bench) -> None:
    with bench.measurer.alone():
        found = bench.measure("steady")
        assert (found.status, found.time_us, found.repeats) == ("ok", 8.0, 31)
        assert 0 < found.noise < 0.2
        assert (
            bench.measure("steady") == found
        )  # the process id among the times says: the same child


@pytest.mark.parametrize(
    ("entry", "status"), [("crash", "crash"), ("fault", "refused"), ("none", "crash")]
)
def test_what_ends_the_child_costs_one_configuration(bench: Bench, entry: str, status: str) -> None:
    with bench.measurer.alone():
        before = bench.measure("process")
        found = bench.measure(entry)
        assert (found.status, found.time_us) == (status, inf)
        after = bench.measure("process")
    assert after.is_finite and after.time_us != before.time_us
    assert bench.count("tune.worker_lost") == 1


def test_the_last_words_of_a_crash_are_kept(bench: Bench) -> None:
    with bench.measurer.alone():
        found = bench.measure("crash")
    assert "last words" in found.detail and "Segmentation fault" in found.detail


def test_a_hung_child_is_ended_and_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limit_s=2.0)
    with bench.measurer.alone():
        assert bench.measure("steady").status == "ok"
        begun = time.monotonic()
        assert bench.measure("hang").status == "timeout"
        assert time.monotonic() - begun < 30
        assert bench.measure("steady").status == "ok"
    bench.measurer.close()


@pytest.mark.parametrize(("entry", "status"), [("refuse", "refused"), ("memory", "memory")])
def test_a_refusal_keeps_the_child(bench: Bench, entry: str, status: str) -> None:
    with bench.measurer.alone():
        before = bench.measure("process")
        found = bench.measure(entry)
        assert (found.status, found.time_us) == (status, inf)
        assert bench.measure("process") == before
    assert not bench.count("tune.worker_lost")


def test_children_that_never_start_are_given_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, maker="tests.tune.devices:NeverStarts")
    with bench.measurer.alone():
        found = bench.measure("steady")
        assert found.status == "crash" and "no CUDA in this torch" in found.detail
        assert bench.measure("steady") == found
    assert bench.count("tune.worker_lost") == MOST_FAILURES


def test_the_child_outlives_a_turn_and_not_the_measurer(bench: Bench) -> None:
    found: list[Measurement] = []
    for _ in range(2):
        with bench.measurer.alone():
            found.append(bench.measure("process"))
    assert found[0] == found[1]
    bench.measurer.close()
    with bench.measurer.alone():
        after = bench.measure("process")
    assert after.is_finite and after != found[0]


def test_an_idle_child_ends_by_itself(tmp_path: Path) -> None:
    measurer = IsolatedMeasurer(PRESENT, tmp_path / "locks", maker=PLAYED, idle_s=0.2)
    with measurer.alone():
        process = int(measurer.measure(work("process"), 1000.0, 0.0).time_us)
    until = time.monotonic() + 20
    while Path(f"/proc/{process}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{process}").exists()
    with measurer.alone():
        assert measurer.measure(work("steady"), 1000.0, 0.0).status == "ok"
    measurer.close()


def test_one_tuner_at_a_time(bench: Bench, tmp_path: Path) -> None:
    lock = tmp_path / "locks" / f"tune-{PRESENT.identity}.lock"
    lock.parent.mkdir()
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    entered = threading.Event()

    def turn() -> None:
        with bench.measurer.alone():
            entered.set()

    thread = threading.Thread(target=turn)
    thread.start()
    until = time.monotonic() + 20
    while not bench.count("tune.waiting") and time.monotonic() < until:
        time.sleep(0.01)
    assert bench.count("tune.waiting") == 1 and not entered.is_set()
    os.close(held)
    thread.join(20)
    assert entered.is_set()


def test_requests_and_replies_survive_the_wire() -> None:
    for request in (Request(work("steady"), 5.0, 2.5), Request(None)):
        assert unpack_request(pack_request(request)) == request
    reply = Reply("ok", (1.0, 2.5), "", False)
    assert unpack_reply(pack_reply(reply)) == reply


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x01", pack_reply(Reply("ok"))])
def test_a_bad_message_is_an_error(body: bytes) -> None:
    with pytest.raises(SchemaError):
        unpack_reply(body)


class OneGpu:
    """The driver of a machine with an sm_90 and an sm_80."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = 2  # type: ignore[attr-defined]
        return 0

    def cuDeviceGet(self, handle: object, ordinal: int) -> int:
        handle._obj.value = ordinal  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetName(self, name: object, size: int, handle: object) -> int:
        name.value = f"GPU {handle.value}".encode()  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetUuid(self, identity: object, handle: object) -> int:
        return 0

    def cuDeviceGetAttribute(self, value: object, attribute: int, handle: object) -> int:
        capability = (9, 0) if handle.value == 0 else (8, 0)  # type: ignore[attr-defined]
        value._obj.value = capability[attribute - 75]  # type: ignore[attr-defined]
        return 0


def test_only_a_device_of_the_very_architecture_measures() -> None:
    found = present("sm_80", 0, OneGpu())
    assert found is not None and (found.ordinal, found.name) == (1, "GPU 1")
    assert present("sm_90", 1, OneGpu()) is not None
    assert present("sm_100", 0, OneGpu()) is None


def test_the_load_of_an_unknown_device_is_unknown() -> None:
    assert busy_percent("00000000-0000-0000-0000-000000000000") is None
