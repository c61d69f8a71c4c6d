"""Hand-made Kernels with inputs and a numpy reference each, shared by the tests of every emitter: the pointwise ones, and the
door to all of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stax.ir.kernel import Size
from stax.ir.value import Value, bound, cast, constant, index, load, local, scalar, where
from tests.kernel_making import (
    KS0,
    KS1,
    R0,
    R1,
    X0,
    X1,
    X2,
    Array,
    Buffers,
    KernelCase,
    Reference,
    at,
    f32,
    make,
    numpy_dtype,
    rounded,
    shaped,
    st,
)
from tests.reduction_kernels import (
    add_relu_sum,
    any_all,
    arg_extremes,
    dynamic,
    empty_sum,
    full_sum,
    layer_norm,
    outer_sum,
    softmax,
    two_reduced_axes,
)
from tests.scatter_kernels import scatter_add, scatter_cases

__all__ = [
    "KS0",
    "KS1",
    "R0",
    "R1",
    "X0",
    "X1",
    "X2",
    "Array",
    "Buffers",
    "KernelCase",
    "Reference",
    "Value",
    "add_broadcast",
    "add_relu_sum",
    "add_transposed",
    "any_all",
    "arg_extremes",
    "at",
    "cases",
    "dynamic",
    "dynamic_flat",
    "embedding",
    "empty_axis",
    "empty_sum",
    "f32",
    "full_sum",
    "halves",
    "horizontal",
    "in_place",
    "int64_ops",
    "layer_norm",
    "load",
    "local",
    "make",
    "numpy_dtype",
    "outer_sum",
    "padded",
    "permuted",
    "rounded",
    "scatter_add",
    "shaped",
    "softmax",
    "st",
    "two_reduced_axes",
]


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
            "out_ptr0": shaped(b, "in_ptr0", 30, 50)
            + shaped(b, "in_ptr1", 1, 50)
            + shaped(b, "in_ptr2", 30, 1)
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
        return {"out_ptr0": shaped(b, "in_ptr0", cols, rows).T + shaped(b, "in_ptr1", rows, cols)}

    n = rows * cols
    return KernelCase(
        "add_transposed", kernel, {"in_ptr0": n, "in_ptr1": n, "out_ptr0": n}, reference
    )


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
        return {"out_ptr0": np.pad(shaped(b, "in_ptr0", n), 2, constant_values=7)}

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
        return {"out_ptr0": shaped(b, "in_ptr1", 10, 16)[b["in_ptr0"].astype(np.int64)]}

    counts = {"in_ptr0": 40, "in_ptr1": 160, "out_ptr0": 640}
    return KernelCase("embedding", kernel, counts, reference, limits={"in_ptr0": (0, 10)})


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
        lambda b, env: {"out_ptr0": np.tanh(shaped(b, "in_ptr0", n))},
        {"ks0": n // 100, "ks1": 100},
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
        data = shaped(b, "in_ptr0", 777)
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
        return {"out_ptr0": np.exp(shaped(b, "in_ptr0", 20, 6, 7).transpose(1, 2, 0))}

    return KernelCase("permuted", kernel, {"in_ptr0": 840, "out_ptr0": 840}, reference)


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
        horizontal(), permuted(), outer_sum(), full_sum(), two_reduced_axes(), in_place(), *scatter_cases(),
    )  # fmt: skip
