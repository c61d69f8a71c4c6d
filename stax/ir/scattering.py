"""What must hold of scatters, in Programs and in Kernels; part of the verifier. Each function raises VerifyError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stax.base.errors import VerifyError
from stax.ir.kernel import Kernel, Pointer, Statement
from stax.ir.ops import ADDED_DTYPES, SCATTER_MODES
from stax.ir.program import Arg, Buffer, Computation, Listed, Mutation, Program, TensorRef
from stax.ir.value import ScatterParts, Value, scatter_parts


def _fail(where: str, what: str, expected: object = "", found: object = "") -> VerifyError:
    return VerifyError(what, expected=str(expected), found=str(found), where=where)


def _parts(where: str, body: Value, parts: ScatterParts, dtype: str) -> None:
    """``dtype``: of the elements that change."""
    spare = len(body.args) - 1 - len(parts.indices)
    if spare != (parts.mask is not None) or body.dtype != dtype:
        raise _fail(
            where, f"scatter into {parts.buffer}", f"a value, indices, a mask: {dtype}", body
        )
    if parts.mode not in SCATTER_MODES:
        raise _fail(where, "mode of a scatter", " | ".join(SCATTER_MODES), parts.mode)
    if parts.value.dtype != dtype:
        raise _fail(where, f"dtype of a scatter into {parts.buffer}", dtype, parts.value.dtype)
    if parts.mode == "add" and dtype not in ADDED_DTYPES:
        raise _fail(
            where, f"a sum in {parts.buffer} at computed places", " | ".join(ADDED_DTYPES), dtype
        )
    wrong = [i.dtype for i in parts.indices if i.dtype != "int64"]
    if wrong:
        raise _fail(where, f"indices of a scatter into {parts.buffer}", "int64", wrong[0])
    if parts.mask is not None and parts.mask.dtype != "bool":
        raise _fail(where, f"mask of a scatter into {parts.buffer}", "bool", parts.mask.dtype)


# -- programs


def computation(
    where: str,
    node: Computation,
    parts: ScatterParts,
    table: Mapping[str, Buffer],
    ready: set[str],
) -> None:
    """The base is defined and has the layout of ``out``, and the scatter fits it."""
    base, out = table.get(parts.buffer), table[node.out]
    if base is None or base.kind not in ("temp", "input") or base.name not in ready:
        raise _fail(
            where, f"base of a scatter: {parts.buffer}", "a defined temp or input", "another"
        )
    ours = (out.dtype, out.shape, out.strides, out.offset, out.device)
    theirs = (base.dtype, base.shape, base.strides, base.offset, base.device)
    if ours != theirs:
        raise _fail(where, f"layout of the base {base.name}", ours, theirs)
    if node.combine is not None:
        raise _fail(where, "a scatter of a reduction", None, node.combine)
    if len(parts.indices) != len(base.shape):
        raise _fail(
            where, f"rank of a scatter into {base.name}", len(base.shape), len(parts.indices)
        )
    _parts(where, node.body, parts, base.dtype)


def bases(program: Program) -> None:
    """Nothing but its scatter reads a base: no other node, not the scatter's own value, no output and no mutation. One that
    is an input receives, at the end, what its scatter and those on top of it make."""
    found = {
        parts.buffer: node
        for node in program.nodes
        if isinstance(node, Computation) and (parts := scatter_parts(node.body)) is not None
    }
    if not found:
        return
    for name, count in Counter(_uses(program)).items():
        if name in found and count > 1:
            raise _fail(found[name].out, f"the base {name} is read elsewhere", "1 use", count)
    for name, node in found.items():
        last = node.out
        while last in found:
            last = found[last].out
        if name not in program.inputs:
            continue
        if Mutation(name, last) not in program.mutations:
            raise _fail(node.out, f"the base {name} is an input", f"a mutation from {last}", "none")
        if any(isinstance(o, TensorRef) and o.buffer == last for o in program.outputs):
            raise _fail(
                node.out, f"the base {name} is an input", f"{last} is no output", "it is one"
            )


def _uses(program: Program) -> list[str]:
    """Buffers that nodes, outputs and mutations read, once for each of them; a base that its own scatter loads, twice."""
    uses = [m.source for m in program.mutations]
    # An output on an input is that input, with what it has at the end.
    given = set(program.inputs)
    outputs = [o.buffer for o in program.outputs if isinstance(o, TensorRef)]
    uses += [name for name in outputs if name not in given]
    for node in program.nodes:
        if isinstance(node, Computation):
            uses += {str(v.attr[0]) for v in node.body.loads}
            uses += [str(node.body.attr[0])] if node.body.op == "scatter" else []
        else:
            uses += _named((*node.args, *(a for _, a in node.kwargs)))
    return uses


def _named(args: tuple[Arg, ...]) -> list[str]:
    names: list[str] = []
    for arg in args:
        if isinstance(arg, TensorRef):
            names.append(arg.buffer)
        elif isinstance(arg, Listed):
            names += _named(arg.items)
    return names


# -- kernels


def statement(where: str, found: Statement, pointers: Mapping[str, Pointer]) -> None:
    """A scatter into an update pointer, with nothing else to do."""
    parts = scatter_parts(found.body)
    assert parts is not None
    pointer = pointers.get(parts.buffer)
    if pointer is None or pointer.kind != "update":
        raise _fail(
            where,
            f"scatter into {parts.buffer}",
            "an update pointer",
            f"an {pointer.kind} pointer" if pointer else "nothing",
        )
    if found.combine is not None or found.stores:
        raise _fail(
            where, "a scatter with a combine or stores", "neither", found.combine or "stores"
        )
    if len(parts.indices) != 1:
        raise _fail(where, f"rank of a scatter into {pointer.name}", 1, len(parts.indices))
    _parts(where, found.body, parts, pointer.dtype)


def updates(kernel: Kernel) -> None:
    """Each update pointer is changed by one scatter: two could meet at an element."""
    targets = Counter(str(s.body.attr[0]) for s in kernel.statements if s.body.op == "scatter")
    for pointer in kernel.pointers:
        if pointer.kind == "update" and targets[pointer.name] != 1:
            raise _fail("kernel", f"scatters into {pointer.name}", 1, targets[pointer.name])
