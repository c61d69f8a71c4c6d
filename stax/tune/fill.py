"""What a kernel's buffers must hold while it is measured: random numbers, and indices that stay within their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel
from stax.ir.value import Value, walk
from stax.tune.work import Memory

# Values of integers that address nothing.
SMALL = 100
# What may stand between a loaded index and its bound: the index itself, or counted from the end when it is negative.
_PLAIN = frozenset({"load", "index", "local", "cast", "where", "lt", "ge", "add", "const", "bound"})


def memory_of(kernel: Kernel, elements: Sequence[int]) -> tuple[Memory, ...]:
    """One Memory a pointer of the kernel, of so many elements each."""
    limits = index_limits(kernel)
    return tuple(
        Memory(p.dtype, max(count, 1), *_fill(p.kind, p.dtype, limits.get(p.name)))
        for p, count in zip(kernel.pointers, elements, strict=True)
    )


def _fill(kind: str, dtype: str, limit: int | None) -> tuple[str, int]:
    if kind == "out":
        return "none", 0
    family = DTYPES[dtype].kind
    if family == "bool":
        return "below", 2
    if family not in ("int", "uint"):
        return "normal", 0
    if limit is None:
        return "below", SMALL
    return ("below", limit) if limit > 0 else ("zero", 0)


def index_limits(kernel: Kernel) -> dict[str, int]:
    """For each pointer whose elements take part in an address: below what they must stay; 0 where only zeros are safe."""
    bodies = {s.name: s.body for s in kernel.statements}
    limits: dict[str, int] = {}
    for s in kernel.statements:
        for value in walk(s.body):
            for name, limit in _limits(value, bodies, kernel.hints):
                limits[name] = min(limits.get(name, limit), limit)
    return limits


def _limits(
    value: Value, bodies: Mapping[str, Value], hints: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """What one node asks of the buffers below it."""
    if value.op == "bound":
        extent = value.attr[0]
        assert isinstance(extent, Expr)
        reached = list(_reached(value.args[0], bodies))
        plain = all(v.op in _PLAIN for v in reached) and extent.symbols <= hints.keys()
        limit = max(extent.evaluate(hints), 0) if plain else 0
        yield from ((str(v.attr[0]), limit) for v in reached if v.op == "load")
    elif value.op in ("load", "scatter") and _place(value).op != "index":
        inside = list(_reached(_place(value), bodies))
        held = {v.key for b in inside if b.op == "bound" for v in _reached(b, bodies)}
        free = [v for v in inside if v.op == "load" and v.key not in held]
        yield from ((str(v.attr[0]), 0) for v in free)


def _place(value: Value) -> Value:
    """The offset of a load or a scatter."""
    return value.args[1] if value.op == "scatter" else value.args[0]


def _reached(root: Value, bodies: Mapping[str, Value]) -> Iterator[Value]:
    """Every node below, through the locals that are named."""
    seen: set[str] = set()
    stack = [root]
    while stack:
        for value in walk(stack.pop()):
            yield value
            name = str(value.attr[0]) if value.op == "local" else ""
            if name in bodies and name not in seen:
                seen.add(name)
                stack.append(bodies[name])
