"""Rules of writes at computed places: a copy of the old contents, changed by one scatter.

An index out of range raises IndexError; only where eager counts negative ones from the end do we. Sums of half types are
taken in float32 and those of narrow integers in int32, and rounded once. On a GPU the writes come in any order, so a rule
whose result depends on it declines under torch.use_deterministic_algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence

from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.expr import Expr, const, product, sym
from stax.ir.value import Value, cast, constant, index, scalar, walk, where
from stax.lower import views
from stax.lower.build import Call, Declined, Table
from stax.lower.create import less
from stax.lower.index import checked, first_place, places_of, wrapped
from stax.lower.pointwise import both
from stax.lower.scalars import Number, Operand, add, evaluate, mul, number, operand_value, read
from stax.lower.view import wrap_dim
from stax.lower.views import Hints, Shape, View, axis

Int = int | Expr
Result = View | Declined
FLAT = "flat"
ORDERED = Declined("deterministic algorithms are asked for, and writes on a GPU come in any order")


def _sum_dtype(dtype: str) -> str:
    """In which sums of ``dtype`` are taken; the last bits of an int32 are the sum of any narrower integers."""
    row = DTYPES[dtype]
    if row.is_float:
        return accumulator(dtype)
    return "int32" if row.itemsize < 4 else dtype


def _any_order(c: Call, value: Value, mode: str) -> bool:
    """True when the order of the writes shows in the result, and must not."""
    if not (c.builder.deterministic and c.out.device == "cuda"):
        return False
    return DTYPES[value.dtype].is_float if mode == "add" else not _is_one(value, c.hints)


def _is_one(value: Value, sizes: Hints) -> bool:
    """The same at every point: no symbol in it but sizes."""
    exprs = [v.attr[0] for v in walk(value) if v.op == "index"]
    return all(e.symbols <= sizes.keys() for e in exprs if isinstance(e, Expr))


def _changed(
    c: Call, x: View, points: Shape, value: Value, places: Sequence[Expr | Value], mode: str
) -> Result:
    """x, with ``value`` set or added at ``places``; None of the points: x."""
    if _any_order(c, value, mode):
        return ORDERED
    dtype = _sum_dtype(x.dtype) if mode == "add" else x.dtype
    return c.scatter(cast(read(x), dtype), points, cast(value, dtype), places, mode=mode)


# -- along one dimension, an index for every element


def scatter(c: Call, x: View, dim: int, indices: View, source: Operand) -> Result:
    """With one index a line along ``dim`` each element knows whether it is the one that is written."""
    if not x.rank or not indices.rank:
        return Declined("a scatter into a number")
    if indices.shape[wrap_dim(dim, x.rank)] == 1:
        return _one_a_line(c, x, wrap_dim(dim, x.rank), indices, source)
    return _along(c, x, dim, indices, source, "set")


def scatter_add(c: Call, x: View, dim: int, indices: View, source: View) -> Result:
    return _along(c, x, dim, indices, source, "add")


def scatter_with(
    c: Call, x: View, dim: int, indices: View, source: Operand, *, reduce: str
) -> Result:
    if reduce != "add":
        return Declined(f"a product at computed places: reduce={reduce!r}")
    return _along(c, x, dim, indices, source, "add")


def scatter_reduce(
    c: Call,
    x: View,
    dim: int,
    indices: View,
    source: View,
    reduce: str,
    *,
    include_self: bool = True,
) -> Result:
    if reduce != "sum" or not include_self:
        return Declined(f"reduce={reduce!r}, include_self={include_self} at computed places")
    return _along(c, x, dim, indices, source, "add")


def _along(c: Call, x: View, dim: int, indices: View, source: Operand, mode: str) -> Result:
    if not x.rank or not indices.rank:
        return Declined("a scatter into a number")
    dim = wrap_dim(dim, x.rank)
    at: list[Expr | Value] = [axis(k) for k in range(x.rank)]
    at[dim] = checked(read(indices), x.shape[dim])
    value = read(source) if isinstance(source, View) else number(source, x.dtype)
    return _changed(c, x, indices.shape, value, at, mode)


def _one_a_line(c: Call, x: View, dim: int, indices: View, source: Operand) -> View:
    at = [const(0) if k == dim else axis(k) for k in range(x.rank)]
    covered: Value | None = None
    for k in range(x.rank):
        if k != dim and indices.shape[k] != x.shape[k]:
            below = less(axis(k), indices.shape[k])
            covered = below if covered is None else both(covered, below)
    place = checked(read(indices, at, covered), x.shape[dim])
    hit = scalar("eq", place, index(axis(dim)))
    hit = hit if covered is None else both(covered, hit)
    value = (
        read(source, at, covered)
        if isinstance(source, View) and source.rank
        else c.operand(source, x.dtype)
    )
    return c.fill(where(hit, cast(value, x.dtype), read(x)))


# -- along one dimension, an index for every slice


def index_add(
    c: Call, x: View, dim: int, indices: View, source: View, *, alpha: Number = 1
) -> Result:
    if alpha != 1 and x.dtype == "bool":
        return Declined("alpha of bools")
    dtype = _sum_dtype(x.dtype)
    value = cast(read(source), dtype)
    value = value if alpha == 1 else mul(value, number(alpha, dtype))
    return _slices(c, x, dim, indices, source.shape, value, "add")


def index_copy(c: Call, x: View, dim: int, indices: View, source: View) -> Result:
    return _slices(c, x, dim, indices, source.shape, read(source), "set")


def index_fill(c: Call, x: View, dim: int, indices: View, value: Operand) -> Result:
    """Of the index rules along a dimension the only one that counts negative indices from the end."""
    if not x.rank:
        return Declined("a scatter into a number")
    dim = wrap_dim(dim, x.rank)
    points = list(x.shape)
    points[dim] = indices.shape[0] if indices.rank else const(1)
    at: list[Expr | Value] = [axis(k) for k in range(x.rank)]
    at[dim] = wrapped(read(indices, [axis(dim)] * indices.rank), x.shape[dim])
    filler = operand_value(value, x.dtype, tuple(points), c.hints)
    return _changed(c, x, tuple(points), filler, at, "set")


def _slices(
    c: Call, x: View, dim: int, indices: View, points: Shape, value: Value, mode: str
) -> Result:
    if not x.rank or len(points) != x.rank:
        return Declined("a scatter into a number")
    dim = wrap_dim(dim, x.rank)
    at: list[Expr | Value] = [axis(k) for k in range(x.rank)]
    at[dim] = checked(read(indices, [axis(dim)] * indices.rank), x.shape[dim])
    return _changed(c, x, points, value, at, mode)


def embedding_dense_backward(
    c: Call, grad: View, indices: View, rows: Int, padding: Int, by_frequency: bool
) -> Result:
    """Each row of the gradient is added to the row of its index, except those of the padding."""
    if by_frequency:
        return Declined("scale_grad_by_freq: the counts are data")
    if _any_order(c, read(grad), "add"):
        return ORDERED
    dtype = _sum_dtype(grad.dtype)
    row = read(indices)
    kept = None if isinstance(padding, int) and padding < 0 else _differs(row, padding)
    at = [checked(row, c.out.shape[0]), axis(indices.rank)]
    value = cast(read(grad), dtype)
    return c.scatter(constant(0, dtype), grad.shape, value, at, mode="add", mask=kept)


def _differs(row: Value, padding: Int) -> Value:
    return scalar("ne", cast(row, "int64"), number(padding, "int64"))


# -- x[indices] = values


def index_put(
    c: Call, x: View, indices: Sequence[View | None], values: View, accumulate: bool = False
) -> Result:
    mask = indices[0]
    if mask is not None and mask.dtype == "bool" and all(v is None for v in indices[1:]):
        return _put_where(c, x, mask, values, accumulate)
    if any(v is not None and v.dtype in ("bool", "uint8") for v in indices):
        return Declined("a mask as index: how many elements it chooses is data")
    points = _points(x, indices, c.hints)
    at = places_of(c, x, indices, points, wrapped)
    value = operand_value(values, values.dtype, points, c.hints)
    mode = "add" if accumulate else "set"
    return _changed(c, x, points, value, at, mode)


def _put_where(c: Call, x: View, mask: View, values: View, accumulate: bool) -> Result:
    """x[mask] = what does not depend on how many elements the mask chooses: a choice, element by element."""
    if values.rank > x.rank - mask.rank:
        return Declined("values for the elements that a mask chooses: their places are data")
    chosen = read(mask, [axis(k) for k in range(mask.rank)])
    value = c.operand(values, x.dtype)
    dtype = _sum_dtype(x.dtype)
    if accumulate:
        value = cast(add(cast(read(x), dtype), cast(value, dtype)), x.dtype)
    return c.fill(where(chosen, value, read(x)))


def put(c: Call, x: View, indices: View, source: View, accumulate: bool = False) -> Result:
    """Indices into x as one row."""
    if not x.rank or any(size == 0 for size in x.shape):
        return Declined("a scatter into a number or into nothing")
    flat = wrapped(read(indices), product(x.shape))
    at = [evaluate(e, {FLAT: flat}) for e in views.unravel(sym(FLAT), x.shape)]
    value = read(views.reshape(source, indices.shape, c.ranges))
    return _changed(c, x, indices.shape, value, at, "add" if accumulate else "set")


def _points(x: View, indices: Sequence[View | None], hints: Hints) -> Shape:
    """The shape of x[indices]."""
    first = first_place(indices)
    free = [x.shape[k] for k in range(x.rank) if k >= len(indices) or indices[k] is None]
    wide = broadcast_shape([v.shape for v in indices if v is not None], hints)
    return (*free[:first], *wide, *free[first:])


def broadcast_shape(shapes: Sequence[Shape], hints: Hints) -> Shape:
    """What shapes broadcast to, aligned on the right."""
    rank = max(map(len, shapes))
    sizes = [[s[len(s) - k] for s in shapes if len(s) >= k] for k in range(rank, 0, -1)]
    return tuple(next((e for e in row if e.evaluate(hints) != 1), row[0]) for row in sizes)


RULES: Table = {
    "aten.scatter.value": scatter,
    "aten.scatter.src": scatter,
    "aten.scatter.reduce": scatter_with,
    "aten.scatter.value_reduce": scatter_with,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.index_put.default": index_put,
    "aten._unsafe_index_put.default": index_put,
    "aten.put.default": put,
    "aten.embedding_dense_backward.default": embedding_dense_backward,
}
