"""torch's symbolic sizes and the conditions on them as Exprs and relations: sympy in, stax.ir.expr out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy

from stax.ir.expr import Expr, ceildiv, const, floordiv, maximum, minimum, mod, product, sym, total

Names = Mapping[sympy.Symbol, str]
Relation = tuple[Expr, str, Expr]


class Unsupported(Exception):
    """A sympy form that no Expr or relation has."""


def to_expr(e: sympy.Basic, names: Names) -> Expr:
    """The same integer expression. Raises Unsupported for floats, conditionals and unknown functions."""
    if isinstance(e, sympy.Integer):
        return const(int(e))
    if isinstance(e, sympy.Symbol):
        if e not in names:
            raise Unsupported(f"symbol {e}")
        return sym(names[e])
    rounded = _rounded(e, names)
    if rounded is not None:
        return rounded
    form = _FORMS.get(type(e).__name__)
    if form is None:
        raise Unsupported(f"{type(e).__name__} in {e}")
    if form is _power:
        exponent = e.args[1]
        if not isinstance(exponent, sympy.Integer) or not 0 <= int(exponent) <= 8:
            raise Unsupported(f"the power {exponent} in {e}")
    return form(*(to_expr(a, names) for a in e.args))


def _rounded(e: sympy.Basic, names: Names) -> Expr | None:
    """ceil, floor and trunc of a quotient of sizes; exact, because sizes are below 2**53."""
    kind = type(e).__name__
    if kind not in ("CeilToInt", "FloorToInt", "TruncToInt"):
        return None
    inner = e.args[0]
    if type(inner).__name__ != "IntTrueDiv" or not inner.args[1].is_positive:
        return None
    if kind == "TruncToInt" and not inner.args[0].is_nonnegative:
        return None
    a, b = (to_expr(x, names) for x in inner.args)
    return ceildiv(a, b) if kind == "CeilToInt" else floordiv(a, b)


def _power(base: Expr, exponent: Expr) -> Expr:
    return product([base] * exponent.value)


def _fold(pair: Callable[[Expr, Expr], Expr]) -> Callable[..., Expr]:
    def fold(first: Expr, *rest: Expr) -> Expr:
        for e in rest:
            first = pair(first, e)
        return first

    return fold


_FORMS: Mapping[str, Callable[..., Expr]] = {
    "Add": lambda *terms: total(terms),
    "Mul": lambda *factors: product(factors),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "Mod": mod,
    "PythonMod": mod,
    "ModularIndexing": lambda base, divisor, modulus: mod(floordiv(base, divisor), modulus),
    "Max": _fold(maximum),
    "Min": _fold(minimum),
}


def to_relations(condition: sympy.Basic, names: Names) -> Iterator[Relation]:
    """Relations that together are ``condition``. Raises Unsupported for a disjunction or a form that no Expr has."""
    if condition is sympy.true:
        return
    if isinstance(condition, sympy.And):
        for part in condition.args:
            yield from to_relations(part, names)
        return
    if isinstance(condition, sympy.Not):
        yield from to_relations(_negated(condition.args[0]), names)
        return
    row = _RELATIONS.get(type(condition).__name__)
    if row is None:
        raise Unsupported(f"{type(condition).__name__} in {condition}")
    relation, swap = row
    left, right = (to_expr(side, names) for side in _integral(condition))
    yield (right, relation, left) if swap else (left, relation, right)


_RELATIONS: Mapping[str, tuple[str, bool]] = {
    "Equality": ("==", False),
    "Unequality": ("!=", False),
    "StrictLessThan": ("<", False),
    "LessThan": ("<=", False),
    "StrictGreaterThan": ("<", True),
    "GreaterThan": ("<=", True),
}


def _negated(condition: sympy.Basic) -> sympy.Basic:
    """not (a or b) is not-a and not-b; a relation has its opposite."""
    if isinstance(condition, sympy.Or):
        return sympy.And(*(sympy.Not(part) for part in condition.args))
    if isinstance(condition, sympy.Rel):
        return condition.negated
    raise Unsupported(f"not {condition}")


def _integral(relation: Any) -> tuple[sympy.Basic, sympy.Basic]:
    """Both sides times their denominators: sympy likes to divide a relation by a number."""
    left, right = relation.lhs, relation.rhs
    rationals = left.atoms(sympy.Rational) | right.atoms(sympy.Rational)
    scale = math.lcm(*(int(r.q) for r in rationals))
    if scale == 1:
        return left, right
    return sympy.expand(left * scale), sympy.expand(right * scale)
