"""Where a kernel's scatters write: the axes along which no two points write to one element, which threads and lanes may
share.

The place of a scatter is a sum of digits times strides: an axis, or an index that was checked to lie below its extent. Where
each stride is at least what the smaller digits reach, other digits mean other elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from stax.ir.expr import Expr, const, sym
from stax.ir.kernel import Kernel
from stax.ir.program import Axis
from stax.ir.ranges import nonneg
from stax.ir.value import Value, scatter_parts


@dataclass(frozen=True)
class Digit:
    """A part ``stride`` * d of a place, 0 <= d < ``extent``. ``axis``: the name of d when it is an axis, else ""."""

    axis: str
    stride: Expr
    extent: Expr


def keeps_apart(kernel: Kernel, axis: Axis) -> bool:
    """True when points that differ along ``axis`` change different elements in each scatter of the kernel; proven, not
    guessed."""
    return all(_is_apart(kernel, axis, s.body) for s in kernel.statements if s.body.op == "scatter")


def plain_part(body: Value) -> Expr:
    """The part of a scatter's place that is an expression."""
    parts = scatter_parts(body)
    assert parts is not None
    exprs = [t.attr[0] for t in _terms(parts.indices[0]) if t.op == "index"]
    return sum((e for e in exprs if isinstance(e, Expr)), const(0))


def _is_apart(kernel: Kernel, axis: Axis, body: Value) -> bool:
    parts = scatter_parts(body)
    assert parts is not None
    digits: list[Digit] = []
    for term in _terms(parts.indices[0]):
        found = _digits(kernel, term)
        if found is None:
            return False
        digits += found
    if [d.axis for d in digits].count(axis.name) != 1:
        return False
    digits.sort(key=lambda d: d.stride.evaluate(kernel.hints))
    return all(nonneg(b.stride - a.stride * a.extent, kernel.ranges) for a, b in pairwise(digits))


def _terms(place: Value) -> Iterator[Value]:
    if place.op != "add":
        yield place
        return
    for side in place.args:
        yield from _terms(side)


def _digits(kernel: Kernel, term: Value) -> list[Digit] | None:
    """The digits of one term; None for another form. A constant has none."""
    e = term.attr[0] if term.op == "index" else None
    if isinstance(e, Expr):
        return _plain_digits(kernel, e)
    stride = const(1)
    if term.op == "mul" and term.args[1].op == "index":
        factor = term.args[1].attr[0]
        assert isinstance(factor, Expr)
        term, stride = term.args[0], factor
    extent = term.attr[0] if term.op == "bound" else None
    axes = {a.name for a in kernel.axes}
    if not isinstance(extent, Expr) or (extent.symbols | stride.symbols) & axes:
        return None
    return [Digit("", stride, extent)]


def _plain_digits(kernel: Kernel, e: Expr) -> list[Digit] | None:
    digits: list[Digit] = []
    for axis in kernel.axes:
        if axis.name in e.symbols:
            split = e.linear(sym(axis.name).atoms[0])
            if split is None:
                return None
            stride, e = split
            digits.append(Digit(axis.name, stride, axis.extent))
    names = {a.name for a in kernel.axes}
    plain = e.is_const and all(not d.stride.symbols & names for d in digits)
    return digits if plain else None
