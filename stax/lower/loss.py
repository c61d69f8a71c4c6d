"""Rules of losses, in float32 for half types: the negative log-likelihood picks for each position; gradients of distances
are one formula."""

from __future__ import annotations

from stax.capture.captured import Meta
from stax.ir.dtypes import accumulator
from stax.ir.expr import Expr, product
from stax.ir.value import Value, cast, constant, index, scalar, where
from stax.lower.build import Call, Result, Table
from stax.lower.index import checked
from stax.lower.pointwise import both, elementwise, num, zero
from stax.lower.reduce import Nest, finish, nest
from stax.lower.scalars import div, mul, number, read, sub
from stax.lower.views import View, axis

NONE, MEAN = 0, 1  # torch's numbers of reductions; 2 is a sum


def _classes(x: View) -> int:
    """The dimension of the classes."""
    return 1 if x.rank > 1 else 0


def _counts(label: Value, ignored: int) -> Value:
    return scalar("ne", label, constant(ignored, label.dtype))


def _safe(label: Value, ignored: int, extent: Expr) -> Value:
    """The label as a place among the classes, checked; an ignored one is 0."""
    return checked(where(_counts(label, ignored), label, zero(label)), extent)


def _weight_of(weight: View | None, place: Value, dtype: str) -> Value:
    return constant(1, dtype) if weight is None else cast(read(weight, [place]), dtype)


def nll_forward(
    c: Call, x: View, target: View, weight: View | None, reduction: int, ignore_index: int
) -> Result:
    """[loss, sum of the weights of what counts]."""
    dtype, k = accumulator(x.dtype), _classes(x)
    label = cast(read(target), "int64")
    place = _safe(label, ignore_index, x.shape[k])
    at: list[Expr | Value] = [axis(d) for d in range(target.rank)]
    at.insert(k, place)
    share = _weight_of(weight, place, dtype)
    picked = scalar("neg", mul(cast(read(x, at), dtype), share))
    losses = where(_counts(label, ignore_index), picked, num(0, picked))
    metas = _metas(c)
    if reduction == NONE:
        return [c.fill(cast(losses, metas[0].dtype)), c.fill(constant(0, metas[1].dtype), metas[1])]
    n = nest(target, None)
    total = _total(c, target, weight, n, ignore_index, x.shape[k], dtype)
    each = c.stage(target.shape, losses)
    summed = c.reduce("sum", n.kept, n.over, read(each, n.at))
    if reduction == MEAN:
        summed = c.stage(n.kept, div(read(summed), read(total)))
    return [finish(c, summed, False, n, meta=m) for m, summed in zip(metas, (summed, total))]


def _total(
    c: Call, target: View, weight: View | None, n: Nest, ignored: int, extent: Expr, dtype: str
) -> View:
    """The sum of the weights of the labels that count; a count of them without weights."""
    label = cast(read(target, n.at), "int64")
    if weight is None:
        count = c.reduce("sum", n.kept, n.over, cast(_counts(label, ignored), "int64"))
        return c.stage(n.kept, cast(read(count), dtype))
    share = _weight_of(weight, _safe(label, ignored, extent), dtype)
    body = where(_counts(label, ignored), share, num(0, share))
    return c.reduce("sum", n.kept, n.over, body)


def nll_backward(
    c: Call,
    grad: View,
    x: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
    total: View,
) -> View:
    """-gradient * weight at the label, 0 elsewhere; of a mean divided by the total weight."""
    dtype, k = accumulator(x.dtype), _classes(x)
    here = [axis(d) for d in range(x.rank) if d != k]
    label = cast(read(target, here), "int64")
    place = _safe(label, ignore_index, x.shape[k])
    value = cast(read(grad, here if reduction == NONE else []), dtype)
    if reduction == MEAN:
        value = div(value, cast(read(total, []), dtype))
    if weight is not None:
        value = mul(value, _weight_of(weight, place, dtype))
    hit = both(_counts(label, ignore_index), scalar("eq", place, index(axis(k))))
    slope = scalar("neg", value)
    return c.fill(cast(where(hit, slope, num(0, slope)), c.out.dtype))


# -- distances: the gradient of a mean is divided by the number of elements


def mse_backward(c: Call, grad: View, x: View, y: View, reduction: int) -> View:
    share = _share(c, x, reduction)

    def fn(g: Value, a: Value, b: Value) -> Value:
        return mul(mul(mul(num(2, a), share), sub(a, b)), g)

    return elementwise(c, fn, grad, x, y)


def smooth_l1_backward(c: Call, grad: View, x: View, y: View, reduction: int, beta: float) -> View:
    """In between, and of NaN, the gap; beyond beta its sign."""
    share = _share(c, x, reduction)

    def fn(g: Value, a: Value, b: Value) -> Value:
        gap, flat = sub(a, b), mul(share, g)
        within = div(mul(mul(share, gap), g), num(beta, gap))
        return _clipped(gap, beta, within, flat)

    return elementwise(c, fn, grad, x, y)


def huber_backward(c: Call, grad: View, x: View, y: View, reduction: int, delta: float) -> View:
    share = _share(c, x, reduction)

    def fn(g: Value, a: Value, b: Value) -> Value:
        gap, flat = sub(a, b), mul(mul(share, g), num(delta, g))
        return _clipped(gap, delta, mul(mul(share, gap), g), flat)

    return elementwise(c, fn, grad, x, y)


def _clipped(gap: Value, bound: float, within: Value, flat: Value) -> Value:
    above = where(scalar("gt", gap, num(bound, gap)), flat, within)
    return where(scalar("lt", gap, num(-bound, gap)), scalar("neg", flat), above)


def _share(c: Call, x: View, reduction: int) -> Value:
    """1 / the number of elements for a mean, else 1."""
    dtype = accumulator(c.out.dtype)
    count = number(product(x.shape) if reduction == MEAN else 1, dtype)
    return div(constant(1, dtype), count)


def _metas(c: Call) -> list[Meta]:
    assert isinstance(c.meta, tuple)
    return [m for m in c.meta if m is not None]


RULES: Table = {
    "aten.nll_loss_forward.default": nll_forward,
    "aten.nll_loss2d_forward.default": nll_forward,
    "aten.nll_loss_backward.default": nll_backward,
    "aten.nll_loss2d_backward.default": nll_backward,
    "aten.mse_loss_backward.default": mse_backward,
    "aten.smooth_l1_loss_backward.default": smooth_l1_backward,
    "aten.huber_loss_backward.default": huber_backward,
}
