"""How many bytes a tensor spans, as an expression of its sizes."""

from __future__ import annotations

from collections.abc import Sequence

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const

# Where temps that share a piece of memory begin: what torch's allocator for CUDA rounds to, so that sharing wastes no
# more than tensors of their own.
ALIGNMENT = 512
# Products of longer sums than these are not multiplied out: the work would grow with the square of the text.
MAX_TERMS = 256


def extent_bytes(dtype: str, shape: Sequence[Expr], strides: Sequence[Expr]) -> Expr | None:
    """From the first byte of the first element to the last byte of the last; 0 where a size is a constant 0. None: too
    long an expression. Equal layouts give equal expressions, and those of a dense tensor are its number of elements."""
    if any(size.is_const and size.value == 0 for size in shape):
        return const(0)
    if sum(len(a.terms) * len(b.terms) for a, b in zip(shape, strides)) > MAX_TERMS:
        return None
    last = const(0)
    for size, stride in zip(shape, strides):
        last = last + (size - 1) * stride
    return (last + 1) * DTYPES[dtype].itemsize
