"""torch's symbolic sizes as Exprs: sympy in, stax.ir.expr out."""

from __future__ import annotations

from typing import Any

import sympy
from torch import SymBool, SymFloat, SymInt
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from stax.base.errors import CaptureError
from stax.ir.expr import Expr, const, floordiv, maximum, minimum, mod, sym
from stax.ir.program import Symbol


class Unsupported(Exception):
    """A sympy form that no Expr has."""


def to_expr(e: sympy.Basic, names: dict[sympy.Symbol, str]) -> Expr:
    """The same integer expression. Raises Unsupported for floats, piecewise forms and unknown functions."""
    if isinstance(e, sympy.Integer):
        return const(int(e))
    if isinstance(e, sympy.Symbol):
        if e not in names:
            raise Unsupported(f"symbol {e}")
        return sym(names[e])
    args = e.args
    if isinstance(e, sympy.Add):
        out = const(0)
        for a in args:
            out = out + to_expr(a, names)
        return out
    if isinstance(e, sympy.Mul):
        out = const(1)
        for a in args:
            out = out * to_expr(a, names)
        return out
    kind = type(e).__name__
    if kind in ("Pow", "PowByNatural"):
        return _power(args, names)
    if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
        a, b = args
        return floordiv(to_expr(a, names), to_expr(b, names))
    if kind in ("Mod", "PythonMod"):
        a, b = args
        return mod(to_expr(a, names), to_expr(b, names))
    if kind == "ModularIndexing":
        a, b, c = (to_expr(x, names) for x in args)
        return mod(floordiv(a, b), c)
    if kind in ("Max", "Min"):
        fold = maximum if kind == "Max" else minimum
        out = to_expr(args[0], names)
        for a in args[1:]:
            out = fold(out, to_expr(a, names))
        return out
    raise Unsupported(f"{kind} in {e}")


def _power(args: tuple[Any, ...], names: dict[sympy.Symbol, str]) -> Expr:
    base, exponent = args
    if not isinstance(exponent, sympy.Integer) or int(exponent) < 0:
        raise Unsupported(f"power {exponent}")
    out = const(1)
    factor = to_expr(base, names)
    for _ in range(int(exponent)):
        out = out * factor
    return out


class Sizes:
    """Reads sizes of one finished trace: torch's symbols, after all it learned about them, renamed s0, s1, …"""

    def __init__(self, env: ShapeEnv | None) -> None:
        self._env = env
        self.names: dict[sympy.Symbol, str] = {}
        self._known: dict[Any, Expr] = {}

    def expr(self, size: Any) -> Expr:
        """A size as an Expr. Raises CaptureError when it has no such form."""
        if not isinstance(size, SymInt):
            return const(int(size))
        e = size.node._expr
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._convert(e)
        return found

    def _convert(self, e: Any) -> Expr:
        assert self._env is not None
        try:
            return to_expr(self._env.replace(e), self.names)
        except Unsupported as reason:
            raise CaptureError(
                "a size has no integer form", found=str(reason), hint="use dynamic=False"
            ) from reason

    def scalar(self, value: SymBool | SymFloat) -> Any:
        """A symbolic condition or float as a number; what it depends on is specialised by torch's own guard."""
        return bool(value) if isinstance(value, SymBool) else float(value)

    def relations(self, entries: list[Any], metas: list[Any]) -> list[Any]:
        return []

    def symbols(self) -> tuple[Symbol, ...]:
        return ()
