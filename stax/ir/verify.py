"""Verifiers of Programs and Kernels: they raise VerifyError naming the node that breaks an invariant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from stax.base.errors import VerifyError
from stax.ir import scattering
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, sym
from stax.ir.kernel import Kernel, Pointer, Statement, Store
from stax.ir.ops import COMBINES, SCALAR_OPS, STRUCTURAL_OPS
from stax.ir.program import (
    Arg,
    Axis,
    Buffer,
    Computation,
    Listed,
    Literal,
    Mutation,
    Node,
    Program,
    TensorRef,
)
from stax.ir.ranges import Ranges, nonneg, positive
from stax.ir.value import Value, load_parts, scatter_parts, walk

HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _fail(where: str, what: str, expected: object = "", found: object = "") -> VerifyError:
    return VerifyError(what, expected=str(expected), found=str(found), where=where)


def _unique(where: str, names: Sequence[str]) -> None:
    for a, b in pairwise(sorted(names)):
        if a == b:
            raise _fail(where, f"two things called {a}")


def _symbols(where: str, exprs: Iterable[Expr], known: frozenset[str]) -> None:
    for e in exprs:
        if not e.symbols <= known:
            raise _fail(
                where,
                f"undefined symbol in {e}",
                ", ".join(sorted(known)),
                ", ".join(sorted(e.symbols - known)),
            )


# -- programs


def verify_program(program: Program) -> None:
    """Raises VerifyError unless every name is defined before its use, once, and shapes and dtypes agree."""
    sizes = frozenset(s.name for s in program.symbols)
    _unique("program", [*sizes, *(b.name for b in program.buffers)])
    table = program.table
    for buffer in program.buffers:
        _buffer(buffer, sizes)
    outside = {b.name for b in program.buffers if b.kind != "temp"}
    if outside != set(program.inputs) or len(program.inputs) != len(outside):
        raise _fail(
            "program", "inputs and input buffers differ", sorted(outside), list(program.inputs)
        )
    ready = set(outside)
    for node in program.nodes:
        _node(node, table, ready, sizes)
        ready |= {name for name in _outs(node) if name}
    for k, out in enumerate(program.outputs):
        if not isinstance(out, Literal):
            _argument(f"output {k}", out, table, ready, sizes)
    for mutation in program.mutations:
        _mutation(mutation, table, ready)
    scattering.bases(program)


def _buffer(buffer: Buffer, sizes: frozenset[str]) -> None:
    where = f"buffer {buffer.name}"
    if buffer.kind not in ("input", "constant", "temp"):
        raise _fail(where, "bad kind", "input | constant | temp", buffer.kind)
    if buffer.dtype not in DTYPES:
        raise _fail(where, "unknown dtype", found=buffer.dtype)
    if len(buffer.shape) != len(buffer.strides):
        raise _fail(where, "one stride a dimension", len(buffer.shape), len(buffer.strides))
    if buffer.kind == "temp" and buffer.offset != 0:
        raise _fail(where, "a temp with an offset", 0, buffer.offset)
    _symbols(where, (*buffer.shape, *buffer.strides, buffer.offset), sizes)


def _outs(node: Node) -> tuple[str, ...]:
    return (node.out,) if isinstance(node, Computation) else node.outs


def _node(node: Node, table: Mapping[str, Buffer], ready: set[str], sizes: frozenset[str]) -> None:
    where = f"{', '.join(_outs(node)) or 'a call'} = {node.origin.op}"
    for name in filter(None, _outs(node)):
        if name not in table or table[name].kind != "temp":
            raise _fail(where, f"{name} is not a temp")
        if name in ready:
            raise _fail(where, f"{name} is defined twice")
    if isinstance(node, Computation):
        _computation(where, node, table, ready, sizes)
        return
    for arg in (*node.args, *(a for _, a in node.kwargs)):
        _argument(where, arg, table, ready, sizes)


def _computation(
    where: str,
    node: Computation,
    table: Mapping[str, Buffer],
    ready: set[str],
    sizes: frozenset[str],
) -> None:
    out = table[node.out]
    extents = tuple(a.extent for a in node.axes)
    parts = scatter_parts(node.body)
    if parts is not None:
        scattering.computation(where, node, parts, table, ready)
    elif extents != out.shape:
        raise _fail(where, "axes do not span the buffer", out.shape, extents)
    _reduction(where, node.combine, node.reduce_axes)
    dtype = "int64" if node.combine in ("argmax", "argmin") else node.body.dtype
    if dtype != out.dtype:
        raise _fail(where, "dtype of the body", out.dtype, dtype)
    axes = (*node.axes, *node.reduce_axes)
    _unique(where, [*(a.name for a in axes), *sizes])
    _symbols(where, (a.extent for a in axes), sizes)
    known = sizes | {a.name for a in axes}
    for value in walk(node.body):
        _value(where, value, known)
        if value.op == "local":
            raise _fail(where, f"a local in a program: {value}")
        if value.op == "scatter" and value is not node.body:
            raise _fail(where, "a scatter inside a value", "at the root of a body", value)
        if value.op == "load":
            _program_load(where, value, table, ready)


def _reduction(where: str, combine: str | None, over: Sequence[Axis]) -> None:
    if combine is not None and combine not in COMBINES:
        raise _fail(where, "unknown combine", ", ".join(COMBINES), combine)
    if (combine is None) == bool(over):
        raise _fail(where, "reduce_axes and combine go together", combine, [a.name for a in over])


def _program_load(where: str, value: Value, table: Mapping[str, Buffer], ready: set[str]) -> None:
    name, indices, _, _ = load_parts(value)
    buffer = table.get(name)
    if buffer is None or name not in ready:
        raise _fail(
            where, f"{name} is read before it is defined" if buffer else f"undefined buffer {name}"
        )
    if len(indices) != len(buffer.shape):
        raise _fail(where, f"rank of a load of {name}", len(buffer.shape), len(indices))
    if value.dtype != buffer.dtype:
        raise _fail(where, f"dtype of a load of {name}", buffer.dtype, value.dtype)


def _argument(
    where: str, arg: Arg, table: Mapping[str, Buffer], ready: set[str], sizes: frozenset[str]
) -> None:
    if isinstance(arg, Listed):
        for item in arg.items:
            _argument(where, item, table, ready, sizes)
    elif isinstance(arg, Expr):
        _symbols(where, [arg], sizes)
    elif isinstance(arg, TensorRef):
        if arg.buffer not in ready:
            raise _fail(where, f"{arg.buffer} is read before it is defined")
        if len(arg.shape) != len(arg.strides):
            raise _fail(
                where, f"one stride a dimension of {arg.buffer}", len(arg.shape), len(arg.strides)
            )
        _symbols(where, (*arg.shape, *arg.strides, arg.offset), sizes)


def _mutation(mutation: Mutation, table: Mapping[str, Buffer], ready: set[str]) -> None:
    where = f"mutation of {mutation.target}"
    target, source = table.get(mutation.target), table.get(mutation.source)
    if target is None or target.kind != "input":
        raise _fail(where, "the target is not an input")
    if source is None or source.kind != "temp" or source.name not in ready:
        raise _fail(where, f"{mutation.source} is not a defined temp")
    if (target.shape, target.dtype) != (source.shape, source.dtype):
        raise _fail(
            where,
            "shape or dtype of the source",
            (target.shape, target.dtype),
            (source.shape, source.dtype),
        )


# -- values


def _value(where: str, value: Value, known: frozenset[str]) -> None:
    if value.op in ("index", "bound"):
        (e,) = value.attr
        assert isinstance(e, Expr)
        _symbols(where, [e], known)
    elif value.op == "load":
        _load_arguments(where, value)
    elif value.op in SCALAR_OPS:
        _scalar(where, value)
    elif value.op not in STRUCTURAL_OPS:
        raise _fail(where, f"unknown operator {value.op}")


def _load_arguments(where: str, value: Value) -> None:
    name, indices, mask, _ = load_parts(value)
    if any(i.dtype != "int64" for i in indices):
        raise _fail(
            where, f"indices of a load of {name}", "int64", ", ".join(i.dtype for i in indices)
        )
    if mask is not None and mask.dtype != "bool":
        raise _fail(where, f"mask of a load of {name}", "bool", mask.dtype)


def _scalar(where: str, value: Value) -> None:
    row = SCALAR_OPS[value.op]
    dtypes = [a.dtype for a in value.args]
    if len(dtypes) != row.arity or len(set(dtypes)) != 1:
        raise _fail(
            where, f"arguments of {value.op}", f"{row.arity} of one dtype", ", ".join(dtypes)
        )
    if value.dtype != ("bool" if row.result == "bool" else dtypes[0]):
        raise _fail(where, f"dtype of {value.op}", row.result, value.dtype)
    if row.domain == "int64" and dtypes[0] != "int64":
        raise _fail(where, f"arguments of {value.op}", "int64", dtypes[0])
    if dtypes[0] in HALVES:
        raise _fail(
            where, f"{value.op} of {dtypes[0]}", "float32: half types are widened first", dtypes[0]
        )


# -- kernels


def verify_kernel(kernel: Kernel) -> None:
    """Raises VerifyError unless locals are defined before use in the right space, stores fit and do not overlap."""
    axes, over = {a.name for a in kernel.axes}, {a.name for a in kernel.reduce_axes}
    sizes = frozenset(s.name for s in kernel.sizes)
    _unique(
        "kernel",
        [
            *(p.name for p in kernel.pointers),
            *(a.name for a in (*kernel.axes, *kernel.reduce_axes)),
            *sizes,
        ],
    )
    _symbols("kernel", (a.extent for a in (*kernel.axes, *kernel.reduce_axes)), sizes)
    if kernel.form != "tem" and (kernel.form == "poi") != (not kernel.reduce_axes):
        raise _fail(
            "kernel",
            "form and reduce_axes go together",
            "poi without, per or red with",
            kernel.form,
        )
    if kernel.index_dtype not in ("int32", "int64"):
        raise _fail("kernel", "bad index dtype", "int32 | int64", kernel.index_dtype)
    pointers = {p.name: p for p in kernel.pointers}
    defined: dict[str, Statement] = {}
    for statement in kernel.statements:
        where = f"statement {statement.name}"
        if statement.name in defined:
            raise _fail(where, "defined twice")
        known = sizes | axes | (over if statement.space == "xr" else frozenset[str]())
        _statement(where, statement, kernel, pointers, defined, known)
        for store in statement.stores:
            _store(where, store, statement, pointers, sizes | axes | _store_axes(statement, over))
        defined[statement.name] = statement
    _stores(kernel, pointers)
    _bounds(kernel)


def _store_axes(statement: Statement, over: set[str]) -> set[str]:
    return over if statement.space == "xr" and statement.combine is None else set()


def _statement(
    where: str,
    statement: Statement,
    kernel: Kernel,
    pointers: Mapping[str, Pointer],
    defined: Mapping[str, Statement],
    known: frozenset[str],
) -> None:
    if statement.space not in ("x", "xr"):
        raise _fail(where, "bad space", "x | xr", statement.space)
    if statement.space == "xr" and not kernel.reduce_axes:
        raise _fail(where, "space xr without reduce_axes")
    if statement.combine is not None and (
        statement.space != "xr" or statement.combine not in COMBINES
    ):
        raise _fail(
            where, "bad combine", f"one of {', '.join(COMBINES)} in space xr", statement.combine
        )
    if statement.body.op == "scatter":
        scattering.statement(where, statement, pointers)
    for value in walk(statement.body):
        _value(where, value, known)
        if value.op == "scatter" and value is not statement.body:
            raise _fail(where, "a scatter inside a value", "at the root of a body", value)
        if value.op == "local":
            _local(where, value, statement, defined)
        elif value.op == "load":
            _kernel_load(where, value, pointers)


def _local(
    where: str, value: Value, statement: Statement, defined: Mapping[str, Statement]
) -> None:
    source = defined.get(str(value.attr[0]))
    if source is None:
        raise _fail(where, f"local {value.attr[0]} is used before it is defined")
    if source.body.op == "scatter":
        raise _fail(where, f"local {source.name} is a scatter, which has no value")
    if source.dtype != value.dtype:
        raise _fail(where, f"dtype of local {source.name}", source.dtype, value.dtype)
    if source.space == "xr" and source.combine is None and statement.space == "x":
        raise _fail(where, f"local {source.name} of space xr is used in space x")


def _kernel_load(where: str, value: Value, pointers: Mapping[str, Pointer]) -> None:
    name, indices, _, _ = load_parts(value)
    pointer = pointers.get(name)
    if pointer is None or pointer.kind in ("out", "update"):
        raise _fail(
            where,
            f"load from {name}",
            "an in or inout pointer",
            f"an {pointer.kind} pointer" if pointer else "nothing",
        )
    if len(indices) != 1:
        raise _fail(where, f"rank of a load of {name}", 1, len(indices))
    if pointer.dtype != value.dtype:
        raise _fail(where, f"dtype of a load of {name}", pointer.dtype, value.dtype)


def _store(
    where: str,
    store: Store,
    statement: Statement,
    pointers: Mapping[str, Pointer],
    known: frozenset[str],
) -> None:
    pointer = pointers.get(store.pointer)
    if pointer is None or pointer.kind in ("in", "update"):
        raise _fail(
            where,
            f"store to {store.pointer}",
            "an out or inout pointer",
            f"an {pointer.kind} pointer" if pointer else "nothing",
        )
    if pointer.dtype != statement.dtype:
        raise _fail(where, f"dtype of a store to {pointer.name}", pointer.dtype, statement.dtype)
    _symbols(where, [store.offset], known)


def _stores(kernel: Kernel, pointers: Mapping[str, Pointer]) -> None:
    """Every out pointer is stored, no element twice."""
    seen: dict[str, set[str]] = {}
    for statement in kernel.statements:
        axes = kernel.axes
        if statement.space == "xr" and statement.combine is None:
            axes = (*axes, *kernel.reduce_axes)
        for store in statement.stores:
            offsets = seen.setdefault(store.pointer, set())
            if store.offset.text in offsets or _overlaps(store.offset, axes, kernel.ranges):
                raise _fail(
                    f"statement {statement.name}",
                    f"stores to {store.pointer} overlap",
                    found=store.offset,
                )
            offsets.add(store.offset.text)
    for pointer in pointers.values():
        if pointer.kind in ("out", "inout") and pointer.name not in seen:
            raise _fail("kernel", f"{pointer.name} is never stored")
    scattering.updates(kernel)


def _overlaps(offset: Expr, axes: Sequence[Axis], ranges: Ranges) -> bool:
    """Two points surely share the element: an axis longer than 1 is absent, or two affine strides collide."""
    spans: list[tuple[Expr, Expr]] = []
    for axis in axes:
        if not positive(axis.extent - 1, ranges):
            continue
        if axis.name not in offset.symbols:
            return True
        split = offset.linear(sym(axis.name).atoms[0])
        if split is None:
            return False
        spans.append((split[0], axis.extent))
    return any(
        a[0] == b[0] and nonneg(a[0], ranges) for k, a in enumerate(spans) for b in spans[k + 1 :]
    )


def _bounds(kernel: Kernel) -> None:
    found = any(v.op == "bound" for s in kernel.statements for v in walk(s.body))
    if found != kernel.bounds_checked:
        raise _fail(
            "kernel", "bounds_checked and the bound values differ", found, kernel.bounds_checked
        )
