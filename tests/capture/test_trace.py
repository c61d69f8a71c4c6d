"""Captured programs do what eager does."""

from __future__ import annotations

import torch
from capturing import capture, run


def test_a_function_of_two_tensors() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).sum(-1)

    captured = capture(fn, torch.randn(3, 4), torch.randn(4))
    x, y = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(run(captured, fn, x, y), fn(x, y))


def test_a_module_lists_parameters_buffers_then_arguments() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
    captured = capture(module, torch.randn(2, 3))
    sources = [i.source for i in captured.signature.inputs]
    assert sources == ["parameter"] * 4 + ["buffer"] * 2 + ["arg"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(run(captured, module, x), module(x))
