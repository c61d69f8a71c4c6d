"""What tracing records before a graph is made of it: values, the operators that made them, and their geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Of a tensor at the moment it was recorded; sizes are int or SymInt."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: str

    @staticmethod
    def of(tensor: Tensor) -> Geometry:
        return Geometry(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
            tensor.dtype,
            tensor.device.type,
        )


Shape = Geometry | tuple["Geometry | None", ...] | None


class Value:
    """A result: of the operator ``func``, of item ``index`` of another value when func is None, or a graph input when
    both are None. Arguments hold Values where the call had tensors. Identity is equality."""

    __slots__ = ("args", "func", "geometry", "index", "kwargs", "name", "where")

    def __init__(
        self,
        func: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        geometry: Shape,
        where: str,
        *,
        index: int | None = None,
        name: str = "",
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.geometry = geometry
        self.where = where
        self.index = index
        self.name = name

    def operands(self) -> Iterator[Value]:
        """The values this one is computed from."""
        for leaf in leaves((self.args, self.kwargs)):
            if isinstance(leaf, Value):
                yield leaf


def leaves(nest: Any) -> Iterator[Any]:
    """What an argument nest of lists, tuples and dicts holds, in order."""
    if isinstance(nest, (list, tuple)):
        for item in nest:
            yield from leaves(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from leaves(item)
    else:
        yield nest


def rebuild(nest: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with every leaf changed; torch.Size becomes a tuple."""
    if isinstance(nest, tuple):
        return tuple([rebuild(item, change) for item in nest])
    if isinstance(nest, list):
        return [rebuild(item, change) for item in nest]
    if isinstance(nest, dict):
        return {key: rebuild(item, change) for key, item in nest.items()}
    return change(nest)


class Emit(Protocol):
    """Runs an operator on fake tensors and records it on values; Pairs stand where it takes tensors."""

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Pair: ...


@dataclass(frozen=True)
class Pair:
    """A tensor argument or result: the fake tensor that shows its geometry, and its recorded value;
    ``origin`` the value it had before any write."""

    fake: Tensor
    value: Value
    origin: Value | None = None


def same_sizes(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Equal as expressions; nothing is guarded."""
    left, right = list(a), list(b)
    return len(left) == len(right) and all(_same_size(x, y) for x, y in zip(left, right))


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return False
    return bool(a == b)
