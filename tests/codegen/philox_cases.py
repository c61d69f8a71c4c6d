"""What the tests of every emitter of random words share: one kernel over keys and positions given as data."""

from __future__ import annotations

import numpy as np

from stax.ir.kernel import Kernel
from stax.ir.value import scalar
from tests.kernel_making import X0, Array, at, make, st

COUNT = 4096


def words_kernel() -> Kernel:
    """random32 and random64 of every (key, position)."""
    args = at("in_ptr0", X0, "int64"), at("in_ptr1", X0, "int64")
    statements = [
        st("v0", scalar("random32", *args), ("out_ptr0", X0)),
        st("v1", scalar("random64", *args), ("out_ptr1", X0)),
    ]
    pointers = [f"{name}:int64" for name in ("in_ptr0", "in_ptr1", "out_ptr0", "out_ptr1")]
    return make(statements, x=[COUNT], pointers=pointers)


def keys_and_positions() -> tuple[Array, Array]:
    """Of all sizes and signs, neighbours among them."""
    rng = np.random.default_rng(3)
    wide = rng.integers(-(2**63), 2**63 - 1, (2, COUNT), dtype=np.int64)
    keys, positions = wide >> rng.integers(0, 63, (2, COUNT))
    positions[:512] = np.arange(512) + (1 << 33) - 256
    keys[:512] = 7
    return keys, positions
