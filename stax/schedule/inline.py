"""Program → Program: equal computations become one, cheap producers move into their readers, dead nodes go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, product, sym
from stax.ir.program import (
    Arg,
    Axis,
    Buffer,
    Computation,
    Extern,
    Listed,
    Node,
    Program,
    TensorRef,
    axis_ranges,
)
from stax.ir.ranges import Range, nonneg, simplify
from stax.ir.value import Value, constant, load_parts, rebuild, rewrite, scalar, walk, where

# Operators whose recomputation costs more than reading a stored element back.
HEAVY_OPS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p erf erfc sin cos tan asin acos atan atan2 sinh cosh tanh pow truediv "
    "sqrt rsqrt floordiv remainder fmod random32 random64".split()
)
MAX_COPIED_OPS = 3
MAX_INLINED_OPS = 256


@dataclass(frozen=True)
class Decision:
    """Why a producer was or was not joined with a reader; answers "why?" in one line."""

    subject: str
    verdict: bool
    reason: str


def inline(
    program: Program, *, joining: bool = True, wide: bool = False
) -> tuple[Program, tuple[Decision, ...]]:
    """Apply share, inline and drop in that order. With ``joining`` False nothing is inlined (Options.fusion). With ``wide``,
    a value that was joined stays in the dtype it was computed in instead of being rounded to its storage dtype on the way
    (Options.numerics "fast")."""
    shared = drop_dead(share(program))
    if not joining:
        return shared, ()
    joined, decisions = inline_producers(shared)
    if wide:
        joined = replace(joined, nodes=tuple(_unrounded(n) for n in joined.nodes))
    return drop_dead(share(joined)), decisions


def _unrounded(node: Node) -> Node:
    """A computation without round trips through a narrower float: float32(bfloat16(v: float32)) is v."""
    if isinstance(node, Extern):
        return node

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        inner = args[0] if value.op == "cast" else None
        if inner is not None and inner.op == "cast" and inner.args[0].dtype == value.dtype:
            narrow, full = DTYPES[inner.dtype], DTYPES[value.dtype]
            if narrow.is_float and full.is_float and narrow.itemsize < full.itemsize:
                return inner.args[0]
        return rebuild(value, args)

    return replace(node, body=rewrite(node.body, swap))


# -- equal computations


def share(program: Program) -> Program:
    """Replace a computation equal to an earlier one (same loops, same body) by that one's buffer."""
    alias: dict[str, str] = {}
    seen: dict[object, str] = {}
    table = program.table
    pinned = _pinned(program)
    nodes: list[Node] = []
    for node in program.nodes:
        node = rename_node(node, alias)
        if isinstance(node, Computation):
            node = _canonical_axes(node)
            buffer = table[node.out]
            key = (
                node.axes,
                node.reduce_axes,
                node.combine,
                node.body.key,
                buffer.strides,
                buffer.device,
            )
            first = seen.setdefault(key, node.out)
            if first != node.out and node.out not in pinned:
                alias[node.out] = first
                continue
        nodes.append(node)
    return replace(program, nodes=tuple(nodes))


def _pinned(program: Program) -> set[str]:
    """Buffers that must stay distinct: outputs and sources of mutations."""
    names = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    return names | {m.source for m in program.mutations}


def _canonical_axes(node: Computation) -> Computation:
    """Name the axes i0…, r0… by position, so that equal loops have equal text."""
    renamed = {a.name: f"i{k}" for k, a in enumerate(node.axes)}
    renamed |= {a.name: f"r{k}" for k, a in enumerate(node.reduce_axes)}
    if all(old == new for old, new in renamed.items()):
        return node
    env: Mapping[str, Expr | int] = {old: sym(new) for old, new in renamed.items()}

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op in ("index", "bound") and isinstance(value.attr[0], Expr):
            return Value(value.op, value.dtype, args, (value.attr[0].subs(env),))
        return rebuild(value, args)

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(renamed[a.name], a.extent) for a in old)

    return replace(
        node,
        axes=axes(node.axes),
        reduce_axes=axes(node.reduce_axes),
        body=rewrite(node.body, swap),
    )


def rename_node(node: Node, alias: Mapping[str, str]) -> Node:
    """``node`` reading other buffers."""
    if not alias:
        return node
    if isinstance(node, Extern):
        return replace(
            node,
            args=tuple(_rename_arg(a, alias) for a in node.args),
            kwargs=tuple((k, _rename_arg(a, alias)) for k, a in node.kwargs),
        )

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op == "load" and value.attr[0] in alias:
            return Value("load", value.dtype, args, (alias[str(value.attr[0])], *value.attr[1:]))
        return rebuild(value, args)

    return replace(node, body=rewrite(node.body, swap))


def _rename_arg(arg: Arg, alias: Mapping[str, str]) -> Arg:
    if isinstance(arg, TensorRef) and arg.buffer in alias:
        return replace(arg, buffer=alias[arg.buffer])
    if isinstance(arg, Listed):
        return Listed(tuple(_rename_arg(a, alias) for a in arg.items))
    return arg


# -- dead nodes


def drop_dead(program: Program) -> Program:
    """Remove nodes whose results nobody reads, and the buffers that no node or output names."""
    live = _pinned(program)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        outs = (node.out,) if isinstance(node, Computation) else node.outs
        if not any(o in live for o in outs):
            continue
        if isinstance(node, Extern):
            node = replace(node, outs=tuple(o if o in live else "" for o in outs))
        kept.append(node)
        live.update(reads(node))
    named = live | set(program.inputs)
    buffers = tuple(b for b in program.buffers if b.name in named)
    return replace(program, nodes=tuple(reversed(kept)), buffers=buffers)


def reads(node: Node) -> set[str]:
    """Buffers that a node reads."""
    if isinstance(node, Computation):
        return {str(v.attr[0]) for v in node.body.loads}
    return {ref.buffer for ref in tensor_refs((*node.args, *(a for _, a in node.kwargs)))}


def tensor_refs(args: tuple[Arg, ...]) -> Iterator[TensorRef]:
    """Every TensorRef among arguments, also inside lists."""
    for arg in args:
        if isinstance(arg, TensorRef):
            yield arg
        elif isinstance(arg, Listed):
            yield from tensor_refs(arg.items)


# -- producers into readers


def inline_producers(program: Program) -> tuple[Program, tuple[Decision, ...]]:
    """Walk in order; each reader takes in the producers that :func:`refusal` lets it have."""
    pinned = _pinned(program)
    by_extern: set[str] = set()
    readers: dict[str, int] = defaultdict(int)
    for node in program.nodes:
        for name in reads(node):
            readers[name] += 1
        if isinstance(node, Extern):
            by_extern |= reads(node)
    bodies: dict[str, Computation] = {}
    nodes: list[Node] = []
    decisions: list[Decision] = []
    for node in program.nodes:
        if not isinstance(node, Computation):
            nodes.append(node)
            continue
        node = _absorb(node, bodies, program)
        why_not = refusal(node, program.table, readers[node.out], pinned, by_extern)
        decisions.append(
            Decision(f"inline {node.out} ({node.origin.op})", why_not == "", why_not or "cheap")
        )
        if why_not == "":
            bodies[node.out] = node
        nodes.append(node)
    return replace(program, nodes=tuple(nodes)), tuple(decisions)


def refusal(
    node: Computation,
    table: Mapping[str, Buffer],
    readers: int,
    pinned: set[str],
    by_extern: set[str],
) -> str:
    """Why ``node`` must keep a buffer of its own; "" when its body may move into its readers."""
    if node.combine is not None:
        return "is a reduction"
    if node.out in pinned:
        return "is an output"
    if node.out in by_extern:
        return "is read by an external call"
    if node.body.size > MAX_INLINED_OPS:
        return f"has more than {MAX_INLINED_OPS} operations"
    loads = {v.key for v in node.body.loads}
    heavy = [v.op for v in walk(node.body) if v.op in HEAVY_OPS]
    if not loads:
        return "" if not heavy or readers == 1 else f"recomputes {heavy[0]} for {readers} readers"
    if any(v.op == "bound" for v in walk(node.body)):
        return "checks an index"
    if readers <= 1:
        return ""
    if heavy:
        return f"recomputes {heavy[0]} for {readers} readers"
    if node.body.size > MAX_COPIED_OPS:
        return f"has {node.body.size} operations and {readers} readers"
    if len(_wide_loads(node, table)) > 1:
        return f"would read {len(loads)} tensors again for each of {readers} readers"
    return ""


def _wide_loads(node: Computation, table: Mapping[str, Buffer]) -> set[str]:
    """Buffers read that are as large as the result."""
    size = product(a.extent for a in node.axes)
    ranges = axis_ranges(node.axes)
    return {
        str(v.attr[0])
        for v in node.body.loads
        if nonneg(product(table[str(v.attr[0])].shape) - size, ranges)
    }


def _absorb(node: Computation, bodies: Mapping[str, Computation], program: Program) -> Computation:
    if not any(str(v.attr[0]) in bodies for v in node.body.loads):
        return node
    ranges = program.ranges | axis_ranges((*node.axes, *node.reduce_axes))
    points = product(a.extent for a in (*node.axes, *node.reduce_axes))
    memo: dict[bytes, Value] = {}
    ops: set[str] = set(node.origin.absorbed)

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        here = rebuild(value, args)
        if value.op != "load" or str(value.attr[0]) not in bodies:
            return here
        producer = bodies[str(value.attr[0])]
        if _costly_broadcast(producer, points, ranges):
            return here
        if here.key not in memo:
            memo[here.key] = inlined(here, producer, ranges)
            ops.update((producer.origin.op, *producer.origin.absorbed))
        return memo[here.key]

    body = rewrite(node.body, swap)
    return replace(node, body=body, origin=replace(node.origin, absorbed=tuple(sorted(ops))))


def _costly_broadcast(producer: Computation, points: Expr, ranges: Mapping[str, Range]) -> bool:
    """True when the reader has more points than a producer with a heavy operator has elements."""
    if not any(v.op in HEAVY_OPS for v in walk(producer.body)):
        return False
    return not nonneg(product(a.extent for a in producer.axes) - points, ranges)


def inlined(read: Value, producer: Computation, ranges: Mapping[str, Range]) -> Value:
    """The producer's body at the coordinates of ``read``; an indirect or checked read stays a load."""
    _, indices, mask, other = load_parts(read)
    env: dict[str, Expr | int] = {}
    for axis, at in zip(producer.axes, indices):
        if at.op != "index":
            return read
        assert isinstance(at.attr[0], Expr)
        env[axis.name] = at.attr[0]

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op == "index" and isinstance(value.attr[0], Expr):
            return Value("index", "int64", (), (simplify(value.attr[0].subs(env), ranges),))
        if value.op == "load" and mask is not None:
            return _masked(rebuild(value, args), mask)
        return rebuild(value, args)

    body = rewrite(producer.body, swap)
    if mask is None:
        return body
    assert isinstance(other, (bool, int, float))
    return where(mask, body, constant(other, body.dtype))


def _masked(read: Value, mask: Value) -> Value:
    _, indices, own, _ = load_parts(read)
    both = mask if own is None else scalar("and", own, mask)
    return Value("load", read.dtype, (*indices, both), read.attr)
