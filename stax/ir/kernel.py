"""Kernel: one fused loop nest, ready to be printed by an emitter; canonical, so that equal work has equal kernels.

All names are canonical: parameters in_ptr0…, out_ptr0…; size symbols ks0…; axes x0… (outer first) and r0_0…; values v0….
"""

from __future__ import annotations

from dataclasses import dataclass

from stax.ir.expr import Expr, product
from stax.ir.program import Axis
from stax.ir.ranges import Range
from stax.ir.value import Value


@dataclass(frozen=True)
class Pointer:
    """A pointer parameter to ``dtype`` elements. ``kind``: "in", "out", "inout" (read and written at the same element), or
    "update" (it holds values before the kernel, which changes some by a scatter and reads none)."""

    name: str
    kind: str
    dtype: str


@dataclass(frozen=True)
class Size:
    """A size symbol used by the kernel, with its range; passed as an int64 parameter."""

    name: str
    lo: int
    hi: int | None
    hint: int


@dataclass(frozen=True)
class Store:
    """``pointer[offset] = the statement's value`` (cast to the pointer's dtype is already in the body); ``offset`` in
    elements, over the axes of the statement's space."""

    pointer: str
    offset: Expr


@dataclass(frozen=True)
class Statement:
    """``name`` = body at every point of ``space``, in program order.

    ``space`` "x": one value a point of the outer axes; "xr": one a point of (axes, reduce_axes). With ``combine``
    (space "xr") the result is the reduction of body over reduce_axes: one value a point of axes, usable by later
    statements as Value("local", name) in either space. A local of an "xr" statement without combine is usable only in
    "xr" statements, at the same point. A body that is a scatter, into an "update" pointer, has neither stores nor combine,
    and runs once at each point of ``space``; nothing uses its value. Loads and scatters are kernel-level: rank 1, offset
    in elements; attr[0] names a Pointer.
    """

    name: str
    space: str
    combine: str | None
    body: Value
    stores: tuple[Store, ...]

    @property
    def dtype(self) -> str:
        return "int64" if self.combine in ("argmax", "argmin") else self.body.dtype


@dataclass(frozen=True)
class Kernel:
    """``form``: "poi" (no reduce_axes), "per" (reduction held in registers) or "red" (looped). ``index_dtype`` "int32" when
    every offset and extent is proven below 2**31, else "int64". ``bounds_checked``: some statement holds a "bound" value.
    ``fused`` names the ATen operators, sorted, for the kernel's name. ``inner``: the reduction runs along contiguous memory."""

    form: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    pointers: tuple[Pointer, ...]
    sizes: tuple[Size, ...]
    statements: tuple[Statement, ...]
    index_dtype: str
    bounds_checked: bool
    fused: tuple[str, ...]
    inner: bool = True

    @property
    def xnumel(self) -> Expr:
        """Number of points of the outer axes."""
        return product(a.extent for a in self.axes)

    @property
    def rnumel(self) -> Expr:
        """Number of points of the reduced axes; 1 without any."""
        return product(a.extent for a in self.reduce_axes)

    @property
    def ranges(self) -> dict[str, Range]:
        """Ranges of the size symbols and of all axes."""
        found = {s.name: Range.of(s.lo, s.hi) for s in self.sizes}
        found.update({a.name: Range.axis(a.extent) for a in (*self.axes, *self.reduce_axes)})
        return found

    @property
    def hints(self) -> dict[str, int]:
        """Size symbols at their capture-time values."""
        return {s.name: s.hint for s in self.sizes}
