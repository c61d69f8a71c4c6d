"""What a finished trace learned about sizes: symbols by their names here, sizes as Exprs, conditions as guards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy
from torch import SymInt

from stax.artifact.guards import RelationGuard
from stax.base.errors import CaptureError
from stax.capture.inputs import Entry
from stax.capture.sizes import Environment
from stax.capture.symbols import Relation, Unsupported, to_expr, to_relations
from stax.ir.expr import Expr, const, sym
from stax.ir.program import Symbol
from stax.ir.ranges import Range, nonneg, simplify

# Longer sizes (nested divisions) are specialised: lowering and the wire would choke on them.
MAX_TEXT = 1024


class Sizes:
    """torch's symbols renamed s0, s1, … in the order in which the inputs show them. A size or condition that has no form
    here is replaced by its value at capture; ``fixed`` collects the symbols that then must keep theirs."""

    def __init__(self, env: Environment | None, entries: Iterable[Entry]) -> None:
        self._env = env
        self._known: dict[Any, Expr] = {}
        self.fixed: dict[str, str] = {}
        self.names: dict[sympy.Symbol, str] = {}
        for symbol in _in_order(entries):
            self.names.setdefault(symbol, f"s{len(self.names)}")

    def expr(self, size: Any) -> Expr:
        """A size as an Expr."""
        if not isinstance(size, SymInt):
            return const(int(size))
        e = size.node.expr
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._convert(e)
        return found

    def _convert(self, e: sympy.Basic) -> Expr:
        try:
            found = to_expr(e, self.names)
        except Unsupported as reason:
            return const(int(self._fix(e, str(reason))))
        return found if len(found.text) <= MAX_TEXT else const(int(self._fix(e, "")))

    def _fix(self, e: Any, where: str) -> Any:
        """The value of ``e`` at capture; every symbol in it keeps its value from here on."""
        assert self._env is not None
        unknown = [s for s in e.free_symbols if s not in self.names]
        if unknown:
            raise CaptureError("a size depends on data", found=str(e), where=where)
        for symbol in e.free_symbols:
            self.fixed.setdefault(self.names[symbol], where)
        return e.xreplace({s: sympy.Integer(self._env.sizes[s]) for s in e.free_symbols})

    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols with their values at capture and what torch proved of their ranges."""
        if self._env is None:
            return ()
        return tuple(
            Symbol(name, self._env.sizes[symbol], *_bounds(self._env, symbol))
            for symbol, name in self.names.items()
        )

    def relations(self, texts: Mapping[str, str]) -> list[RelationGuard]:
        """The conditions under which the program took this path; ``texts`` say what the user calls each symbol."""
        if self._env is None:
            return []
        found = [(r, where) for g, where in self._guards() for r in self._split(g, where)]
        found += [(r, where) for g, where in self._decisions() for r in self._believed(g)]
        least = [((const(2), "<=", sym(name)), "") for name in self.names.values()]
        kept = {r: where for r, where in reversed([*least, *found]) if not self._implied(r)}
        kept |= {r: where for r, where in reversed(least)}
        hints = {name: self._env.sizes[symbol] for symbol, name in self.names.items()}
        for name, where in self.fixed.items():
            kept[sym(name), "==", const(hints[name])] = where
        return [_guard(r, where, texts) for r, where in reversed(kept.items())]

    def _guards(self) -> Iterator[tuple[sympy.Basic, str]]:
        assert self._env is not None
        for guard in self._env.guards:
            yield guard.expr, str(guard.sloc.framework_loc or "")
        for group in self._env.deferred_runtime_asserts.values():
            for one in group:
                yield one.expr, ""

    def _decisions(self) -> Iterator[tuple[Any, str]]:
        """Conditions with their answers as conditions that hold."""
        assert self._env is not None
        for condition, (answer, where) in self._env.decisions.items():
            if answer in (True, sympy.true):
                yield condition, where
            elif answer in (False, sympy.false):
                yield sympy.Not(condition), where

    def _believed(self, condition: Any) -> list[Relation]:
        """What torch decided without a guard. Forms that only torch can read are left to it."""
        assert self._env is not None
        try:
            return list(to_relations(self._env.replace(condition), self.names))
        except Unsupported:
            return []

    def _split(self, condition: sympy.Basic, where: str) -> list[Relation]:
        assert self._env is not None
        condition = self._env.replace(condition)
        if condition is sympy.false:
            raise CaptureError("the conditions on sizes contradict each other", where=where)
        try:
            return list(to_relations(condition, self.names))
        except Unsupported:
            self._fix(condition, where)
            return []

    def _implied(self, relation: Relation) -> bool:
        """Holds for all sizes of at least 2."""
        left, op, right = relation
        ranges = {name: Range.of(2) for name in self.names.values()}
        gap = simplify(right - left, ranges)
        if op == "<=":
            return nonneg(gap, ranges)
        if op == "<":
            return nonneg(gap - 1, ranges)
        return gap == 0 if op == "==" else nonneg(gap - 1, ranges) or nonneg(-gap - 1, ranges)


def _in_order(entries: Iterable[Entry]) -> Iterator[sympy.Symbol]:
    sizes = [
        s for e in entries if e.source == "arg" for s in (*e.geometry.shape, *e.geometry.strides)
    ]
    forms = [s.node.expr for s in sizes if isinstance(s, SymInt)]
    yield from (f for f in forms if isinstance(f, sympy.Symbol))
    for form in forms:
        yield from sorted(form.free_symbols, key=str)


def _bounds(env: Environment, symbol: sympy.Symbol) -> tuple[int, int | None]:
    found = env.var_to_range[symbol]
    hi = int(found.upper) if isinstance(found.upper, sympy.Integer) else None
    return max(2, int(found.lower)), hi


_OPPOSITE = {"<": ">", "<=": ">=", "==": "==", "!=": "!="}


def _guard(relation: Relation, where: str, texts: Mapping[str, str]) -> RelationGuard:
    left, op, right = relation
    a, b = (re.sub(r"\bs\d+\b", lambda m: texts.get(m[0], m[0]), e.text) for e in (left, right))
    text = f"{b} {_OPPOSITE[op]} {a}" if left.is_const else f"{a} {op} {b}"
    return RelationGuard(left, op, right, text, where)
