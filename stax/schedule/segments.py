"""Into how many segments a long reduction is cut, and along which of its axes: arithmetic over sizes at capture, pure.

A work item is what one program instance reduces: a segment of one output where memory runs along the reduced axes, of
TILE neighbouring outputs where it runs along the outer ones. Too few outputs leave processors idle; then the reduced axes
are cut into as many segments as give WORK_ITEMS in all, none shorter than ITEM_POINTS elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stax.ir.expr import Expr, const, product
from stax.ir.program import Axis

PROCESSORS = 132
FEW_OUTPUTS = 2 * PROCESSORS  # from so many work items on, the device is full
WORK_ITEMS = 4096  # some dozens a processor: the last ones to end leave little idle
ITEM_POINTS = 8192  # elements of the shortest segment worth a partial result
TILE = 64  # outputs side by side that one program reads together
MIN_BYTES = 256 * 1024  # less is read sooner than a second kernel starts
# A row that is read again after its reduction could be one kernel: splitting it costs two more kernels and one more read.
FEW_ROWS_READ_AGAIN = 2 * PROCESSORS // 3
MIN_BYTES_READ_AGAIN = 16 << 20
# One processor moves some dozens of bytes a nanosecond: a work item of more takes longer than the launches of two kernels.
MAX_ITEM_BYTES_READ_AGAIN = 512 * 1024
ALIGNED = 16  # segments along contiguous memory begin at multiples of so many elements, or memory is read in small pieces
SYMBOLIC_EXCESS = 4  # so many times more and shorter segments rather than a mask, which only known sizes can do without
ROUNDED = 1024  # the length of segments that do not divide their axis


@dataclass(frozen=True)
class Reduction:
    """The sizes that decide: outer extents, reduced axes in memory order (outermost first), whether memory runs along the
    last of them, bytes read an element, whether the elements are read again once the reduction is known, and whether
    segments must follow one another, since a position is counted."""

    outputs: tuple[Expr, ...]
    over: tuple[Axis, ...]
    inner: bool
    element_bytes: int
    read_again: bool
    in_order: bool = False


@dataclass(frozen=True)
class Cut:
    """``over`` are the reduced axes outermost first. The first ``whole`` of them number segments; the next one, if
    ``length`` is given, is cut into pieces of ``length``, the last of which may stick out when ``masked``; when ``dealt``,
    the pieces take elements in turn instead of neighbours. The others are reduced inside a segment. ``inner``:
    partial results of one output lie side by side, else those of one segment."""

    over: tuple[Axis, ...]
    whole: int
    length: Expr | None
    masked: bool
    inner: bool
    dealt: bool = False


def cut(r: Reduction, hints: Mapping[str, int]) -> Cut | str:
    """The cut, or why there is none."""
    outputs = product(r.outputs).evaluate(hints)
    points = product(a.extent for a in r.over).evaluate(hints)
    items = outputs if r.inner else -(-outputs // TILE)
    reason = _objection(r, outputs * points * r.element_bytes, items)
    if reason:
        return reason
    shortest = ITEM_POINTS if r.inner else ITEM_POINTS // min(TILE, outputs)
    most = points // shortest
    if most < 2:
        return f"{points} elements an output are few"
    return _along(r, min(most, -(-WORK_ITEMS // items)), most, hints)


def _objection(r: Reduction, read_bytes: int, items: int) -> str:
    if read_bytes < MIN_BYTES:
        return f"reads {read_bytes} bytes only"
    if items >= FEW_OUTPUTS:
        return f"{items} work items fill the device"
    near = read_bytes < min(MIN_BYTES_READ_AGAIN, items * MAX_ITEM_BYTES_READ_AGAIN)
    if r.read_again and near:
        return f"the {read_bytes} bytes are read again: one kernel keeps them near"
    if r.read_again and items > FEW_ROWS_READ_AGAIN:
        return f"{items} work items that read their elements again nearly fill the device"
    return ""


def _along(r: Reduction, wanted: int, most: int, hints: Mapping[str, int]) -> Cut:
    """Whole axes from the outermost on while they are few enough; then part of the next, unless they are nearly enough."""
    done = 1
    for k, axis in enumerate(r.over):
        extent = axis.extent.evaluate(hints)
        if done > 1 and 2 * done >= wanted:
            return Cut(r.over, k, None, False, r.inner)
        missing = wanted // done
        near = 2 * missing if axis.extent.is_const else SYMBOLIC_EXCESS * missing
        room = most if axis.extent.is_const else SYMBOLIC_EXCESS * most
        if extent <= missing or (extent <= near and extent * done <= room):
            done *= extent
            continue
        length, masked = _length(axis, missing, r, hints)
        return Cut(r.over, k, length, masked, r.inner, _dealt(r, axis, masked, hints))
    raise AssertionError(f"{wanted} segments of fewer elements")


def _dealt(r: Reduction, axis: Axis, masked: bool, hints: Mapping[str, int]) -> bool:
    """Rows of few outputs: with each row in another segment, neighbouring rows are one contiguous read."""
    last = axis == r.over[-1] and not masked and not r.in_order
    return not r.inner and last and product(r.outputs).evaluate(hints) < TILE


def _length(axis: Axis, pieces: int, r: Reduction, hints: Mapping[str, int]) -> tuple[Expr, bool]:
    """(elements a piece, whether the last piece sticks out). Near enough divisors of a known extent leave no tail."""
    last = axis == r.over[-1] and r.inner
    if axis.extent.is_const:
        extent = axis.extent.value
        exact = _divisor(extent, pieces, ALIGNED if last else 1)
        if exact:
            return const(extent // exact), False
    length = -(-axis.extent.evaluate(hints) // pieces)
    if last:
        length = -(-length // ROUNDED) * ROUNDED
    return const(length), True


def _divisor(extent: int, wanted: int, aligned: int) -> int:
    """The divisor nearest to ``wanted``, at most twice or half of it, whose pieces are a multiple of ``aligned``; else 0."""
    for pieces in _around(wanted):
        if extent % pieces == 0 and extent // pieces % aligned == 0:
            return pieces
    return 0


def _around(wanted: int) -> Iterator[int]:
    """wanted, then ever farther from it, down to half and up to twice."""
    yield wanted
    for step in range(1, wanted + 1):
        if 2 * (wanted - step) >= wanted and wanted - step > 1:
            yield wanted - step
        yield wanted + step


def memory_order(over: Sequence[Axis], strides: Mapping[str, int]) -> tuple[Axis, ...]:
    """Reduced axes by falling stride, those of extent 1 first; as they are where a stride is unknown."""
    wide = [a for a in over if a.extent != 1]
    if any(a.name not in strides for a in wide):
        return tuple(over)
    unit = [a for a in over if a.extent == 1]
    return (*unit, *sorted(wide, key=lambda a: -abs(strides[a.name])))
