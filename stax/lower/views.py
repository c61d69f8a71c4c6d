"""View: a tensor as an index map onto a buffer. View operators compose maps and cost nothing.

Coordinates are expressions over the placeholder axes i0, i1, … of the view's own shape; a dimension of size 1 never
appears in them. Loops use the same axis names, so that most loads need no substitution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd

from stax.ir.expr import Expr, const, product, split_multiples, sym, total
from stax.ir.program import Buffer, TensorRef, contiguous
from stax.ir.ranges import Range, Ranges, simplify

Shape = tuple[Expr, ...]
Hints = Mapping[str, int]


@dataclass(frozen=True)
class View:
    """Element ``v`` of the view is element ``coords(v)`` of ``buffer``, which stands at ``place(v)`` of its storage.

    The two say the same; ``place`` stays affine through reshapes whose coordinates need divisions."""

    buffer: Buffer
    shape: Shape
    coords: tuple[Expr, ...]
    place: Expr

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_whole(self) -> bool:
        """The buffer itself, unpermuted."""
        return self.shape == self.buffer.shape and self.coords == identity_coords(self.shape)


@lru_cache(maxsize=64)
def axis_name(k: int) -> str:
    return f"i{k}"


@lru_cache(maxsize=64)
def axis(k: int) -> Expr:
    """Placeholder axis k as an expression."""
    return sym(axis_name(k))


def identity_coords(shape: Shape) -> tuple[Expr, ...]:
    return tuple(const(0) if e == 1 else axis(k) for k, e in enumerate(shape))


def whole(buffer: Buffer) -> View:
    """The view that is the buffer."""
    coords = identity_coords(buffer.shape)
    return View(buffer, buffer.shape, coords, _place(buffer, coords))


def _place(buffer: Buffer, coords: Sequence[Expr]) -> Expr:
    return total([buffer.offset, *(c * s for c, s in zip(coords, buffer.strides))])


def shape_ranges(shape: Shape, symbols: Ranges) -> dict[str, Range]:
    """Ranges of the size symbols and of the placeholder axes of ``shape``."""
    found = dict(symbols)
    for k, extent in enumerate(shape):
        found[axis_name(k)] = Range.axis(extent)
    return found


def compose(
    view: View, shape: Shape, positions: Sequence[Expr], symbols: Ranges, place: Expr | None = None
) -> View:
    """The view of ``shape`` whose element v is element ``positions(v)`` of ``view``; ``place`` is given when it is known
    to be simpler than what follows from them."""
    ones = {axis_name(k): const(0) for k, e in enumerate(shape) if e == 1}
    env: dict[str, Expr | int] = {axis_name(k): p.subs(ones) for k, p in enumerate(positions)}
    exprs = [c.subs(env) for c in view.coords]
    exprs.append(view.place.subs(env) if place is None else place.subs(ones))
    if any(a.op != "sym" for e in exprs for a in e.atoms):
        ranges = shape_ranges(shape, symbols)
        exprs = [simplify(e, ranges) for e in exprs]
    return View(view.buffer, shape, tuple(exprs[:-1]), exprs[-1])


def expand(view: View, shape: Shape, symbols: Ranges, hints: Hints) -> View:
    """Broadcast to ``shape``, aligned on the right."""
    if view.shape == shape:
        return view
    return compose(view, shape, broadcast(view.shape, shape, hints), symbols)


def broadcast(old: Shape, new: Shape, hints: Hints) -> list[Expr]:
    """The position in ``old`` of each point of ``new``, aligned on the right.

    A size such as s0 // 4 may be 1 by a guard alone: it is stretched where it was at capture."""
    skip = len(new) - len(old)
    return [
        const(0) if _stretched(e, new[k + skip], hints) else axis(k + skip)
        for k, e in enumerate(old)
    ]


def _stretched(old: Expr, new: Expr, hints: Hints) -> bool:
    if old == 1 or old == new:
        return old == 1
    return old.evaluate(hints) == 1 and new.evaluate(hints) != 1


def permute(view: View, dims: Sequence[int], symbols: Ranges) -> View:
    """New dimension k is old dimension ``dims[k]``."""
    positions: list[Expr] = [const(0)] * view.rank
    for new, old in enumerate(dims):
        positions[old] = axis(new)
    return compose(view, tuple(view.shape[d] for d in dims), positions, symbols)


def insert(view: View, dims: Sequence[int], symbols: Ranges) -> View:
    """New dimensions of size 1 at the positions ``dims`` of the result."""
    rank = view.rank + len(dims)
    kept = [k for k in range(rank) if k not in dims]
    old = dict(zip(kept, view.shape))
    shape = tuple(old.get(k, const(1)) for k in range(rank))
    return compose(view, shape, [axis(k) for k in kept], symbols)


def drop(view: View, dims: Sequence[int], symbols: Ranges) -> View:
    """Without the size-1 dimensions ``dims``."""
    kept = [k for k in range(view.rank) if k not in dims]
    positions: list[Expr] = [const(0)] * view.rank
    for new, old in enumerate(kept):
        positions[old] = axis(new)
    return compose(view, tuple(view.shape[k] for k in kept), positions, symbols)


def take(view: View, dim: int, start: Expr, step: Expr, extent: Expr, symbols: Ranges) -> View:
    """Elements start, start+step, … (``extent`` of them) of dimension ``dim``."""
    shape = (*view.shape[:dim], extent, *view.shape[dim + 1 :])
    positions = [axis(k) for k in range(view.rank)]
    positions[dim] = start + axis(dim) * step
    return compose(view, shape, positions, symbols)


def reshape(view: View, shape: Shape, symbols: Ranges) -> View:
    """The same elements in row-major order under another shape of equal size."""
    if view.shape == shape:
        return view
    if any(e == 0 for e in shape):
        return compose(view, shape, [const(0)] * view.rank, symbols)
    positions: list[Expr] = [const(0)] * view.rank
    strides = place_strides(view)
    place = None if strides is None else strides[1]
    for old, new in _groups(view.shape, shape):
        flat = _ravel([(axis(k), shape[k]) for k in new])
        for k, position in zip(old, unravel(flat, [view.shape[k] for k in old])):
            positions[k] = position
        step = (
            None if strides is None else _one_stride([(view.shape[k], strides[0][k]) for k in old])
        )
        place = None if place is None or step is None else place + flat * step
    ranges = shape_ranges(shape, symbols)
    return compose(view, shape, [simplify(p, ranges) for p in positions], symbols, place)


def place_strides(view: View) -> tuple[list[Expr], Expr] | None:
    """(strides, offset) of the view in storage, or None when it is not affine."""
    axes = {axis_name(k) for k in range(view.rank)}
    strides: list[Expr] = []
    rest = view.place
    for k in range(view.rank):
        split = rest.linear(axis(k).atoms[0])
        if split is None or split[0].symbols & axes:
            return None
        stride, rest = split
        strides.append(stride)
    return None if rest.symbols & axes else (strides, rest)


def _one_stride(dims: Sequence[tuple[Expr, Expr]]) -> Expr | None:
    """The stride of neighbouring (size, stride) dimensions taken as one, or None when they have holes between them."""
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1]


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Pairs of runs of dimensions (of sizes other than 1) with equal products, as short as possible."""
    left = [k for k, e in enumerate(old) if e != 1]
    right = [k for k, e in enumerate(new) if e != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        ends = _close(old, left, i, new, right, j)
        groups.append((left[i : ends[0]], right[j : ends[1]]))
        i, j = ends
    return groups


def _close(
    old: Shape, left: list[int], i: int, new: Shape, right: list[int], j: int
) -> tuple[int, int]:
    """The least ends (i, j) of the two runs at which their products agree; all that is left when none is seen."""
    a, b = old[left[i]], new[right[j]]
    i, j = i + 1, j + 1
    while a != b:
        if j < len(right) and (_divides(b, a) or i == len(left)):
            b, j = b * new[right[j]], j + 1
        elif i < len(left):
            a, i = a * old[left[i]], i + 1
        else:
            return len(left), len(right)
    return i, j


def _divides(b: Expr, a: Expr) -> bool:
    """b divides a, and is the smaller: for constants by value, for terms by exact division."""
    if a.is_const and b.is_const:
        return b.value < a.value
    return split_multiples(a, b)[1] == 0


def _ravel(dims: Sequence[tuple[Expr, Expr]]) -> Expr:
    flat = const(0)
    for position, extent in dims:
        flat = flat * extent + position
    return flat


def unravel(flat: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The position in each dimension of a row-major position."""
    if len(extents) == 1:
        return [flat]
    positions: list[Expr] = []
    for k in range(len(extents)):
        step = product(extents[k + 1 :])
        quotient = flat // step
        positions.append(quotient if k == 0 else quotient % extents[k])
    return positions


def diagonal(view: View, offset: int, dim1: int, dim2: int, extent: Expr, symbols: Ranges) -> View:
    """The diagonal of two dimensions as a new last dimension of size ``extent``."""
    kept = [k for k in range(view.rank) if k not in (dim1, dim2)]
    positions: list[Expr] = [const(0)] * view.rank
    for new, old in enumerate(kept):
        positions[old] = axis(new)
    positions[dim1] = axis(len(kept)) + max(-offset, 0)
    positions[dim2] = axis(len(kept)) + max(offset, 0)
    return compose(view, (*(view.shape[k] for k in kept), extent), positions, symbols)


def unfold(view: View, dim: int, size: int, step: int, extent: Expr, symbols: Ranges) -> View:
    """Windows of ``size`` along ``dim``, ``step`` apart; the window is a new last dimension."""
    shape = (*view.shape[:dim], extent, *view.shape[dim + 1 :], const(size))
    positions = [axis(k) for k in range(view.rank)]
    positions[dim] = axis(dim) * step + (axis(view.rank) if size != 1 else const(0))
    return compose(view, shape, positions, symbols)


@dataclass(frozen=True)
class Layout:
    """Where eager keeps the elements of a buffer: a temp that stands for a mutated input keeps the input's strides there,
    and is dense here."""

    strides: Shape
    offset: Expr


def from_storage(
    buffer: Buffer, layout: Layout, shape: Shape, strides: Shape, offset: Expr, symbols: Ranges
) -> View | None:
    """The strided view of eager's storage as an index map; None when it may touch what is no element of the buffer."""
    if any(e == 0 for e in shape):
        return View(buffer, shape, (const(0),) * len(buffer.shape), offset)
    place = offset - layout.offset
    for k, stride in enumerate(strides):
        if shape[k] != 1:
            place = place + axis(k) * stride
    unit = _unit(place, [e for n, e in zip(buffer.shape, layout.strides) if n != 1])
    steps = tuple(e // unit for e in layout.strides)
    order = None if any(e == 0 for e in buffer.shape) else dense_order(buffer.shape, steps)
    if order is None:
        return None
    element = place // unit
    coords: list[Expr] = [const(0)] * len(buffer.shape)
    positions = unravel(element, [buffer.shape[d] for d in order]) if order else []
    for dim, position in zip(order, positions):
        coords[dim] = position
    ranges = shape_ranges(shape, symbols)
    found = tuple(simplify(c, ranges) for c in coords)
    kept = all(a == b for n, a, b in zip(buffer.shape, steps, buffer.strides) if n != 1)
    ours = element + buffer.offset if kept else simplify(_place(buffer, found), ranges)
    return View(buffer, shape, found, ours)


def _unit(place: Expr, strides: Sequence[Expr]) -> int:
    """The largest number that divides every coefficient."""
    unit = 0
    for e in (place, *strides):
        for _, coef in e.terms:
            unit = gcd(unit, coef)
    return max(unit, 1)


def dense_order(shape: Shape, strides: Shape) -> list[int] | None:
    """Dimensions other than size 1, outermost first, when they fill the storage without holes or overlap; else None."""
    todo = [k for k, e in enumerate(shape) if e != 1]
    order: list[int] = []
    step = const(1)
    while todo:
        found = next((k for k in reversed(todo) if strides[k] == step), None)
        if found is None:
            return None
        todo.remove(found)
        order.append(found)
        step = step * shape[found]
    return order[::-1]


def dense_strides(shape: Shape, like: Shape, hints: Hints) -> Shape:
    """Dense strides in the order of ``like`` (decreasing at the hints; ties in the order of dimensions)."""
    if dense_order(shape, like) is not None or any(e == 0 for e in shape):
        return like
    order = sorted(range(len(shape)), key=lambda k: (-like[k].evaluate(hints), k))
    strides: list[Expr] = [const(1)] * len(shape)
    step = const(1)
    for k in reversed(order):
        strides[k] = step
        step = step * shape[k]
    return tuple(strides)


def tensor_ref(view: View, like: Shape | None = None) -> TensorRef | None:
    """The view as strides and offset into the buffer's storage, or None when it is not affine.

    Strides of dimensions of size 1 are taken from ``like``, else continue the dimension on the right.
    """
    found = place_strides(view)
    if found is None:
        return None
    strides, offset = found
    if any(e == 0 for e in view.shape):
        strides = list(contiguous(view.shape) if like is None else like)
    return TensorRef(view.buffer.name, view.shape, _fill_ones(view.shape, strides, like), offset)


def _fill_ones(shape: Shape, strides: list[Expr], like: Shape | None) -> Shape:
    out = list(strides)
    for k in reversed(range(len(shape))):
        if shape[k] == 1:
            right = out[k + 1] * shape[k + 1] if k + 1 < len(shape) else const(1)
            out[k] = right if like is None else like[k]
    return tuple(out)
