"""sympy to Expr: what is converted has the same value; what has no form here is refused."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
    TruncToInt,
)

from stax.capture.symbols import Unsupported, to_expr, to_relations

A, B = (sympy.Symbol(name, integer=True, positive=True) for name in "ab")
NAMES = {A: "s0", B: "s1"}
LEAVES = st.one_of(st.sampled_from([A, B]), st.integers(-9, 9).map(sympy.Integer))
POSITIVE = st.one_of(st.sampled_from([A, B]), st.integers(1, 9).map(sympy.Integer))


def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] - t[1]),
        st.tuples(inner, POSITIVE).map(lambda t: FloorDiv(*t)),
        st.tuples(inner, POSITIVE).map(lambda t: PythonMod(*t)),
        st.tuples(inner, inner).map(lambda t: Max(*t)),
        st.tuples(inner, inner).map(lambda t: Min(*t)),
        st.tuples(POSITIVE, st.integers(0, 3).map(sympy.Integer)).map(lambda t: PowByNatural(*t)),
        st.tuples(POSITIVE, POSITIVE, POSITIVE).map(lambda t: ModularIndexing(*t)),
        st.tuples(POSITIVE, POSITIVE).map(lambda t: Mod(*t)),
        st.tuples(inner, POSITIVE).map(lambda t: CeilToInt(IntTrueDiv(*t))),
        st.tuples(inner, POSITIVE).map(lambda t: FloorToInt(IntTrueDiv(*t))),
    )


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=8)
SIZES = st.integers(2, 40)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, SIZES, SIZES)
def test_the_same_value(e: Any, a: int, b: int) -> None:
    try:
        found = to_expr(e, NAMES)
    except Unsupported:
        # FloorToInt of a sum is a form torch itself rewrites to floats.
        assert any(type(x).__name__ in REFUSED for x in sympy.preorder_traversal(e))
        return
    assert found.evaluate({"s0": a, "s1": b}) == int(
        e.xreplace({A: sympy.Integer(a), B: sympy.Integer(b)})
    )


REFUSED = {"FloorToInt", "CeilToInt", "IntTrueDiv", "FloatTrueDiv", "Float", "Half", "Rational"}
RELATIONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
ORDERS = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.Eq, sympy.Ne)
CONDITIONS = st.recursive(
    st.tuples(st.sampled_from(ORDERS), st.recursive(LEAVES, grow, max_leaves=3), LEAVES).map(
        lambda t: t[0](t[1], t[2])
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: sympy.And(*t)),
        st.tuples(inner, inner).map(lambda t: sympy.Not(sympy.Or(*t))),
        inner.map(sympy.Not),
    ),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(CONDITIONS, SIZES, SIZES)
def test_the_same_truth(condition: Any, a: int, b: int) -> None:
    if condition is sympy.false:
        return
    try:
        found = list(to_relations(condition, NAMES))
    except Unsupported:
        return
    env = {"s0": a, "s1": b}
    holds = all(RELATIONS[op](x.evaluate(env), y.evaluate(env)) for x, op, y in found)
    assert holds == bool(condition.xreplace({A: sympy.Integer(a), B: sympy.Integer(b)}))


@pytest.mark.parametrize(
    "e",
    [
        FloatTrueDiv(A, sympy.Float(2.0)),
        IntTrueDiv(A, B),
        A ** sympy.Rational(1, 2),
        sympy.Piecewise((A, A > 3), (B, True)),
        sympy.Symbol("u0", integer=True),
        sympy.Float(1.5),
        PowByNatural(A, B),
    ],
)
def test_what_is_no_integer_is_refused(e: Any) -> None:
    with pytest.raises(Unsupported):
        to_expr(e, NAMES)


def test_a_disjunction_is_refused() -> None:
    with pytest.raises(Unsupported):
        list(to_relations(sympy.Or(A > 3, B > 4), NAMES))


def test_fractions_are_multiplied_out() -> None:
    ((left, op, right),) = to_relations(sympy.Le(A / 2, B - sympy.Rational(1, 3)), NAMES)
    assert (left.text, op, right.text) == ("3*s0", "<=", "6*s1 - 2")


def test_truncation_of_a_quotient_of_sizes_is_floor_division() -> None:
    assert to_expr(TruncToInt(IntTrueDiv(A, sympy.Integer(2))), NAMES).text == "((s0) // (2))"
    with pytest.raises(Unsupported):
        to_expr(TruncToInt(IntTrueDiv(A - B, sympy.Integer(2))), NAMES)
