"""Uninitialised tensors, views and layouts, by the shortest way that torch offers. Memory comes from torch's allocators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Sizes = tuple[int, ...]
Allocate = Callable[[Sizes, Sizes, torch.dtype], Tensor]


def allocator(device: str) -> Allocate:
    """(sizes, strides, dtype) → an uninitialised tensor on "cpu" or on the current CUDA device."""
    # NOTE: part of torch._C, half the cost of torch.empty_strided; it imports nothing of torch._dynamo.
    native = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", None)  # type: ignore[attr-defined]
    return native or partial(_empty_strided, device)


def _empty_strided(device: str, sizes: Sizes, strides: Sizes, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def view(x: Tensor, sizes: Sizes, strides: Sizes, offset: int) -> Tensor:
    """``x`` itself when it has this geometry, else a view of it; ``offset`` counts from its first element."""
    if x.shape == sizes and x.stride() == strides and offset == 0:
        return x
    return x.as_strided(sizes, strides, x.storage_offset() + offset)


def laid_out(x: Tensor, sizes: Sizes, strides: Sizes) -> Tensor:
    """``x``, or a copy of it with these strides. Raises RuntimeError when its sizes are others: the operator gave
    another result than it did at capture."""
    if x.shape != sizes:
        raise RuntimeError(f"an operator gave sizes {tuple(x.shape)}, expected {sizes}")
    if x.stride() == strides or x.numel() == 0:
        return x
    same = all(a == b for a, b, size in zip(x.stride(), strides, sizes) if size > 1)
    return x if same else x.new_empty_strided(sizes, strides).copy_(x)


def aligned(x: Tensor) -> Tensor:
    """A copy of the same sizes and strides at the start of fresh memory."""
    if x.numel() == 0:
        return x
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    flat = x.as_strided((extent,), (1,), x.storage_offset()).clone()
    return flat.as_strided(x.shape, x.stride(), 0)
