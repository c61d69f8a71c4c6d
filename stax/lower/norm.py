"""Rules of normalisations: a mean, squared differences, one formula."""

from __future__ import annotations

from collections.abc import Sequence

from stax.capture.captured import Meta
from stax.ir.dtypes import accumulator
from stax.ir.expr import Expr, const
from stax.ir.value import Value, cast, scalar
from stax.lower import views
from stax.lower.build import Call, Declined, Result, Table
from stax.lower.pointwise import num
from stax.lower.reduce import Nest, finish, kept_dims, moments, nest, total
from stax.lower.scalars import add, div, mul, number, read, sub
from stax.lower.views import View, axis


def _rstd(c: Call, squares: View, n: Nest, eps: float) -> View:
    """1 / sqrt(mean of squares + eps)."""
    value = read(squares)
    mean = div(value, number(n.count, value.dtype))
    return c.stage(n.kept, scalar("rsqrt", add(mean, num(eps, mean))))


def _everywhere(c: Call, x: View, n: Nest, shape: tuple[Expr, ...]) -> Value:
    return read(c.expand(kept_dims(c, x, n), shape))


def _affine(value: Value, weight: Value | None, bias: Value | None) -> Value:
    value = value if weight is None else mul(value, cast(weight, value.dtype))
    return value if bias is None else add(value, cast(bias, value.dtype))


def _result(c: Call, k: int) -> Meta:
    assert isinstance(c.meta, tuple)
    found = c.meta[k]
    assert found is not None
    return found


def _trailing(c: Call, weight: View | None, shape: tuple[Expr, ...]) -> Value | None:
    """A weight of the normalised dimensions, at every point."""
    return None if weight is None else read(c.expand(weight, shape))


def layer_norm(
    c: Call,
    x: View,
    normalized: Sequence[object],
    weight: View | None,
    bias: View | None,
    eps: float,
) -> Result:
    dtype = accumulator(x.dtype)
    n = nest(x, list(range(x.rank - len(normalized), x.rank)))
    mean, squares = moments(c, x, n, dtype)
    rstd = _rstd(c, squares, n, eps)
    gap = sub(cast(read(x), dtype), _everywhere(c, mean, n, x.shape))
    value = mul(gap, _everywhere(c, rstd, n, x.shape))
    out = _affine(value, _trailing(c, weight, x.shape), _trailing(c, bias, x.shape))
    return [
        c.fill(cast(out, c.out.dtype)),
        finish(c, mean, True, n, meta=_result(c, 1)),
        finish(c, rstd, True, n, meta=_result(c, 2)),
    ]


def rms_norm(
    c: Call, x: View, normalized: Sequence[object], weight: View | None, eps: float | None
) -> Result:
    dtype = accumulator(x.dtype)
    n = nest(x, list(range(x.rank - len(normalized), x.rank)))
    squares = total(c, x, n, lambda v: mul(v, v), dtype)
    rstd = _rstd(c, squares, n, _epsilon(x.dtype) if eps is None else eps)
    value = mul(cast(read(x), dtype), _everywhere(c, rstd, n, x.shape))
    out = _affine(value, _trailing(c, weight, x.shape), None)
    return [c.fill(cast(out, c.out.dtype)), finish(c, rstd, True, n, meta=_result(c, 1))]


def _epsilon(dtype: str) -> float:
    """torch.finfo(dtype).eps of the dtype that is computed in."""
    return {"float64": 2.0**-52}.get(dtype, 2.0**-23)


def group_norm(
    c: Call,
    x: View,
    weight: View | None,
    bias: View | None,
    batch: object,
    channels: object,
    inner: object,
    groups: int,
    eps: float,
) -> Result:
    dtype = accumulator(x.dtype)
    depth = x.shape[1] // groups
    split = (x.shape[0], const(groups), depth, *x.shape[2:])
    grouped = views.reshape(x, split, c.ranges)
    n = nest(grouped, list(range(2, len(split))))
    mean, squares = moments(c, grouped, n, dtype)
    rstd = _rstd(c, squares, n, eps)
    spread = [
        read(views.reshape(c.expand(kept_dims(c, v, n), split), x.shape, c.ranges))
        for v in (mean, rstd)
    ]
    value = mul(sub(cast(read(x), dtype), spread[0]), spread[1])
    out = _affine(value, _channel(weight), _channel(bias))
    return [
        c.fill(cast(out, c.out.dtype)),
        finish(c, mean, False, n, meta=_result(c, 1)),
        finish(c, rstd, False, n, meta=_result(c, 2)),
    ]


def _channel(v: View | None) -> Value | None:
    """A vector of dimension 1, at every point."""
    return None if v is None else read(v, [axis(1)])


def batch_norm_inference(
    c: Call,
    x: View,
    weight: View | None,
    bias: View | None,
    mean: View,
    var: View,
    momentum: float,
    eps: float,
) -> Result:
    dtype = accumulator(c.out.dtype)
    centre, spread = (cast(read(v, [axis(1)]), dtype) for v in (mean, var))
    scale = div(number(1, dtype), scalar("sqrt", add(spread, number(eps, dtype))))
    value = mul(sub(cast(read(x), dtype), centre), scale)
    out = c.fill(cast(_affine(value, _channel(weight), _channel(bias)), c.out.dtype))
    return [out, *_empties(c)]


def _empties(c: Call) -> list[View]:
    """The saved statistics of inference: tensors of size 0."""
    return [c.fill(number(0, _result(c, k).dtype), _result(c, k)) for k in (1, 2)]


def native_batch_norm(
    c: Call,
    x: View,
    weight: View | None,
    bias: View | None,
    mean: View | None,
    var: View | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Result:
    """With running statistics in training the operator writes them: decompositions turn that into the functional form."""
    if mean is not None and var is not None:
        if training:
            return Declined("batch normalisation that writes running statistics")
        return batch_norm_inference(c, x, weight, bias, mean, var, momentum, eps)
    return _batch_norm(c, x, weight, bias, eps)[0]


def batch_norm_of_batch(
    c: Call,
    x: View,
    weight: View | None,
    bias: View | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Result:
    """Without running statistics those of the batch are taken, in training or not."""
    return _batch_norm(c, x, weight, bias, eps)[0]


def batch_norm_training(
    c: Call,
    x: View,
    weight: View | None,
    bias: View | None,
    mean: View,
    var: View,
    training: bool,
    momentum: float,
    eps: float,
) -> Result:
    """The functional form: also the new running statistics."""
    if not training:
        plain = batch_norm_inference(c, x, weight, bias, mean, var, momentum, eps)
        assert isinstance(plain, list)
        return [*plain, mean, var]
    results, centre, unbiased = _batch_norm(c, x, weight, bias, eps)
    return [
        *results,
        _running(c, mean, centre, momentum, _result(c, 3)),
        _running(c, var, unbiased, momentum, _result(c, 4)),
    ]


def _batch_norm(
    c: Call, x: View, weight: View | None, bias: View | None, eps: float
) -> tuple[list[Result], View, View]:
    """([output, mean, 1/deviation], mean, unbiased variance) by the statistics of the batch."""
    dtype = accumulator(x.dtype)
    n = nest(x, [k for k in range(x.rank) if k != 1])
    centre, squares = moments(c, x, n, dtype)
    rstd = _rstd(c, squares, n, eps)
    here = [axis(1)]
    value = mul(sub(cast(read(x), dtype), read(centre, here)), read(rstd, here))
    results: list[Result] = [
        c.fill(cast(_affine(value, _channel(weight), _channel(bias)), c.out.dtype)),
        finish(c, centre, False, n, meta=_result(c, 1)),
        finish(c, rstd, False, n, meta=_result(c, 2)),
    ]
    return results, centre, c.stage(n.kept, div(read(squares), number(n.count - 1, dtype)))


def _running(c: Call, old: View, new: View, momentum: float, meta: Meta) -> View:
    before, now = read(old), read(new)
    wide = accumulator(old.dtype)
    kept = mul(number(1 - momentum, wide), cast(before, wide))
    return c.fill(cast(add(kept, mul(number(momentum, wide), cast(now, wide))), meta.dtype), meta)


RULES: Table = {
    "aten.native_layer_norm.default": layer_norm,
    "aten._fused_rms_norm.default": rms_norm,
    "aten.native_group_norm.default": group_norm,
    "aten.native_batch_norm.default": native_batch_norm,
    "aten._native_batch_norm_legit.default": native_batch_norm,
    "aten._native_batch_norm_legit.no_stats": batch_norm_of_batch,
    "aten._native_batch_norm_legit_no_training.default": batch_norm_inference,
    "aten._native_batch_norm_legit_functional.default": batch_norm_training,
}
