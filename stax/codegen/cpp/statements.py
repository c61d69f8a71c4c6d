"""What the innermost loop does with a statement's value: store it, or take it into an accumulator."""

from __future__ import annotations

from stax.codegen.cpp.accumulator import Accumulator
from stax.codegen.cpp.index import spell_expr
from stax.codegen.cpp.nest import Lines
from stax.codegen.cpp.values import Known
from stax.ir.expr import const, sym
from stax.ir.kernel import Kernel, Statement, Store


def accumulator(s: Statement) -> Accumulator:
    """The accumulator of a reduction."""
    return Accumulator(s.name, str(s.combine), s.body.dtype)


def position(kernel: Kernel) -> str:
    """The row-major position of a point in the reduced axes."""
    place = const(0)
    for axis in kernel.reduce_axes:
        place = place * axis.extent + sym(axis.name)
    return spell_expr(place, kernel.ranges)


def store_line(kernel: Kernel, s: Statement, store: Store, value: Known) -> str:
    """The store of the value of ``s``."""
    where = spell_expr(store.offset, kernel.ranges)
    return f"{store.pointer}[{where}] = {value.stored};"


def take(kernel: Kernel, s: Statement, value: Known, lane: str) -> Lines:
    """What becomes of the value of the body of ``s`` in lane ``lane``."""
    if s.combine:
        return accumulator(s).update(lane, value.text, position(kernel))
    return [store_line(kernel, s, store, value) for store in s.stores]
