"""Rules of tensor creation and of rearrangements that copy: cat, pad, repeat, roll, flip, tril."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.expr import Expr, const, product
from stax.ir.ranges import nonneg
from stax.ir.value import Value, cast, constant, index, scalar, where
from stax.lower import views
from stax.lower.build import Call, Declined, Rule, Table
from stax.lower.pointwise import both
from stax.lower.scalars import Number, Operand, add, div, mul, number, read, sub
from stax.lower.view import wrap_dim
from stax.lower.views import View, axis

Int = int | Expr


def less(a: Int | Value, b: Int | Value) -> Value:
    """a < b of two positions."""
    return scalar("lt", _position(a), _position(b))


def at_least(a: Int | Value, b: Int | Value) -> Value:
    return scalar("ge", _position(a), _position(b))


def _position(a: Int | Value) -> Value:
    return a if isinstance(a, Value) else index(a)


# -- constants


def fill_with(value: Number) -> Rule:
    """zeros, ones and empty of every form: only the result's meta matters."""
    return lambda c, *args, **kwargs: c.fill(number(value, c.out.dtype))


def full(c: Call, size: object, value: Operand, **unused: object) -> View:
    return c.fill(number(value, c.out.dtype))


def scalar_tensor(c: Call, value: Operand, **unused: object) -> View:
    return c.fill(number(value, c.out.dtype))


def fill(c: Call, x: View, value: Operand) -> View:
    return c.fill(c.operand(value, c.out.dtype))


# -- ranges


def arange(
    c: Call, start: Operand, end: Operand, step: Operand = 1, **unused: object
) -> View | Declined:
    """Whole numbers are int64 expressions, exact for every size; fractions are computed in float64."""
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
        return c.fill(cast(index(const(start) + axis(0) * const(step)), c.out.dtype))
    if not DTYPES[c.out.dtype].is_float:
        return Declined("an integer range with fractional bounds")
    wide = "float64" if c.out.device == "cpu" or c.out.dtype == "float64" else "float32"
    place = mul(number(axis(0), wide), number(step, wide))
    return c.fill(cast(add(number(start, wide), place), c.out.dtype))


def linspace(c: Call, start: Number, end: Number, steps: int, **unused: object) -> View | Declined:
    """From both ends to the middle, as eager does, so that the last element is ``end``."""
    if not DTYPES[c.out.dtype].is_float:
        return Declined("whole numbers are cut from sums whose rounding depends on vector lanes")
    wide = accumulator(c.out.dtype)
    first, last = number(start, wide), number(end, wide)
    if steps == 1:
        return c.fill(cast(first, c.out.dtype))
    step = div(sub(last, first), number(steps - 1, wide))
    near = add(first, mul(step, number(axis(0), wide)))
    far = sub(last, mul(step, number(const(steps - 1) - axis(0), wide)))
    return c.fill(cast(where(less(axis(0), steps // 2), near, far), c.out.dtype))


def arange_end(c: Call, end: Operand, **unused: object) -> View | Declined:
    return arange(c, 0, end)


def iota(c: Call, length: Int, *, start: Int, step: Int, **unused: object) -> View | Declined:
    return arange(c, start, length, step)


def eye(c: Call, *args: object, **kwargs: object) -> View:
    on = scalar("eq", index(axis(0)), index(axis(1)))
    return c.fill(where(on, number(1, c.out.dtype), number(0, c.out.dtype)))


def triangle(keep: Callable[[Value, Value], Value]) -> Rule:
    """tril and triu: keep where ``keep(column - row, diagonal)``."""

    def rule(c: Call, x: View, diagonal: Int = 0) -> View:
        column, row = axis(x.rank - 1), axis(x.rank - 2)
        kept = keep(index(column - row), index(diagonal))
        return c.fill(where(kept, read(x), constant(0, x.dtype)))

    return rule


# -- joining and padding


def cat(c: Call, tensors: Sequence[View], dim: int = 0) -> View:
    """Masked loads of each piece; as torch does, 1-D tensors of size 0 join anything."""
    out = c.out
    dim = wrap_dim(dim, len(out.shape))
    pieces = [v for v in tensors if v.rank == len(out.shape) and v.shape[dim] != 0]
    ends: list[Expr] = [const(0)]
    for v in pieces:
        ends.append(ends[-1] + v.shape[dim])
    if not pieces:
        return c.fill(number(0, out.dtype))
    if len(pieces) == 1:
        return c.fill(cast(read(pieces[0]), out.dtype))
    values = [
        _piece(v, dim, ends[k], ends[k + 1], k, len(pieces), out.dtype)
        for k, v in enumerate(pieces)
    ]
    body = values[-1]
    for k in reversed(range(len(pieces) - 1)):
        body = where(less(axis(dim), ends[k + 1]), values[k], body)
    return c.fill(body)


def _piece(v: View, dim: int, start: Expr, end: Expr, k: int, count: int, dtype: str) -> Value:
    mask: Value | None = less(axis(dim), end) if k < count - 1 else None
    if k > 0:
        after = at_least(axis(dim), start)
        mask = after if mask is None else both(after, mask)
    at = [axis(d) for d in range(v.rank)]
    at[dim] = axis(dim) - start
    return cast(read(v, at, mask), dtype)


def stack(c: Call, tensors: Sequence[View], dim: int = 0) -> View:
    place = wrap_dim(dim, len(c.out.shape))
    return cat(c, [views.insert(v, [place], c.ranges) for v in tensors], place)


def constant_pad(c: Call, x: View, pad: Sequence[Int], value: Number = 0) -> View:
    """Pairs (before, after) from the last dimension on; negative ones cut."""
    at: list[Expr] = [axis(k) for k in range(x.rank)]
    mask: Value | None = None
    for k in range(len(pad) // 2):
        dim = x.rank - 1 - k
        before, after = const(pad[2 * k]), const(pad[2 * k + 1])
        at[dim] = axis(dim) - before
        if not nonneg(-before, c.ranges):
            mask = _and(mask, at_least(axis(dim), before))
        if not nonneg(-after, c.ranges):
            mask = _and(mask, less(axis(dim), before + x.shape[dim]))
    return c.fill(read(x, at, mask, value))


def _and(a: Value | None, b: Value) -> Value:
    return b if a is None else both(a, b)


# -- the same elements elsewhere


def repeat(c: Call, x: View, repeats: Sequence[Int]) -> View:
    if not _has_elements(x):
        return c.fill(number(0, x.dtype))
    skip = len(repeats) - x.rank
    once = [repeats[k + skip] == 1 for k in range(x.rank)]
    at = [axis(k + skip) if once[k] else axis(k + skip) % x.shape[k] for k in range(x.rank)]
    return c.fill(read(x, at))


def _has_elements(x: View) -> bool:
    return not any(e == 0 for e in x.shape)


def roll(c: Call, x: View, shifts: Sequence[Int], dims: Sequence[int] = ()) -> View:
    if not _has_elements(x):
        return c.fill(number(0, x.dtype))
    if not dims:
        size = product(x.shape)
        flat = views.reshape(x, (size,), c.ranges)
        rolled = c.stage((size,), read(flat, [(axis(0) - const(shifts[0])) % size]))
        return c.fill(read(views.reshape(rolled, x.shape, c.ranges)))
    at: list[Expr] = [axis(k) for k in range(x.rank)]
    for shift, dim in zip(shifts, dims):
        dim = wrap_dim(dim, x.rank)
        at[dim] = (at[dim] - const(shift)) % x.shape[dim]
    return c.fill(read(x, at))


def flip(c: Call, x: View, dims: Sequence[int]) -> View:
    at: list[Expr] = [axis(k) for k in range(x.rank)]
    for dim in dims:
        dim = wrap_dim(dim, x.rank)
        at[dim] = x.shape[dim] - 1 - axis(dim)
    return c.fill(read(x, at))


_ZEROS = (
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "zero.default",
    # the contents of these are anyone's guess: zero is as good, and the same each time
    "empty.memory_format",
    "empty_permuted.default",
    "empty_like.default",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
)
_ONES = ("ones.default", "ones_like.default", "new_ones.default")

RULES: Table = {
    **{f"aten.{name}": fill_with(0) for name in _ZEROS},
    **{f"aten.{name}": fill_with(1) for name in _ONES},
    "aten.full.default": full,
    "aten.full_like.default": lambda c, x, value, **kwargs: fill(c, x, value),
    "aten.new_full.default": lambda c, x, size, value, **kwargs: full(c, size, value),
    "aten.fill.Scalar": fill,
    "aten.fill.Tensor": fill,
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.arange.default": arange_end,
    "aten.arange.start": arange,
    "aten.arange.start_step": arange,
    "prims.iota.default": iota,
    "aten.linspace.default": linspace,
    "aten.eye.default": eye,
    "aten.eye.m": eye,
    "aten.tril.default": triangle(lambda gap, diagonal: scalar("le", gap, diagonal)),
    "aten.triu.default": triangle(lambda gap, diagonal: scalar("ge", gap, diagonal)),
    "aten.cat.default": cat,
    "aten.stack.default": stack,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.repeat.default": repeat,
    "aten.roll.default": roll,
    "aten.flip.default": flip,
}
