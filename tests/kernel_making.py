"""What hand-made Kernels are built with: a case with its inputs and reference, and short forms of the constructors.

Buffers are flat numpy arrays by pointer name. numpy has no bfloat16 or float8: such a buffer is a float32 array whose
values are already rounded to the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const, sym
from stax.ir.kernel import Kernel, Pointer, Size, Statement, Store
from stax.ir.program import Axis
from stax.ir.value import Value, constant, load, walk

Array = npt.NDArray[np.generic]
Buffers = dict[str, Array]
Reference = Callable[[Buffers, Mapping[str, int]], Buffers]

X0, X1, X2, R0, R1, KS0, KS1 = (sym(n) for n in ("x0", "x1", "x2", "r0_0", "r0_1", "ks0", "ks1"))


@dataclass(frozen=True)
class KernelCase:
    """A kernel, the values of its sizes, the elements of each buffer, and for integer inputs the range they are drawn
    from. ``reference`` gives every buffer that the kernel writes, or is None when only the interpreter knows."""

    name: str
    kernel: Kernel
    elements: Mapping[str, int]
    reference: Reference | None
    env: Mapping[str, int] = field(default_factory=dict[str, int])
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    special: bool = False

    def inputs(self, seed: int = 0) -> Buffers:
        """Fresh random buffers for every pointer; outputs are filled with a mark that a kernel must overwrite.
        With ``special`` some floats are NaN or infinite."""
        rng = np.random.default_rng(seed)
        return {p.name: self._buffer(p, rng) for p in self.kernel.pointers}

    def _buffer(self, pointer: Pointer, rng: np.random.Generator) -> Array:
        count = self.elements[pointer.name]
        kind = DTYPES[pointer.dtype].kind
        if pointer.kind == "out":
            return np.full(count, 77).astype(numpy_dtype(pointer.dtype))
        if kind == "bool":
            return rng.integers(0, 2, count).astype(np.bool_)
        if kind in ("int", "uint"):
            lo, hi = self.limits.get(pointer.name, (0 if kind == "uint" else -100, 100))
            return rng.integers(lo, hi, count).astype(numpy_dtype(pointer.dtype))
        data = rng.standard_normal(count)
        if self.special and count > 8:
            where_ = rng.integers(0, count, 4)
            data[where_] = [np.nan, np.inf, -np.inf, np.nan]
        return rounded(data, pointer.dtype)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype that holds a buffer of torch dtype ``name``."""
    return np.dtype(
        {"bfloat16": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}.get(
            name, name
        )
    )


def rounded(data: Array, dtype: str) -> Array:
    """Values as a buffer of ``dtype`` holds them; bfloat16 rounds to nearest even."""
    if dtype != "bfloat16":
        return data.astype(numpy_dtype(dtype))
    single = np.ascontiguousarray(data, dtype=np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    even = (
        (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    ).astype(np.uint32)
    return np.where(np.isnan(single), single, even.view(np.float32))


def make(
    statements: Sequence[Statement],
    *,
    x: Sequence[Expr | int] = (),
    r: Sequence[Expr | int] = (),
    pointers: Sequence[str],
    sizes: Sequence[Size] = (),
    form: str = "poi",
    fused: Sequence[str] = ("add",),
    inner: bool = True,
    index_dtype: str = "int32",
) -> Kernel:
    """A Kernel; each pointer is written "in_ptr0:float32", and its kind follows from its name."""
    declared = []
    for text in pointers:
        name, dtype = text.split(":")
        declared.append(
            Pointer(name, "inout" if name.startswith("inout") else name.split("_")[0], dtype)
        )
    return Kernel(
        form=form,
        axes=tuple(Axis(f"x{i}", const(e)) for i, e in enumerate(x)),
        reduce_axes=tuple(Axis(f"r0_{i}", const(e)) for i, e in enumerate(r)),
        pointers=tuple(declared),
        sizes=tuple(sizes),
        statements=tuple(statements),
        index_dtype=index_dtype,
        bounds_checked=any(v.op == "bound" for s in statements for v in walk(s.body)),
        fused=tuple(sorted(fused)),
        inner=inner,
    )


def st(
    name: str,
    body: Value,
    *stores: tuple[str, Expr | int],
    space: str = "x",
    combine: str | None = None,
) -> Statement:
    return Statement(name, space, combine, body, tuple(Store(p, const(o)) for p, o in stores))


def at(
    pointer: str,
    offset: Expr | int | Value,
    dtype: str = "float32",
    mask: Value | None = None,
    other: float = 0,
) -> Value:
    return load(pointer, dtype, (offset,), mask, other)


def f32(number: float) -> Value:
    return constant(number, "float32")


def shaped(buffers: Buffers, name: str, *shape: int) -> Array:
    """A buffer as float64 in its logical shape."""
    return buffers[name].astype(np.float64).reshape(shape)
