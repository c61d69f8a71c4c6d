"""Tracing for a CUDA target needs no GPU, and gives the same program on every machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capturing import CPU, CUDA, capture, operators
from torch import Tensor, nn

from stax.artifact.guards import TensorGuard
from stax.base.target import Target


def devices(captured: Any) -> set[str]:
    metas = [n.meta["stax"] for n in captured.graph.nodes]
    return {m.device for m in metas if hasattr(m, "device")}


def on_this_device(x: Tensor) -> tuple[Tensor, ...]:
    assert x.is_cuda and x.device.type == "cuda" and torch.cuda.is_available()
    steps = torch.arange(x.shape[1], device=x.device) + torch.zeros(1, device="cuda")
    table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
    return x * steps + table[:, None] * torch.tensor(2.0, device=x.device), torch.rand_like(x)


def test_fakes_lie_where_the_target_computes() -> None:
    captured = capture(on_this_device, torch.randn(3, 4), target=CUDA)
    assert devices(captured) == {"cuda"}
    assert [g.device for g in captured.guards.guards if isinstance(g, TensorGuard)] == ["cuda"]
    assert not [n for n in captured.graph.nodes if "cuda:0" in str(n.kwargs)]
    assert not torch.cuda.is_initialized()


def test_a_move_to_where_a_tensor_lies_is_the_tensor() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.cuda(), x.to("cuda"), x.to(torch.device("cuda")), x.to(x), x.cuda(0)

    captured = capture(fn, torch.randn(3), target=CUDA)
    assert {getattr(o, "name", "") for o in captured.outputs} == {"arg0"}


def test_a_move_between_devices_is_an_operator() -> None:
    captured = capture(lambda x: x.cpu().cuda() + x, torch.randn(3), target=CUDA)
    assert operators(captured) == ["aten._to_copy.default"] * 2 + ["aten.add.Tensor"]


def test_the_machine_is_answered_for_by_the_target() -> None:
    def fn(x: Tensor) -> Tensor:
        major, _ = torch.cuda.get_device_capability()
        return x + major if torch.cuda.is_bf16_supported(including_emulation=False) else x

    before = torch.cuda.is_available()
    for arch, operand in (("sm_90", 9), ("sm_100", 10), ("sm_75", None)):
        captured = capture(fn, torch.randn(3), target=Target.parse(f"cuda:{arch}"))
        adds = [n.args[1] for n in captured.graph.nodes if n.op == "call_function"]
        assert adds == ([] if operand is None else [operand])
    assert torch.cuda.is_available() == before


def test_autocast_for_cuda() -> None:
    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x @ x

    captured = capture(fn, torch.randn(3, 3), target=CUDA)
    assert captured.outputs[0].meta["stax"].dtype == "bfloat16"  # type: ignore[union-attr]


MODULES = [
    nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    nn.TransformerEncoderLayer(8, 2, 16).eval(),
]
INPUTS = [torch.randn(2, 3, 8, 8), torch.randn(3, 2, 8)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("module", "x"), [*zip(MODULES, INPUTS)], ids=["conv", "transformer"])
def test_a_module_is_the_same_program_for_both(module: nn.Module, x: Tensor, dynamic: bool) -> None:
    cpu, cuda = (capture(module, x, target=t, dynamic=dynamic) for t in (CPU, CUDA))
    assert operators(cpu) == operators(cuda)
    assert devices(cuda) == {"cuda"}


def test_meta_tensors_are_traced_for_cuda() -> None:
    with torch.device("meta"):
        module, x = nn.Linear(4, 4), torch.empty(2, 4)
    captured = capture(module, x, target=CUDA)
    assert devices(captured) == {"cuda"}
