"""The request key: what is asked for, found out without running the callable, so that a cold machine can ask too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stax.artifact.fingerprint import fingerprint
from stax.artifact.keys import Key
from stax.base.options import Options
from stax.base.target import Target
from stax.runtime.signature import flatten_call

CallClass = tuple[object, ...]


def call_class(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, dynamic: bool, device: str
) -> CallClass:
    """The class of a call: its nest, and for each leaf dtype and rank (with sizes and strides when concrete) or the
    Python constant. ``device`` stands for the device of every tensor: the target's kind."""
    tree, leaves = flatten_call(args, kwargs)
    return device, tree, tuple(_leaf_class(leaf, dynamic=dynamic) for leaf in leaves)


def _leaf_class(leaf: object, *, dynamic: bool) -> tuple[object, ...]:
    if not isinstance(leaf, Tensor):
        return "constant", type(leaf).__name__, _plain(leaf)
    dtype = str(leaf.dtype)
    if dynamic:
        return "tensor", dtype, leaf.dim()
    return "tensor", dtype, tuple(leaf.shape), leaf.stride(), leaf.storage_offset()


def _plain(value: object) -> object:
    """A constant as plain data; types that have no canonical bytes by their text."""
    return (
        value if value is None or isinstance(value, (bool, int, float, str, bytes)) else str(value)
    )


def request_key(
    fn: object,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    options: Options,
    target: Target,
    stax_version: str,
) -> Key:
    """The key under which artifacts for this call are kept. Compilers are not part of it: a machine without any asks the
    same question; the torch release is, because it decides what a trace sees. Raises CaptureError when the callable can
    not be fingerprinted."""
    parts: dict[str, object] = {f"fn/{name}": value for name, value in fingerprint(fn)}
    parts |= {
        "call": call_class(args, kwargs, dynamic=dynamic, device=target.kind),
        "dynamic": dynamic,
        "options": options,
        "target": target,
        "torch": torch_release(),
        "stax": stax_version,
    }
    return Key.of("request", parts)


def torch_release() -> str:
    """The torch release without its local build suffix: "2.11.0" of "2.11.0+cu130"."""
    return str(torch.__version__).partition("+")[0]
