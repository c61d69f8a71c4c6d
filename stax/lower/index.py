"""Rules of gathers, and of scatters whose place is known without data.

An index out of range raises IndexError at run time; only where eager counts negative ones from the end do we.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stax.ir.expr import Expr, const, product
from stax.ir.value import Value, bound, cast, constant, index, scalar, where
from stax.lower import views
from stax.lower.build import Call, Declined, Table
from stax.lower.create import at_least, less
from stax.lower.pointwise import both
from stax.lower.scalars import Number, read
from stax.lower.view import slice_start, wrap_dim
from stax.lower.views import Shape, View, axis

Int = int | Expr


def checked(value: Value, extent: Expr) -> Value:
    """An index that must lie in 0 .. extent-1."""
    return bound(cast(value, "int64"), extent)


def from_end(value: Value, extent: Expr) -> Value:
    """An index with negative ones counted from the end."""
    value = cast(value, "int64")
    return where(less(value, 0), scalar("add", value, index(extent)), value)


def wrapped(value: Value, extent: Expr) -> Value:
    return checked(from_end(value, extent), extent)


def embedding(c: Call, weight: View, indices: View, *unused: object) -> View:
    row = checked(read(indices), weight.shape[0])
    return c.fill(read(weight, [row, axis(indices.rank)]))


def index_select(c: Call, x: View, dim: int, indices: View) -> View:
    dim = wrap_dim(dim, x.rank)
    at: list[Expr | Value] = [axis(k) for k in range(x.rank)]
    place = [axis(dim)] * indices.rank
    row = checked(read(indices, place), x.shape[dim] if x.rank else const(1))
    if not x.rank:
        return c.fill(read(x))
    at[dim] = row
    return c.fill(read(x, at))


def gather(c: Call, x: View, dim: int, indices: View, *, sparse_grad: bool = False) -> View:
    dim = wrap_dim(dim, x.rank)
    if not x.rank:
        return c.fill(read(c.expand(x, indices.shape)))
    at: list[Expr | Value] = [axis(k) for k in range(x.rank)]
    at[dim] = checked(read(c.expand(indices, c.out.shape)), x.shape[dim])
    return c.fill(read(x, at))


def take(c: Call, x: View, indices: View) -> View:
    size = product(x.shape)
    flat = views.reshape(x, (size,), c.ranges)
    return c.fill(read(flat, [wrapped(read(indices), size)]))


def index_tensor(c: Call, x: View, indices: Sequence[View | None]) -> View | Declined:
    """x[indices]: the broadcast indices stand where the first of them does when they are neighbours, else in front."""
    if any(v is not None and v.dtype in ("bool", "uint8") for v in indices):
        return Declined("a mask as index: the size of the result is data")
    return c.fill(read(x, places_of(c, x, indices, c.out.shape, wrapped)))


def unsafe_index(c: Call, x: View, indices: Sequence[View | None]) -> View | Declined:
    if any(v is not None and v.dtype in ("bool", "uint8") for v in indices):
        return Declined("a mask as index: the size of the result is data")
    return c.fill(read(x, places_of(c, x, indices, c.out.shape, from_end)))


def unsafe_masked_index(
    c: Call, x: View, mask: View, indices: Sequence[View | None], fill: Number
) -> View | Declined:
    """x[indices] where ``mask``; elsewhere nothing is read and the result is ``fill``."""
    if any(v is not None and v.dtype in ("bool", "uint8") for v in indices):
        return Declined("a mask as index: the size of the result is data")
    chosen = read(c.expand(mask, c.out.shape))
    return c.fill(read(x, places_of(c, x, indices, c.out.shape, from_end), chosen, fill))


def first_place(indices: Sequence[View | None]) -> int:
    """The dimension of x[indices] at which the broadcast indices stand."""
    used = [k for k, v in enumerate(indices) if v is not None]
    return used[0] if used == list(range(used[0], used[-1] + 1)) else 0


def places_of(
    c: Call,
    x: View,
    indices: Sequence[View | None],
    shape: Shape,
    place: Callable[[Value, Expr], Value],
) -> list[Expr | Value]:
    """The element of x at each point of ``shape``, the shape of x[indices]; ``place`` checks an index."""
    first = first_place(indices)
    rank = max(v.rank for v in indices if v is not None)
    target = shape[first : first + rank]
    shift = {views.axis_name(k): axis(first + k) for k in range(rank)}
    at: list[Expr | Value] = []
    free = iter([k for k in range(len(shape)) if not first <= k < first + rank])
    for k in range(x.rank):
        v = indices[k] if k < len(indices) else None
        if v is None:
            at.append(axis(next(free)))
            continue
        value = read(v, [p.subs(shift) for p in views.broadcast(v.shape, target, c.hints)])
        at.append(place(value, x.shape[k]))
    return at


# -- scatters to places that are known


def slice_scatter(
    c: Call,
    x: View,
    source: View,
    dim: int = 0,
    start: Int | None = None,
    end: Int | None = None,
    step: int = 1,
) -> View:
    dim = wrap_dim(dim, x.rank)
    extent = source.shape[dim]
    if extent == 0:
        return c.fill(read(x))
    first = slice_start(c, start, x.shape[dim])
    gap = axis(dim) - first
    inside = both(at_least(axis(dim), first), less(axis(dim), first + (extent - 1) * step + 1))
    if step != 1:
        inside = both(inside, scalar("eq", index(gap % step), constant(0, "int64")))
    at: list[Expr] = [axis(k) for k in range(x.rank)]
    at[dim] = gap // step
    return c.fill(where(inside, cast(read(source, at, inside), x.dtype), read(x)))


def select_scatter(c: Call, x: View, source: View, dim: int, place: Int) -> View:
    dim = wrap_dim(dim, x.rank)
    first = slice_start(c, place, x.shape[dim])
    inside = scalar("eq", index(axis(dim)), index(first))
    at = [axis(k) for k in range(x.rank) if k != dim]
    return c.fill(where(inside, cast(read(source, at), x.dtype), read(x)))


def diagonal_scatter(
    c: Call, x: View, source: View, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> View:
    dim1, dim2 = wrap_dim(dim1, x.rank), wrap_dim(dim2, x.rank)
    inside = scalar("eq", index(axis(dim2) - axis(dim1)), index(offset))
    along = axis(dim1) - max(-offset, 0)
    at = [axis(k) for k in range(x.rank) if k not in (dim1, dim2)]
    return c.fill(where(inside, cast(read(source, [*at, along], inside), x.dtype), read(x)))


RULES: Table = {
    "aten.embedding.default": embedding,
    "aten.index_select.default": index_select,
    "aten.gather.default": gather,
    "aten.take.default": take,
    "aten.index.Tensor": index_tensor,
    "aten._unsafe_index.Tensor": unsafe_index,
    "aten._unsafe_masked_index.default": unsafe_masked_index,
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
    "aten.diagonal_scatter.default": diagonal_scatter,
}
