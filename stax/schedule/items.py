"""Items and groups: computations without unit axes, placed on the common axes of a kernel to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const, product, sym
from stax.ir.program import Axis, Buffer, Computation
from stax.ir.ranges import Range, simplify
from stax.ir.value import Value, constant, load_parts, rebuild, rewrite


@dataclass(frozen=True)
class Item:
    """A Computation whose axes of extent 1 are gone; ``coords`` are the coordinates of ``out`` it writes at each point (of a
    scatter: the point itself)."""

    out: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    combine: str | None
    body: Value
    coords: tuple[Expr, ...]
    ops: tuple[str, ...]
    position: int


@dataclass(frozen=True)
class Frame:
    """The axes of a kernel: ``x`` outer, ``r`` reduced; names are x0…, r0_0…"""

    x: tuple[Axis, ...]
    r: tuple[Axis, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.x, *self.r)

    @property
    def ranges(self) -> dict[str, Range]:
        return {a.name: Range.axis(a.extent) for a in self.axes}


@dataclass(frozen=True)
class Placed:
    """An item over a frame's axes: ``coords`` and ``body`` speak of them. ``space``: "xr" or "x" (see ir.kernel)."""

    item: Item
    body: Value
    coords: tuple[Expr, ...]
    space: str


@dataclass(frozen=True)
class Group:
    """A kernel to be: ``members`` in data-flow order."""

    frame: Frame
    members: tuple[Placed, ...]
    device: str

    @property
    def produced(self) -> dict[str, Placed]:
        return {m.item.out: m for m in self.members}

    @property
    def reads(self) -> set[str]:
        return {name for m in self.members for name in m.body.buffers}

    @property
    def position(self) -> int:
        return min(m.item.position for m in self.members)


def item_of(node: Computation, position: int) -> Item:
    """Drop axes of extent 1 by fixing them at 0."""
    gone = {a.name: const(0) for a in (*node.axes, *node.reduce_axes) if a.extent == 1}
    body = substitute(node.body, gone, {}) if gone else node.body
    combine = node.combine
    reduce_axes = tuple(a for a in node.reduce_axes if a.extent != 1)
    if combine is not None and not reduce_axes:
        body = constant(0, "int64") if combine in ("argmax", "argmin") else body
        combine = None
    return Item(
        out=node.out,
        axes=tuple(a for a in node.axes if a.extent != 1),
        reduce_axes=reduce_axes,
        combine=combine,
        body=body,
        coords=tuple(const(0) if a.extent == 1 else sym(a.name) for a in node.axes),
        ops=(node.origin.op, *node.origin.absorbed),
        position=position,
    )


def substitute(body: Value, env: Mapping[str, Expr], ranges: Mapping[str, Range]) -> Value:
    """Replace axes by expressions in every index and bound, simplified under ``ranges``."""
    if not env:
        return body

    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op in ("index", "bound") and isinstance(value.attr[0], Expr):
            moved = value.attr[0].subs(env)
            if moved is not value.attr[0] and not moved.is_const:
                moved = simplify(moved, ranges)
            return Value(value.op, value.dtype, args, (moved,))
        return rebuild(value, args)

    return rewrite(body, swap)


def alone(item: Item, device: str, symbols: Mapping[str, Range]) -> Group:
    """The group of one item, on a frame made from its own axes."""
    x = tuple(Axis(f"x{k}", a.extent) for k, a in enumerate(item.axes))
    r = tuple(Axis(f"r0_{k}", a.extent) for k, a in enumerate(item.reduce_axes))
    names = [*(a.name for a in item.axes), *(a.name for a in item.reduce_axes)]
    frame = Frame(x, r)
    env = {old: sym(new.name) for old, new in zip(names, frame.axes)}
    ranges = {**symbols, **frame.ranges}
    space = "xr" if item.reduce_axes else "x"
    placed = Placed(
        item, substitute(item.body, env, ranges), tuple(c.subs(env) for c in item.coords), space
    )
    return Group(frame, (placed,), device)


def move(
    group: Group, env: Mapping[str, Expr], frame: Frame, symbols: Mapping[str, Range]
) -> tuple[Placed, ...]:
    """The members of ``group`` on another frame, its axes replaced as ``env`` says."""
    ranges = {**symbols, **frame.ranges}
    reduced = {a.name for a in frame.r}
    moved: list[Placed] = []
    for m in group.members:
        coords = tuple(simplify(c.subs(env), ranges) for c in m.coords)
        touched = {name for c in coords for name in c.symbols}
        space = "xr" if m.item.combine is not None or touched & reduced else "x"
        moved.append(Placed(m.item, substitute(m.body, env, ranges), coords, space))
    return tuple(moved)


def numel(axes: Sequence[Axis]) -> Expr:
    return product(a.extent for a in axes)


def load_coords(value: Value) -> tuple[Expr, ...] | None:
    """The coordinates of an affine, unmasked or masked load; None when an index is computed."""
    _, indices, _, _ = load_parts(value)
    if any(i.op != "index" for i in indices):
        return None
    return tuple(i.attr[0] for i in indices if isinstance(i.attr[0], Expr))


def buffer_bytes(buffer: Buffer, hints: Mapping[str, int]) -> int:
    """Size in bytes at the capture-time sizes."""
    return product(buffer.shape).evaluate(hints) * DTYPES[buffer.dtype].itemsize
