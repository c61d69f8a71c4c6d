"""Program: a captured function as loop nests and external calls over named buffers. Frozen, printable, digestible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.base.digest import digest
from stax.ir.expr import Expr
from stax.ir.ranges import Range
from stax.ir.value import Value


@dataclass(frozen=True)
class Symbol:
    """A size that is an input: ``hint`` is its value at capture, lo..hi the proven range (hi None: unbounded)."""

    name: str
    hint: int
    lo: int = 2
    hi: int | None = None


@dataclass(frozen=True)
class Buffer:
    """A tensor. ``kind``: input | constant | temp. Sizes, strides and offset count elements; ``device`` is "cpu" or
    "cuda"; a temp is always dense: strides as given, offset 0."""

    name: str
    kind: str
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    device: str


@dataclass(frozen=True)
class Axis:
    """A loop axis: symbol name and extent."""

    name: str
    extent: Expr


@dataclass(frozen=True)
class Origin:
    """Where a node came from: the ATen operator, the user's file:line ("" when unknown), and the operators of the
    producers that it absorbed. Part of kernel names and messages."""

    op: str
    where: str = ""
    absorbed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Computation:
    """One loop nest: for every point of ``axes``, ``out[axes] = body`` or, with ``combine``, the reduction of body over
    ``reduce_axes``. ``out``'s shape equals the extents of ``axes`` in order, and its dtype equals body.dtype (int64 for
    argmax and argmin, whose value is the row-major position in reduce_axes of the first extreme, NaN counting as extreme).

    A body that is a scatter runs over axes of its own: ``out`` is the scatter's buffer, the *base*, after all points. The
    base is a temp with the layout of ``out`` that nothing else reads, so that ``out`` may take over its memory; or such an
    input, if ``out``, or what further scatters make of it, is what the input receives at the end.
    """

    out: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    combine: str | None
    body: Value
    origin: Origin


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a buffer: offset and strides count elements of the buffer's storage. Strides of the buffer
    itself are not applied again."""

    buffer: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True)
class Literal:
    """A non-tensor argument or output: None, bool, int, float, str, or ("dtype"|"device"|"layout"|"memory_format", name)."""

    value: object


@dataclass(frozen=True)
class Listed:
    """A list or tuple of arguments."""

    items: tuple[Arg, ...]


Arg = TensorRef | Expr | Literal | Listed


@dataclass(frozen=True)
class Extern:
    """A call left to torch: ``target`` is "aten.mm.default"; ``outs`` name the buffers of its results in order, "" for a
    result that nobody reads. It never writes its arguments."""

    outs: tuple[str, ...]
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    origin: Origin


Node = Computation | Extern


@dataclass(frozen=True)
class Mutation:
    """At the end of the call, input buffer ``target`` receives the contents of ``source`` (same shape and dtype)."""

    target: str
    source: str


@dataclass(frozen=True)
class Program:
    """``inputs`` name the input buffers in call order; ``nodes`` are in an order that respects data flow; ``outputs``:
    a TensorRef on an input buffer is an alias of that input, two on one temp share storage."""

    symbols: tuple[Symbol, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[TensorRef | Expr | Literal, ...]
    mutations: tuple[Mutation, ...]

    def buffer(self, name: str) -> Buffer:
        """The buffer called ``name``. Raises KeyError."""
        return self.table[name]

    @property
    def table(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.buffers}

    @property
    def ranges(self) -> dict[str, Range]:
        """Ranges of the size symbols."""
        return {s.name: Range.of(s.lo, s.hi) for s in self.symbols}

    @property
    def digest(self) -> str:
        return digest(self, "program")


def contiguous(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Row-major strides in elements. A size of 0 counts as 1, as torch does, when it is a constant."""
    from_right: list[Expr] = []
    step = Expr({(): 1})
    for extent in reversed(shape):
        from_right.append(step)
        if not (extent.is_const and extent.value == 0):
            step = step * extent
    return tuple(reversed(from_right))


def axis_ranges(axes: tuple[Axis, ...]) -> dict[str, Range]:
    """Ranges of loop axes, to be merged with a program's symbol ranges."""
    return {a.name: Range.axis(a.extent) for a in axes}
