"""Rules of pooling: a window of masked loads for each output element, reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.expr import Expr, const, product, sym
from stax.ir.program import Axis
from stax.ir.ranges import nonneg
from stax.ir.value import Value, cast, constant, evaluate, index, scalar
from stax.lower.build import Call, Declined, Result, Rule, Table
from stax.lower.create import at_least, less
from stax.lower.pointwise import both
from stax.lower.reduce import LOWEST
from stax.lower.scalars import div, number, read
from stax.lower.views import View, axis

Int = int | Expr


@dataclass(frozen=True)
class Windows:
    """The last ``len(over)`` dimensions of x seen through windows: ``at`` is the position in x of window element r0, r1, …
    of output element i0, i1, …; ``inside`` whether it exists, None when it always does."""

    over: tuple[Axis, ...]
    at: tuple[Expr, ...]
    inside: Value | None


def each(value: Int | Sequence[Int], count: int) -> list[Expr]:
    """One number for each dimension: given as one for all, or one each."""
    listed = [value] if isinstance(value, (int, Expr)) else list(value)
    return [const(v) for v in (listed * count if len(listed) == 1 else listed)]


def windows(
    c: Call,
    x: View,
    kernel: Sequence[Expr],
    stride: Sequence[Expr],
    padding: Sequence[Expr],
    dilation: Sequence[Expr],
) -> Windows:
    count = len(kernel)
    lead = x.rank - count
    at: list[Expr] = [axis(k) for k in range(lead)]
    inside: Value | None = None
    for d in range(count):
        step = sym(f"r{d}") if kernel[d] != 1 else const(0)
        out = axis(lead + d) if c.out.shape[lead + d] != 1 else const(0)
        place = out * stride[d] - padding[d] + step * dilation[d]
        size = x.shape[lead + d]
        last = (c.out.shape[lead + d] - 1) * stride[d] - padding[d] + (kernel[d] - 1) * dilation[d]
        if not nonneg(-padding[d], c.ranges):
            inside = _and(inside, at_least(place, 0))
        if not nonneg(size - 1 - last, c.ranges):
            inside = _and(inside, less(place, size))
        at.append(place)
    over = tuple(Axis(f"r{d}", k) for d, k in enumerate(kernel))
    return Windows(over, tuple(at), inside)


def _and(a: Value | None, b: Value) -> Value:
    return b if a is None else both(a, b)


def max_pool(count: int) -> Rule:
    """(the largest of each window, its position in the plane of x)."""

    def rule(
        c: Call,
        x: View,
        kernel_size: Int | Sequence[Int],
        stride: Int | Sequence[Int] = (),
        padding: Int | Sequence[Int] = 0,
        dilation: Int | Sequence[Int] = 1,
        ceil_mode: bool = False,
    ) -> Result:
        kernel = each(kernel_size, count)
        steps = each(stride, count) if stride != [] and stride != () else kernel
        pads, gaps = each(padding, count), each(dilation, count)
        w = windows(c, x, kernel, steps, pads, gaps)
        wide = accumulator(x.dtype)
        body = cast(read(x, w.at, w.inside, LOWEST[x.dtype]), wide)
        largest = c.reduce("max", c.out.shape, w.over, body)
        first = c.reduce("argmax", c.out.shape, w.over, body)
        place = _plane_position(c, x, kernel, steps, pads, gaps, read(first))
        assert isinstance(c.meta, tuple) and c.meta[1] is not None
        return [c.fill(cast(read(largest), c.out.dtype)), c.fill(place, c.meta[1])]

    return rule


def _plane_position(
    c: Call,
    x: View,
    kernel: Sequence[Expr],
    stride: Sequence[Expr],
    padding: Sequence[Expr],
    dilation: Sequence[Expr],
    position: Value,
) -> Value:
    """The row-major place in the last dimensions of x of window element ``position`` (row-major in the window)."""
    count, lead = len(kernel), x.rank - len(kernel)
    place = const(0)
    for d in range(count):
        inner = product(kernel[d + 1 :])
        step = sym("position") // inner
        step = step if d == 0 else step % kernel[d]
        place = (
            place * x.shape[lead + d] + axis(lead + d) * stride[d] - padding[d] + step * dilation[d]
        )
    return evaluate(place, {"position": position})


def avg_pool(count: int) -> Rule:
    """The mean of each window; what lies in the padding counts or does not."""

    def rule(
        c: Call,
        x: View,
        kernel_size: Int | Sequence[Int],
        stride: Int | Sequence[Int] = (),
        padding: Int | Sequence[Int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Result:
        kernel = each(kernel_size, count)
        steps = each(stride, count) if stride != [] and stride != () else kernel
        pads, gaps = each(padding, count), each(1, count)
        if not DTYPES[x.dtype].is_float:
            return Declined("an average of integers")
        w = windows(c, x, kernel, steps, pads, gaps)
        wide = accumulator(x.dtype)
        summed = c.reduce("sum", c.out.shape, w.over, cast(read(x, w.at, w.inside, 0), wide))
        size = const(divisor_override) if divisor_override else None
        here = [axis(k) for k in range(x.rank)]
        divisor = (
            count_of(x, here, kernel, steps, pads, count_include_pad)
            if size is None
            else number(size, wide)
        )
        return c.fill(cast(div(read(summed), cast(divisor, wide)), c.out.dtype))

    return rule


def count_of(
    x: View,
    at: Sequence[Expr],
    kernel: Sequence[Expr],
    stride: Sequence[Expr],
    padding: Sequence[Expr],
    padded: bool,
) -> Value:
    """Elements of the window of output element ``at`` that count: those in x, or also those in the padding but not past it."""
    lead = x.rank - len(kernel)
    total: Value | None = None
    for d, extent in enumerate(kernel):
        start = at[lead + d] * stride[d] - padding[d]
        high = x.shape[lead + d] + (padding[d] if padded else 0)
        stop = scalar("minimum", index(start + extent), index(high))
        begin = index(start) if padded else scalar("maximum", index(start), constant(0, "int64"))
        span = scalar("sub", stop, begin)
        total = span if total is None else scalar("mul", total, span)
    assert total is not None
    return total


RULES: Table = {
    **{f"aten.max_pool{d}d_with_indices.default": max_pool(d) for d in (1, 2, 3)},
    **{f"aten.avg_pool{d}d.default": avg_pool(d) for d in (1, 2, 3)},
}
