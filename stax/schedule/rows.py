"""Program → Program: a reduction over everything that reads a statistic of each row is taken row by row first. The rows'
part then joins the kernel that makes the statistics, and reads nothing again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stax.ir.expr import Expr, const, product, sym
from stax.ir.program import Axis, Buffer, Computation, Node, Program, contiguous
from stax.ir.value import Value, load, load_parts, substitute
from stax.schedule.inline import Decision

# Reductions of reductions are reductions.
NESTING = frozenset({"sum", "prod", "max", "min", "any", "all"})
Sizes = tuple[Expr, Expr]


def rows_first(program: Program) -> tuple[Program, tuple[Decision, ...]]:
    """Each such reduction becomes two, the first into a buffer of one element a row."""
    found = _statistics(program)
    table = program.table
    nodes: list[Node] = []
    added: list[Buffer] = []
    decisions: list[Decision] = []
    for node in program.nodes:
        rows = _rows(node, found) if isinstance(node, Computation) else ()
        if not rows:
            nodes.append(node)
            continue
        assert isinstance(node, Computation)
        first, last, buffer = _halves(node, rows, table[node.out])
        nodes += [first, last]
        added.append(buffer)
        reason = f"reads a statistic of each of {product(a.extent for a in rows)} rows"
        decisions.append(Decision(f"reduce {node.out} by rows ({node.origin.op})", True, reason))
    if not added:
        return program, ()
    grown = replace(program, nodes=tuple(nodes), buffers=(*program.buffers, *added))
    return grown, tuple(decisions)


def _statistics(program: Program) -> dict[str, Sizes]:
    """Results of reductions, and what is computed from them alone or with others of as many elements: for each the number
    of its elements, and of what was reduced into one."""
    found: dict[str, Sizes] = {}
    for node in program.nodes:
        if not isinstance(node, Computation):
            continue
        size = product(a.extent for a in node.axes)
        if node.combine:
            found[node.out] = size, product(a.extent for a in node.reduce_axes)
            continue
        sources = (found.get(str(v.attr[0])) for v in node.body.loads)
        same = next((s for s in sources if s is not None and s[0] == size), None)
        if same is not None:
            found[node.out] = same
    return found


def _rows(node: Computation, found: Mapping[str, Sizes]) -> tuple[Axis, ...]:
    """The reduced axes that number the rows whose statistics ``node`` reads; () when it reads none."""
    if node.combine not in NESTING or node.body.op == "scatter" or len(node.reduce_axes) < 2:
        return ()
    for value in node.body.loads:
        sizes = found.get(str(value.attr[0]))
        named = {n for at in load_parts(value)[1] for n in _symbols(at)}
        rows = tuple(a for a in node.reduce_axes if a.name in named)
        inner = tuple(a for a in node.reduce_axes if a not in rows)
        outer = product(a.extent for a in (*node.axes, *rows))
        if rows and inner and sizes == (outer, product(a.extent for a in inner)):
            return rows
    return ()


def _symbols(at: Value) -> frozenset[str]:
    e = at.attr[0] if at.op == "index" else None
    return e.symbols if isinstance(e, Expr) else frozenset()


def _halves(
    node: Computation, rows: tuple[Axis, ...], out: Buffer
) -> tuple[Computation, Computation, Buffer]:
    """(the reduction of each row, the reduction of those, the buffer between)."""
    inner = tuple(a for a in node.reduce_axes if a not in rows)
    kept = tuple(Axis(f"i{len(node.axes) + k}", a.extent) for k, a in enumerate(rows))
    over = tuple(Axis(f"r{k}", a.extent) for k, a in enumerate(inner))
    names = {old.name: sym(new.name) for old, new in zip((*rows, *inner), (*kept, *over))}
    axes = (*node.axes, *kept)
    shape = tuple(a.extent for a in axes)
    name = f"{node.out}_rows"
    buffer = Buffer(name, "temp", node.body.dtype, shape, contiguous(shape), const(0), out.device)
    first = replace(node, out=name, axes=axes, reduce_axes=over, body=substitute(node.body, names))
    again = tuple(Axis(f"r{k}", a.extent) for k, a in enumerate(rows))
    at = [sym(a.name) for a in (*node.axes, *again)]
    last = replace(node, reduce_axes=again, body=load(name, node.body.dtype, at))
    return first, last, buffer
