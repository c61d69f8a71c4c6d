"""Cheaper functions where the result is rounded to a half type anyway.

A value is relaxed when everything that uses it ends in a cast to a half type, by operators that do not blow its relative
error up. There an error of some 1e-5 hides below the rounding, and the hardware's own approximations serve: on a GPU at
the limit of its memory the full functions of exp, erf and division would be what limits it (an H200 has time for some 30
instructions an element of gelu(x + bias) in bfloat16; erf alone takes 23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stax.codegen.triton.pairs import Pair
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel, Statement
from stax.ir.value import Value, rebuild, rewrite, walk

# Operators that pass an error on without blowing it up, at most as eager's own errors would be.
TAME = frozenset("add sub mul truediv neg abs maximum minimum where local".split())
# What the emitter spells for the operators that this module puts in.
SPELLINGS: Mapping[str, str] = {
    "fast_exp": "fast_exp({0})",
    "one_plus_erf": "one_plus_erf({0})",
    "one_plus_tanh": "one_plus_tanh({0})",
    "reciprocal": "(1.0 / {0})",
    "fast_divide": "({0} * fast_reciprocal({1}))",
    "near_divide": "({0} / {1})",
}


def relaxed(kernel: Kernel, pairs: Iterable[Pair]) -> tuple[Kernel, frozenset[str]]:
    """The kernel with cheaper operators, and the names of the statements whose result is relaxed."""
    seconds = frozenset(p.second for p in pairs if p.kind == "softmax")
    strict_values, strict_names = _strict(kernel, seconds)
    facts = _Facts(seconds, {s.name: s for s in kernel.statements})

    def swap(node: Value, args: tuple[Value, ...]) -> Value:
        new = rebuild(node, args)
        return new if node.key in strict_values or node.dtype != "float32" else _cheaper(new, facts)

    statements = tuple(replace(s, body=rewrite(s.body, swap)) for s in kernel.statements)
    loose = frozenset(s.name for s in statements) - strict_names
    return replace(kernel, statements=statements), loose


def _strict(kernel: Kernel, seconds: frozenset[str]) -> tuple[set[bytes], set[str]]:
    """(keys of values, names of statements) that some use needs in full."""
    values: set[bytes] = set()
    names: set[str] = set()
    for s in reversed(kernel.statements):
        if s.combine in ("argmax", "argmin", "prod", "any", "all"):
            names.add(s.name)
        if s.name in names or s.stores:
            values.add(s.body.key)
        for node in reversed(list(walk(s.body))):
            full = node.key in values
            if node.op == "local" and full:
                names.add(str(node.attr[0]))
            values.update(_needed_in_full(node, full, seconds))
    return values, names


def _needed_in_full(node: Value, full: bool, seconds: frozenset[str]) -> list[bytes]:
    """Keys of the arguments that a node, itself needed in full or not, needs in full."""
    if node.op == "cast" and _is_half(node.dtype):
        return []
    if node.op == "log" and node.args[0].op == "local" and node.args[0].attr[0] in seconds:
        return []  # the absolute error of log(d) is the relative one of d, which is at least 1
    if full or (node.op not in TAME and node.op != "cast"):
        return [a.key for a in node.args]
    if node.op == "where":
        return [node.args[0].key]
    if node.op == "cast" and not DTYPES[node.dtype].is_float:
        return [a.key for a in node.args]
    return []


def _is_half(dtype: str) -> bool:
    return DTYPES[dtype].is_float and DTYPES[dtype].itemsize < 4


@dataclass(frozen=True)
class _Facts:
    """What is known of the values of statements: ``seconds`` are sums that hold an exp(0)."""

    seconds: frozenset[str]
    statements: Mapping[str, Statement]

    def at_least_one(self, v: Value) -> bool:
        if v.op == "local":
            return str(v.attr[0]) in self.seconds
        if v.op == "const":
            return isinstance(v.attr[0], (int, float)) and v.attr[0] >= 1
        if v.op == "add":
            a, b = v.args
            sides = ((a, b), (b, a))
            return any(self.at_least_one(p) and self.not_negative(q) for p, q in sides)
        return v.op == "maximum" and any(self.at_least_one(a) for a in v.args)

    def not_negative(self, v: Value) -> bool:
        if v.op == "const":
            return isinstance(v.attr[0], (int, float)) and v.attr[0] >= 0
        if v.op in ("exp", "fast_exp", "exp2", "abs", "sqrt") or self.at_least_one(v):
            return True
        if v.op in ("add", "mul") and all(self.not_negative(a) for a in v.args):
            return True
        return v.op == "mul" and v.args[0] == v.args[1]

    def of_rows(self, v: Value) -> bool:
        """One value a row of a reduction."""
        s = self.statements.get(str(v.attr[0])) if v.op == "local" else None
        return s is not None and (s.space == "x" or s.combine is not None)


def _cheaper(node: Value, facts: _Facts) -> Value:
    match node.op:
        case "exp":
            return Value("fast_exp", node.dtype, node.args)
        case "add":
            return _one_plus(node)
        case "truediv":
            return _divided(node, facts)
        case _:
            return node


def _one_plus(node: Value) -> Value:
    """1 + erf(x) and 1 + tanh(x): what is left of the sum at negative x is all that counts, and has a form of its own."""
    for one, other in (node.args, node.args[::-1]):
        if one.op == "const" and one.attr[0] == 1 and other.op in ("erf", "tanh"):
            return Value(f"one_plus_{other.op}", node.dtype, other.args)
    return node


def _divided(node: Value, facts: _Facts) -> Value:
    """A divisor of 1 or more has a reciprocal that neither overflows nor is lost; a row's is taken once a row."""
    a, b = node.args
    if not facts.at_least_one(b):
        return Value("near_divide", node.dtype, node.args)
    if facts.of_rows(b) and not facts.of_rows(a):
        return Value("mul", node.dtype, (a, Value("reciprocal", node.dtype, (b,))))
    return Value("fast_divide", node.dtype, node.args)
