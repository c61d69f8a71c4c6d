"""Two reductions that one pass over the data can give together: the largest and the exponentials relative to it (spec
9.5, Proposition 9.1), the sum and the squares around its mean.

Matched on bodies in which every value that is not reduced is looked through, so that it does not matter how lowering
cut them into statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.value import Value, rebuild, rewrite

WIDE = ("float32", "float64")


@dataclass(frozen=True)
class Pair:
    """``kind`` "softmax": ``first`` is the maximum of y, ``second`` the sum of exp(y - first); with ``safe`` an infinite
    maximum is not subtracted. ``kind`` "moments": ``first`` is the sum of y, ``second`` the sum of (y - first/count)²."""

    kind: str
    first: str
    second: str
    safe: bool = False


def pairs_of(kernel: Kernel) -> tuple[Pair, ...]:
    """The pairs of a kernel, each statement in one at most."""
    bodies = _looked_through(kernel)
    wide = [s for s in kernel.statements if s.combine and s.dtype in WIDE]
    found: list[Pair] = []
    taken: set[str] = set()
    for second in (s for s in wide if s.combine == "sum"):
        for first in wide:
            if first is second or {first.name, second.name} & taken:
                continue
            pair = _softmax(first, second, bodies) or _moments(first, second, bodies, kernel)
            if pair is not None:
                found.append(pair)
                taken |= {first.name, second.name}
    return tuple(found)


def _looked_through(kernel: Kernel) -> dict[str, Value]:
    """Each statement's body over loads and the results of reductions alone."""
    plain: dict[str, Value] = {}
    bodies: dict[str, Value] = {}

    def swap(node: Value, args: tuple[Value, ...]) -> Value:
        name = str(node.attr[0]) if node.op == "local" else ""
        return plain[name] if name in plain else rebuild(node, args)

    for s in kernel.statements:
        bodies[s.name] = rewrite(s.body, swap)
        if s.combine is None:
            plain[s.name] = bodies[s.name]
    return bodies


def _softmax(first: Statement, second: Statement, bodies: Mapping[str, Value]) -> Pair | None:
    body = bodies[second.name]
    if first.combine != "max" or body.op != "exp" or body.args[0].op != "sub":
        return None
    y, top = body.args[0].args
    if y != bodies[first.name]:
        return None
    if _is_local(top, first.name):
        return Pair("softmax", first.name, second.name)
    if _is_safe(top, first.name):
        return Pair("softmax", first.name, second.name, safe=True)
    return None


def _is_local(value: Value, name: str) -> bool:
    return value.op == "local" and value.attr[0] == name


def _is_safe(value: Value, name: str) -> bool:
    """where(isinf(top), 0, top)."""
    if value.op != "where":
        return False
    test, zero, top = value.args
    return (
        test.op == "isinf"
        and _is_local(test.args[0], name)
        and zero.op == "const"
        and zero.attr[0] == 0
        and _is_local(top, name)
    )


def _moments(
    first: Statement, second: Statement, bodies: Mapping[str, Value], kernel: Kernel
) -> Pair | None:
    body = bodies[second.name]
    if first.combine != "sum" or body.op != "mul" or body.args[0] != body.args[1]:
        return None
    gap = body.args[0]
    if gap.op != "sub" or gap.args[0] != bodies[first.name] or gap.args[1].op != "truediv":
        return None
    total, count = gap.args[1].args
    if _is_local(total, first.name) and _is_count(count, kernel.rnumel):
        return Pair("moments", first.name, second.name)
    return None


def _is_count(value: Value, rnumel: Expr) -> bool:
    """The number of reduced elements, as a constant or from the sizes."""
    while value.op == "cast":
        value = value.args[0]
    if value.op == "const":
        return rnumel.is_const and value.attr[0] == rnumel.value
    return value.op == "index" and value.attr[0] == rnumel
