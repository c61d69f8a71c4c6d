"""The numpy meaning of Programs and Kernels, vectorised over the whole iteration space: the oracle of every later stage.

numpy has no bfloat16 and no 8-bit floats: such values are float32 arrays that hold only representable numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stax.base.errors import VerifyError
from stax.ir import float8
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Atom, Expr
from stax.ir.float8 import FLOAT8
from stax.ir.kernel import Kernel, Statement
from stax.ir.ops import SCALAR_OPS
from stax.ir.program import Arg, Buffer, Computation, Extern, Listed, Literal, Program, TensorRef
from stax.ir.value import Value, load_parts, scatter_parts, walk

Array = NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """An argument or result of an external call: the elements and the torch dtype that they stand for."""

    array: Array
    dtype: str


ExternCall = Callable[[str, list[Any], dict[str, Any]], Sequence[Tensor | None]]
"""(target, args, kwargs) → results. Tensors come as Tensor, sizes as int, tagged literals as ("dtype", name) pairs."""


def no_extern(target: str, args: list[Any], kwargs: dict[str, Any]) -> Sequence[Tensor | None]:
    """The callback of programs without external calls."""
    raise VerifyError(f"an external call to {target}", expected="a callback for it", found="none")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """How arrays hold a torch dtype."""
    if name == "bfloat16" or name in FLOAT8:
        return np.dtype(np.float32)
    return np.dtype(name)


def run(
    program: Program,
    inputs: Sequence[Array],
    sizes: Mapping[str, int],
    extern: ExternCall = no_extern,
) -> list[Any]:
    """The outputs of a program: arrays for tensors, ints for sizes, the value of literals.

    ``inputs`` are logical arrays in the order of program.inputs; ``sizes`` binds every symbol. An array among them
    that a mutation targets is written, as the program would. Raises IndexError where a bound does not hold.
    """
    table = program.table
    memory = {
        name: _stored(table[name], array, sizes)
        for name, array in zip(program.inputs, inputs, strict=True)
    }
    with np.errstate(all="ignore"):
        for node in program.nodes:
            if isinstance(node, Computation) and node.body.op == "scatter":
                memory[node.out] = _scattered(node, table, memory, sizes)
            elif isinstance(node, Computation):
                memory[node.out] = _stored(
                    table[node.out], _computed(node, table, memory, sizes), sizes
                )
            else:
                _call(node, table, memory, sizes, extern)
    position = {name: k for k, name in enumerate(program.inputs)}
    for m in program.mutations:
        new = _logical(table[m.source], memory, sizes)
        _logical(table[m.target], memory, sizes)[...] = new
        inputs[position[m.target]][...] = new
    return [_output(o, memory, sizes) for o in program.outputs]


# -- memory: a flat array for each buffer, read through strides


def _ints(exprs: Sequence[Expr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(e.evaluate(sizes) for e in exprs)


def _strided(flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """A view of ``flat``. Raises VerifyError when it would leave it."""
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides))
    if offset < 0 or last >= flat.size or min(strides, default=0) < 0:
        raise VerifyError(
            "a view outside its storage",
            expected=f"0 .. {flat.size - 1}",
            found=f"{offset} .. {last}",
        )
    return as_strided(flat[offset:], shape, tuple(s * flat.itemsize for s in strides))


def _stored(buffer: Buffer, array: Array, sizes: Mapping[str, int]) -> Array:
    """A flat storage that holds ``array`` under the buffer's strides."""
    shape, strides = _ints(buffer.shape, sizes), _ints(buffer.strides, sizes)
    offset = buffer.offset.evaluate(sizes)
    if array.shape != shape:
        raise VerifyError(
            f"bad shape of {buffer.name}", expected=str(shape), found=str(array.shape)
        )
    length = 0 if 0 in shape else offset + sum((n - 1) * s for n, s in zip(shape, strides)) + 1
    flat = np.zeros(length, numpy_dtype(buffer.dtype))
    if length:
        _strided(flat, shape, strides, offset)[...] = array
    return flat


def _logical(buffer: Buffer, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    shape, strides = _ints(buffer.shape, sizes), _ints(buffer.strides, sizes)
    return _strided(memory[buffer.name], shape, strides, buffer.offset.evaluate(sizes))


def _ref(ref: TensorRef, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    shape, strides = _ints(ref.shape, sizes), _ints(ref.strides, sizes)
    return _strided(memory[ref.buffer], shape, strides, ref.offset.evaluate(sizes))


def _output(
    item: TensorRef | Expr | Literal, memory: Mapping[str, Array], sizes: Mapping[str, int]
) -> Any:
    if isinstance(item, TensorRef):
        return _ref(item, memory, sizes)
    return item.evaluate(sizes) if isinstance(item, Expr) else item.value


def _call(
    node: Extern,
    table: Mapping[str, Buffer],
    memory: dict[str, Array],
    sizes: Mapping[str, int],
    extern: ExternCall,
) -> None:
    args = [_argument(a, table, memory, sizes) for a in node.args]
    kwargs = {k: _argument(a, table, memory, sizes) for k, a in node.kwargs}
    results = extern(node.target, args, kwargs)
    for name, result in zip(node.outs, results, strict=True):
        if name and result is not None:
            memory[name] = _stored(table[name], result.array, sizes)


def _argument(
    arg: Arg, table: Mapping[str, Buffer], memory: Mapping[str, Array], sizes: Mapping[str, int]
) -> Any:
    if isinstance(arg, TensorRef):
        return Tensor(_ref(arg, memory, sizes), table[arg.buffer].dtype)
    if isinstance(arg, Listed):
        return [_argument(a, table, memory, sizes) for a in arg.items]
    return arg.evaluate(sizes) if isinstance(arg, Expr) else arg.value


# -- values


@dataclass(frozen=True)
class Space:
    """What the leaves of a value mean: axis positions and sizes by name, memory to load from, locals of a kernel.

    ``shape`` is the iteration space; every array broadcasts to it."""

    shape: tuple[int, ...]
    symbols: Mapping[str, int | Array]
    arrays: Mapping[str, Array]
    locals: Mapping[str, Array]


def _grid(names: Sequence[str], extents: Sequence[int]) -> dict[str, Array]:
    """Each axis as an array along its own dimension."""
    rank = len(names)
    return {
        name: np.arange(n, dtype=np.int64).reshape((1,) * k + (n,) + (1,) * (rank - k - 1))
        for k, (name, n) in enumerate(zip(names, extents))
    }


def _computed(
    node: Computation,
    table: Mapping[str, Buffer],
    memory: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> Array:
    axes = (*node.axes, *node.reduce_axes)
    extents = _ints([a.extent for a in axes], sizes)
    arrays = {v.attr[0]: _logical(table[str(v.attr[0])], memory, sizes) for v in node.body.loads}
    space = Space(extents, {**sizes, **_grid([a.name for a in axes], extents)}, arrays, {})  # type: ignore[arg-type]
    full = np.broadcast_to(evaluate(node.body, space), extents)
    return full if node.combine is None else _reduce(node.combine, full, len(node.axes))


def _scattered(
    node: Computation,
    table: Mapping[str, Buffer],
    memory: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> Array:
    """The base's storage after the scatter; the base itself stays as it was."""
    base = str(node.body.attr[0])
    after = {**memory, base: memory[base].copy()}
    extents = _ints([a.extent for a in node.axes], sizes)
    arrays = {name: _logical(table[name], after, sizes) for name in node.body.buffers}
    space = Space(extents, {**sizes, **_grid([a.name for a in node.axes], extents)}, arrays, {})
    _scatter(node.body, space)
    return after[base]


def _scatter(root: Value, space: Space) -> None:
    """Change the elements of the scatter's array in place. All indices are checked, also where the mask is false."""
    parts = scatter_parts(root)
    assert parts is not None
    roots = (parts.value, *parts.indices, *(() if parts.mask is None else (parts.mask,)))
    value, *places = (np.broadcast_to(evaluate(v, space), space.shape).ravel() for v in roots)
    array = space.arrays[parts.buffer]
    if parts.mask is not None:
        chosen = places.pop()
        value, places = value[chosen], [p[chosen] for p in places]
    for dim, place in enumerate(places):
        if place.size and (place.min() < 0 or place.max() >= array.shape[dim]):
            raise VerifyError(
                f"scatter into {parts.buffer} out of bounds in dimension {dim}",
                expected=f"0 .. {array.shape[dim] - 1}",
                found=f"{place.min()} .. {place.max()}",
            )
    if not value.size:
        return
    if parts.mode == "add":
        np.add.at(array, tuple(places), value)
    else:
        array[tuple(places)] = value


def evaluate(root: Value, space: Space) -> Array:
    """The value at every point of the space, as an array that broadcasts to its shape."""
    done: dict[bytes, Array] = {}
    for node in walk(root):
        done[node.key] = _node(node, [done[a.key] for a in node.args], space)
    return done[root.key]


def _node(node: Value, args: list[Array], space: Space) -> Array:
    if node.op == "const":
        return _constant(node)
    if node.op == "index":
        return np.asarray(_expr(_attr_expr(node), space), dtype=np.int64)
    if node.op == "local":
        return space.locals[str(node.attr[0])]
    if node.op == "load":
        return _load(node, args, space)
    if node.op == "cast":
        return convert(args[0], node.dtype)
    if node.op == "where":
        return np.where(*args)
    if node.op == "bound":
        return _bound(node, args[0], space)
    return SCALAR_OPS[node.op].reference(*args).astype(numpy_dtype(node.dtype), copy=False)


def _constant(node: Value) -> Array:
    dtype = numpy_dtype(node.dtype)
    number = node.attr[0]
    if dtype.kind in "iu":
        return np.asarray(number, np.int64 if dtype.kind == "i" else np.uint64).astype(dtype)
    return convert(np.asarray(number, np.bool_ if dtype.kind == "b" else np.float64), node.dtype)


def _attr_expr(node: Value) -> Expr:
    found = node.attr[0]
    assert isinstance(found, Expr)
    return found


def _bound(node: Value, index: Array, space: Space) -> Array:
    extent = _expr(_attr_expr(node), space)
    bad = (index < 0) | (index >= extent)
    if 0 not in space.shape and bad.any():
        found = int(np.broadcast_to(index, bad.shape)[bad][0])
        raise IndexError(f"index {found} is out of bounds for a dimension of size {extent}")
    return index


def _load(node: Value, args: list[Array], space: Space) -> Array:
    buffer, indices, mask, other = load_parts(node)
    array = space.arrays[buffer]
    places = args[: len(indices)]
    if mask is None:
        return _gather(node, array, places, space)
    inside = args[len(indices)]
    filler = _constant(Value("const", node.dtype, (), (other,)))
    if array.size == 0:
        if 0 not in space.shape and inside.any():
            raise VerifyError(f"a load from the empty {buffer}", expected="a false mask")
        return np.broadcast_to(
            filler, np.broadcast_shapes(inside.shape, *(p.shape for p in places))
        )
    return np.where(
        inside, _gather(node, array, [np.where(inside, p, 0) for p in places], space), filler
    )


def _gather(node: Value, array: Array, places: list[Array], space: Space) -> Array:
    if 0 in space.shape:
        return np.zeros(np.broadcast_shapes((), *(p.shape for p in places)), array.dtype)
    for dim, place in enumerate(places):
        if place.size and (place.min() < 0 or place.max() >= array.shape[dim]):
            raise VerifyError(
                f"load of {node.attr[0]} out of bounds in dimension {dim}",
                expected=f"0 .. {array.shape[dim] - 1}",
                found=f"{place.min()} .. {place.max()}",
            )
    return np.asarray(array[tuple(places)])


def _expr(e: Expr, space: Space) -> Any:
    total: Any = 0
    for monomial, coef in e.terms:
        term: Any = coef
        for atom, power in monomial:
            term = term * _atom(atom, space) ** power
        total = total + term
    return total


def _atom(atom: Atom, space: Space) -> Any:
    if atom.op == "sym":
        return space.symbols[atom.name]
    left, right = (_expr(a, space) for a in atom.args)
    if atom.op == "floordiv":
        return left // right
    if atom.op == "mod":
        return left % right
    return np.maximum(left, right) if atom.op == "max" else np.minimum(left, right)


def convert(array: Array, dtype: str) -> Array:
    """To a torch dtype as torch casts: floats truncate to integers, non-zero is True, halves round to nearest even."""
    if dtype == "bfloat16":
        return round_bfloat16(array)
    if dtype in FLOAT8:
        return float8.rounded(array, dtype)
    if dtype == "bool":
        return array != 0
    if DTYPES[dtype].kind == "uint" and array.dtype.kind == "f":
        return array.astype(np.int64).astype(dtype)
    return array.astype(dtype)


def round_bfloat16(array: Array) -> Array:
    """The nearest bfloat16 of each element, as float32."""
    single = np.ascontiguousarray(array, dtype=np.float32)
    bits = single.view(np.uint32)
    even = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    kept = (bits + even) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), single, kept.view(np.float32)).reshape(np.shape(array))


# -- reductions


def _reduce(combine: str, full: Array, kept: int) -> Array:
    """Combine the dimensions after the first ``kept``."""
    dims = tuple(range(kept, full.ndim))
    if combine in ("argmax", "argmin"):
        return _position(combine, full, kept)
    if combine == "any":
        return np.any(full, axis=dims)
    if combine == "all":
        return np.all(full, axis=dims)
    if combine in ("sum", "prod"):
        return (np.sum if combine == "sum" else np.prod)(full, axis=dims, dtype=full.dtype)
    extreme = np.max if combine == "max" else np.min
    if 0 in full.shape[kept:]:
        return np.full(full.shape[:kept], _identity(combine, full.dtype))
    return extreme(full, axis=dims)


def _position(combine: str, full: Array, kept: int) -> Array:
    """argmax or argmin. Raises IndexError for a row without elements, as eager does."""
    outer, length = full.shape[:kept], math.prod(full.shape[kept:])
    if 0 in outer:
        return np.zeros(outer, np.int64)
    if length == 0:
        raise IndexError(f"{combine} of no elements")
    flat = full.reshape(*outer, length)
    return (np.argmax if combine == "argmax" else np.argmin)(flat, axis=-1).astype(np.int64)


def _identity(combine: str, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return -np.inf if combine == "max" else np.inf
    limits = np.iinfo(dtype)
    return limits.min if combine == "max" else limits.max


# -- kernels


def run_kernel(kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Run a kernel on flat arrays by pointer name; "out", "inout" and "update" ones are written in place."""
    axes = [*kernel.axes, *kernel.reduce_axes]
    extents = _ints([a.extent for a in axes], sizes)
    symbols: dict[str, int | Array] = {**sizes, **_grid([a.name for a in axes], extents)}
    locals_: dict[str, Array] = {}
    rank = len(kernel.axes)
    every = Space(extents, symbols, arrays, locals_)
    # Once a row, also where the rows have no elements.
    rows = replace(every, shape=extents[:rank] + (1,) * len(kernel.reduce_axes))
    with np.errstate(all="ignore"):
        for statement in kernel.statements:
            space = rows if statement.space == "x" else every
            if statement.body.op == "scatter":
                _scatter(statement.body, space)
                continue
            locals_[statement.name] = value = _statement(statement, space, rank)
            stored = rows if statement.combine else space
            for store in statement.stores:
                _store(arrays[store.pointer], store.offset, value, stored)


def _statement(statement: Statement, space: Space, rank: int) -> Array:
    value = evaluate(statement.body, space)
    if statement.combine is None:
        return value
    full = np.broadcast_to(value, space.shape)
    reduced = _reduce(statement.combine, full, rank)
    return reduced.reshape(reduced.shape + (1,) * (len(space.shape) - rank))


def _store(flat: Array, offset: Expr, value: Array, space: Space) -> None:
    place = np.asarray(_expr(offset, space), dtype=np.int64)
    shape = np.broadcast_shapes(place.shape, value.shape)
    if 0 not in space.shape:
        flat[np.broadcast_to(place, shape)] = np.broadcast_to(value, shape)
