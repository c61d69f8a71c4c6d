"""explain() on a real GPU: kernels are timed in a child process, near what is predicted, and never below the floor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stax
from stax.base.devices import NAMED_DEVICES
from stax.store import MemoryStore

pytestmark = pytest.mark.gpu


def test_measured_times_lie_between_the_floor_and_a_multiple_of_the_prediction() -> None:
    major, minor = torch.cuda.get_device_capability()

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.softmax(x, -1), x.t() + y.t(), (x * x).sum(-1)

    args = tuple(torch.randn(8192, 4096, device="cuda") for _ in range(2))
    found = stax.explain(
        fn, args, target=f"cuda:sm_{major}{minor}", measure=True, store=MemoryStore()
    )
    assert found.device == torch.cuda.get_device_name() and not found.calls
    for kernel in found.kernels:
        assert kernel.measured_on == found.device
        assert kernel.measured_s is not None and kernel.predicted_s is not None
        assert kernel.measured_s < 10 * kernel.predicted_s
        if found.device in NAMED_DEVICES:  # whose copy rate was measured
            assert kernel.floor_s is not None and kernel.measured_s > 0.95 * kernel.floor_s
