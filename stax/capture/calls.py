"""Calls of torch's Python functions that a trace treats its own way, before operators are made of them.

Attention is taken apart the same way on every machine, where torch would choose a kernel by the device that traces;
what leaves torch (numpy, addresses) is refused at the user's line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stax.base.errors import CaptureError, DataDependent
from stax.capture.value import leaves, rebuild

aten = torch.ops.aten
_SDPA = torch.nn.functional.scaled_dot_product_attention
Decompositions = Mapping[Any, Callable[..., Any] | None]


class Calls(TorchFunctionMode):
    """scaled_dot_product_attention becomes its row in the decomposition table, else the row of the fused CPU kernel where
    that kernel takes the call (its result has another layout), else torch's own mathematical form."""

    def __init__(self, decompositions: Decompositions) -> None:
        super().__init__()
        # NOTE: a function mode is off inside the functions it handles, and torch's own modules call this one.
        self._inner = contextlib.ExitStack()
        self._patches = (
            mock.patch.object(torch.nn.functional, _SDPA.__name__, self.attend),
            mock.patch.object(torch, "manual_seed", _seed),
        )
        self._whole = decompositions.get(aten.scaled_dot_product_attention.default)
        self._fused = decompositions.get(aten._scaled_dot_product_flash_attention_for_cpu.default)

    def __enter__(self) -> Self:
        for patch in self._patches:
            self._inner.enter_context(patch)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.close()
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _SDPA:
            return self.attend(*args, **(kwargs or {}))
        if func in _LEAVING:
            raise _LEAVING[func]()
        if func is torch.tensor and any(isinstance(v, Tensor) for v in leaves(args)):
            raise _number()
        if func is Tensor.cuda:
            return _to_cuda(*args, **(kwargs or {}))
        if func is Tensor.to:
            args, kwargs = _indexed_move(args), rebuild(kwargs or {}, _indexed)
        return func(*args, **(kwargs or {}))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        call = (query, key, value, attn_mask, dropout_p, is_causal)
        if self._whole is not None:
            return self._whole(*call, scale=scale, enable_gqa=enable_gqa)
        if self._fused is not None and _is_fused(query, key, value, dropout_p, enable_gqa):
            found = self._fused(
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )
            if found is not NotImplemented:
                return found[0]
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -float("inf")).to(query.dtype)
        math = aten._scaled_dot_product_attention_math.default
        call = (query, key, value, attn_mask, dropout_p, is_causal)
        return math(*call, scale=scale, enable_gqa=enable_gqa)[0]


# NOTE: a move to "cuda" without an index asks the device guard, and the one of a CPU build answers "meta".
def _indexed(leaf: Any) -> Any:
    """The device "cuda" as "cuda:0"."""
    if isinstance(leaf, str) and leaf == "cuda":
        return torch.device("cuda", 0)
    if isinstance(leaf, torch.device) and leaf.type == "cuda" and leaf.index is None:
        return torch.device("cuda", 0)
    return leaf


def _indexed_move(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A number as the first argument of to() is a CUDA device."""
    if len(args) > 1 and type(args[1]) is int:
        args = (args[0], torch.device("cuda", args[1]), *args[2:])
    return tuple(_indexed(a) for a in args)


def _to_cuda(tensor: Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    device = torch.device("cuda", device) if isinstance(device, int) else _indexed(device or "cuda")
    return tensor.to(device, *args, **kwargs)


def _numpy() -> CaptureError:
    return DataDependent(
        "the program turns a tensor into a numpy array", hint="do the same with torch functions"
    )


def _number() -> CaptureError:
    return DataDependent(
        "the program takes a Python value out of a tensor (torch.tensor)",
        hint="use torch.stack or x.clone()",
    )


def _address() -> CaptureError:
    return CaptureError(
        "the program asks for a tensor's address",
        hint="wrap the kernel as a custom operator of torch",
    )


def _swap() -> CaptureError:
    return CaptureError("the program assigns to x.data", hint="write in place: x.copy_(...)")


def _seed(*_: Any, **__: Any) -> Any:
    raise CaptureError(
        "the program seeds the random generator", hint="call torch.manual_seed outside of it"
    )


_LEAVING: Mapping[Any, Callable[[], CaptureError]] = {
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.data_ptr: _address,
    Tensor.data.__set__: _swap,  # type: ignore[attr-defined]
}


def _is_fused(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, gqa: bool) -> bool:
    """The conditions of torch's fused CPU kernel."""
    if dropout_p != 0.0 or any(t.dim() != 4 for t in (query, key, value)):
        return False
    if not query.dtype.is_floating_point or any(t.stride(-1) != 1 for t in (query, key, value)):
        return False
    heads, width = query.shape[1], query.shape[3]
    if key.shape[3] != width or value.shape[3] != width or query.shape[2] == 0 or key.shape[2] == 0:
        return False
    if gqa:
        return key.shape[1] == value.shape[1] and heads % key.shape[1] == 0
    return heads == key.shape[1] and heads == value.shape[1]
