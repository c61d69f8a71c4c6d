"""What can not be compiled runs eagerly, is tried once a class of call, and says why; with fullgraph it is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stax
from stax.base.errors import CaptureError


def sparse(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).to_sparse()


def sized_by_data(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def half_complex(x: torch.Tensor) -> torch.Tensor:
    return x.chalf().real


def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@pytest.mark.parametrize("fn", [sparse, sized_by_data, half_complex, quantized])
def test_runs_eagerly_and_is_tried_once(fn: Callable[..., Any]) -> None:
    compiled = stax.compile(fn, store="memory:")
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x).to_dense(), fn(x).to_dense())
    stats = compiled.stats()
    assert stats.eager == 3 and stats.captures <= 1
    with pytest.raises(Exception):  # noqa: B017 - of whatever kind: it must not be hidden
        stax.compile(fn, store="memory:", fullgraph=True)(x)


def test_an_error_of_the_program_is_its_own() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            raise ValueError("no matrices")
        return x

    with pytest.raises(ValueError, match="no matrices"):
        stax.compile(refuses, store="memory:")(torch.randn(2, 2))


def test_a_kernel_of_one_device_does_not_read_another_s() -> None:
    """A call without tensors is for the CPU, unless told; here what it makes lies on another device."""

    def fn() -> torch.Tensor:
        return torch.ones(3, device="cuda") + torch.arange(3, device="cuda")

    with pytest.raises(CaptureError, match="another device"):
        stax.compile(fn, store="memory:", fullgraph=True)()
