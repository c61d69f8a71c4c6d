"""Hand-made Kernels with inputs and a numpy reference each, shared by the tests of every emitter.

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
from stax.ir.value import Value, bound, cast, constant, index, load, local, scalar, walk, where

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


# -- building


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


def _np(buffers: Buffers, name: str, *shape: int) -> Array:
    return buffers[name].astype(np.float64).reshape(shape)


# -- the kernels


def add_relu_sum(rows: int = 64, cols: int = 128) -> KernelCase:
    offset = R0 + X0 * cols
    body = scalar(
        "mul",
        scalar("maximum", scalar("add", at("in_ptr0", offset), at("in_ptr1", offset)), f32(0)),
        f32(2),
    )
    kernel = make(
        [st("v0", body, ("out_ptr0", X0), space="xr", combine="sum")],
        x=[rows],
        r=[cols],
        pointers=["in_ptr0:float32", "in_ptr1:float32", "out_ptr0:float32"],
        form="per" if cols <= 1024 else "red",
        fused=["add", "relu", "mul", "sum"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        total = np.maximum(_np(b, "in_ptr0", rows, cols) + _np(b, "in_ptr1", rows, cols), 0) * 2
        return {"out_ptr0": total.sum(1)}

    n = rows * cols
    return KernelCase(
        f"add_relu_sum_{cols}", kernel, {"in_ptr0": n, "in_ptr1": n, "out_ptr0": rows}, reference
    )


def add_broadcast() -> KernelCase:
    body = scalar(
        "add", scalar("add", at("in_ptr0", X1 + X0 * 50), at("in_ptr1", X1)), at("in_ptr2", X0)
    )
    kernel = make(
        [st("v0", body, ("out_ptr0", X1 + X0 * 50))],
        x=[30, 50],
        pointers=["in_ptr0:float32", "in_ptr1:float32", "in_ptr2:float32", "out_ptr0:float32"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {
            "out_ptr0": _np(b, "in_ptr0", 30, 50)
            + _np(b, "in_ptr1", 1, 50)
            + _np(b, "in_ptr2", 30, 1)
        }

    return KernelCase(
        "add_broadcast",
        kernel,
        {"in_ptr0": 1500, "in_ptr1": 50, "in_ptr2": 30, "out_ptr0": 1500},
        reference,
    )


def add_transposed(rows: int = 256, cols: int = 512) -> KernelCase:
    body = scalar("add", at("in_ptr0", X0 + X1 * rows), at("in_ptr1", X1 + X0 * cols))
    kernel = make(
        [st("v0", body, ("out_ptr0", X1 + X0 * cols))],
        x=[rows, cols],
        pointers=["in_ptr0:float32", "in_ptr1:float32", "out_ptr0:float32"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": _np(b, "in_ptr0", cols, rows).T + _np(b, "in_ptr1", rows, cols)}

    n = rows * cols
    return KernelCase(
        "add_transposed", kernel, {"in_ptr0": n, "in_ptr1": n, "out_ptr0": n}, reference
    )


def softmax(rows: int = 37, cols: int = 1000) -> KernelCase:
    """All of softmax in one kernel, with its maximum and its exponentials stored too."""
    offset = R0 + X0 * cols
    x = at("in_ptr0", offset)
    m, e, total = local("v0", "float32"), local("v1", "float32"), local("v2", "float32")
    kernel = make(
        [
            st("v0", x, ("out_ptr0", X0), space="xr", combine="max"),
            st("v1", scalar("exp", scalar("sub", x, m)), ("out_ptr1", offset), space="xr"),
            st("v2", e, space="xr", combine="sum"),
            st("v3", scalar("truediv", e, total), ("out_ptr2", offset), space="xr"),
        ],
        x=[rows],
        r=[cols],
        pointers=["in_ptr0:float32", "out_ptr0:float32", "out_ptr1:float32", "out_ptr2:float32"],
        form="per" if cols <= 1024 else "red",
        fused=["_softmax"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = _np(b, "in_ptr0", rows, cols)
        top = data.max(1, keepdims=True)
        exp = np.exp(data - top)
        return {"out_ptr0": top, "out_ptr1": exp, "out_ptr2": exp / exp.sum(1, keepdims=True)}

    n = rows * cols
    return KernelCase(
        "softmax", kernel, {"in_ptr0": n, "out_ptr0": rows, "out_ptr1": n, "out_ptr2": n}, reference
    )


def layer_norm(rows: int = 24, cols: int = 768) -> KernelCase:
    """Statements in both spaces: the mean and the scale are computed once a row."""
    offset = R0 + X0 * cols
    mean, scale = local("v1", "float32"), local("v4", "float32")
    centred = scalar("sub", at("in_ptr0", offset), mean)
    variance = scalar("truediv", local("v3", "float32"), f32(cols))
    kernel = make(
        [
            st("v0", at("in_ptr0", offset), space="xr", combine="sum"),
            st("v1", scalar("truediv", local("v0", "float32"), f32(cols)), ("out_ptr0", X0)),
            st("v2", scalar("mul", centred, centred), space="xr"),
            st("v3", local("v2", "float32"), space="xr", combine="sum"),
            st("v4", scalar("rsqrt", scalar("add", variance, f32(1e-5))), ("out_ptr1", X0)),
            st(
                "v5",
                scalar(
                    "add",
                    scalar("mul", scalar("mul", centred, scale), at("in_ptr1", R0)),
                    at("in_ptr2", R0),
                ),
                ("out_ptr2", offset),
                space="xr",
            ),
        ],
        x=[rows],
        r=[cols],
        form="per",
        fused=["native_layer_norm"],
        pointers=[
            f"{p}:float32"
            for p in ("in_ptr0", "in_ptr1", "in_ptr2", "out_ptr0", "out_ptr1", "out_ptr2")
        ],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = _np(b, "in_ptr0", rows, cols)
        mu = data.mean(1, keepdims=True)
        inv = 1 / np.sqrt(data.var(1, keepdims=True) + 1e-5)
        return {
            "out_ptr0": mu,
            "out_ptr1": inv,
            "out_ptr2": (data - mu) * inv * b["in_ptr1"] + b["in_ptr2"],
        }

    n = rows * cols
    counts = {
        "in_ptr0": n,
        "in_ptr1": cols,
        "in_ptr2": cols,
        "out_ptr0": rows,
        "out_ptr1": rows,
        "out_ptr2": n,
    }
    return KernelCase("layer_norm", kernel, counts, reference)


def padded(n: int = 100) -> KernelCase:
    """Masked loads: the input lies in the middle of the output."""
    inside = scalar("and", scalar("ge", index(X0), index(2)), scalar("lt", index(X0), index(n + 2)))
    kernel = make(
        [st("v0", at("in_ptr0", X0 - 2, mask=inside, other=7), ("out_ptr0", X0))],
        x=[n + 4],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        fused=["constant_pad_nd"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": np.pad(_np(b, "in_ptr0", n), 2, constant_values=7)}

    return KernelCase(f"padded_{n}", kernel, {"in_ptr0": n, "out_ptr0": n + 4}, reference)


def embedding() -> KernelCase:
    """Indirect loads with a bound."""
    row = bound(at("in_ptr0", X0, "int64"), 10)
    offset = scalar("add", scalar("mul", row, index(16)), index(X1))
    kernel = make(
        [st("v0", at("in_ptr1", offset), ("out_ptr0", X1 + X0 * 16))],
        x=[40, 16],
        pointers=["in_ptr0:int64", "in_ptr1:float32", "out_ptr0:float32"],
        fused=["embedding"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": _np(b, "in_ptr1", 10, 16)[b["in_ptr0"].astype(np.int64)]}

    counts = {"in_ptr0": 40, "in_ptr1": 160, "out_ptr0": 640}
    return KernelCase("embedding", kernel, counts, reference, limits={"in_ptr0": (0, 10)})


def arg_extremes(dtype: str = "float32", special: bool = False) -> KernelCase:
    x = at("in_ptr0", R0 + X0 * 100, dtype)
    kernel = make(
        [
            st("v0", x, ("out_ptr0", X0), space="xr", combine="argmax"),
            st("v1", x, ("out_ptr1", X0), space="xr", combine="argmin"),
            st("v2", x, ("out_ptr2", X0), space="xr", combine="max"),
            st("v3", x, ("out_ptr3", X0), space="xr", combine="min"),
        ],
        x=[20],
        r=[100],
        form="per",
        fused=["argmax", "argmin", "amax", "amin"],
        pointers=[
            f"in_ptr0:{dtype}",
            "out_ptr0:int64",
            "out_ptr1:int64",
            f"out_ptr2:{dtype}",
            f"out_ptr3:{dtype}",
        ],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = b["in_ptr0"].reshape(20, 100)
        return {
            "out_ptr0": data.argmax(1),
            "out_ptr1": data.argmin(1),
            "out_ptr2": data.max(1),
            "out_ptr3": data.min(1),
        }

    counts = {"in_ptr0": 2000, "out_ptr0": 20, "out_ptr1": 20, "out_ptr2": 20, "out_ptr3": 20}
    lo, hi = (0, 9) if dtype == "uint8" else (-9, 9)
    tail = "_special" if special else ""
    return KernelCase(
        f"arg_{dtype}{tail}",
        kernel,
        counts,
        reference,
        limits={"in_ptr0": (lo, hi)},
        special=special,
    )


def any_all() -> KernelCase:
    x = scalar("gt", at("in_ptr0", R0 + X0 * 7), f32(0))
    kernel = make(
        [
            st("v0", x, ("out_ptr0", X0), space="xr", combine="any"),
            st("v1", x, ("out_ptr1", X0), space="xr", combine="all"),
            st("v2", scalar("xor", local("v0", "bool"), local("v1", "bool")), ("out_ptr2", X0)),
        ],
        x=[90],
        r=[7],
        form="per",
        fused=["any", "all"],
        pointers=["in_ptr0:float32", "out_ptr0:bool", "out_ptr1:bool", "out_ptr2:bool"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = b["in_ptr0"].reshape(90, 7) > 0
        return {
            "out_ptr0": data.any(1),
            "out_ptr1": data.all(1),
            "out_ptr2": data.any(1) ^ data.all(1),
        }

    return KernelCase(
        "any_all",
        kernel,
        {"in_ptr0": 630, "out_ptr0": 90, "out_ptr1": 90, "out_ptr2": 90},
        reference,
    )


def halves() -> KernelCase:
    """bfloat16 and float16 in, computed in float32, both out."""
    a, b = (
        cast(at("in_ptr0", X0, "bfloat16"), "float32"),
        cast(at("in_ptr1", X0, "float16"), "float32"),
    )
    kernel = make(
        [
            st("v0", cast(scalar("mul", a, b), "bfloat16"), ("out_ptr0", X0)),
            st("v1", cast(scalar("add", a, b), "float16"), ("out_ptr1", X0)),
        ],
        x=[999],
        pointers=["in_ptr0:bfloat16", "in_ptr1:float16", "out_ptr0:bfloat16", "out_ptr1:float16"],
        fused=["mul", "add"],
    )

    def reference(buffers: Buffers, env: Mapping[str, int]) -> Buffers:
        p, q = buffers["in_ptr0"].astype(np.float32), buffers["in_ptr1"].astype(np.float32)
        return {"out_ptr0": rounded(p * q, "bfloat16"), "out_ptr1": rounded(p + q, "float16")}

    return KernelCase(
        "halves", kernel, {p.name: 999 for p in kernel.pointers}, reference, special=True
    )


def int64_ops() -> KernelCase:
    a, b = at("in_ptr0", X0, "int64"), at("in_ptr1", X0, "int64")
    nonzero = where(scalar("eq", b, constant(0, "int64")), constant(3, "int64"), b)
    kernel = make(
        [
            st("v0", scalar("floordiv", a, nonzero), ("out_ptr0", X0)),
            st("v1", scalar("remainder", a, nonzero), ("out_ptr1", X0)),
            st("v2", scalar("rshift", a, constant(2, "int64")), ("out_ptr2", X0)),
            st("v3", scalar("fmod", a, nonzero), ("out_ptr3", X0)),
        ],
        x=[200],
        pointers=["in_ptr0:int64", "in_ptr1:int64", *(f"out_ptr{i}:int64" for i in range(4))],
        fused=["div", "remainder", "bitwise_right_shift", "fmod"],
        index_dtype="int64",
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        p, q = b["in_ptr0"].astype(np.int64), b["in_ptr1"].astype(np.int64)
        q = np.where(q == 0, 3, q)
        return {
            "out_ptr0": p // q,
            "out_ptr1": p % q,
            "out_ptr2": p >> 2,
            "out_ptr3": np.fmod(p, q),
        }

    return KernelCase("int64_ops", kernel, {p.name: 200 for p in kernel.pointers}, reference)


def dynamic(rows: int = 13, cols: int = 70) -> KernelCase:
    """Symbolic extents in both spaces: each row less its mean."""
    offset = R0 + X0 * KS1
    count = cast(index(KS1), "float32")
    kernel = make(
        [
            st("v0", at("in_ptr0", offset), space="xr", combine="sum"),
            st("v1", scalar("truediv", local("v0", "float32"), count), ("out_ptr0", X0)),
            st(
                "v2",
                scalar("sub", at("in_ptr0", offset), local("v1", "float32")),
                ("out_ptr1", offset),
                space="xr",
            ),
        ],
        x=[KS0],
        r=[KS1],
        sizes=[Size("ks0", 0, None, 13), Size("ks1", 0, None, 70)],
        form="red",
        index_dtype="int64",
        pointers=["in_ptr0:float32", "out_ptr0:float32", "out_ptr1:float32"],
        fused=["mean", "sub"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = _np(b, "in_ptr0", env["ks0"], env["ks1"])
        mean = (
            data.sum(1, keepdims=True) / np.float64(max(env["ks1"], 1))
            if env["ks1"]
            else np.full((env["ks0"], 1), np.nan)
        )
        return {"out_ptr0": mean, "out_ptr1": data - mean}

    n = rows * cols
    env = {"ks0": rows, "ks1": cols}
    return KernelCase(
        f"dynamic_{rows}_{cols}",
        kernel,
        {"in_ptr0": n, "out_ptr0": rows, "out_ptr1": n},
        reference,
        env,
    )


def dynamic_flat(n: int = 1000) -> KernelCase:
    kernel = make(
        [st("v0", scalar("tanh", at("in_ptr0", X0)), ("out_ptr0", X0))],
        x=[KS0 * KS1],
        sizes=[Size("ks0", 2, None, 10), Size("ks1", 2, 4096, 100)],
        index_dtype="int64",
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        fused=["tanh"],
    )
    counts = {"in_ptr0": n, "out_ptr0": n}
    return KernelCase(
        "dynamic_flat",
        kernel,
        counts,
        lambda b, env: {"out_ptr0": np.tanh(_np(b, "in_ptr0", n))},
        {"ks0": n // 100, "ks1": 100},
    )


def empty_sum() -> KernelCase:
    """A reduction over no elements gives the identity; an empty axis runs nothing."""
    kernel = make(
        [
            st("v0", at("in_ptr0", R0 + X0), ("out_ptr0", X0), space="xr", combine="sum"),
            st("v1", at("in_ptr0", R0 + X0), ("out_ptr1", X0), space="xr", combine="prod"),
        ],
        x=[5],
        r=[0],
        form="per",
        fused=["sum", "prod"],
        pointers=["in_ptr0:float32", "out_ptr0:float32", "out_ptr1:float32"],
    )
    counts = {"in_ptr0": 0, "out_ptr0": 5, "out_ptr1": 5}
    return KernelCase(
        "empty_sum",
        kernel,
        counts,
        lambda b, env: {"out_ptr0": np.zeros(5), "out_ptr1": np.ones(5)},
    )


def empty_axis() -> KernelCase:
    kernel = make(
        [st("v0", at("in_ptr0", X1 + X0 * 8), ("out_ptr0", X1 + X0 * 8))],
        x=[0, 8],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        fused=["clone"],
    )
    return KernelCase(
        "empty_axis",
        kernel,
        {"in_ptr0": 0, "out_ptr0": 0},
        lambda b, env: {"out_ptr0": np.zeros(0)},
    )


def horizontal() -> KernelCase:
    """Two independent results of one input, and a third of both."""
    x = at("in_ptr0", X0)
    a, b = local("v0", "float32"), local("v1", "float32")
    kernel = make(
        [
            st("v0", scalar("sin", x), ("out_ptr0", X0)),
            st("v1", scalar("cos", x), ("out_ptr1", X0)),
            st("v2", scalar("add", scalar("mul", a, a), scalar("mul", b, b)), ("out_ptr2", X0)),
        ],
        x=[777],
        pointers=["in_ptr0:float32", "out_ptr0:float32", "out_ptr1:float32", "out_ptr2:float32"],
        fused=["sin", "cos", "mul", "add"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        data = _np(b, "in_ptr0", 777)
        return {"out_ptr0": np.sin(data), "out_ptr1": np.cos(data), "out_ptr2": np.ones(777)}

    return KernelCase("horizontal", kernel, {p.name: 777 for p in kernel.pointers}, reference)


def permuted() -> KernelCase:
    """out[i, j, k] = exp(in[k, i, j]) for shapes (6, 7, 20)."""
    kernel = make(
        [
            st(
                "v0",
                scalar("exp", at("in_ptr0", X2 * 42 + X0 * 7 + X1)),
                ("out_ptr0", X2 + X1 * 20 + X0 * 140),
            )
        ],
        x=[6, 7, 20],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
        fused=["permute", "exp"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": np.exp(_np(b, "in_ptr0", 20, 6, 7).transpose(1, 2, 0))}

    return KernelCase("permuted", kernel, {"in_ptr0": 840, "out_ptr0": 840}, reference)


def outer_sum(rows: int = 300, cols: int = 90) -> KernelCase:
    """A reduction over the slow axis: out[j] = sum of in[i, j] over i."""
    kernel = make(
        [st("v0", at("in_ptr0", X0 + R0 * cols), ("out_ptr0", X0), space="xr", combine="sum")],
        x=[cols],
        r=[rows],
        form="red",
        inner=False,
        fused=["sum"],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": _np(b, "in_ptr0", rows, cols).sum(0)}

    return KernelCase("outer_sum", kernel, {"in_ptr0": rows * cols, "out_ptr0": cols}, reference)


def full_sum(n: int = 100_003) -> KernelCase:
    kernel = make(
        [
            st("v0", at("in_ptr0", R0), ("out_ptr0", 0), space="xr", combine="sum"),
            st("v1", at("in_ptr0", R0), ("out_ptr1", 0), space="xr", combine="max"),
        ],
        r=[n],
        form="red",
        fused=["sum", "amax"],
        pointers=["in_ptr0:float32", "out_ptr0:float32", "out_ptr1:float32"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {
            "out_ptr0": _np(b, "in_ptr0", n).sum(keepdims=True),
            "out_ptr1": _np(b, "in_ptr0", n).max(keepdims=True),
        }

    return KernelCase("full_sum", kernel, {"in_ptr0": n, "out_ptr0": 1, "out_ptr1": 1}, reference)


def two_reduced_axes() -> KernelCase:
    """A sum over the first and last of three axes, as in a bias gradient."""
    kernel = make(
        [
            st(
                "v0",
                at("in_ptr0", R1 + X0 * 30 + R0 * 270),
                ("out_ptr0", X0),
                space="xr",
                combine="sum",
            )
        ],
        x=[9],
        r=[11, 30],
        form="per",
        fused=["sum"],
        pointers=["in_ptr0:float32", "out_ptr0:float32"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        return {"out_ptr0": _np(b, "in_ptr0", 11, 9, 30).sum((0, 2))}

    return KernelCase("two_reduced_axes", kernel, {"in_ptr0": 2970, "out_ptr0": 9}, reference)


def in_place() -> KernelCase:
    kernel = make(
        [st("v0", scalar("mul", at("inout_ptr0", X0), f32(3)), ("inout_ptr0", X0))],
        x=[100],
        pointers=["inout_ptr0:float32"],
        fused=["mul"],
    )
    return KernelCase(
        "in_place",
        kernel,
        {"inout_ptr0": 100},
        lambda b, env: {"inout_ptr0": b["inout_ptr0"] * np.float32(3)},
    )


def cases() -> tuple[KernelCase, ...]:
    """Every hand-made case, small enough to run in an interpreter."""
    return (
        add_relu_sum(), add_relu_sum(5, 3000), add_broadcast(), add_transposed(40, 33), softmax(), layer_norm(), padded(), padded(0),
        embedding(), arg_extremes(), arg_extremes("float32", True), arg_extremes("uint8"), arg_extremes("int8"), arg_extremes("int64"),
        any_all(), halves(), int64_ops(), dynamic(), dynamic(0, 5), dynamic(5, 0), dynamic_flat(), empty_sum(), empty_axis(),
        horizontal(), permuted(), outer_sum(), full_sum(), two_reduced_axes(), in_place(),
    )  # fmt: skip
