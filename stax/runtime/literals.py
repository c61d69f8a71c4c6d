"""Python constants among arguments and outputs: torch objects to plain data (kind, name) and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import torch

from stax.artifact.guards import ConstantGuard
from stax.base.errors import SchemaError
from stax.ir.dtypes import DTYPES

_TORCH: Mapping[type, str] = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}
_PLAIN = (type(None), bool, int, float, complex, str)
_NAMES: Mapping[str, frozenset[str]] = {
    "dtype": frozenset(DTYPES),
    "layout": frozenset(["strided"]),
    "memory_format": frozenset(
        ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]
    ),
}


def to_literal(value: object) -> object:
    """The plain form of a constant: itself, or ("dtype", "float32") for a torch object. Raises TypeError for what is
    no constant: capture refuses such an argument."""
    if type(value) in _PLAIN:
        return value
    kind = _TORCH.get(type(value))
    if kind is None:
        raise TypeError(f"{type(value).__name__} is no constant")
    return kind, str(value).removeprefix("torch.")


def from_literal(value: object) -> object:
    """The constant of :func:`to_literal`. Raises SchemaError for a name that torch does not have."""
    if type(value) is not tuple:
        return value
    kind, name = value
    if kind == "device":
        return _device(name)
    if name not in _NAMES.get(kind, ()):
        raise SchemaError(
            "unknown torch constant",
            expected=", ".join(sorted(_NAMES.get(kind, ()))),
            found=str(name),
        )
    return getattr(torch, name)


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise SchemaError("unknown device", expected="cpu or cuda", found=name) from error


def constant_guard(leaf: int, value: object) -> ConstantGuard:
    """The guard that leaf ``leaf`` of a call is this constant. Raises TypeError as :func:`to_literal` does."""
    return ConstantGuard(leaf, to_literal(value), type(value).__name__)


def same(value: object, expected: object) -> bool:
    """Same type and equal; NaN equals NaN, -0.0 differs from 0.0."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, float) and isinstance(expected, float):
        return _bits(value) == _bits(expected)
    if isinstance(value, complex) and isinstance(expected, complex):
        return (_bits(value.real), _bits(value.imag)) == (
            _bits(expected.real),
            _bits(expected.imag),
        )
    return value == expected


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack(">d", value)
