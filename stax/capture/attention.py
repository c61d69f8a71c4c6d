"""Attention is taken apart the same way on every machine: torch would choose a kernel by the device that traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_SDPA = torch.nn.functional.scaled_dot_product_attention
Decompositions = Mapping[Any, Callable[..., Any]]


class PlainAttention(TorchFunctionMode):
    """scaled_dot_product_attention becomes its row in the decomposition table, else torch's own mathematical form."""

    def __init__(self, decompositions: Decompositions) -> None:
        super().__init__()
        op = aten.scaled_dot_product_attention.default
        self._attend = decompositions.get(op, _mathematical)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _SDPA:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _mathematical(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
