"""Everything that ranges prove is true at every point: checked by trying them."""

from __future__ import annotations

from itertools import product as points

from hypothesis import given, settings
from hypothesis import strategies as st

from stax.ir.expr import Expr, const, maximum, minimum, sym
from stax.ir.ranges import Range, bounds, less, nonneg, positive, simplify

S, T = sym("s"), sym("t")
II, JJ, KK = sym("i"), sym("j"), sym("k")
# i in 0..s-1, j in 0..t-1, k in 0..3; sizes s in 2.., t in 2..5.
RANGES = {
    "s": Range.of(2),
    "t": Range.of(2, 5),
    "i": Range.axis(S),
    "j": Range.axis(T),
    "k": Range.axis(const(4)),
}
POINTS = [
    {"s": s, "t": t, "i": i, "j": j, "k": k}
    for s, t in points((2, 3, 5), (2, 4, 5))
    for i, j, k in points(range(s), range(t), range(4))
]

LEAVES = [S, T, II, JJ, KK, const(1), const(2), const(4), const(-3)]
# (operator, left, right); a divisor is a leaf that is positive.
TREES = st.recursive(
    st.sampled_from(range(len(LEAVES))),
    lambda inner: st.tuples(
        st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), inner, inner
    ),
    max_leaves=7,
)
DIVISORS = [S, T, const(2), const(3), const(4), S * T, T * 4]


def build(tree: object) -> Expr:
    if isinstance(tree, int):
        return LEAVES[tree]
    op, left, right = tree  # type: ignore[misc]
    a, b = build(left), build(right)
    if op in ("//", "%"):
        divisor = (
            DIVISORS[len(b.text) % len(DIVISORS)]
            if not b.is_const
            else DIVISORS[b.value % len(DIVISORS)]
        )
        return a // divisor if op == "//" else a % divisor
    return {"+": a + b, "-": a - b, "*": a * b, "max": maximum(a, b), "min": minimum(a, b)}[op]


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_simplify_keeps_the_value(tree: object) -> None:
    e = build(tree)
    short = simplify(e, RANGES)
    for env in POINTS:
        assert short.evaluate(env) == e.evaluate(env), (str(e), str(short), env)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_bounds_hold(tree: object) -> None:
    e = build(tree)
    lo, hi = bounds(e, RANGES)
    for env in POINTS:
        found = e.evaluate(env)
        assert lo is None or found >= lo, (str(e), lo, env)
        assert hi is None or found <= hi, (str(e), hi, env)


@settings(max_examples=300, deadline=None)
@given(TREES, TREES)
def test_decisions_hold(left: object, right: object) -> None:
    a, b = build(left), build(right)
    values = [(a.evaluate(env), b.evaluate(env)) for env in POINTS]
    if nonneg(a, RANGES):
        assert all(x >= 0 for x, _ in values), str(a)
    if positive(a, RANGES):
        assert all(x > 0 for x, _ in values), str(a)
    decided = less(a, b, RANGES)
    if decided is not None:
        assert all((x < y) == decided for x, y in values), (str(a), str(b))


def test_remainder_of_a_negative_size_is_not_zero() -> None:
    """(-s - 1) mod 4 <= 0 is not always true."""
    ranges = {"s": Range.of(2)}
    assert less(const(0), (-S - 1) % 4, ranges) is None
    assert bounds((-S - 1) % 4, ranges) == (0, 3)


def test_simplifications_that_layouts_need() -> None:
    ranges = {"s0": Range.of(2), "s1": Range.of(2)}
    s0, s1 = sym("s0"), sym("s1")
    ranges |= {
        "i0": Range.axis(s0),
        "i1": Range.axis(s1),
        "i2": Range.axis(const(12)),
        "i3": Range.axis(const(64)),
    }
    i0, i1, i2, i3 = (sym(f"i{k}") for k in range(4))
    flat = ((i0 * s1 + i1) * 12 + i2) * 64 + i3
    assert simplify(flat // 768 // s1, ranges) == i0
    assert simplify(flat // 768 % s1, ranges) == i1
    assert simplify(flat % 768, ranges) == i2 * 64 + i3
    assert simplify(flat % 768 // 64, ranges) == i2
    assert simplify((i3 // 8) * 8 + i3 % 8, ranges) == i3
    assert simplify(((i0 * s1 + i1) // s1) * s1 + (i0 * s1 + i1) % s1, ranges) == i0 * s1 + i1
