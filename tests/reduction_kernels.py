"""Hand-made kernels that reduce, see tests/kernels.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stax.ir.kernel import Size
from stax.ir.value import cast, index, local, scalar
from tests.kernel_making import (
    KS0,
    KS1,
    R0,
    R1,
    X0,
    Buffers,
    KernelCase,
    at,
    f32,
    make,
    shaped,
    st,
)


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
        total = (
            np.maximum(shaped(b, "in_ptr0", rows, cols) + shaped(b, "in_ptr1", rows, cols), 0) * 2
        )
        return {"out_ptr0": total.sum(1)}

    n = rows * cols
    return KernelCase(
        f"add_relu_sum_{cols}", kernel, {"in_ptr0": n, "in_ptr1": n, "out_ptr0": rows}, reference
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
        data = shaped(b, "in_ptr0", rows, cols)
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
        data = shaped(b, "in_ptr0", rows, cols)
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
        data = shaped(b, "in_ptr0", env["ks0"], env["ks1"])
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
        return {"out_ptr0": shaped(b, "in_ptr0", rows, cols).sum(0)}

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
            "out_ptr0": shaped(b, "in_ptr0", n).sum(keepdims=True),
            "out_ptr1": shaped(b, "in_ptr0", n).max(keepdims=True),
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
        return {"out_ptr0": shaped(b, "in_ptr0", 11, 9, 30).sum((0, 2))}

    return KernelCase("two_reduced_axes", kernel, {"in_ptr0": 2970, "out_ptr0": 9}, reference)
