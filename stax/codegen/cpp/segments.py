"""A pointwise loop cut where its masks change, as in a concatenation or a padding: each piece then has none.

A mask that compares indices along the lane axis is constant between its thresholds, so in each piece it folds away, and with
it the masked loads of the other pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stax.ir.expr import Atom, Expr, const
from stax.ir.kernel import Kernel
from stax.ir.program import Axis
from stax.ir.ranges import Range, Ranges, less, nonneg, positive
from stax.ir.value import Value, constant, load_parts, rebuild, rewrite, walk

MOST_PIECES = 8
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Piece:
    """Lane values begin .. end-1, of which there are some when the axis has any."""

    begin: Expr
    end: Expr


def pieces(kernel: Kernel, lane: Axis) -> tuple[Piece, ...]:
    """The pieces of the lane axis in order, one alone when nothing is gained."""
    whole = (Piece(const(0), lane.extent),)
    found = {t for s in kernel.statements for t in _thresholds(s.body, lane)}
    inside = [t for t in found if _inside(t, lane, kernel.ranges)]
    # Thresholds whose order is unknown can not be cut at.
    if not inside or len(inside) >= MOST_PIECES:
        return whole
    if len(inside) > 1 and not all(t.is_const for t in inside):
        return whole
    inside.sort(key=lambda t: t.value if t.is_const else 0)
    ends = [*inside, lane.extent]
    return tuple(Piece(a, b) for a, b in zip([const(0), *inside], ends))


def in_piece(body: Value, kernel: Kernel, lane: Axis, piece: Piece) -> Value:
    """The body with all that is decided by the lane's place in ``piece`` folded."""
    ranges = {**kernel.ranges, lane.name: Range(piece.begin, piece.end - 1)}
    return rewrite(body, lambda node, args: _folded(node, args, ranges))


def _thresholds(body: Value, lane: Axis) -> Iterator[Expr]:
    """Lane values at which a comparison of indices may change."""
    atom = Atom("sym", lane.name)
    for node in walk(body):
        gap = _gap(node)
        split = gap.linear(atom) if gap is not None and lane.name in gap.symbols else None
        if split is None or not split[0].is_const or abs(split[0].value) != 1:
            continue
        zero = split[1] * -split[0].value
        if node.op in ("lt", "ge"):
            yield zero if split[0] == 1 else zero + 1
        elif node.op in ("le", "gt"):
            yield zero + 1 if split[0] == 1 else zero
        else:
            yield zero
            yield zero + 1


def _inside(threshold: Expr, lane: Axis, ranges: Ranges) -> bool:
    """Whether it is proven to lie within the axis, and does not depend on another one."""
    sizes = all(name.startswith("ks") for name in threshold.symbols)
    return sizes and positive(threshold, ranges) and positive(lane.extent - threshold, ranges)


def _gap(node: Value) -> Expr | None:
    """a - b of a comparison of the indices a and b."""
    if node.op not in _COMPARISONS or any(a.op != "index" for a in node.args):
        return None
    a, b = (v.attr[0] for v in node.args)
    assert isinstance(a, Expr) and isinstance(b, Expr)
    return a - b


def _folded(node: Value, args: tuple[Value, ...], ranges: Ranges) -> Value:
    known = _decided(node, ranges)
    if known is not None:
        return constant(known, "bool")
    if node.op in ("and", "or") and node.dtype == "bool":
        return _logic(node, args)
    if node.op == "not" and node.dtype == "bool" and args[0].op == "const":
        return constant(not args[0].attr[0], "bool")
    if node.op == "where" and args[0].op == "const":
        return args[1] if args[0].attr[0] else args[2]
    if node.op == "load":
        return _load(node, args)
    return rebuild(node, args)


def _decided(node: Value, ranges: Ranges) -> bool | None:
    gap = _gap(node)
    if gap is None:
        return None
    zero = const(0)
    if node.op in ("lt", "ge"):
        found = less(gap, zero, ranges)
        return found if node.op == "lt" or found is None else not found
    if node.op in ("gt", "le"):
        found = less(zero, gap, ranges)
        return found if node.op == "gt" or found is None else not found
    apart = less(gap, zero, ranges) or less(zero, gap, ranges)
    if apart:
        return node.op == "ne"
    same = nonneg(gap, ranges) and nonneg(-gap, ranges)
    return node.op == "eq" if same else None


def _logic(node: Value, args: tuple[Value, ...]) -> Value:
    absorbing = node.op == "or"
    for a, b in (args, args[::-1]):
        if a.op == "const":
            return a if bool(a.attr[0]) == absorbing else b
    return rebuild(node, args)


def _load(node: Value, args: tuple[Value, ...]) -> Value:
    _, _, mask, other = load_parts(node)
    held = args[-1]
    if mask is None or held.op != "const":
        return rebuild(node, args)
    if held.attr[0]:
        return Value("load", node.dtype, args[:-1], node.attr)
    assert isinstance(other, (bool, int, float))
    return constant(other, node.dtype)
