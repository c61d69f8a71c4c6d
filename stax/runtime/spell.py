"""Size expressions as Python text, for the functions that the runtime generates. Names are given, never taken over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stax.ir.expr import Atom, Expr


def spell(expr: Expr, names: Mapping[str, str]) -> str:
    """Python text of an integer expression; ``names`` maps its symbols to local variables or digits."""
    if expr.is_const:
        return str(expr.value)
    pieces: list[str] = []
    for monomial, coef in expr.terms:
        factors = [_atom(atom, names) for atom, power in monomial for _ in range(power)]
        pieces.append("*".join(factors if coef == 1 and factors else [_number(coef), *factors]))
    return pieces[0] if len(pieces) == 1 else f"({' + '.join(pieces)})"


def spell_tuple(exprs: Iterable[Expr], names: Mapping[str, str]) -> str:
    """Python text of a tuple of expressions."""
    return f"({''.join(f'{spell(e, names)}, ' for e in exprs)})"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"({value})"


def _atom(atom: Atom, names: Mapping[str, str]) -> str:
    if atom.op == "sym":
        return names[atom.name]
    left, right = (spell(arg, names) for arg in atom.args)
    if atom.op in ("max", "min"):
        return f"{atom.op}({left}, {right})"
    return f"(({left}) {'//' if atom.op == 'floordiv' else '%'} ({right}))"
