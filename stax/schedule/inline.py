"""Program → Program: equal computations become one, cheap producers move into their readers, dead nodes go."""

from __future__ import annotations

from collections import ChainMap, defaultdict
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
from stax.ir.value import (
    Value,
    cast,
    constant,
    evaluate,
    index,
    load_parts,
    rebuild,
    rewrite,
    scalar,
    walk,
    where,
)

# Operators whose recomputation costs more than reading a stored element back.
HEAVY_OPS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p erf erfc sin cos tan asin acos atan atan2 sinh cosh tanh pow truediv "
    "sqrt rsqrt floordiv remainder fmod random32 random64".split()
)
MAX_COPIED_OPS = 3
# For a producer of one number.
MAX_COPIED_HEAVY = 2
MAX_COPIED_NUMBER = 16
MAX_INLINED_OPS = 256
# A reader that picks fewer than one of this many elements computes them itself, whoever else reads the producer.
FEW = 16


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
    """A computation without round trips through a half type: float32(bfloat16(v: float32)) is v. Who rounds to an 8-bit
    float means it."""
    if isinstance(node, Extern):
        return node

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        inner = args[0] if value.op == "cast" else None
        if inner is not None and inner.op == "cast" and inner.args[0].dtype == value.dtype:
            narrow, full = DTYPES[inner.dtype], DTYPES[value.dtype]
            if narrow.is_float and full.is_float and 1 < narrow.itemsize < full.itemsize:
                return inner.args[0]
        return rebuild(value, args)

    return replace(node, body=rewrite(node.body, swap))


# -- equal computations


def share(program: Program) -> Program:
    """Replace a computation equal to an earlier one (same loops, same body) by that one's buffer."""
    alias: dict[str, str] = {}
    seen: dict[object, str] = {}
    table = program.table
    pinned = pinned_buffers(program)
    bases = scattered(program)
    nodes: list[Node] = []
    for node in program.nodes:
        node = rename_node(node, alias)
        if isinstance(node, Computation):
            node = canonical_axes(node)
            if node.out in bases:  # its memory will hold other values: no second reader
                nodes.append(node)
                continue
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


def pinned_buffers(program: Program) -> set[str]:
    """Buffers that must stay distinct: outputs and sources of mutations."""
    names = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    return names | {m.source for m in program.mutations}


def scattered(program: Program) -> set[str]:
    """The bases of scatters."""
    return {
        str(n.body.attr[0])
        for n in program.nodes
        if isinstance(n, Computation) and n.body.op == "scatter"
    }


def canonical_axes(node: Computation) -> Computation:
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
    live = pinned_buffers(program)
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
        return set(node.body.buffers)
    return {ref.buffer for ref in tensor_refs((*node.args, *(a for _, a in node.kwargs)))}


def tensor_refs(args: tuple[Arg, ...]) -> Iterator[TensorRef]:
    """Every TensorRef among arguments, also inside lists."""
    for arg in args:
        if isinstance(arg, TensorRef):
            yield arg
        elif isinstance(arg, Listed):
            yield from tensor_refs(arg.items)


# -- producers into readers


@dataclass(frozen=True)
class _Facts:
    """What absorbing asks of a program: buffers by name, sizes at capture, ranges of sizes, and what reductions make."""

    table: Mapping[str, Buffer]
    hints: Mapping[str, int]
    ranges: Mapping[str, Range]
    reductions: frozenset[str]


def _facts(program: Program) -> _Facts:
    made = (n.out for n in program.nodes if isinstance(n, Computation) and n.combine)
    hints = {s.name: s.hint for s in program.symbols}
    return _Facts(program.table, hints, program.ranges, frozenset(made))


def inline_producers(program: Program) -> tuple[Program, tuple[Decision, ...]]:
    """Walk in order; each reader takes in the producers that :func:`refusal` lets it have, and a reader of few picked
    elements any that it can compute."""
    facts = _facts(program)
    pinned = pinned_buffers(program)
    readers, by_extern = _readers(program, facts)
    bases = scattered(program)
    bodies: dict[str, Computation] = {}
    picked: dict[str, Computation] = {}
    nodes: list[Node] = []
    decisions: list[Decision] = []
    for node in program.nodes:
        if not isinstance(node, Computation):
            nodes.append(node)
            continue
        few = {n: picked[n] for n in _few(node, facts) & picked.keys()}
        node = _absorb(node, ChainMap(few, bodies), facts)
        why_not = "is changed by a scatter" if node.out in bases else ""
        why_not = why_not or refusal(node, facts.table, readers[node.out], pinned, by_extern)
        decisions.append(
            Decision(f"inline {node.out} ({node.origin.op})", why_not == "", why_not or "cheap")
        )
        if why_not == "":
            bodies[node.out] = node
        elif not _must_stay(node):
            picked[node.out] = node
        nodes.append(node)
    return replace(program, nodes=tuple(nodes)), tuple(decisions)


def _readers(program: Program, facts: _Facts) -> tuple[dict[str, int], set[str]]:
    """(how many nodes read each buffer, but for readers of few elements; the buffers that external calls read)."""
    by_extern: set[str] = set()
    readers: dict[str, int] = defaultdict(int)
    for node in program.nodes:
        if isinstance(node, Extern):
            by_extern |= reads(node)
        for name in reads(node) - _few(node, facts):
            readers[name] += 1
    return readers, by_extern


def _few(node: Node, facts: _Facts) -> set[str]:
    """The buffers of which ``node`` reads a few elements alone, at computed places: a target's logit, a row of a table."""
    if isinstance(node, Extern):
        return set()
    places: dict[str, bool] = {}
    for value in node.body.loads:
        name = str(value.attr[0])
        computed = any(at.op != "index" for at in load_parts(value)[1])
        places[name] = places.get(name, True) and computed
    points = product(a.extent for a in (*node.axes, *node.reduce_axes)).evaluate(facts.hints)
    return {
        name
        for name, computed in places.items()
        if computed and points * FEW <= product(facts.table[name].shape).evaluate(facts.hints)
    }


def refusal(
    node: Computation,
    table: Mapping[str, Buffer],
    readers: int,
    pinned: set[str],
    by_extern: set[str],
) -> str:
    """Why ``node`` must keep a buffer of its own; "" when its body may move into its readers."""
    reason = _must_stay(node)
    if reason:
        return reason
    if node.out in pinned:
        return "is an output"
    if node.out in by_extern:
        return "is read by an external call"
    if _is_number(node):
        return ""
    loads = {v.key for v in node.body.loads}
    heavy = [v.op for v in walk(node.body) if v.op in HEAVY_OPS]
    if not loads:
        return "" if not heavy or readers == 1 else f"recomputes {heavy[0]} for {readers} readers"
    if readers <= 1:
        return ""
    if heavy:
        return f"recomputes {heavy[0]} for {readers} readers"
    if node.body.size > MAX_COPIED_OPS:
        return f"has {node.body.size} operations and {readers} readers"
    if len(_wide_loads(node, table)) > 1:
        return f"would read {len(loads)} tensors again for each of {readers} readers"
    return ""


def _must_stay(node: Computation) -> str:
    """Why no reader at all can compute ``node`` by itself; "" when one may."""
    if node.combine is not None:
        return "is a reduction"
    if node.body.op == "scatter":
        return "is a scatter"
    if node.body.size > MAX_INLINED_OPS:
        return f"has more than {MAX_INLINED_OPS} operations"
    return "checks an index" if any(v.op == "bound" for v in walk(node.body)) else ""


def _is_number(node: Computation) -> bool:
    """One element that few operations make: a reader computes it once a thread, not once an element, and that is less than
    a launch."""
    heavy = sum(v.op in HEAVY_OPS for v in walk(node.body))
    return (
        all(a.extent == 1 for a in node.axes)
        and heavy <= MAX_COPIED_HEAVY
        and node.body.size <= MAX_COPIED_NUMBER
    )


def _wide_loads(node: Computation, table: Mapping[str, Buffer]) -> set[str]:
    """Buffers read that are as large as the result."""
    size = product(a.extent for a in node.axes)
    ranges = axis_ranges(node.axes)
    return {
        str(v.attr[0])
        for v in node.body.loads
        if nonneg(product(table[str(v.attr[0])].shape) - size, ranges)
    }


def _absorb(node: Computation, bodies: Mapping[str, Computation], facts: _Facts) -> Computation:
    """``node`` with the bodies of what it reads, and of what those read."""
    ranges = {**facts.ranges, **axis_ranges((*node.axes, *node.reduce_axes))}
    points = product(a.extent for a in (*node.axes, *node.reduce_axes))
    memo: dict[bytes, Value] = {}
    ops: set[str] = set(node.origin.absorbed)

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        here = rebuild(value, args)
        if value.op != "load" or str(value.attr[0]) not in bodies:
            return here
        producer = bodies[str(value.attr[0])]
        if _costly_broadcast(producer, points, ranges) or _ends_reductions(producer, node, facts):
            return here
        if here.key not in memo:
            memo[here.key] = inlined(here, producer, ranges)
            ops.update((producer.origin.op, *producer.origin.absorbed))
        return memo[here.key]

    while any(str(v.attr[0]) in bodies for v in node.body.loads):
        body = rewrite(node.body, swap)
        if body == node.body:
            break
        node = replace(node, body=body)
    return replace(node, origin=replace(node.origin, absorbed=tuple(sorted(ops))))


def _ends_reductions(producer: Computation, reader: Computation, facts: _Facts) -> bool:
    """True when the producer has one value for each result of a reduction and the reader reduces it further: it is better
    computed where that result is, in parallel, than read from several buffers by the few programs of the reader."""
    if reader.combine is None:
        return False
    return not facts.reductions.isdisjoint(_wide_loads(producer, facts.table))


def _costly_broadcast(producer: Computation, points: Expr, ranges: Mapping[str, Range]) -> bool:
    """True when the reader has more points than a producer with a heavy operator has elements."""
    if _is_number(producer) or not any(v.op in HEAVY_OPS for v in walk(producer.body)):
        return False
    return not nonneg(product(a.extent for a in producer.axes) - points, ranges)


def inlined(read: Value, producer: Computation, ranges: Mapping[str, Range]) -> Value:
    """The producer's body at the coordinates of ``read``. A read whose checked index the body does not use stays a load."""
    _, indices, mask, other = load_parts(read)
    env: dict[str, Expr | int] = {}
    computed: dict[str, Value] = {}
    for axis, at in zip(producer.axes, indices):
        if at.op == "index" and isinstance(at.attr[0], Expr):
            env[axis.name] = at.attr[0]
        else:
            computed[axis.name] = at
    if not computed.keys() <= _axes_used(producer.body):
        return read
    values = computed | {name: index(e) for name, e in env.items()}

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op == "index" and isinstance(value.attr[0], Expr):
            if computed.keys() & value.attr[0].symbols:
                return cast(evaluate(value.attr[0], values), "int64")
            return Value("index", "int64", (), (simplify(value.attr[0].subs(env), ranges),))
        if value.op == "load" and mask is not None:
            return masked_load(rebuild(value, args), mask)
        return rebuild(value, args)

    body = rewrite(producer.body, swap)
    if mask is None:
        return body
    assert isinstance(other, (bool, int, float))
    return where(mask, body, constant(other, body.dtype))


def _axes_used(body: Value) -> set[str]:
    """Symbols that a body's indices name."""
    found = [v.attr[0] for v in walk(body) if v.op == "index"]
    return {name for e in found if isinstance(e, Expr) for name in e.symbols}


def masked_load(read: Value, mask: Value) -> Value:
    _, indices, own, _ = load_parts(read)
    both = mask if own is None else scalar("and", own, mask)
    return Value("load", read.dtype, (*indices, both), read.attr)
