"""Integer expressions over symbols: sizes, strides, offsets and guards. Pure Python, no sympy, canonical by construction.

An Expr is a polynomial with integer coefficients whose indeterminates are atoms: a symbol, or a floordiv, mod, max or
min of two expressions. Equal polynomials have equal text, so text is identity. Division rounds down and the sign of
mod follows the divisor, as in Python. Reasoning over ranges lives in :mod:`stax.ir.ranges`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from math import gcd

from stax.base.errors import SchemaError

Monomial = tuple[tuple["Atom", int], ...]
_ATOM_OPS = ("floordiv", "mod", "max", "min")


class Atom:
    """An indeterminate: a symbol (``op`` "sym", ``name``) or a two-argument operation on expressions."""

    __slots__ = ("args", "hash", "name", "op", "text")

    def __init__(self, op: str, name: str = "", args: tuple[Expr, ...] = ()) -> None:
        self.op = op
        self.name = name
        self.args = args
        self.text = name if op == "sym" else _atom_text(op, args)
        self.hash = hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return self.hash

    def __repr__(self) -> str:
        return self.text


class Expr:
    """An immutable polynomial; build one with :func:`const`, :func:`sym` and the Python operators."""

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(m, c) for m, c in terms.items() if c != 0]
        if len(kept) > 1:
            kept.sort(key=_term_order)
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(kept)

    # -- identity and text
    @cached_property
    def text(self) -> str:
        if not self.terms:
            return "0"
        out = ""
        for monomial, coef in self.terms:
            body = _monomial_text(monomial)
            mag = abs(coef)
            piece = str(mag) if not body else body if mag == 1 else f"{mag}*{body}"
            sign = "-" if coef < 0 else ""
            out = f"{out} {'-' if coef < 0 else '+'} {piece}" if out else sign + piece
        return out

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expr({self.text})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.is_const and self.value == other
        return isinstance(other, Expr) and self.text == other.text

    @cached_property
    def _hash(self) -> int:
        return hash(self.text)

    def __hash__(self) -> int:
        return self._hash

    # -- queries
    @property
    def is_const(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def value(self) -> int:
        """The integer of a constant expression. Raises ValueError when it holds symbols."""
        if not self.is_const:
            raise ValueError(f"{self.text} is not a constant")
        return self.terms[0][1] if self.terms else 0

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """Top-level atoms, sorted by text."""
        found = {atom.text: atom for monomial, _ in self.terms for atom, _ in monomial}
        return tuple(found[t] for t in sorted(found))

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of all symbols, also inside divisions."""
        names: set[str] = set()
        for atom in self.atoms:
            if atom.op == "sym":
                names.add(atom.name)
            for arg in atom.args:
                names |= arg.symbols
        return frozenset(names)

    def linear(self, atom: Atom) -> tuple[Expr, Expr] | None:
        """(coefficient, rest) with self == coefficient*atom + rest and neither holding ``atom``; None if impossible."""
        coef: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, c in self.terms:
            power = dict(monomial).get(atom, 0)
            if power > 1:
                return None
            if power == 1:
                coef[tuple((a, p) for a, p in monomial if a != atom)] = c
            else:
                rest[monomial] = c
        pair = Expr(coef), Expr(rest)
        if atom.op == "sym" and any(atom.name in e.symbols for e in pair):
            return None
        return pair

    # -- arithmetic
    def __add__(self, other: Expr | int) -> Expr:
        other = const(other)
        terms = dict(self.terms)
        for monomial, c in other.terms:
            terms[monomial] = terms.get(monomial, 0) + c
        return Expr(terms)

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms})

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (-const(other))

    def __mul__(self, other: Expr | int) -> Expr:
        other = const(other)
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = _merge(m1, m2)
                terms[m] = terms.get(m, 0) + c1 * c2
        return Expr(terms)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floordiv(self, const(other))

    def __mod__(self, other: Expr | int) -> Expr:
        return mod(self, const(other))

    def __radd__(self, other: int) -> Expr:
        return self + other

    def __rsub__(self, other: int) -> Expr:
        return const(other) - self

    def __rmul__(self, other: int) -> Expr:
        return self * other

    def __rfloordiv__(self, other: int) -> Expr:
        return const(other) // self

    # -- evaluation and substitution
    def subs(self, env: Mapping[str, Expr | int]) -> Expr:
        """Replace symbols by expressions, simplifying without range knowledge."""
        if not (self.symbols & env.keys()):
            return self
        total = const(0)
        for monomial, c in self.terms:
            product = const(c)
            for atom, power in monomial:
                factor = _atom_subs(atom, env)
                for _ in range(power):
                    product = product * factor
            total = total + product
        return total

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The integer value under ``env``. Raises KeyError for an unbound symbol, ZeroDivisionError as Python does."""
        total = 0
        for monomial, c in self.terms:
            for atom, power in monomial:
                c *= _atom_value(atom, env) ** power
            total += c
        return total

    # -- data
    def to_data(self) -> str:
        return self.text


def const(value: Expr | int) -> Expr:
    """An int as an Expr; an Expr unchanged."""
    return value if isinstance(value, Expr) else _integer(int(value))


@lru_cache(maxsize=4096)
def _integer(value: int) -> Expr:
    return Expr({(): value})


def sym(name: str) -> Expr:
    """The symbol ``name``."""
    return Expr({((Atom("sym", name), 1),): 1})


def product(values: Iterable[Expr | int]) -> Expr:
    total = const(1)
    for v in values:
        total = total * v
    return total


def total(values: Iterable[Expr | int]) -> Expr:
    out = const(0)
    for v in values:
        out = out + v
    return out


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """Division that rounds up, for a positive divisor."""
    b = const(b)
    return (const(a) + b - 1) // b


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    return _extreme("max", max, const(a), const(b))


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    return _extreme("min", min, const(a), const(b))


def _extreme(op: str, fold: Callable[[int, int], int], a: Expr, b: Expr) -> Expr:
    gap = a - b
    if gap.is_const:
        return a if fold(gap.value, 0) == gap.value else b
    pair = (a, b) if a.text <= b.text else (b, a)
    return Expr({((Atom(op, args=pair), 1),): 1})


def split_multiples(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a == q*b + r, where q takes every term that a single-term ``b`` divides exactly."""
    if len(b.terms) != 1:
        return (const(1), const(0)) if a == b else (const(0), a)
    (bm, bc) = b.terms[0]
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    for monomial, c in a.terms:
        left = _divide(monomial, bm)
        if left is None:
            r[monomial] = c
            continue
        whole, part = divmod(c, bc)
        if whole and (part == 0 or not monomial):
            q[left] = q.get(left, 0) + whole
            c = part
        if c:
            r[monomial] = c
    return Expr(q), Expr(r)


def floordiv(a: Expr, b: Expr) -> Expr:
    """a // b for a divisor that is never zero. Raises ZeroDivisionError for one that always is."""
    if b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if b == 1:
        return a
    if a.is_const and b.is_const:
        return const(a.value // b.value)
    q, r = split_multiples(a, b)
    if r == 0:
        return q
    r, b = _reduce(r, b)
    if b == 1:
        return q + r
    inner = _only_atom(r, "floordiv")
    if (
        inner is not None
        and b.is_const
        and inner.args[1].is_const
        and b.value > 0
        and inner.args[1].value > 0
    ):
        return q + floordiv(inner.args[0], inner.args[1] * b)
    return q + Expr({((Atom("floordiv", args=(r, b)), 1),): 1})


def mod(a: Expr, b: Expr) -> Expr:
    """a mod b for a positive divisor. Raises ZeroDivisionError for one that is always zero."""
    if b == 0:
        raise ZeroDivisionError(f"{a} % 0")
    if b == 1:
        return const(0)
    if a.is_const and b.is_const:
        return const(a.value % b.value)
    _, r = split_multiples(a, b)
    if r == 0:
        return const(0)
    inner = _only_atom(r, "mod")
    if inner is not None and split_multiples(inner.args[1], b)[1] == 0:
        return mod(inner.args[0], b)
    g = _content(r, b)
    if g > 1:
        low = _constant_term(r) % g
        return mod(_scale_down(r - low, g), _scale_down(b, g)) * g + low
    return Expr({((Atom("mod", args=(r, b)), 1),): 1})


def _reduce(r: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Cancel the common integer factor: (g*x + c) // (g*y) == x // y for 0 <= c < g."""
    g = _content(r, b)
    if g <= 1:
        return r, b
    return _scale_down(r - _constant_term(r) % g, g), _scale_down(b, g)


def _content(r: Expr, b: Expr) -> int:
    g = 0
    for monomial, c in (*r.terms, *b.terms):
        if monomial:
            g = gcd(g, c)
    return gcd(g, _constant_term(b)) if _constant_term(b) else g


def _constant_term(e: Expr) -> int:
    return dict(e.terms).get((), 0)


def _scale_down(e: Expr, g: int) -> Expr:
    return Expr({m: c // g for m, c in e.terms})


def _only_atom(e: Expr, op: str) -> Atom | None:
    if len(e.terms) != 1:
        return None
    monomial, c = e.terms[0]
    if c == 1 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].op == op:
        return monomial[0][0]
    return None


def _divide(monomial: Monomial, by: Monomial) -> Monomial | None:
    powers = dict(monomial)
    for atom, power in by:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((a, powers[a]) for a, _ in monomial if powers[a])


def _merge(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda t: t[0].text))


def _degree(monomial: Monomial) -> int:
    return sum(power for _, power in monomial)


def _term_order(term: tuple[Monomial, int]) -> tuple[int, str]:
    return _monomial_order(term[0])


@lru_cache(maxsize=1 << 16)
def _monomial_order(monomial: Monomial) -> tuple[int, str]:
    """Higher degree first, then by text. Cached: the same few products are sorted all the time."""
    return -_degree(monomial), _monomial_text(monomial)


def _monomial_text(monomial: Monomial) -> str:
    return "*".join(a.text for a, power in monomial for _ in range(power))


def _atom_text(op: str, args: tuple[Expr, ...]) -> str:
    left, right = args
    if op in ("max", "min"):
        return f"{op}({left.text}, {right.text})"
    return f"(({left.text}) {'//' if op == 'floordiv' else '%'} ({right.text}))"


_APPLY: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "floordiv": floordiv,
    "mod": mod,
    "max": maximum,
    "min": minimum,
}
_VALUE: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def apply(op: str, a: Expr, b: Expr) -> Expr:
    """floordiv, mod, max or min by name."""
    return _APPLY[op](a, b)


def _atom_subs(atom: Atom, env: Mapping[str, Expr | int]) -> Expr:
    if atom.op == "sym":
        found = env.get(atom.name)
        return Expr({((atom, 1),): 1}) if found is None else const(found)
    left, right = (arg.subs(env) for arg in atom.args)
    return _APPLY[atom.op](left, right)


def _atom_value(atom: Atom, env: Mapping[str, int]) -> int:
    if atom.op == "sym":
        return env[atom.name]
    left, right = (arg.evaluate(env) for arg in atom.args)
    return _VALUE[atom.op](left, right)


def parse(text: str, limit: int = 4096) -> Expr:
    """Read the text form back. Accepts names, integers, + - * // %, unary minus, min and max; raises SchemaError
    otherwise, also past ``limit`` characters, so text from the wire is safe to read."""
    if len(text) > limit:
        raise SchemaError(
            "expression too long", expected=f"<= {limit} characters", found=str(len(text))
        )
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError, MemoryError, ValueError) as error:
        raise SchemaError(
            "bad expression", expected="an integer expression", found=text[:80]
        ) from error


_BINARY: Mapping[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: Expr.__add__,
    ast.Sub: Expr.__sub__,
    ast.Mult: Expr.__mul__,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _from_ast(node: ast.expr) -> Expr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return const(node.value)
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_from_ast(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_from_ast(node.left), _from_ast(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        fold = {"min": minimum, "max": maximum}.get(node.func.id)
        if fold is not None and len(node.args) == 2:
            return fold(_from_ast(node.args[0]), _from_ast(node.args[1]))
    raise SchemaError(
        "bad expression", expected="names, integers, + - * // % min max", found=ast.dump(node)[:80]
    )
