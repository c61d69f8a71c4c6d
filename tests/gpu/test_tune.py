"""Tuning on a real device: chosen by real times, kept, and not measured again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stax
from stax.base.errors import OptionError
from stax.base.options import Options
from stax.base.target import Target
from stax.build.job import job_of
from stax.build.local import LocalBuilder
from stax.build.toolchain import local_toolchain
from stax.codegen.triton.emit import emit
from stax.store import MemoryStore
from stax.tune.isolate import IsolatedMeasurer, open_measurer
from stax.tune.subject import Subject
from tests.kernels import X0, at, embedding, make, st

pytestmark = pytest.mark.gpu


def arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsolatedMeasurer]:
    made = open_measurer(arch(), tmp_path_factory.mktemp("locks"), lambda event: None)
    assert made is not None
    yield made
    made.close()


def softmax_sum(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x * w, -1), (x + w).sum(0)


def the_same(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.softmax(x * w, -1), (x + w).sum(0)


def compiled(fn: Any, **given: Any) -> Any:
    return stax.compile(fn, fullgraph=True, **given)


@pytest.mark.parametrize("tune", ["default", "max"])
def test_two_kernels_are_tuned_and_a_second_run_measures_nothing(
    builder: LocalBuilder, measurer: IsolatedMeasurer, tune: str
) -> None:
    store, options = MemoryStore(), Options(tune=tune)
    x, w = torch.randn(4096, 2048, device="cuda"), torch.randn(2048, device="cuda")
    first = compiled(softmax_sum, store=store, builder=builder, measurer=measurer, options=options)
    for got, expected in zip(first(x, w), softmax_sum(x, w)):
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-5)
    assert first.stats().measurements >= 4
    second = compiled(the_same, store=store, builder=builder, measurer=measurer, options=options)
    for got, expected in zip(second(x, w), softmax_sum(x, w)):
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-5)
    stats = second.stats()
    assert (stats.measurements, stats.captures, stats.builds) == (0, 1, 0)
    assert stats.hits["tuning"] >= 2


def test_an_architecture_that_is_not_here_can_not_be_measured(builder: LocalBuilder) -> None:
    other = "sm_80" if arch() != "sm_80" else "sm_90"
    x = torch.randn(512, 512)
    with pytest.raises(OptionError, match=f"a GPU of {other} here"):
        stax.warm(
            lambda x: x.exp() + 1, (x,), targets=[f"cuda:{other}"], store=MemoryStore(),
            builder=builder, options=Options(tune="default"),
        )  # fmt: skip


def times(subject: Subject, measurer: IsolatedMeasurer, builder: LocalBuilder) -> list[Any]:
    """A measurement of each candidate."""
    tools = local_toolchain("g++")
    found: list[Any] = []
    for config in subject.source.space:
        (built,) = builder.build([job_of(subject.source, config, subject.target, tools, 100.0)])
        work = subject.work(config, built.data, built.meta)  # type: ignore[union-attr]
        found.append(measurer.measure(work, 20_000.0, 0.0))
    return found


def test_a_time_is_that_of_the_memory_and_its_noise_is_small(
    builder: LocalBuilder, measurer: IsolatedMeasurer
) -> None:
    count = 1 << 27
    body = at("in_ptr0", X0)
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[count],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )
    target = Target("cuda", arch())
    subject = Subject(kernel, emit(kernel, target), (count, count), target, "default")
    with measurer.alone():
        found = times(subject, measurer, builder)
    least = min(found, key=lambda m: m.time_us)
    source, out = torch.randn(count, device="cuda"), torch.empty(count, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        out.copy_(source)
    begin.record()
    for _ in range(10):
        out.copy_(source)
    end.record()
    torch.cuda.synchronize()
    copy_us = begin.elapsed_time(end) * 100
    assert all(m.status == "ok" and m.noise < 0.05 for m in found), found
    assert 0.8 * copy_us < least.time_us < 1.3 * copy_us, (least, copy_us)


def test_indices_are_within_their_bounds(builder: LocalBuilder, measurer: IsolatedMeasurer) -> None:
    """The kernel traps for any other index."""
    case, target = embedding(), Target("cuda", arch())
    elements = tuple(case.elements[p.name] for p in case.kernel.pointers)
    subject = Subject(case.kernel, emit(case.kernel, target), elements, target, "default")
    with measurer.alone():
        assert all(m.status == "ok" for m in times(subject, measurer, builder))


def test_a_kernel_that_faults_costs_only_itself(
    builder: LocalBuilder, measurer: IsolatedMeasurer
) -> None:
    body = at("in_ptr0", X0 + (1 << 30))
    kernel = make(
        [st("v0", body, ("out_ptr0", X0))],
        x=[4096],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )
    target = Target("cuda", arch())
    beyond = Subject(kernel, emit(kernel, target), (16, 4096), target, "default")
    whole = Subject(kernel, emit(kernel, target), ((1 << 30) + 4096, 4096), target, "default")
    with measurer.alone():
        assert {m.status for m in times(beyond, measurer, builder)} == {"refused"}
        assert {m.status for m in times(whole, measurer, builder)} == {"ok"}
