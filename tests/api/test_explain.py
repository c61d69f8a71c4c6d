"""explain(): kernels, bytes, floors and predictions of a call, for a GPU that is not here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stax
from stax.base.devices import NAMED_DEVICES
from stax.base.errors import OptionError
from stax.base.target import Target
from stax.codegen.triton.cost import LEAST_S, predict_s
from stax.codegen.triton.emit import emit
from stax.codegen.triton.plan import loops
from stax.ir.source import Config
from stax.ir.traffic import traffic
from tests.kernels import add_relu_sum, softmax

HOPPER = Target("cuda", "sm_90")


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softmax((x @ w).relu() + 1, -1)


def test_every_step_of_a_call_is_told() -> None:
    n = 256 * 1000 * 4
    found = stax.explain(block, (torch.randn(256, 64), torch.randn(64, 1000)), target="cuda:sm_90")
    (kernel,) = found.kernels
    assert kernel.name.startswith("triton_per_fused_") and kernel.form == "per"
    assert (kernel.read_bytes, kernel.written_bytes, kernel.reread_bytes) == (n, n, 0)
    assert kernel.grid == (-(-256 // kernel.config["XBLOCK"]),)
    assert kernel.floor_s == 2 * n / 3.35e12
    assert kernel.predicted_s is not None and kernel.predicted_s > kernel.floor_s
    assert kernel.measured_s is None and kernel.launches == 1
    assert [(c.target, c.calls) for c in found.calls] == [("aten.mm.default", 1)]
    assert any(done for _, done, _ in found.decisions)


def test_equal_kernels_are_one_row() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return block(block(x, w), w)

    args = (torch.randn(32, 32), torch.randn(32, 32))
    found = stax.explain(twice, args, target=HOPPER)
    assert [k.launches for k in found.kernels] == [2]
    assert [c.calls for c in found.calls] == [2]


def test_a_device_is_named_for_its_own_rate() -> None:
    args = (torch.randn(64, 128),)
    known = stax.explain(torch.relu, args, target="cuda:sm_90", device="NVIDIA H200")
    assert (known.device, known.floor_bytes_s) == ("NVIDIA H200", 4.257e12)
    with pytest.raises(OptionError, match="unknown device"):
        stax.explain(torch.relu, args, target="cuda:sm_90", device="NVIDIA H2000")
    with pytest.raises(OptionError, match="unknown device"):
        stax.explain(torch.relu, args, target="cpu:x86-64-v3", device="NVIDIA H200")


def test_a_cpu_has_bytes_and_no_floor() -> None:
    (kernel,) = stax.explain(
        lambda x: F.softmax(x, -1), (torch.randn(8, 100),), target="cpu:x86-64-v3"
    ).kernels
    assert (kernel.read_bytes, kernel.written_bytes, kernel.reread_bytes) == (3200, 3200, 6400)
    assert (kernel.grid, kernel.floor_s, kernel.predicted_s) == ((), None, None)


def test_dynamic_kernels_are_told_at_the_sizes_of_the_call() -> None:
    (kernel,) = stax.explain(
        lambda x: x + 1, (torch.randn(100, 300),), target=HOPPER, dynamic=True
    ).kernels
    assert kernel.read_bytes == 100 * 300 * 4


def predicted(rows: int, cols: int, **config: int) -> float:
    kernel = add_relu_sum(rows, cols).kernel
    source = emit(kernel, HOPPER)
    chosen = Config.of(**{**dict(source.default.values), **config})
    return predict_s(kernel, source, chosen, traffic(kernel), NAMED_DEVICES["NVIDIA H200"])


def test_a_prediction_is_never_below_the_floor_and_near_it_for_large_work() -> None:
    for rows, cols in ((64, 128), (4096, 512), (131072, 1024)):
        floor = traffic(add_relu_sum(rows, cols).kernel).moved_bytes / 4.257e12
        assert predicted(rows, cols) > floor
    assert predicted(131072, 1024) < 1.1 * floor + 2 * LEAST_S


def test_too_little_in_flight_is_slow() -> None:
    assert predicted(131072, 1024, num_warps=32) > predicted(131072, 1024, num_warps=4)


def test_what_is_read_again_costs_little_from_the_cache_and_much_from_memory() -> None:
    """Few programs at once keep their rows in the cache; with four warps each there are too many."""
    kernel = softmax(4096, 16384).kernel
    source, device = emit(kernel, HOPPER), NAMED_DEVICES["NVIDIA H200"]
    moved = traffic(kernel, loops=loops(kernel))
    many = Config.of(**{**dict(source.default.values), "num_warps": 4, "R0_BLOCK": 1024})
    held, lost = (
        predict_s(kernel, source, c, moved, device) - LEAST_S for c in (source.default, many)
    )
    assert moved.reread_bytes > 0
    assert lost == pytest.approx((moved.moved_bytes + moved.reread_bytes) / 4.257e12)
    assert moved.moved_bytes / 4.257e12 <= held < 0.8 * lost
