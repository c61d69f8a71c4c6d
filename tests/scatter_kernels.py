"""Hand-made Kernels that write at computed places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stax.ir.expr import sym
from stax.ir.kernel import Size
from stax.ir.value import Value, bound, constant, index, scalar, scatter
from tests.kernel_making import X0, X1, Array, Buffers, KernelCase, at, make, st

ROWS, COLUMNS = 10, 16


def scatter_add(dtype: str = "float32") -> KernelCase:
    """Rows added to the rows that an index names, but for those of index 3."""
    row = at("in_ptr0", X0, "int64")
    place = scalar("add", scalar("mul", bound(row, ROWS), index(COLUMNS)), index(X1))
    kept = scalar("ne", row, constant(3, "int64"))
    value = at("in_ptr1", X1 + X0 * COLUMNS, dtype)
    kernel = make(
        [st("v0", scatter("update_ptr0", value, [place], kept, "add"))],
        x=[40, COLUMNS],
        pointers=["in_ptr0:int64", f"in_ptr1:{dtype}", f"update_ptr0:{dtype}"],
        fused=["index_add"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        old, new = b["update_ptr0"].reshape(ROWS, COLUMNS), b["in_ptr1"].reshape(40, COLUMNS)
        return {"update_ptr0": _added(old, b["in_ptr0"], new).ravel()}

    counts = {"in_ptr0": 40, "in_ptr1": 40 * COLUMNS, "update_ptr0": ROWS * COLUMNS}
    return KernelCase(
        f"scatter_add_{dtype}", kernel, counts, reference, limits={"in_ptr0": (0, ROWS)}
    )


def _added(old: Array, rows: Array, new: Array) -> Array:
    total = old.astype(np.float64 if old.dtype.kind == "f" else np.int64)
    kept = rows != 3
    np.add.at(total, rows[kept].astype(np.int64), new[kept])
    return total.astype(old.dtype)


def scatter_set(count: int = 100) -> KernelCase:
    """Every second element to a place of its own, and what was written to another tensor too."""
    size = Size("ks0", 2, 10_000, count)
    spread = scalar("remainder", scalar("mul", index(X0), constant(7, "int64")), index(sym("ks0")))
    value = scalar("mul", at("in_ptr0", X0), constant(2.0, "float32"))
    even = scalar("eq", scalar("remainder", index(X0), constant(2, "int64")), constant(0, "int64"))
    kernel = make(
        [
            st("v0", value, ("out_ptr0", X0)),
            st("v1", scatter("update_ptr1", value, [spread], even)),
        ],
        x=[sym("ks0")],
        pointers=["in_ptr0:float32", "out_ptr0:float32", "update_ptr1:float32"],
        sizes=[size],
        fused=["index_put"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        doubled = np.multiply(b["in_ptr0"], np.float32(2))
        after = b["update_ptr1"].copy()
        points = np.arange(0, count, 2)
        after[points * 7 % count] = doubled[points]
        return {"out_ptr0": doubled, "update_ptr1": after}

    counts = {"in_ptr0": count, "out_ptr0": count, "update_ptr1": count}
    return KernelCase("scatter_set", kernel, counts, reference, env={"ks0": count})


def scatter_one() -> KernelCase:
    """A kernel of one point."""
    place: Value = bound(at("in_ptr0", 0, "int64"), 5)
    kernel = make(
        [st("v0", scatter("update_ptr0", constant(2.0, "float32"), [place], mode="add"))],
        pointers=["in_ptr0:int64", "update_ptr0:float32"],
        fused=["index_add"],
    )

    def reference(b: Buffers, env: Mapping[str, int]) -> Buffers:
        after = b["update_ptr0"].copy()
        after[int(b["in_ptr0"][0])] += np.float32(2)
        return {"update_ptr0": after}

    counts = {"in_ptr0": 1, "update_ptr0": 5}
    return KernelCase("scatter_one", kernel, counts, reference, limits={"in_ptr0": (0, 5)})


def scatter_cases() -> tuple[KernelCase, ...]:
    return (
        *(scatter_add(d) for d in ("float32", "float64", "int32", "int64")),
        scatter_set(),
        scatter_one(),
    )
