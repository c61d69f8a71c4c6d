"""Rules of reductions. Half types are accumulated in float32, integers and booleans in int64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stax.capture.captured import Meta
from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.expr import Expr, const, product, sym
from stax.ir.program import Axis
from stax.ir.value import Value, cast, constant, index, scalar, where
from stax.lower import views
from stax.lower.build import Call, Declined, Result, Table
from stax.lower.pointwise import num
from stax.lower.scalars import Number, add, div, mul, number, read, sub
from stax.lower.view import wrap_dim
from stax.lower.views import Shape, View, axis

Dims = int | Sequence[int] | None
MAX_SCAN_WORK = 1 << 22

# What never wins a maximum.
LOWEST: dict[str, Number] = {
    name: -math.inf
    if d.is_float
    else False
    if d.kind == "bool"
    else -(1 << (8 * d.itemsize - 1))
    if d.kind == "int"
    else 0
    for name, d in DTYPES.items()
}


@dataclass(frozen=True)
class Nest:
    """How a tensor is walked for a reduction: kept dimensions are the axes i0, i1, … of the result without the reduced
    ones, reduced dimensions the axes r0, r1, …. ``at`` is the position in the tensor."""

    dims: tuple[int, ...]
    kept: Shape
    over: tuple[Axis, ...]
    at: tuple[Expr, ...]

    @property
    def count(self) -> Expr:
        """Number of elements reduced into one."""
        return product(a.extent for a in self.over)


def nest(x: View, dims: Dims) -> Nest:
    """Reduce ``dims`` of x; None or an empty list reduces all."""
    listed = [dims] if isinstance(dims, int) else list(dims or range(x.rank))
    chosen = tuple(sorted({wrap_dim(d, x.rank) for d in listed})) if x.rank else ()
    kept = [k for k in range(x.rank) if k not in chosen]
    position = {d: sym(f"r{n}") for n, d in enumerate(chosen)}
    position.update({d: axis(n) for n, d in enumerate(kept)})
    at = tuple(const(0) if x.shape[k] == 1 else position[k] for k in range(x.rank))
    over = tuple(Axis(f"r{n}", x.shape[d]) for n, d in enumerate(chosen))
    return Nest(chosen, tuple(x.shape[k] for k in kept), over, at)


def reduced(c: Call, x: View, n: Nest, combine: str, fn: Callable[[Value], Value]) -> View:
    """The reduction of ``fn`` of x's elements, without the reduced dimensions."""
    return c.reduce(combine, n.kept, n.over, fn(read(x, n.at)))


def kept_dims(c: Call, x: View, n: Nest) -> View:
    """A reduction's result with the reduced dimensions back as size 1."""
    return views.insert(x, list(n.dims), c.ranges)


def finish(
    c: Call,
    x: View,
    shaped: bool,
    n: Nest,
    fn: Callable[[Value], Value] | None = None,
    meta: Meta | None = None,
) -> View:
    """The result: ``fn`` of the reduction, cast to the result's dtype, with the reduced dimensions when ``shaped``."""
    meta = c.out if meta is None else meta
    if fn is not None or x.dtype != meta.dtype:
        value = read(x)
        x = c.stage(x.shape, cast(value if fn is None else fn(value), meta.dtype))
    return kept_dims(c, x, n) if shaped else x


def total(
    c: Call, x: View, n: Nest, fn: Callable[[Value], Value] | None = None, dtype: str = ""
) -> View:
    """The sum of ``fn`` of the elements in ``dtype`` (default: the accumulator of the result's dtype)."""
    compute = dtype or accumulator(c.out.dtype)
    return reduced(
        c, x, n, "sum", lambda v: cast(v, compute) if fn is None else fn(cast(v, compute))
    )


def sum_rule(
    c: Call, x: View, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> View:
    n = nest(x, dim)
    return finish(c, total(c, x, n), keepdim, n)


def mean(
    c: Call, x: View, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> View:
    n = nest(x, dim)
    return finish(c, total(c, x, n), keepdim, n, lambda v: div(v, number(n.count, v.dtype)))


def mean_all(c: Call, x: View, *, dtype: object = None) -> View:
    return mean(c, x)


def sum_all(c: Call, x: View, *, dtype: object = None) -> View:
    return sum_rule(c, x)


def prod_all(c: Call, x: View, *, dtype: object = None) -> View:
    return prod(c, x, None)


def prod(
    c: Call, x: View, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> View:
    n = nest(x, dim)
    found = reduced(c, x, n, "prod", lambda v: cast(v, accumulator(c.out.dtype)))
    return finish(c, found, keepdim, n)


def any_rule(c: Call, x: View, dim: Dims = None, keepdim: bool = False) -> View:
    n = nest(x, dim)
    return finish(c, reduced(c, x, n, "any", lambda v: cast(v, "bool")), keepdim, n)


def all_rule(c: Call, x: View, dim: Dims = None, keepdim: bool = False) -> View:
    n = nest(x, dim)
    return finish(c, reduced(c, x, n, "all", lambda v: cast(v, "bool")), keepdim, n)


def amax(c: Call, x: View, dim: Dims = (), keepdim: bool = False) -> View:
    return _extreme_values(c, x, nest(x, dim), keepdim, "max", c.out)


def amin(c: Call, x: View, dim: Dims = (), keepdim: bool = False) -> View:
    return _extreme_values(c, x, nest(x, dim), keepdim, "min", c.out)


def _of_some(rule: Callable[[Call, View], View]) -> Callable[[Call, View], View | Declined]:
    """max and min of all elements, where there are any: of nothing eager raises."""

    def chosen(c: Call, x: View) -> View | Declined:
        empty = any(size == const(0) for size in x.shape)
        return Declined("an extreme of nothing") if empty else rule(c, x)

    return chosen


def _extreme_values(c: Call, x: View, n: Nest, keepdim: bool, combine: str, meta: Meta) -> View:
    """max and min of booleans are any and all."""
    if x.dtype == "bool":
        combine = {"max": "any", "min": "all"}[combine]
    found = reduced(c, x, n, combine, lambda v: cast(v, accumulator(v.dtype)))
    return finish(c, found, keepdim, n, meta=meta)


def _position(c: Call, x: View, n: Nest, combine: str) -> View:
    """The row-major position of the first extreme among the reduced elements."""
    if not n.over:
        return c.stage(n.kept, constant(0, "int64"))
    return reduced(c, x, n, combine, _ordered)


def _ordered(v: Value) -> Value:
    return cast(v, "uint8" if v.dtype == "bool" else accumulator(v.dtype))


def _arg(combine: str) -> Callable[..., View]:
    def rule(c: Call, x: View, dim: int | None = None, keepdim: bool = False) -> View:
        n = nest(x, dim)
        return finish(c, _position(c, x, n, combine), keepdim, n)

    return rule


def _with_indices(combine: str) -> Callable[..., Result]:
    def rule(c: Call, x: View, dim: int, keepdim: bool = False) -> Result:
        assert isinstance(c.meta, tuple)
        n = nest(x, dim)
        position = _position(c, x, n, f"arg{combine}")
        return [
            _extreme_values(c, x, n, keepdim, combine, c.out),
            kept_dims(c, position, n) if keepdim else position,
        ]

    return rule


def _aminmax(c: Call, x: View, *, dim: int | None = None, keepdim: bool = False) -> Result:
    return [
        _extreme_values(c, x, nest(x, dim), keepdim, combine, c.out) for combine in ("min", "max")
    ]


# -- variance: the mean, then the sum of squared differences


def moments(c: Call, x: View, n: Nest, dtype: str) -> tuple[View, View]:
    """(mean, sum of squared differences from it), without the reduced dimensions, in ``dtype``."""
    summed = total(c, x, n, dtype=dtype)
    mean_ = c.stage(n.kept, div(read(summed), number(n.count, dtype)))
    centre = c.expand(kept_dims(c, mean_, n), x.shape)
    gap = sub(cast(read(x, n.at), dtype), read(centre, n.at))
    return mean_, c.reduce("sum", n.kept, n.over, mul(gap, gap))


def _freedom(n: Nest, correction: float | None, dtype: str) -> Value:
    """max(0, count - correction): dividing by 0 gives NaN or inf as eager has it."""
    less = 1 if correction is None else correction
    left = sub(number(n.count, dtype), constant(less, dtype))
    return scalar("maximum", left, constant(0, dtype))


def _variance(
    c: Call, x: View, dim: Dims, correction: float | None, keepdim: bool, root: bool
) -> tuple[View, View]:
    n = nest(x, dim)
    dtype = accumulator(c.out.dtype)
    centre, squares = moments(c, x, n, dtype)

    def scale(v: Value) -> Value:
        value = div(v, _freedom(n, correction, dtype))
        return scalar("sqrt", value) if root else value

    return finish(c, squares, keepdim, n, scale), finish(c, centre, keepdim, n)


def var(
    c: Call, x: View, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> View:
    return _variance(c, x, dim, correction, keepdim, root=False)[0]


def std(
    c: Call, x: View, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> View:
    return _variance(c, x, dim, correction, keepdim, root=True)[0]


def var_mean(
    c: Call, x: View, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Result:
    return list(_variance(c, x, dim, correction, keepdim, root=False))


def std_mean(
    c: Call, x: View, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Result:
    return list(_variance(c, x, dim, correction, keepdim, root=True))


# -- softmax and logsumexp: the largest, the exponentials, their sum


def _shifted(c: Call, x: View, n: Nest, dtype: str) -> View:
    """x minus its largest along the reduced dimensions, in ``dtype`` and the shape of x."""
    largest = reduced(c, x, n, "max", lambda v: cast(v, dtype))
    top = c.expand(kept_dims(c, largest, n), x.shape)
    return c.stage(x.shape, sub(cast(read(x), dtype), read(top)))


def spread(c: Call, x: View, n: Nest, shape: Shape) -> Value:
    """A reduction's value at every point of the unreduced shape."""
    return read(c.expand(kept_dims(c, x, n), shape))


def softmax(c: Call, x: View, dim: int, half_to_float: bool = False) -> View:
    n, dtype = nest(x, dim), accumulator(c.out.dtype)
    powers = c.stage(x.shape, scalar("exp", read(_shifted(c, x, n, dtype))))
    summed = total(c, powers, n, dtype=dtype)
    return c.fill(cast(div(read(powers), spread(c, summed, n, x.shape)), c.out.dtype))


def safe_softmax(c: Call, x: View, dim: int, dtype: object = None) -> View:
    """softmax whose rows of -inf alone give 0."""
    n, wide = nest(x, dim), accumulator(c.out.dtype)
    largest = reduced(c, x, n, "max", lambda v: cast(v, wide))
    lowest = scalar("eq", read(largest), num(-math.inf, read(largest)))
    safe = c.stage(n.kept, where(lowest, num(0, read(largest)), read(largest)))
    powers = c.stage(x.shape, scalar("exp", sub(cast(read(x), wide), spread(c, safe, n, x.shape))))
    summed = total(c, powers, n, dtype=wide)
    sums = c.stage(n.kept, where(lowest, num(1, read(summed)), read(summed)))
    return c.fill(cast(div(read(powers), spread(c, sums, n, x.shape)), c.out.dtype))


def log_softmax(c: Call, x: View, dim: int, half_to_float: bool = False) -> View:
    n, dtype = nest(x, dim), accumulator(c.out.dtype)
    shifted = _shifted(c, x, n, dtype)
    summed = total(c, shifted, n, lambda v: scalar("exp", v), dtype)
    log = c.stage(n.kept, scalar("log", read(summed)))
    return c.fill(cast(sub(read(shifted), spread(c, log, n, x.shape)), c.out.dtype))


def logsumexp(c: Call, x: View, dim: Dims, keepdim: bool = False) -> View:
    """An infinite largest element is not subtracted, so that inf stays inf and all -inf give -inf."""
    n, dtype = nest(x, dim), accumulator(c.out.dtype)
    largest = reduced(c, x, n, "max", lambda v: cast(v, dtype))
    raw = read(largest)
    safe = c.stage(n.kept, where(scalar("isinf", raw), num(0, raw), raw))
    top = c.expand(kept_dims(c, safe, n), x.shape)
    power = scalar("exp", sub(cast(read(x, n.at), dtype), read(top, n.at)))
    summed = c.reduce("sum", n.kept, n.over, power)
    return finish(c, summed, keepdim, n, lambda v: add(scalar("log", v), read(safe)))


# -- scans


def cumsum(c: Call, x: View, dim: int, *, dtype: object = None) -> View | Declined:
    """A sum over everything up to each position: quadratic, so only for short ones. Torch scans the others."""
    if not x.rank:
        return c.fill(cast(read(x), c.out.dtype))
    dim = wrap_dim(dim, x.rank)
    if (product(x.shape) * x.shape[dim]).evaluate(c.builder.hints) > MAX_SCAN_WORK:
        return Declined("a long scan")
    compute = accumulator(c.out.dtype)
    at = [axis(k) for k in range(x.rank)]
    at[dim] = sym("r0")
    taken = scalar("le", index(at[dim]), index(axis(dim)))
    body = where(taken, cast(read(x, at), compute), constant(0, compute))
    summed = c.reduce("sum", x.shape, [Axis("r0", x.shape[dim])], body)
    return c.fill(cast(read(summed), c.out.dtype))


RULES: Table = {
    "aten.cumsum.default": cumsum,
    "aten.sum.default": sum_all,
    "aten.sum.dim_IntList": sum_rule,
    "aten.mean.default": mean_all,
    "aten.mean.dim": mean,
    "aten.prod.default": prod_all,
    "aten.prod.dim_int": prod,
    **{f"aten.any.{o}": any_rule for o in ("default", "dim", "dims")},
    **{f"aten.all.{o}": all_rule for o in ("default", "dim", "dims")},
    "aten.amax.default": amax,
    "aten.amin.default": amin,
    "aten.max.default": _of_some(amax),
    "aten.min.default": _of_some(amin),
    "aten.aminmax.default": _aminmax,
    "aten.argmax.default": _arg("argmax"),
    "aten.argmin.default": _arg("argmin"),
    "aten.max.dim": _with_indices("max"),
    "aten.min.dim": _with_indices("min"),
    "aten.var.correction": var,
    "aten.std.correction": std,
    "aten.var_mean.correction": var_mean,
    "aten.std_mean.correction": std_mean,
    "aten._softmax.default": softmax,
    "aten._safe_softmax.default": safe_softmax,
    "aten._log_softmax.default": log_softmax,
    "aten.logsumexp.default": logsumexp,
}
