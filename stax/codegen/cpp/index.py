"""Size and offset expressions as C++ text in int64_t, with the cheapest division that the ranges allow."""

from __future__ import annotations

from stax.ir.expr import Atom, Expr, Monomial
from stax.ir.ranges import Ranges, bounds, nonneg, positive, simplify

_UINT32_MAX = 2**32 - 1


def spell_expr(e: Expr, ranges: Ranges) -> str:
    """C++ text of ``e``; safe as an operand of + and as a subscript, not of * or comparison."""
    simple = simplify(e, ranges)
    if not simple.terms:
        return "0"
    out = ""
    for monomial, coef in simple.terms:
        piece = _term(monomial, abs(coef), ranges)
        if not out:
            out = f"-{piece}" if coef < 0 else piece
        else:
            out += f" {'-' if coef < 0 else '+'} {piece}"
    return out


def spell_factor(e: Expr, ranges: Ranges) -> str:
    """C++ text of ``e`` that is safe as any operand."""
    text = spell_expr(e, ranges)
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def _term(monomial: Monomial, mag: int, ranges: Ranges) -> str:
    factors = [_atom(atom, ranges) for atom, power in monomial for _ in range(power)]
    if mag != 1 or not factors:
        factors.insert(0, str(mag))
    return " * ".join(factors)


def _atom(atom: Atom, ranges: Ranges) -> str:
    if atom.op == "sym":
        return atom.name
    a, b = atom.args
    left, right = spell_expr(a, ranges), spell_expr(b, ranges)
    if atom.op in ("max", "min"):
        return f"stax_i{atom.op}<int64_t>({left}, {right})"
    sign = "/" if atom.op == "floordiv" else "%"
    if not (nonneg(a, ranges) and positive(b, ranges)):
        return f"stax_i{'floordiv' if sign == '/' else 'remainder'}<int64_t>({left}, {right})"
    high = bounds(a, ranges)[1]
    # A 32-bit division by a constant becomes a multiplication that vectorises; a 64-bit one does not.
    if b.is_const and high is not None and max(high, b.value) <= _UINT32_MAX:
        return f"(int64_t)((uint32_t)({left}) {sign} {b.value}u)"
    return f"(({left}) {sign} ({right}))"
