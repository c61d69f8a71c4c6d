"""Program → Program: a scatter changes the tensor it starts from in place of a copy, where nothing else reads that tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from stax.ir.expr import sym
from stax.ir.program import Computation, Program, TensorRef
from stax.ir.value import Value, load_parts
from stax.schedule.inline import reads, scattered


def adopt(program: Program) -> Program:
    """Without the copies into the base of a scatter of what a computation made for it alone, or of an input that receives
    the result anyway. Dead nodes count as readers: drop them first."""
    program = _without(program, _temps(program))
    return _without(program, _inputs(program))


def _temps(program: Program) -> dict[str, str]:
    """Bases that copy what a computation made for them alone → that."""
    uses = Counter(name for node in program.nodes for name in reads(node))
    uses.update(o.buffer for o in program.outputs if isinstance(o, TensorRef))
    uses.update(m.source for m in program.mutations)
    made = {n.out for n in program.nodes if isinstance(n, Computation)}
    return {
        base: source
        for base, source in _copies(program).items()
        if source in made and uses[source] == 1
    }


def _inputs(program: Program) -> dict[str, str]:
    """Bases that copy an input which nothing else reads, and which their scatters' result is to replace → that. The result
    is no output of its own: it and the input would be one tensor."""
    uses = Counter(name for node in program.nodes for name in reads(node))
    outputs = {o.buffer for o in program.outputs if isinstance(o, TensorRef)}
    replaced = {(m.target, m.source) for m in program.mutations if m.source not in outputs}
    on_top = {
        str(n.body.attr[0]): n.out
        for n in program.nodes
        if isinstance(n, Computation) and n.body.op == "scatter"
    }
    found: dict[str, str] = {}
    for base, source in _copies(program).items():
        last = base
        while last in on_top:
            last = on_top[last]
        if (source, last) in replaced and uses[source] == 1:
            found[base] = source
    return found


def _without(program: Program, adopted: Mapping[str, str]) -> Program:
    """Scatters into the sources themselves."""
    nodes = [
        _based_on(n, adopted) if isinstance(n, Computation) else n
        for n in program.nodes
        if not (isinstance(n, Computation) and n.out in adopted)
    ]
    buffers = tuple(b for b in program.buffers if b.name not in adopted)
    return replace(program, nodes=tuple(nodes), buffers=buffers)


def _copies(program: Program) -> dict[str, str]:
    """Bases of scatters that are another buffer of equal layout, element by element → that buffer."""
    bases = scattered(program)
    found = {
        n.out: _copied(n, program)
        for n in program.nodes
        if isinstance(n, Computation) and n.out in bases
    }
    return {base: source for base, source in found.items() if source}


def _copied(node: Computation, program: Program) -> str:
    """The buffer of which ``node`` is a copy; "" when it is none."""
    if node.combine is not None or node.body.op != "load":
        return ""
    name, indices, mask, _ = load_parts(node.body)
    source, out = program.buffer(name), program.buffer(node.out)
    same = (source.dtype, source.shape, source.strides, source.offset, source.device) == (
        out.dtype, out.shape, out.strides, out.offset, out.device,
    )  # fmt: skip
    return name if same and mask is None and _is_identity(node, indices) else ""


def _is_identity(node: Computation, indices: tuple[Value, ...]) -> bool:
    """Each index is the axis itself, or 0 along an axis of one element."""
    exprs = [i.attr[0] for i in indices if i.op == "index"]
    plain = [e == sym(a.name) or e == a.extent - 1 == 0 for e, a in zip(exprs, node.axes)]
    return len(exprs) == len(node.axes) and all(plain)


def _based_on(node: Computation, adopted: Mapping[str, str]) -> Computation:
    base = str(node.body.attr[0]) if node.body.op == "scatter" else ""
    if base not in adopted:
        return node
    body = node.body
    attr = (adopted[base], *body.attr[1:])
    return replace(node, body=Value("scatter", body.dtype, body.args, attr))
