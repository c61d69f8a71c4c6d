"""What the innermost loop does with a statement's value: store it, or take it into an accumulator."""

from __future__ import annotations

from stax.codegen.cpp.accumulator import Accumulator
from stax.codegen.cpp.index import spell_expr
from stax.codegen.cpp.nest import Lines
from stax.codegen.cpp.spell import spell_op
from stax.codegen.cpp.values import Known, Names, bounds_under
from stax.ir.expr import const, sym
from stax.ir.kernel import Kernel, Statement, Store
from stax.ir.value import Value, scatter_parts


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


def roots(body: Value) -> tuple[Value, ...]:
    """What must be at hand before a statement: its body, or all that goes into its scatter."""
    return body.args if body.op == "scatter" else (body,)


def scatter_line(body: Value, names: Names) -> str:
    """The write of one scatter, left out where an index was out of range or the mask is false."""
    parts = scatter_parts(body)
    assert parts is not None
    value, (offset,) = names.known[parts.value.key], parts.indices
    element = f"{parts.buffer}[{names.known[offset.key].text}]"
    line = f"{element} = {value.stored};"
    if parts.mode == "add":
        line = f"{element} = {spell_op('add', body.dtype, (element, value.text))};"
    conditions = [names.checks[v.key] for v in bounds_under(offset)]
    if parts.mask is not None:
        conditions.append(names.known[parts.mask.key].text)
    return f"if ({' && '.join(conditions)}) {line}" if conditions else line


def take(kernel: Kernel, s: Statement, value: Known, lane: str) -> Lines:
    """What becomes of the value of the body of ``s`` in lane ``lane``."""
    if s.combine:
        return accumulator(s).update(lane, value.text, position(kernel))
    return [store_line(kernel, s, store, value) for store in s.stores]
