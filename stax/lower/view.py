"""Rules of view operators: index maps only, no loops. The ``_copy`` form of each is the same map and one copy."""

from __future__ import annotations

from collections.abc import Sequence

from stax.base.errors import MissingRule
from stax.capture.captured import Meta
from stax.ir.expr import Expr, const, maximum, total
from stax.ir.ranges import nonneg, simplify
from stax.lower import views
from stax.lower.build import Call, Declined, Result, Rule, Table
from stax.lower.scalars import read
from stax.lower.views import View

Int = int | Expr


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the left; 0-dim tensors accept 0 and -1."""
    return dim % max(rank, 1)


def as_is(c: Call, x: View) -> View:
    return x


def reshape(c: Call, x: View, *unused: object) -> View:
    return views.reshape(x, c.out.shape, c.ranges)


def expand(c: Call, x: View, size: object, *, implicit: bool = False) -> View:
    return c.expand(x, c.out.shape)


def permute(c: Call, x: View, dims: Sequence[int]) -> View:
    return views.permute(x, [wrap_dim(d, x.rank) for d in dims], c.ranges)


def transpose(c: Call, x: View, dim0: int, dim1: int) -> View:
    dims = list(range(x.rank))
    if dims:
        a, b = wrap_dim(dim0, x.rank), wrap_dim(dim1, x.rank)
        dims[a], dims[b] = dims[b], dims[a]
    return views.permute(x, dims, c.ranges)


def t(c: Call, x: View) -> View:
    return views.permute(x, list(range(x.rank))[::-1], c.ranges)


def squeeze(c: Call, x: View, dims: int | Sequence[int] | None = None) -> View:
    """A size that is 1 at capture is 1 by a guard."""
    chosen = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    wanted = {wrap_dim(d, x.rank) for d in chosen if x.rank}
    return views.drop(x, sorted(d for d in wanted if x.shape[d].evaluate(c.hints) == 1), c.ranges)


def unsqueeze(c: Call, x: View, dim: int) -> View:
    return views.insert(x, [wrap_dim(dim, x.rank + 1)], c.ranges)


def slice_start(c: Call, start: Int | None, size: Expr) -> Expr:
    """The first element of a slice as a position from the left; one past the end only when the slice is empty."""
    first = const(0 if start is None else start)
    if nonneg(-first - 1, c.ranges):
        first = simplify(maximum(first + size, 0), c.ranges)
    return first


def slice_rule(
    c: Call, x: View, dim: int = 0, start: Int | None = None, end: Int | None = None, step: int = 1
) -> View:
    dim = wrap_dim(dim, x.rank)
    return views.take(
        x, dim, slice_start(c, start, x.shape[dim]), const(step), c.out.shape[dim], c.ranges
    )


def narrow(c: Call, x: View, dim: int, start: Int, length: Int) -> View:
    return slice_rule(c, x, dim, start)


def select(c: Call, x: View, dim: int, index: Int) -> View:
    dim = wrap_dim(dim, x.rank)
    place = const(index)
    if nonneg(-place - 1, c.ranges):
        place = place + x.shape[dim]
    return views.drop(views.take(x, dim, place, const(1), const(1), c.ranges), [dim], c.ranges)


def split(c: Call, x: View, sizes: object, dim: int = 0) -> Result:
    """Consecutive pieces along ``dim``, as long as the graph says."""
    dim = wrap_dim(dim, x.rank)
    pieces: list[Result] = []
    start = const(0)
    for meta in _metas(c):
        pieces.append(views.take(x, dim, start, const(1), meta.shape[dim], c.ranges))
        start = start + meta.shape[dim]
    return pieces


def unbind(c: Call, x: View, dim: int = 0) -> Result:
    return [select(c, x, dim, k) for k, _ in enumerate(_metas(c))]


def _metas(c: Call) -> list[Meta]:
    found = c.meta if isinstance(c.meta, tuple) else (c.meta,)
    return [m for m in found if isinstance(m, Meta)]


def diagonal(c: Call, x: View, offset: int = 0, dim1: int = 0, dim2: int = 1) -> View:
    dim1, dim2 = wrap_dim(dim1, x.rank), wrap_dim(dim2, x.rank)
    return views.diagonal(x, offset, dim1, dim2, c.out.shape[-1], c.ranges)


def unfold(c: Call, x: View, dimension: int, size: int, step: int) -> View:
    dim = wrap_dim(dimension, x.rank)
    if x.rank == 0:
        return views.insert(x, [0], c.ranges)
    return views.unfold(x, dim, size, step, c.out.shape[dim], c.ranges)


def as_strided(
    c: Call, x: View, size: Sequence[Int], stride: Sequence[Int], storage_offset: Int | None = None
) -> View | Declined:
    """Of the storage below ``x``, as eager has it."""
    buffer = x.buffer
    layout = c.builder.layouts.get(buffer.name, views.Layout(buffer.strides, buffer.offset))
    origin = {views.axis_name(k): const(0) for k in range(x.rank)}
    own = total([layout.offset, *(e.subs(origin) * s for e, s in zip(x.coords, layout.strides))])
    offset = own if storage_offset is None else const(storage_offset)
    shape, strides = tuple(map(const, size)), tuple(map(const, stride))
    found = views.from_storage(buffer, layout, shape, strides, offset, c.ranges)
    if found is None and buffer.kind == "temp":
        raise MissingRule(
            "as_strided reads memory between the elements of a changed tensor",
            where=c.where,
            hint="index the tensor instead of its storage",
        )
    return Declined("as_strided of a tensor with holes") if found is None else found


def copied(rule: Rule) -> Rule:
    """The ``_copy`` form of a view rule: fresh tensors."""

    def copy(c: Call, *args: object, **kwargs: object) -> Result:
        found = rule(c, *args, **kwargs)
        if isinstance(found, View):
            return c.fill(read(found))
        if isinstance(found, list):
            return [c.fill(read(v), m) for v, m in zip(found, _metas(c)) if isinstance(v, View)]
        return found

    return copy


_VIEWS: dict[str, Rule] = {
    "aten.alias.default": as_is,
    "aten.detach.default": as_is,
    "aten.view.default": reshape,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": t,
    "aten.expand.default": expand,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.unsqueeze.default": unsqueeze,
    "aten.slice.Tensor": slice_rule,
    "aten.select.int": select,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unbind.int": unbind,
    "aten.diagonal.default": diagonal,
    "aten.unfold.default": unfold,
    "aten.as_strided.default": as_strided,
}


def _copy_name(name: str) -> str:
    space, op, overload = name.split(".")
    return f"{space}.{op}_copy.{overload}"


RULES: Table = {
    **_VIEWS,
    **{_copy_name(name): copied(rule) for name, rule in _VIEWS.items()},
    "aten.narrow_copy.default": copied(narrow),
    "aten.lift_fresh.default": as_is,
    "aten._unsafe_view.default": reshape,
    "aten._reshape_alias.default": reshape,
    "aten.reshape.default": reshape,
    "aten.unsafe_split.Tensor": copied(split),
    "aten.unsafe_split_with_sizes.default": copied(split),
}
