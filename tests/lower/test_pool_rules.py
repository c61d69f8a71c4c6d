"""Pooling against eager, and a small convolutional network whose convolutions alone are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check, externs

POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max_stride": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), (2, 1)),
    "max_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_3d": lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True),
    "max_1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg_padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_ceil_without": lambda x: F.avg_pool2d(
        x, (2, 3), 2, (1, 1), ceil_mode=True, count_include_pad=False
    ),
    "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_3d": lambda x: F.avg_pool3d(x, 2, 1, 1),
    "avg_1d": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
    "global": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_pool(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and name == "avg_3d":
        pytest.skip("eager has no such kernel")
    x = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = check(POOLS[name], [x], scale=4)
    assert not externs(program)


# The arguments of a pooling after its input; its gradient takes the same.
GRADIENTS: dict[str, tuple[Any, ...]] = {
    "max": ((2, 2), (2, 2), (0, 0), (1, 1), False),
    "max_overlapping": ((3, 3), (2, 2), (1, 1), (1, 1), False),
    "max_dilated": ((2, 3), (1, 2), (1, 0), (2, 1), False),
    "max_ceil": ((3, 3), (2, 2), (0, 0), (1, 1), True),
    "max_3d": ((2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 1, 1), False),
    "avg": ((2, 2), (2, 2), (0, 0), False, True, None),
    "avg_overlapping": ((3, 3), (2, 1), (1, 1), False, True, None),
    "avg_without_padding": ((3, 2), (2, 2), (1, 1), True, False, None),
    "avg_default_stride": ((3, 2), [], (0, 0), True, True, None),
    "avg_divisor": ((2, 2), (1, 2), (0, 0), False, True, 3),
    "avg_3d": ((2, 2, 3), (1, 2, 2), (1, 0, 1), False, False, None),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradient(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    aten, options = torch.ops.aten, GRADIENTS[name]
    dims = len(options[0])
    x = torch.randn(2, 3, *(7, 9, 6)[:dims], generator=torch.Generator().manual_seed(0)).to(dtype)
    if name.startswith("max"):
        out, places = getattr(aten, f"max_pool{dims}d_with_indices")(x, *options)
        backward = getattr(aten, f"max_pool{dims}d_with_indices_backward")
        args = [torch.randn_like(out), x, places]
        program = check(lambda g, x, p: backward(g, x, *options, p), args, dynamic, scale=4)
    else:
        out = getattr(aten, f"avg_pool{dims}d")(x, *options)
        backward = getattr(aten, f"avg_pool{dims}d_backward")
        args = [torch.randn_like(out), x]
        program = check(lambda g, x: backward(g, x, *options), args, dynamic, scale=4)
    assert not externs(program)


def test_gradient_of_adaptive_pools() -> None:
    x, backward = torch.randn(2, 3, 6, 8), torch.ops.aten._adaptive_avg_pool2d_backward
    assert not externs(check(lambda g, x: backward(g, x), [torch.randn(2, 3, 3, 2), x]))
    assert externs(check(lambda g, x: backward(g, x), [torch.randn(2, 3, 4, 2), x], scale=4))


@pytest.mark.parametrize("name", ["max", "max_stride", "avg", "avg_without_padding", "global"])
def test_pool_of_channels_last(name: str) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).contiguous(
        memory_format=torch.channels_last
    )
    check(POOLS[name], [x])


def test_negative_inputs_lose_to_no_padding() -> None:
    x = torch.linspace(-5, -1, 25).view(1, 1, 5, 5)
    check(POOLS["max_stride"], [x])


def test_convolutional_network() -> None:
    torch.manual_seed(0)
    w1, w2 = torch.randn(4, 3, 3, 3), torch.randn(6, 4, 1, 1)

    def fn(
        x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        y = F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), m, v))
        y = F.conv2d(F.max_pool2d(y, 2), w2)
        return F.adaptive_avg_pool2d(y, 1).flatten(1).softmax(-1)

    args = [torch.randn(2, 3, 8, 8), w1, w2, torch.randn(4), torch.rand(4) + 0.5]
    program = check(fn, args, strict_native=True, scale=10)
    assert set(externs(program)) == {"aten.convolution.default"}
