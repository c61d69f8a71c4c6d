"""Ranges of symbols and what follows from them: simplification of division, bounds, three-valued decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.ir.expr import Atom, Expr, apply, const, split_multiples, sym


@dataclass(frozen=True)
class Range:
    """Inclusive bounds; ``hi`` None means unbounded. Bounds of an axis may hold size symbols; those of a size are ints."""

    lo: Expr
    hi: Expr | None

    @staticmethod
    def of(lo: int | Expr, hi: int | Expr | None = None) -> Range:
        return Range(const(lo), None if hi is None else const(hi))

    @staticmethod
    def axis(extent: Expr) -> Range:
        """Values 0 .. extent-1 of a loop axis."""
        return Range(const(0), extent - 1)


Ranges = Mapping[str, Range]


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """The same value in fewer divisions, given the ranges: (128*i + j) // 128 is i for 0 <= j < 128."""
    done: dict[str, Expr] = {}
    out = const(0)
    for monomial, coef in e.terms:
        factor = const(coef)
        for atom, power in monomial:
            if atom.text not in done:
                done[atom.text] = _simplify_atom(atom, ranges)
            for _ in range(power):
                factor = factor * done[atom.text]
        out = out + factor
    return _recombine(out)


def _simplify_atom(atom: Atom, ranges: Ranges) -> Expr:
    if atom.op == "sym":
        return sym(atom.name)
    a, b = (simplify(arg, ranges) for arg in atom.args)
    if atom.op in ("max", "min"):
        return _simplify_extreme(atom.op, a, b, ranges)
    if not nonneg(b - 1, ranges):
        return apply(atom.op, a, b)
    q, r = split_multiples(a, b)
    q, r = _peel(q, r, b, ranges)
    if nonneg(r, ranges) and nonneg(b - 1 - r, ranges):
        return q if atom.op == "floordiv" else r
    return q + apply("floordiv", r, b) if atom.op == "floordiv" else apply("mod", r, b)


def _peel(q: Expr, r: Expr, b: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """Move constant multiples of b out of r's constant term when r is wholly in one period of b."""
    if not (r.is_const or b.is_const):
        return q, r
    lo, hi = bounds(r, ranges)
    if not b.is_const or lo is None or hi is None or b.value <= 0:
        return q, r
    if lo // b.value != hi // b.value:
        return q, r
    shift = lo // b.value
    return q + shift, r - shift * b.value


def _simplify_extreme(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    if nonneg(a - b, ranges):
        return a if op == "max" else b
    if nonneg(b - a, ranges):
        return b if op == "max" else a
    return apply(op, a, b)


def _recombine(e: Expr) -> Expr:
    """c*b*(x // b) + c*(x mod b) → c*x, and with (x // b) mod d in place of x // b → c*(x mod (b*d))."""
    changed = True
    while changed:
        changed = False
        for low in [a for a in e.atoms if a.op == "mod"]:
            joined = _join(e, low)
            if joined is not None:
                e, changed = joined, True
                break
    return e


def _join(e: Expr, low: Atom) -> Expr | None:
    x, b = low.args
    split = e.linear(low)
    if split is None or split[0] == 0:
        return None
    coef, rest = split
    quotient = x // b
    for high in rest.atoms:
        if high.op == "mod" and high.args[0] == quotient:
            whole = x % (b * high.args[1])
        elif high.op == "floordiv" and sym_of(high) == quotient:
            whole = x
        else:
            continue
        pair = rest.linear(high)
        if pair is not None and pair[0] == coef * b:
            return pair[1] + coef * whole
    return None


def sym_of(atom: Atom) -> Expr:
    """An atom as an expression."""
    return Expr({((atom, 1),): 1})


def nonneg(e: Expr, ranges: Ranges) -> bool:
    """True when e >= 0 is proven for every value in the ranges; False means "not proven"."""
    if e.is_const:
        return e.value >= 0
    low = _lower(e, ranges, 0)
    return low is not None and _nonneg_sizes(low, ranges)


def positive(e: Expr, ranges: Ranges) -> bool:
    """True when e > 0 is proven."""
    return nonneg(e - 1, ranges)


def less(a: Expr, b: Expr, ranges: Ranges) -> bool | None:
    """a < b: True, False, or None when the ranges do not decide it."""
    if nonneg(b - a - 1, ranges):
        return True
    return False if nonneg(a - b, ranges) else None


def _lower(e: Expr, ranges: Ranges, depth: int) -> Expr | None:
    """A lower bound of e without axes and divisions, by replacing each by the end of its range that makes e least."""
    if depth > 24:
        return None
    for atom in _by_dependence(e, ranges):
        bound = _atom_range(atom, ranges)
        split = e.linear(atom)
        if bound is None or split is None:
            return None
        coef, rest = split
        if nonneg(coef, ranges):
            end = bound.lo
        elif nonneg(-coef, ranges):
            end = bound.hi
        else:
            return None
        if end is None:
            return None
        return _lower(coef * end + rest, ranges, depth + 1)
    return e


def _by_dependence(e: Expr, ranges: Ranges) -> list[Atom]:
    """Atoms that still have to go: divisions first, then axes (symbols whose bounds are symbolic or whose range is
    finite), never plain size symbols without an upper bound."""
    divisions = [a for a in e.atoms if a.op != "sym"]
    axes = [a for a in e.atoms if a.op == "sym" and _is_axis(a.name, ranges)]
    return divisions + axes


def _is_axis(name: str, ranges: Ranges) -> bool:
    found = ranges.get(name)
    return found is not None and found.hi is not None and not found.hi.is_const


def _atom_range(atom: Atom, ranges: Ranges) -> Range | None:
    if atom.op == "sym":
        return ranges.get(atom.name)
    a, b = atom.args
    if atom.op == "mod":
        return Range(const(0), b - 1) if nonneg(b - 1, ranges) else None
    if atom.op == "floordiv" and b.is_const and b.value > 0:
        lo, hi = bounds(a, ranges)
        if lo is None:
            return None
        return Range(const(lo // b.value), None if hi is None else const(hi // b.value))
    lo, hi = bounds(sym_of(atom), ranges)
    return None if lo is None else Range(const(lo), None if hi is None else const(hi))


def _nonneg_sizes(e: Expr, ranges: Ranges) -> bool:
    """e >= 0 over size symbols, by shifting each to start at zero and looking at signs, else by interval arithmetic."""
    lo, _ = bounds(e, ranges)
    if lo is not None and lo >= 0:
        return True
    shift: dict[str, Expr | int] = {}
    for name in e.symbols:
        found = ranges.get(name)
        if found is None or not found.lo.is_const:
            return False
        shift[name] = sym(name) + found.lo
    moved = e.subs(shift)
    return all(c >= 0 for _, c in moved.terms) and all(a.op == "sym" for a in moved.atoms)


def bounds(e: Expr, ranges: Ranges) -> tuple[int | None, int | None]:
    """Numeric (lo, hi) of e by interval arithmetic; None is unbounded or unknown."""
    lo: int | None = 0
    hi: int | None = 0
    for monomial, coef in e.terms:
        term: tuple[int | None, int | None] = (coef, coef)
        for atom, power in monomial:
            for _ in range(power):
                term = _times(term, _atom_bounds(atom, ranges))
        lo = None if lo is None or term[0] is None else lo + term[0]
        hi = None if hi is None or term[1] is None else hi + term[1]
    return lo, hi


Interval = tuple[int | None, int | None]


def _atom_bounds(atom: Atom, ranges: Ranges) -> Interval:
    if atom.op == "sym":
        found = ranges.get(atom.name)
        if found is None:
            return None, None
        lo = bounds(found.lo, ranges)[0]
        return lo, None if found.hi is None else bounds(found.hi, ranges)[1]
    a, b = (bounds(arg, ranges) for arg in atom.args)
    if atom.op == "max":
        return _pick(max, a[0], b[0], keep=True), _pick(max, a[1], b[1], keep=False)
    if atom.op == "min":
        return _pick(min, a[0], b[0], keep=False), _pick(min, a[1], b[1], keep=True)
    if b[0] is None or b[0] <= 0:
        return None, None
    if atom.op == "mod":
        hi = None if b[1] is None else b[1] - 1
        if a[0] is not None and a[0] >= 0 and a[1] is not None:
            hi = a[1] if hi is None else min(hi, a[1])
        return 0, hi
    return _divide_interval(a, b)


def _divide_interval(a: Interval, b: Interval) -> Interval:
    assert b[0] is not None
    lo = None
    if a[0] is not None:
        lo = a[0] // b[0] if a[0] < 0 else (0 if b[1] is None else a[0] // b[1])
    hi = None
    if a[1] is not None:
        hi = a[1] // b[0] if a[1] >= 0 else (-1 if b[1] is None else a[1] // b[1])
    return lo, hi


def _pick(fold: object, a: int | None, b: int | None, *, keep: bool) -> int | None:
    """The fold of two ends; with one unknown, the known one when ``keep`` says that is still a bound."""
    if a is None or b is None:
        known = a if b is None else b
        return known if keep else None
    return fold(a, b)  # type: ignore[operator, no-any-return]


def _times(a: Interval, b: Interval) -> Interval:
    if (0, 0) in (a, b):
        return 0, 0
    if None not in a and None not in b:
        ends = [x * y for x in a for y in b if x is not None and y is not None]
        return min(ends), max(ends)
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        return a[0] * b[0], None
    if a[1] is not None and a[1] <= 0 and b[0] is not None and b[0] >= 0:
        return None, a[1] * b[0]
    if b[1] is not None and b[1] <= 0 and a[0] is not None and a[0] >= 0:
        return None, b[1] * a[0]
    return None, None
