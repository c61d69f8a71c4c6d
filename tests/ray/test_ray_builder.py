"""RayBuilder on a real cluster: the suite of all builders, the store, and what dies while it works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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

from farm import cluster
from farm.client import RayBuilder
from farm.session import reach
from stax.base.observe import Event
from stax.build.job import Built, Failed
from stax.build.kernels import find_kernel
from stax.store import Records, layout, open_store

pytestmark = pytest.mark.ray
LIMIT_S = 30.0


def status() -> dict[str, Any]:
    """The farm as its coordinator sees it."""
    return cluster.ask(reach().status.remote(), LIMIT_S)


def stories(prefix: str) -> dict[str, list[tuple[float, str]]]:
    return cluster.ask(reach().stories.remote(prefix), LIMIT_S)


def worker_pids() -> list[int]:
    return [
        int(worker["place"].rpartition(":")[2])
        for worker in status()["each_worker"].values()
        if worker["place"]
    ]


def counted(name: str) -> int:
    return status()["counts"].get(name, 0)


Open = Callable[..., Workshop]


@pytest.fixture
def open_workshop(ray_address: str) -> Iterator[Open]:
    """Makes builders on the cluster of the session."""
    made: list[RayBuilder] = []

    def make(store_url: str = "", **settings: Any) -> Workshop:
        events: list[Event] = []
        builder = RayBuilder(ray_address, store_url, observe=events.append, **settings)
        made.append(builder)
        return Workshop(builder, events, worker_pids)

    yield make
    for builder in made:
        builder.close()


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def workshop(open_workshop: Open, store_url: str) -> Workshop:
    return open_workshop(store_url)


@pytest.fixture
def salt(request: pytest.FixtureRequest) -> str:
    return f"{request.node.nodeid} {os.urandom(8).hex()}"


class TestRayBuilder(BuilderSuite):
    """Runs the suite."""


def test_kernels_are_in_the_store_and_only_their_names_cross_ray(
    workshop: Workshop, store_url: str, salt: str
):
    job = cpp_job(small_text(salt))
    built = workshop.one(job)
    assert isinstance(built, Built)
    records = Records(open_store(store_url), "dev")
    kernel = find_kernel(records, job.key.digest)
    assert kernel is not None
    assert (kernel.size_bytes, kernel.meta) == (len(built.data), built.meta)
    assert records.get_blob(kernel.digest) == built.data


def test_a_kernel_that_the_store_has_is_not_built(open_workshop: Open, store_url: str, salt: str):
    first, second = open_workshop(store_url), open_workshop(store_url)
    job = cpp_job(small_text(salt))
    built = counted("built")
    one, other = first.one(job), second.one(job)
    assert isinstance(one, Built) and isinstance(other, Built) and one.data == other.data
    assert counted("built") == built + 1
    assert [e.fields["hit"] for e in second.events if e.name == "build.done"] == [True]


def test_a_kernel_whose_binary_is_gone_is_built_again(
    open_workshop: Open, store_url: str, salt: str
):
    job = cpp_job(small_text(salt))
    first = open_workshop(store_url).one(job)
    store = open_store(store_url)
    kernel = find_kernel(Records(store, "dev"), job.key.digest)
    assert kernel is not None
    store.delete(layout.cas(kernel.digest))
    second = open_workshop(store_url)
    again = second.one(job)
    assert isinstance(first, Built) and isinstance(again, Built) and again.data == first.data
    assert find_kernel(Records(store, "dev"), job.key.digest) == kernel
    assert [e.fields["hit"] for e in second.events if e.name == "build.done"] == [False]


def test_without_a_store_the_binaries_cross_ray(open_workshop: Open, salt: str):
    for url in ("", "memory:"):
        built = open_workshop(url).one(cpp_job(small_text(salt)))
        assert isinstance(built, Built) and built.data[:4] == b"\x7fELF"


def test_a_store_that_is_down_costs_the_saving_and_not_the_job(open_workshop: Open, salt: str):
    shop = open_workshop("s3://nobody/here", s3_endpoint="http://127.0.0.1:9")
    built = shop.one(cpp_job(small_text(salt)))
    assert isinstance(built, Built) and built.data[:4] == b"\x7fELF"
    (done,) = [e for e in shop.events if e.name == "build.done"]
    assert "the store did not take it" in str(done.fields["unpublished"])


def test_a_store_that_the_workers_do_not_share_with_us_is_gone_round(
    open_workshop: Open, salt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A URL that means another folder in every process, as a path does on every host of a cluster."""
    monkeypatch.chdir(tmp_path)
    shop = open_workshop(f"file:///proc/self/cwd/apart-{os.getpid()}")
    built = shop.one(cpp_job(small_text(salt)))
    assert isinstance(built, Built) and built.data[:4] == b"\x7fELF"
    assert shop.count("farm.not_fetched") == 1
    assert isinstance(shop.one(cpp_job(small_text(salt, 1))), Built)
    assert shop.count("farm.not_fetched") == 1, "it learns"


def test_two_clients_build_the_same_kernels_once(open_workshop: Open, store_url: str, salt: str):
    shops = [open_workshop(store_url), open_workshop(store_url)]
    jobs = [cpp_job(slow_text(f"{salt} {number}", 0.2)) for number in range(6)]
    built, merged = counted("built"), counted("merged")
    works = [Background(lambda shop=shop: shop.build(*jobs)) for shop in shops]
    first, second = (work.result() for work in works)
    assert isinstance(first, dict) and isinstance(second, dict)
    assert {k: r.data for k, r in first.items()} == {k: r.data for k, r in second.items()}
    assert len(first) == 6
    assert counted("built") == built + 6
    assert counted("merged") > merged


def test_a_killed_worker_is_replaced_and_its_job_done(workshop: Workshop, salt: str):
    lost = counted("workers_lost")
    job = cpp_job(slow_text(salt, 2.0))
    work = Background(lambda: workshop.one(job))
    compiler = workshop.await_compiler()
    (name,) = stories(job.key.digest)
    (place,) = [w["place"] for w in status()["each_worker"].values() if name in w["running"]]
    os.kill(int(place.rpartition(":")[2]), signal.SIGKILL)
    assert isinstance(work.result(), Built)
    assert counted("workers_lost") == lost + 1
    assert ended([compiler])
    story = [line for _, line in stories(name)[name]]
    assert any("was lost" in line for line in story) and story[-1].startswith("built by")


def test_a_killed_coordinator_is_replaced_and_the_work_done(workshop: Workshop, salt: str):
    jobs = [cpp_job(slow_text(f"{salt} {number}", 1.0)) for number in range(4)]
    work = Background(lambda: workshop.build(*jobs))
    workshop.await_compiler()
    os.kill(status()["pid"], signal.SIGKILL)
    results = work.result()
    assert isinstance(results, dict) and all(isinstance(r, Built) for r in results.values())
    assert len(results) == 4
    assert workshop.count("farm.rejoin") >= 1


def test_jobs_that_kill_their_worker_are_given_up(workshop: Workshop, salt: str):
    work = Background(lambda: workshop.one(cpp_job(slow_text(salt, 5))))
    for _ in range(3):
        compiler = workshop.await_compiler()
        worker_of(compiler).kill()
        assert ended([compiler])
    result = work.result()
    assert isinstance(result, Failed) and result.kind == "worker-lost"
    assert "lost 3 times" in result.message


def test_max_workers_bounds_the_farm(open_workshop: Open, salt: str):
    cluster.kill(reach())  # begin with no workers
    shop = open_workshop(max_workers=1)
    shop.build(*[cpp_job(small_text(salt, number)) for number in range(4)])
    assert len(status()["each_worker"]) == 1
