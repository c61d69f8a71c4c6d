"""Rules of the negative log-likelihood and its gradient: a pick for each position, in float32 for half types."""

from __future__ import annotations

from stax.capture.captured import Meta
from stax.ir.dtypes import accumulator
from stax.ir.expr import Expr
from stax.ir.value import Value, cast, constant, index, scalar, where
from stax.lower.build import Call, Result, Table
from stax.lower.index import checked
from stax.lower.pointwise import both, num, zero
from stax.lower.reduce import Nest, finish, nest
from stax.lower.scalars import div, mul, read
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


def _metas(c: Call) -> list[Meta]:
    assert isinstance(c.meta, tuple)
    return [m for m in c.meta if m is not None]


RULES: Table = {
    "aten.nll_loss_forward.default": nll_forward,
    "aten.nll_loss2d_forward.default": nll_forward,
    "aten.nll_loss_backward.default": nll_backward,
    "aten.nll_loss2d_backward.default": nll_backward,
}
