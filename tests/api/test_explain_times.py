"""Measured times in explain(): of tuning records, and taken on demand, by a measurer that plays the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stax
from stax.base.errors import LaunchError, OptionError
from stax.base.options import Options
from stax.build.local import LocalBuilder
from stax.store import MemoryStore
from stax.tune.measurement import failed
from tests.tune.doubles import ScriptedMeasurer

TUNED = Options(tune="default")
H200 = "NVIDIA H200"


def norm_of_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softmax((x @ w).relu() + 1, -1)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    builder = LocalBuilder(2)
    yield builder
    builder.close()


def call() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(256, 64), torch.randn(64, 1000)


def told(**more: Any) -> stax.ExplainReport:
    return stax.explain(norm_of_product, call(), target="cuda:sm_90", **more)


def test_a_record_gives_the_configuration_and_its_time(builder: LocalBuilder) -> None:
    store, gpu = MemoryStore(), ScriptedMeasurer(device=H200)
    stax.warm(
        norm_of_product, call(), targets=["cuda:sm_90"], options=TUNED, store=store, builder=builder,
        measurer=gpu,
    )  # fmt: skip
    best = min(gpu.times(work).time_us for work in gpu.asked)
    (tuned,) = told(options=TUNED, store=store, device=H200).kernels
    assert (tuned.measured_s, tuned.measured_on) == (best / 1e6, H200)
    assert tuned.config["num_warps"] == max(dict(w.meta)["num_warps"] for w in gpu.asked)

    (default,) = told(store=store, device=H200).kernels
    assert default.config != tuned.config and default.measured_s is not None
    assert default.measured_s > best / 1e6
    (unknown,) = told(options=TUNED, store=MemoryStore(), device=H200).kernels
    assert (unknown.config, unknown.measured_s) == (default.config, None)


def test_measuring_now_times_every_kernel_once(builder: LocalBuilder) -> None:
    gpu = ScriptedMeasurer(device=H200)
    found = told(measure=True, measurer=gpu, builder=builder, store=MemoryStore())
    assert found.device == H200 and found.floor_bytes_s == 4.257e12
    (kernel,), (work,) = found.kernels, gpu.asked
    assert kernel.measured_s == gpu.times(work).time_us / 1e6 and gpu.opened == 1
    assert work.grid == (*kernel.grid, 1, 1) and kernel.measured_on == H200


def test_nothing_to_measure_on_is_told() -> None:
    with pytest.raises(OptionError, match="nothing to measure on"):
        told(measure=True, store=MemoryStore())


def test_a_kernel_that_does_not_run_is_told(builder: LocalBuilder) -> None:
    gpu = ScriptedMeasurer(lambda work: failed("crash", "misaligned address"), H200)
    with pytest.raises(LaunchError, match="misaligned address"):
        told(measure=True, measurer=gpu, builder=builder, store=MemoryStore())
