"""Views as data: the operator that made a tensor share another's memory, and the inverse that writes back through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stax.base.errors import CaptureError

if TYPE_CHECKING:
    from stax.capture.storage import Emit, Pair

aten = torch.ops.aten


class _Base:
    """Stands where the viewed tensor goes among a view's arguments."""


@dataclass(frozen=True)
class View:
    """``func(*args, **kwargs)`` with BASE replaced by the viewed tensor makes the view."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    BASE = _Base()

    def arg(self, position: int, name: str, default: Any) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return dict(self.kwargs).get(name, default)


# Operators whose result is the tensor itself: nothing is recorded for them.
SAME = frozenset(
    {
        aten.detach.default,
        aten.detach_.default,
        aten.alias.default,
        aten.lift.default,
        aten.lift_fresh.default,
        aten._reshape_alias.default,
    }
    - {aten._reshape_alias.default}
)


def item_view(view: View, index: int, sizes: tuple[Any, ...]) -> View | None:
    """The view that makes result ``index`` of a split or unbind alone; None for another operator. ``sizes``: the extent
    of each result along the split dimension."""
    if view.func is aten.unbind.int:
        return View(aten.select.int, (View.BASE, view.arg(1, "dim", 0), index))
    if view.func in _SPLITS:
        start = sum(sizes[:index])
        dim = view.arg(2, "dim", 0)
        return View(aten.slice.Tensor, (View.BASE, dim, start, start + sizes[index]))
    return None


_SPLITS = frozenset(
    {
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)

Inverse = Callable[["View", "Pair", "Pair", "Emit"], "Pair"]


def scatter(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    """The base whose view is ``new``, all else as it was."""
    inverse = _INVERSES.get(view.func)
    if inverse is None:
        raise CaptureError(
            f"a write through a view made by {view.func} has no functional form",
            hint="write to a copy (x.clone()) and return it",
        )
    return inverse(view, base, new, emit)


def _scatter_as(func: Callable[..., Any]) -> Inverse:
    """The scatter operator with the view's own arguments after (base, new)."""

    def inverse(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
        return emit(func, (base, new, *view.args[1:]), dict(view.kwargs))

    return inverse


def _reshape_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    shape = list(base.fake.shape)
    if not viewable(new.fake, shape):
        new = emit(aten.clone.default, (new,), {"memory_format": torch.contiguous_format})
    return emit(aten.view.default, (new, shape), {})


def viewable(fake: Tensor, shape: list[Any]) -> bool:
    """A view of this shape exists without a copy."""
    try:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            pass
        fake.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _transpose_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    return emit(view.func, (new, *view.args[1:]), dict(view.kwargs))


def _permute_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    dims = [d % base.fake.dim() for d in view.args[1]]
    back = [dims.index(d) for d in range(len(dims))]
    return emit(aten.permute.default, (new, back), {})


def _expand_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    if base.fake.numel() != new.fake.numel():
        raise CaptureError(
            "a write to an expanded tensor, whose elements share memory", hint="write to x.clone()"
        )
    return _reshape_back(view, base, new, emit)


def _dtype_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    return emit(aten.view.dtype, (new, base.fake.dtype), {})


def _call_back(func: Callable[..., Any]) -> Inverse:
    def inverse(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
        return emit(func, (new,), {})

    return inverse


_INVERSES: Mapping[Callable[..., Any], Inverse] = {
    aten.select.int: _scatter_as(aten.select_scatter.default),
    aten.slice.Tensor: _scatter_as(aten.slice_scatter.default),
    aten.diagonal.default: _scatter_as(aten.diagonal_scatter.default),
    aten.as_strided.default: _scatter_as(aten.as_strided_scatter.default),
    aten.t.default: _transpose_back,
    aten.transpose.int: _transpose_back,
    aten.permute.default: _permute_back,
    aten.expand.default: _expand_back,
    aten.view.default: _reshape_back,
    aten._unsafe_view.default: _reshape_back,
    aten.reshape.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.unsqueeze.default: _reshape_back,
    aten.view.dtype: _dtype_back,
    aten.view_as_real.default: _call_back(aten.view_as_complex.default),
    aten.view_as_complex.default: _call_back(aten.view_as_real.default),
}
