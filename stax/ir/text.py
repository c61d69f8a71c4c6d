"""Readable, deterministic text of Programs and Kernels, for dumps and golden tests.

    buf1: float32[s0, 64] = sum over [r0:128]                aten.sum.dim_IntList
        %0 = exp(x[i0, r0])
        mul(%0, %0)

A value used more than once gets a number of its own; every other one is written where it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.program import (
    Arg,
    Axis,
    Buffer,
    Computation,
    Extern,
    Listed,
    Literal,
    Node,
    Program,
    TensorRef,
    contiguous,
)
from stax.ir.value import Value, load_parts, scatter_parts, walk

LEAVES = ("const", "index", "local")
ORIGIN_COLUMN = 72


def program_text(program: Program) -> str:
    """One paragraph for symbols and inputs, one line or few for each node, one line for outputs and mutations."""
    table = program.table
    lines = [
        f"symbol {s.name} = {s.hint} in {s.lo}..{'' if s.hi is None else s.hi}"
        for s in program.symbols
    ]
    lines += [
        f"{table[name].kind} {_declared(table[name])} {table[name].device}"
        for name in program.inputs
    ]
    for node in program.nodes:
        lines += _node(node, {b: table[b] for b in _outs(node) if b})
    lines += [f"output {_argument(out)}" for out in program.outputs]
    lines += [f"mutate {m.target} = {m.source}" for m in program.mutations]
    return "\n".join(lines) + "\n"


def kernel_text(kernel: Kernel) -> str:
    """Form, axes, parameters, then each statement with its stores."""
    over = f" over {_axes(kernel.reduce_axes)}" if kernel.reduce_axes else ""
    lines = [
        f"kernel {kernel.form} {_axes(kernel.axes)}{over} {kernel.index_dtype} {' '.join(kernel.fused)}".rstrip()
    ]
    flags = [
        *([] if kernel.inner else ["outer reduction"]),
        *(["bounds checked"] if kernel.bounds_checked else []),
    ]
    lines += [f"  {', '.join(flags)}"] if flags else []
    lines += [
        f"  size {s.name} = {s.hint} in {s.lo}..{'' if s.hi is None else s.hi}"
        for s in kernel.sizes
    ]
    lines += [f"  {p.kind} {p.name}: {p.dtype}" for p in kernel.pointers]
    for statement in kernel.statements:
        lines += _statement(statement)
    return "\n".join(lines) + "\n"


def _outs(node: Node) -> tuple[str, ...]:
    return (node.out,) if isinstance(node, Computation) else node.outs


def _declared(buffer: Buffer) -> str:
    """Name, dtype, shape, and what of the layout is not the plain one."""
    text = f"{buffer.name}: {buffer.dtype}{_list(buffer.shape)}"
    if buffer.strides != contiguous(buffer.shape):
        text += f" strides {_list(buffer.strides)}"
    return text if buffer.offset == 0 else f"{text} offset {buffer.offset}"


def _list(items: Iterable[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _axes(axes: Sequence[Axis]) -> str:
    return _list(f"{a.name}:{a.extent}" for a in axes)


def _node(node: Node, outs: dict[str, Buffer]) -> list[str]:
    origin = f"{node.origin.op} {node.origin.where}".rstrip()
    if isinstance(node, Extern):
        named = [f"{k}={_argument(a)}" for k, a in node.kwargs]
        call = f"{node.target}({', '.join([*map(_argument, node.args), *named])})"
        head = ", ".join(_declared(outs[b]) if b else "_" for b in node.outs)
        return [f"{head} = {call}", *([] if node.origin.op == node.target else [f"    {origin}"])]
    how = "" if node.combine is None else f"{node.combine} over {_axes(node.reduce_axes)}"
    if node.body.op == "scatter":
        how = f"scatter over {_axes(node.axes)}"
    head = f"{_declared(outs[node.out])} = {how}".rstrip()
    return [
        f"{head.ljust(ORIGIN_COLUMN)} {origin}",
        *(f"    {line}" for line in value_lines(node.body)),
    ]


def _statement(statement: Statement) -> list[str]:
    how = (
        statement.space
        if statement.combine is None
        else f"{statement.combine} over {statement.space}"
    )
    lines = [f"  {statement.name}: {statement.dtype} = {how}"]
    lines += [f"      {line}" for line in value_lines(statement.body)]
    return [
        *lines,
        *(f"      {s.pointer}[{s.offset}] <- {statement.name}" for s in statement.stores),
    ]


def _argument(arg: Arg) -> str:
    if isinstance(arg, TensorRef):
        offset = "" if arg.offset == 0 else f" + {arg.offset}"
        layout = "" if arg.strides == contiguous(arg.shape) else f" strides {_list(arg.strides)}"
        return f"{arg.buffer}{offset} {_list(arg.shape)}{layout}"
    if isinstance(arg, Listed):
        return _list(map(_argument, arg.items))
    if isinstance(arg, Literal):
        return _literal(arg.value)
    return str(arg)


def _literal(value: object) -> str:
    """A tagged literal as its tag and name."""
    if not isinstance(value, tuple):
        return repr(value)
    return " ".join(map(str, cast(tuple[object, ...], value)))


def value_lines(root: Value) -> list[str]:
    """The shared parts in evaluation order, then the value itself."""
    uses = Counter(a.key for v in walk(root) for a in v.args)
    names: dict[bytes, str] = {}
    texts: dict[bytes, str] = {}
    lines: list[str] = []
    for value in walk(root):
        text = _value(value, [names.get(a.key, texts[a.key]) for a in value.args])
        texts[value.key] = text
        if uses[value.key] > 1 and value.op not in LEAVES:
            names[value.key] = f"%{len(names)}"
            lines.append(f"{names[value.key]} = {text}")
    return [*lines, texts[root.key]]


def _value(value: Value, args: Sequence[str]) -> str:
    if value.op == "const":
        return f"{value.attr[0]!r}"
    if value.op == "index":
        return f"[{value.attr[0]}]"
    if value.op == "local":
        return str(value.attr[0])
    if value.op == "cast":
        return f"{value.dtype}({args[0]})"
    if value.op == "bound":
        return f"bound({args[0]}, {_extent(value)})"
    if value.op == "load":
        name, indices, mask, other = load_parts(value)
        places = ", ".join(_place(i, text) for i, text in zip(indices, args))
        masked = "" if mask is None else f" if {args[len(indices)]} else {other!r}"
        return f"{name}[{places}{masked}]"
    parts = scatter_parts(value)
    if parts is not None:
        places = ", ".join(_place(i, text) for i, text in zip(parts.indices, args[1:]))
        masked = "" if parts.mask is None else f" if {args[-1]}"
        return f"{parts.buffer}[{places}{masked}] {'+=' if parts.mode == 'add' else '='} {args[0]}"
    return f"{value.op}({', '.join(args)})"


def _place(index: Value, text: str) -> str:
    return text[1:-1] if index.op == "index" else text


def _extent(value: Value) -> Expr:
    found = value.attr[0]
    assert isinstance(found, Expr)
    return found
