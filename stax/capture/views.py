"""Views as data: the operator that made a tensor share another's memory, and the inverse that writes back through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stax.base.errors import CaptureError
from stax.capture.value import Emit, Geometry, Pair, same_sizes

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
    {aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default}
)


def strided_view(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
    """as_strided speaks of the memory, not of the tensor: a view of the root with an offset of its own."""
    size, stride = args[1], args[2]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    offset = tensor.storage_offset() if offset is None else offset
    return View(aten.as_strided.default, (View.BASE, list(size), list(stride), offset))


def replay(view: View, base: Pair, emit: Emit) -> Pair:
    """The view made again of ``base``, which has been written since."""
    if view.func is aten.as_strided.default:
        return _replay_strided(view, base, emit)
    args = tuple(base if a is View.BASE else a for a in view.args)
    return emit(view.func, args, dict(view.kwargs))


def _replay_strided(view: View, base: Pair, emit: Emit) -> Pair:
    """A written root is a new tensor: dense as the old one, or, when that had gaps between its elements, scattered into
    the old memory so that what lies in the gaps is read too."""
    _, size, stride, offset = view.args
    at = offset - base.fake.storage_offset()
    if _has_gaps(base.fake):
        extent = _extent(base.fake)
        old = Pair(base.fake, base.origin or base.value)
        flat = emit(aten.as_strided.default, (old, [extent], [1], base.fake.storage_offset()), {})
        place = (list(base.fake.shape), list(base.fake.stride()), 0)
        whole = emit(aten.as_strided_scatter.default, (flat, base, *place), {})
        return emit(aten.as_strided.default, (whole, size, stride, at), {})
    return emit(aten.as_strided.default, (base, size, stride, at + _offset(base)), {})


def _strided_back(view: View, base: Pair, new: Pair, emit: Emit) -> Pair:
    if _has_gaps(base.fake):
        raise CaptureError(
            "a write through as_strided of a tensor with gaps", hint="write to x.contiguous()"
        )
    _, size, stride, offset = view.args
    at = offset - base.fake.storage_offset() + _offset(base)
    return emit(aten.as_strided_scatter.default, (base, new, size, stride, at), {})


def _offset(pair: Pair) -> Any:
    geometry = pair.value.geometry
    assert isinstance(geometry, Geometry)
    return geometry.offset


def _extent(fake: Tensor) -> Any:
    extent: Any = 1
    for size, stride in zip(fake.shape, fake.stride()):
        extent = extent + (size - 1) * stride
    return extent


def _has_gaps(fake: Tensor) -> bool:
    return not same_sizes([_extent(fake)], [fake.numel()])


def item_view(view: View, index: int, outs: Sequence[Tensor]) -> View | None:
    """The view that makes result ``index`` of a split or unbind alone; None for another operator."""
    if view.func is aten.unbind.int:
        return View(aten.select.int, (View.BASE, view.arg(1, "dim", 0), index))
    if view.func in _SPLITS:
        dim = view.arg(2, "dim", 0)
        start = sum(out.shape[dim] for out in outs[:index])
        return View(aten.slice.Tensor, (View.BASE, dim, start, start + outs[index].shape[dim]))
    return None


_SPLITS = frozenset({aten.split.Tensor, aten.split_with_sizes.default})

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
    aten.as_strided.default: _strided_back,
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
