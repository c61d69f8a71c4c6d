"""Rules of the gradients of normalisations. With y the gradient times the weight, h the normalised input and means over
what shares statistics: dx = (y - mean(y) - h * mean(y * h)) / deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stax.capture.captured import Meta
from stax.ir.dtypes import accumulator
from stax.ir.expr import Expr, const
from stax.ir.value import Value, cast, scalar
from stax.lower import views
from stax.lower.build import Call, Result, Table
from stax.lower.reduce import Nest, finish, nest
from stax.lower.scalars import add, div, mul, number, read, sub
from stax.lower.views import View, axis

Place = Sequence[Expr] | None


@dataclass(frozen=True)
class _Terms:
    """The tensors of one normalisation, all of one shape: ``weight`` None is 1, ``mean`` None is 0."""

    grad: View
    x: View
    mean: View | None
    rstd: View
    weight: View | None
    dtype: str

    def at(self, view: View, place: Place) -> Value:
        return cast(read(view, place), self.dtype)

    def gradient(self, place: Place = None) -> Value:
        return self.at(self.grad, place)

    def weighted(self, place: Place = None) -> Value:
        value = self.gradient(place)
        return value if self.weight is None else mul(value, self.at(self.weight, place))

    def normal(self, place: Place = None) -> Value:
        value = self.at(self.x, place)
        value = value if self.mean is None else sub(value, self.at(self.mean, place))
        return mul(value, self.at(self.rstd, place))

    def moved(self, fn: Callable[[View], View]) -> _Terms:
        """The same tensors in another shape."""
        mean, weight = (None if v is None else fn(v) for v in (self.mean, self.weight))
        return _Terms(fn(self.grad), fn(self.x), mean, fn(self.rstd), weight, self.dtype)


def _to_input(c: Call, t: _Terms, n: Nest, back: Callable[[View], View], meta: Meta) -> View:
    """dx. ``n`` walks what shares statistics; ``back`` brings its sums, spread over that, to the shape of the result."""
    count = number(n.count, t.dtype)

    def mean_of(fn: Callable[[Sequence[Expr]], Value]) -> View:
        summed = c.reduce("sum", n.kept, n.over, fn(n.at))
        return c.stage(n.kept, div(read(summed), count))

    along = mean_of(lambda at: mul(t.weighted(at), t.normal(at)))
    shape = t.x.shape
    plain = t.moved(back)
    value = plain.weighted()
    if t.mean is not None:
        level = mean_of(t.weighted)
        value = sub(value, read(back(c.expand(views.insert(level, list(n.dims), c.ranges), shape))))
    slope = read(back(c.expand(views.insert(along, list(n.dims), c.ranges), shape)))
    value = sub(value, mul(plain.normal(), slope))
    return c.fill(cast(mul(value, plain.at(plain.rstd, None)), meta.dtype), meta)


def _to_weights(
    c: Call, t: _Terms, n: Nest, weight: Meta | None, bias: Meta | None
) -> list[Result]:
    """The gradients of weight and bias: sums over ``n``."""
    found: list[Result] = [None, None]
    if weight is not None:
        summed = c.reduce("sum", n.kept, n.over, mul(t.gradient(n.at), t.normal(n.at)))
        found[0] = finish(c, summed, False, n, meta=weight)
    if bias is not None:
        found[1] = finish(c, c.reduce("sum", n.kept, n.over, t.gradient(n.at)), False, n, meta=bias)
    return found


def _metas(c: Call) -> list[Meta | None]:
    assert isinstance(c.meta, tuple)
    return list(c.meta)


def _rows(x: View, count: int) -> Nest:
    """All dimensions but the last ``count`` reduced; none when there are no others."""
    outer = list(range(x.rank - count))
    return nest(x, outer) if outer else Nest((), x.shape, (), tuple(axis(k) for k in range(x.rank)))


def _whole(view: View) -> View:
    return view


def layer_norm_backward(
    c: Call,
    grad: View,
    x: View,
    normalized: Sequence[object],
    mean: View,
    rstd: View,
    weight: View | None,
    bias: View | None,
    mask: Sequence[bool],
) -> Result:
    return _last_dims(c, grad, x, len(normalized), mean, rstd, weight, _metas(c))


def rms_norm_backward(
    c: Call,
    grad: View,
    x: View,
    normalized: Sequence[object],
    rstd: View,
    weight: View | None,
    mask: Sequence[bool],
) -> Result:
    found = _last_dims(c, grad, x, len(normalized), None, rstd, weight, [*_metas(c), None])
    return found[:2]


def _last_dims(
    c: Call,
    grad: View,
    x: View,
    count: int,
    mean: View | None,
    rstd: View,
    weight: View | None,
    metas: Sequence[Meta | None],
) -> list[Result]:
    wide = [None if v is None else c.expand(v, x.shape) for v in (mean, rstd, weight)]
    assert wide[1] is not None
    terms = _Terms(grad, x, wide[0], wide[1], wide[2], accumulator(x.dtype))
    n = nest(x, list(range(x.rank - count, x.rank)))
    dx = None if metas[0] is None else _to_input(c, terms, n, _whole, metas[0])
    return [dx, *_to_weights(c, terms, _rows(x, count), metas[1], metas[2])]


def group_norm_backward(
    c: Call,
    grad: View,
    x: View,
    mean: View,
    rstd: View,
    weight: View | None,
    batch: object,
    channels: object,
    inner: object,
    groups: int,
    mask: Sequence[bool],
) -> Result:
    depth = x.shape[1] // groups
    split = (x.shape[0], const(groups), depth, *x.shape[2:])

    def over_groups(v: View) -> View:
        """(batch, groups) at every point."""
        shaped = views.reshape(v, split[:2], c.ranges)
        return c.expand(views.insert(shaped, list(range(2, len(split))), c.ranges), split)

    def over_channels(v: View) -> View:
        shaped = views.reshape(v, split[1:3], c.ranges)
        ends = [0, *range(3, len(split))]
        return c.expand(views.insert(shaped, ends, c.ranges), split)

    def grouped(v: View) -> View:
        return views.reshape(v, split, c.ranges)

    def back(v: View) -> View:
        return views.reshape(v, x.shape, c.ranges)

    channel = None if weight is None else over_channels(weight)
    terms = _Terms(
        grouped(grad),
        grouped(x),
        over_groups(mean),
        over_groups(rstd),
        channel,
        accumulator(x.dtype),
    )
    n = nest(terms.x, list(range(2, len(split))))
    metas = _metas(c)
    dx = None if metas[0] is None else _to_input(c, terms, n, back, metas[0])
    over = nest(x, [k for k in range(x.rank) if k != 1])
    return [dx, *_to_weights(c, terms.moved(back), over, metas[1], metas[2])]


def batch_norm_backward(
    c: Call,
    grad: View,
    x: View,
    weight: View | None,
    running_mean: View | None,
    running_var: View | None,
    mean: View | None,
    rstd: View | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Result:
    if not training:
        assert running_mean is not None and running_var is not None
        mean, rstd = running_mean, _inverse_root(c, running_var, eps)
    assert mean is not None and rstd is not None
    terms = _channelwise(c, grad, x, weight, mean, rstd)
    n = nest(x, [k for k in range(x.rank) if k != 1])
    metas = _metas(c)
    dx = None
    if metas[0] is not None and training:
        dx = _to_input(c, terms, n, _whole, metas[0])
    elif metas[0] is not None:
        value = mul(terms.weighted(), terms.at(terms.rstd, None))
        dx = c.fill(cast(value, metas[0].dtype), metas[0])
    return [dx, *_to_weights(c, terms, n, metas[1], metas[2])]


def batch_norm_backward_with_reserve(
    c: Call,
    grad: View,
    x: View,
    weight: View | None,
    running_mean: View | None,
    running_var: View | None,
    mean: View | None,
    rstd: View | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
    reserve: View,
) -> Result:
    return batch_norm_backward(
        c, grad, x, weight, running_mean, running_var, mean, rstd, training, eps, mask
    )


def _channelwise(
    c: Call, grad: View, x: View, weight: View | None, mean: View, rstd: View
) -> _Terms:
    def spread_over(v: View) -> View:
        others = [0, *range(2, x.rank)]
        return c.expand(views.insert(v, others, c.ranges), x.shape)

    scale = None if weight is None else spread_over(weight)
    return _Terms(grad, x, spread_over(mean), spread_over(rstd), scale, accumulator(x.dtype))


def _inverse_root(c: Call, var: View, eps: float) -> View:
    value = cast(read(var), accumulator(var.dtype))
    return c.stage(var.shape, scalar("rsqrt", add(value, number(eps, value.dtype))))


def cudnn_batch_norm_backward(
    c: Call,
    x: View,
    grad: View,
    weight: View,
    running_mean: View | None,
    running_var: View | None,
    mean: View | None,
    rstd: View | None,
    eps: float,
    reserve: View,
) -> Result:
    return batch_norm_backward(
        c, grad, x, weight, running_mean, running_var, mean, rstd, True, eps, [True] * 3
    )


RULES: Table = {
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    "aten._fused_rms_norm_backward.default": rms_norm_backward,
    "aten.native_group_norm_backward.default": group_norm_backward,
    "aten.native_batch_norm_backward.default": batch_norm_backward,
    "aten.batch_norm_backward.default": batch_norm_backward_with_reserve,
    "aten.cudnn_batch_norm_backward.default": cudnn_batch_norm_backward,
}
