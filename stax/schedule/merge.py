"""What a segment's results contribute to those of the whole, where the whole is shifted otherwise than the segment was."""

from __future__ import annotations

from stax.ir.value import Value, constant, scalar, where


def powers(top: Value, summed: Value, shift: Value) -> Value:
    """The segment's sum of exp(y - shift), from its maximum ``top`` and ``summed``, its sum of exp(y - top).

    Where top is infinite, summed is NaN although y - shift may be a number: then exp(top - shift) is what counts, 0 for a
    segment of -inf alone in a finite row. It is NaN where shift is the same infinity, as eager has it.
    """
    share = where(scalar("isinf", top), constant(1, top.dtype), summed)
    return scalar("mul", share, scalar("exp", scalar("sub", top, shift)))


def squares(count: Value, mean: Value, centred: Value, shift: Value) -> Value:
    """The segment's sum of (y - shift)**2, from its number of elements, their mean, and ``centred``, the sum of
    (y - mean)**2 (Chan, Golub and LeVeque)."""
    off = scalar("sub", mean, shift)
    return scalar("add", centred, scalar("mul", count, scalar("mul", off, off)))
