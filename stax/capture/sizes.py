"""Sizes of a trace: one symbol a dimension in dynamic mode, symbolic strides, and the shape environment behind them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._guards import SLoc, Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


class Fakes(FakeTensorMode):
    """A FakeTensorMode without the wrapper of torch._dynamo.disable around every operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @property
    def avoid_device_init(self) -> bool:
        """torch.tensor(..., device="cuda") makes its constant on the CPU and moves it as an operator, GPU or not."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs or {})


class Environment(ShapeEnv):
    """A ShapeEnv whose guards remember the user's line. ``sizes``: each symbol's value at capture; ``decisions``: every
    condition that was asked, its answer, and where. Torch keeps no guard of those that it believes to hold always; we
    look at them again with ranges of our own."""

    def __init__(self, here: Callable[[], str]) -> None:
        self._here = here
        self.sizes: dict[sympy.Symbol, int] = {}
        self.decisions: dict[Any, tuple[Any, str]] = {}
        super().__init__(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        answer = super().evaluate_expr(orig_expr, *args, **kwargs)
        if orig_expr not in self.decisions and not self._suppress_guards_tls():
            self.decisions[orig_expr] = answer, self._here()
        return answer

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        return SLoc(self._here(), None), ""


class Dimension(Source):
    """Names a dimension to the shape environment."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dimension) and self.text == other.text

    @functools.cached_property
    def name(self) -> str:
        return self.text

    @property
    def _name_template(self) -> str:
        return self.text


def symbolic(
    tensor: Tensor, env: Environment, name: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and strides of ``tensor`` over symbols: equal sizes share one, 0 and 1 stay numbers, a stride becomes a
    product of a size and another stride where it equals one, else it stays a number."""
    shape = []
    for dim, size in enumerate(tensor.shape):
        source = Dimension(f"{name}.size({dim})")
        symbol = env.create_symbol(size, source, DimDynamic.DUCK, None)
        if isinstance(symbol, sympy.Symbol):
            env.sizes[symbol] = size
        shape.append(env.create_symintnode(symbol, hint=size, source=source))
    return tuple(shape), _strides(tensor, shape)


def _strides(tensor: Tensor, shape: list[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [None] * tensor.dim()
    spans: dict[int, Any] = {}
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d))
    for dim in order:
        stride = tensor.stride(dim)
        symbolic_stride = spans.get(stride, stride) if stride > 1 else stride
        strides[dim] = symbolic_stride
        span = stride * tensor.size(dim)
        if span not in spans:
            spans[span] = symbolic_stride * shape[dim]
    return tuple(strides)


def concrete(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides as numbers."""
    return tuple(tensor.shape), tuple(tensor.stride())


def make_fake(
    shape: tuple[Any, ...],
    strides: tuple[Any, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A fake tensor of this layout, in the current FakeTensorMode."""
    if offset == 0:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    reach = 1 + offset
    for size, stride in zip(shape, strides):
        reach = reach + (size - 1) * stride
    memory = torch.empty((reach,), dtype=dtype, device=device)
    return torch.as_strided(memory, shape, strides, offset)
