"""Rules of the gradients of pooling: each element of the input gathers from the few windows that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stax.ir.dtypes import accumulator
from stax.ir.expr import Expr, ceildiv, const, sym
from stax.ir.program import Axis
from stax.ir.value import Value, cast, index, scalar, where
from stax.lower.build import Call, Declined, Rule, Table
from stax.lower.create import at_least, less
from stax.lower.pointwise import both, num
from stax.lower.pool import Int, count_of, each
from stax.lower.scalars import div, number, read
from stax.lower.views import View, axis


@dataclass(frozen=True)
class _Holders:
    """The windows that hold element i0, i1, … of the input: ``at`` is the place in the result of the pooling of the one
    numbered r0, r1, …; ``inside`` says whether there is such a one."""

    over: tuple[Axis, ...]
    at: tuple[Expr, ...]
    inside: Value


def _holders(
    x: View, grad: View, span: Sequence[Expr], stride: Sequence[Expr], padding: Sequence[Expr]
) -> _Holders:
    """``span``: from the first to the last element of a window along each of the last dimensions."""
    lead = x.rank - len(span)
    at: list[Expr] = [axis(k) for k in range(lead)]
    over: list[Axis] = []
    inside: Value | None = None
    for d, extent in enumerate(span):
        shifted = axis(lead + d) + padding[d]
        place = shifted // stride[d]
        most = ceildiv(extent, stride[d])
        if most != 1:
            over.append(Axis(f"r{d}", most))
            place = place - sym(f"r{d}")
        holds = both(at_least(place, 0), less(place, grad.shape[lead + d]))
        holds = both(holds, less(shifted - place * stride[d], extent))
        inside = holds if inside is None else both(inside, holds)
        at.append(place)
    assert inside is not None
    return _Holders(tuple(over), tuple(at), inside)


def _gathered(c: Call, w: _Holders, value: Value) -> View:
    summed = c.reduce("sum", c.out.shape, w.over, where(w.inside, value, num(0, value)))
    return c.fill(cast(read(summed), c.out.dtype))


def avg_pool_backward(count: int) -> Rule:
    def rule(
        c: Call,
        grad: View,
        x: View,
        kernel_size: Int | Sequence[Int],
        stride: Int | Sequence[Int],
        padding: Int | Sequence[Int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> View:
        kernel, pads = each(kernel_size, count), each(padding, count)
        steps = each(stride, count) if stride != [] else kernel
        w = _holders(x, grad, kernel, steps, pads)
        wide = accumulator(x.dtype)
        divisor = (
            number(divisor_override, wide)
            if divisor_override
            else cast(count_of(x, w.at, kernel, steps, pads, count_include_pad), wide)
        )
        return _gathered(c, w, div(cast(read(grad, w.at, w.inside), wide), divisor))

    return rule


def max_pool_backward(count: int) -> Rule:
    """``indices`` are the places of the largest elements in the plane of x."""

    def rule(
        c: Call,
        grad: View,
        x: View,
        kernel_size: Int | Sequence[Int],
        stride: Int | Sequence[Int],
        padding: Int | Sequence[Int],
        dilation: Int | Sequence[Int],
        ceil_mode: bool,
        indices: View,
    ) -> View:
        kernel, pads, gaps = (each(v, count) for v in (kernel_size, padding, dilation))
        steps = each(stride, count) if stride != [] else kernel
        span = [(k - 1) * gap + 1 for k, gap in zip(kernel, gaps)]
        w = _holders(x, grad, span, steps, pads)
        place = const(0)
        for d in range(x.rank - count, x.rank):
            place = place * x.shape[d] + axis(d)
        chosen = scalar("eq", read(indices, w.at, w.inside, -1), index(place))
        value = cast(read(grad, w.at, w.inside), accumulator(x.dtype))
        return _gathered(c, w, where(chosen, value, num(0, value)))

    return rule


def adaptive_avg_pool_backward(count: int) -> Rule:
    """Where all windows are of one size each element belongs to one."""

    def rule(c: Call, grad: View, x: View) -> View | Declined:
        lead = x.rank - count
        sizes = [(x.shape[d], grad.shape[d]) for d in range(lead, x.rank)]
        if any(not (n.is_const and o.is_const) or n.value % o.value for n, o in sizes):
            return Declined("windows of several sizes")
        spans = [n.value // o.value for n, o in sizes]
        at = [axis(d) if d < lead else axis(d) // spans[d - lead] for d in range(x.rank)]
        held = const(1)
        for span in spans:
            held = held * span
        value = cast(read(grad, at), accumulator(x.dtype))
        return c.fill(cast(div(value, number(held, value.dtype)), c.out.dtype))

    return rule


RULES: Table = {
    **{f"aten.avg_pool{d}d_backward.default": avg_pool_backward(d) for d in (2, 3)},
    **{f"aten.max_pool{d}d_with_indices_backward.default": max_pool_backward(d) for d in (2, 3)},
    **{
        f"aten._adaptive_avg_pool{d}d_backward.default": adaptive_avg_pool_backward(d)
        for d in (2, 3)
    },
}
