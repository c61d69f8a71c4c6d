"""Bytes that a kernel must move between device memory and the chip, counted from its statements; pure.

Each element that a kernel touches counts once, however often it is used: what broadcasts counts once, and so do two
accesses of one pointer where they overlap. The counts are upper bounds of the distinct elements, and equal to them for
affine offsets that do not overlap themselves:

- an affine access is a box: a base and (stride, extent) digits, one for every axis or division of axes in its offset; it
  touches at most the points of the axes it depends on, the product of the digits, and what lies between its ends;
- comparisons with a number in the mask of a load narrow a digit; any other mask is taken as true;
- an access within the box of another of the same pointer adds nothing (the halves of a rotation are within the whole),
  and all of one pointer touch at most what lies between their outermost ends; other overlap counts twice;
- a computed offset touches one element a point, at most what its bounds allow; a sum at computed places reads them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.ranges import Range, bounds, sym_of
from stax.ir.value import Value, load_parts, scatter_parts, walk

Sizes = Mapping[str, int]
Span = tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """``read_bytes`` and ``written_bytes``: every element once. ``reread_bytes``: what later loops over the reduced
    elements read again of what an earlier one has read (a cache may serve it). ``reads``, ``writes``: bytes by pointer."""

    read_bytes: int
    written_bytes: int
    reread_bytes: int
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]

    @property
    def moved_bytes(self) -> int:
        """What must be moved at least."""
        return self.read_bytes + self.written_bytes


def traffic(
    kernel: Kernel, sizes: Sizes | None = None, loops: Sequence[Sequence[Statement]] = ()
) -> Traffic:
    """Count at ``sizes`` (values of the kernel's size symbols; default: the hints). ``loops``: the statements that each
    loop over the reduced elements evaluates, where the emitted form has loops."""
    space = _Space(kernel, kernel.hints if sizes is None else sizes)
    reads = space.bytes_of(space.loads(kernel.statements))
    writes = space.bytes_of(space.stores(kernel.statements))
    return Traffic(
        read_bytes=sum(reads.values()),
        written_bytes=sum(writes.values()),
        reread_bytes=_read_again(space, loops),
        reads=tuple(reads.items()),
        writes=tuple(writes.items()),
    )


def _read_again(space: _Space, loops: Sequence[Sequence[Statement]]) -> int:
    """Bytes that the loops read one by one, less what they read together."""
    inside = [[s for s in loop if s.space == "xr"] for loop in loops]
    each = sum(sum(space.bytes_of(space.loads(loop)).values()) for loop in inside)
    together = {s.name: s for loop in inside for s in loop}
    return max(each - sum(space.bytes_of(space.loads(together.values())).values()), 0)


@dataclass(frozen=True)
class _Box:
    """Elements base + the sum of stride*k over all ``digits`` (stride, extent) with 0 <= k < extent, strides positive and
    falling; an access touches some ``points`` of them at most. ``digits`` None: anywhere."""

    base: int
    digits: tuple[tuple[int, int], ...] | None
    points: int

    @property
    def count(self) -> int:
        """An upper bound of the distinct elements."""
        return self.points if self.digits is None else min(self.points, self.size)

    @property
    def size(self) -> int:
        """Elements of the box."""
        return min(prod(n for _, n in self.digits or ()), (self.last - self.base) // self.step + 1)

    @property
    def step(self) -> int:
        """All elements are multiples of it apart."""
        return gcd(*(s for s, _ in self.digits or ())) or 1

    @property
    def last(self) -> int:
        return self.base + sum(s * (n - 1) for s, n in self.digits or ())

    @property
    def dense(self) -> bool:
        """No gap between the ends: each stride is at most what the smaller digits cover."""
        covered = self.step
        for stride, extent in reversed(self.digits or ()):
            if stride > covered:
                return False
            covered += stride * (extent - 1)
        return True

    def holds(self, other: _Box) -> bool:
        """True when both together are proven to touch no more than ``self.count``: this box is counted whole, and the
        other one is inside."""
        if self.digits is None or other.digits is None or self.points < self.size:
            return False
        gap, extents = other.base - self.base, dict(other.digits)
        if self.dense and gap % self.step == 0 and other.step % self.step == 0:
            return gap >= 0 and other.last <= self.last
        for stride, extent in self.digits:
            at, gap = divmod(gap, stride)
            if not 0 <= at <= extent - extents.pop(stride, 1):
                return False
        return gap == 0 and not extents


def _union(boxes: Sequence[_Box]) -> int:
    """An upper bound of the distinct elements of several accesses of one pointer."""
    kept: list[_Box] = []
    for box in sorted((b for b in boxes if b.count), key=lambda b: -b.count):
        if not any(k.holds(box) for k in kept):
            kept.append(box)
    total = sum(b.count for b in kept)
    if len(kept) < 2 or any(b.digits is None for b in kept):
        return total
    first = min(b.base for b in kept)
    step = gcd(*(b.step for b in kept), *(b.base - first for b in kept))
    return min(total, (max(b.last for b in kept) - first) // step + 1)


class _Space:
    """The points of one kernel at one set of sizes, and what they access."""

    def __init__(self, kernel: Kernel, sizes: Sizes) -> None:
        both = (*kernel.axes, *kernel.reduce_axes)
        self.sizes = sizes
        self.axes = {a.name: a.extent.evaluate(sizes) for a in both}
        self.ranges = {name: Range.of(0, extent - 1) for name, extent in self.axes.items()}
        self.itemsize = {p.name: DTYPES[p.dtype].itemsize for p in kernel.pointers}
        outer = prod(self.axes[a.name] for a in kernel.axes)
        self.points = {
            "x": outer,
            "xr": outer * prod(self.axes[a.name] for a in kernel.reduce_axes),
        }

    def loads(self, statements: Iterable[Statement]) -> Iterator[tuple[str, object, _Box]]:
        """(pointer, identity, box) of every load that some point performs."""
        for s in statements:
            for value in s.body.loads if self.points[s.space] else ():
                pointer, (offset,), mask, _ = load_parts(value)
                yield pointer, (offset, mask), self._box(offset, mask)
            parts = scatter_parts(s.body)
            if parts is not None and parts.mode == "add" and self.points[s.space]:
                yield parts.buffer, parts.indices, self._box(parts.indices[0], parts.mask)

    def stores(self, statements: Iterable[Statement]) -> Iterator[tuple[str, object, _Box]]:
        """Likewise of every store; a reduction is stored once a point of the outer axes, also one of nothing."""
        for s in statements:
            for store in s.stores if self.points["x" if s.combine else s.space] else ():
                yield store.pointer, store.offset, self._affine(store.offset, None)
            parts = scatter_parts(s.body)
            if parts is not None and self.points[s.space]:
                yield parts.buffer, parts.indices, self._box(parts.indices[0], parts.mask)

    def bytes_of(self, accesses: Iterable[tuple[str, object, _Box]]) -> dict[str, int]:
        """Bytes touched, by pointer in order of first access."""
        found: dict[str, dict[object, _Box]] = {}
        for pointer, identity, box in accesses:
            found.setdefault(pointer, {})[identity] = box
        return {p: _union(list(boxes.values())) * self.itemsize[p] for p, boxes in found.items()}

    def _box(self, offset: Value, mask: Value | None) -> _Box:
        at = offset.attr[0] if offset.op == "index" else None
        return self._affine(at, mask) if isinstance(at, Expr) else self._computed(offset)

    def _affine(self, offset: Expr, mask: Value | None) -> _Box:
        offset = offset.subs(self.sizes)
        points = self._over(offset.symbols)
        spans = {a.text: self._span(sym_of(a)) for a in offset.atoms}
        _narrow(spans, mask, self.sizes)
        base, digits = 0, dict[int, int]()
        for monomial, factor in offset.terms:
            if len(monomial) > 1 or (monomial and monomial[0][1] > 1):
                return _between(self._span(offset), points)  # a product of axes
            lo, hi = spans[monomial[0][0].text] if monomial else (1, 1)
            if hi < lo:
                return _Box(0, (), 0)  # the mask is false everywhere
            base += min(factor * lo, factor * hi)
            digits[abs(factor)] = digits.get(abs(factor), 1) + hi - lo
        return _Box(base, tuple(sorted(((s, n) for s, n in digits.items() if n > 1), reverse=True)), points)  # fmt: skip

    def _computed(self, offset: Value) -> _Box:
        exprs = [v.attr[0] for v in walk(offset) if v.op in ("index", "bound")]
        points = self._over({n for e in exprs if isinstance(e, Expr) for n in e.symbols})
        span = self._value_span(offset)
        return _Box(0, None, points) if span is None else _between(span, points)

    def _value_span(self, value: Value) -> Span | None:
        """The ends of a computed offset, from the bounds of what was loaded; None when these are not known."""
        e = value.attr[0] if value.op in ("index", "bound") else None
        if isinstance(e, Expr):
            lo, hi = self._span(e.subs(self.sizes))
            return (lo, hi) if value.op == "index" else (0, hi - 1)
        spans = [self._value_span(a) for a in value.args]
        known = [s for s in spans if s is not None]
        if len(known) != len(spans):
            return None
        if value.op == "add":
            return sum(lo for lo, _ in known), sum(hi for _, hi in known)
        if value.op == "mul":
            ends = [a * b for a in known[0] for b in known[1]]
            return min(ends), max(ends)
        return known[0] if value.op == "cast" and value.dtype == "int64" else None

    def _over(self, symbols: Iterable[str]) -> int:
        """Points of the axes among ``symbols``."""
        return prod(self.axes[n] for n in symbols if n in self.axes)

    def _span(self, e: Expr) -> Span:
        lo, hi = bounds(e, self.ranges)
        assert lo is not None and hi is not None, f"{e} has no ends over axes of known extents"
        return lo, hi


def _between(span: Span, points: int) -> _Box:
    """Some points between two ends."""
    return _Box(span[0], ((1, span[1] - span[0] + 1),), points)


# -- masks: a op b says that a - b, or b - a when swapped, is at least 0, or 1 when strict
_AT_LEAST = {"ge": (False, 0), "gt": (False, 1), "le": (True, 0), "lt": (True, 1)}


def _narrow(spans: dict[str, Span], mask: Value | None, sizes: Sizes) -> None:
    """Cut the span of every digit that the mask compares with a number."""
    for v in () if mask is None else _conjuncts(mask):
        sides = [a.attr[0].subs(sizes) for a in v.args if a.op == "index" and isinstance(a.attr[0], Expr)]  # fmt: skip
        if v.op not in _AT_LEAST or len(sides) != 2:
            continue
        swapped, strict = _AT_LEAST[v.op]
        gap = (sides[1] - sides[0] if swapped else sides[0] - sides[1]) - strict
        parts = gap.linear(gap.atoms[0]) if len(gap.atoms) == 1 else None
        digit = gap.atoms[0].text if gap.atoms else ""
        if parts is None or digit not in spans or not (parts[0].is_const and parts[1].is_const):
            continue
        spans[digit] = _cut(spans[digit], parts[0].value, parts[1].value)


def _cut(span: Span, factor: int, rest: int) -> Span:
    """What of ``span`` gives factor*digit + rest >= 0."""
    lo, hi = span
    return (max(lo, -(rest // factor)), hi) if factor > 0 else (lo, min(hi, rest // -factor))


def _conjuncts(mask: Value) -> Iterator[Value]:
    if mask.op != "and":
        yield mask
        return
    for side in mask.args:
        yield from _conjuncts(side)
