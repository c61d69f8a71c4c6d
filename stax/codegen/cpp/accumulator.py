"""Accumulators: how a reduction is held in lanes, updated, folded to one value and merged between parts.

Lanes make a reduction vectorise without reordering by the compiler: lane l takes every L-th element, so the order of
additions is the same on every machine. Long float sums are flushed from their lanes into a wider total, which bounds
the rounding error whatever the length.
"""

from __future__ import annotations

from dataclasses import dataclass

from stax.codegen.cpp.types import literal, value_type, wrapping_type
from stax.ir.dtypes import DTYPES

_EXTREMES = {"max": "max", "min": "min", "argmax": "max", "argmin": "min"}
# Combines of bools, and what each number combine is on them.
_LOGIC = {"any": "|", "all": "&", "sum": "|", "prod": "&", "max": "|", "min": "&"}


@dataclass(frozen=True)
class Accumulator:
    """The reduction ``name`` of a body of ``dtype``."""

    name: str
    combine: str
    dtype: str

    @property
    def is_arg(self) -> bool:
        return self.combine in ("argmax", "argmin")

    @property
    def is_bool(self) -> bool:
        return self.dtype == "bool" and not self.is_arg

    @property
    def is_float_sum(self) -> bool:
        return self.combine == "sum" and DTYPES[self.dtype].is_float

    @property
    def lane_type(self) -> str:
        """The C++ type of a lane: unsigned where integers wrap."""
        if DTYPES[self.dtype].is_integral and self.combine in ("sum", "prod"):
            return wrapping_type(self.dtype)
        return "uint8_t" if self.dtype == "bool" else value_type(self.dtype)

    @property
    def wide_type(self) -> str:
        """The C++ type of a total over flushed lanes and over parts."""
        if self.is_float_sum:
            return "long double" if self.dtype == "float64" else "double"
        return self.lane_type

    @property
    def result_type(self) -> str:
        return "int64_t" if self.is_arg else value_type(self.dtype)

    @property
    def identity(self) -> str:
        if self.is_bool:
            return "1" if _LOGIC[self.combine] == "&" else "0"
        if self.combine == "sum":
            return "0"
        if self.combine == "prod":
            return "1"
        return _end(self.dtype, lowest=_EXTREMES[self.combine] == "max")

    def merged(self, a: str, b: str) -> str:
        """The combination of two lanes or totals; not for argmax and argmin."""
        if self.is_bool:
            return f"{a} {_LOGIC[self.combine]} {b}"
        if self.combine in ("sum", "prod"):
            return f"{a} {'+' if self.combine == 'sum' else '*'} {b}"
        extreme = _EXTREMES[self.combine]
        if DTYPES[self.dtype].is_float:
            return f"stax_{extreme}imum({a}, {b})"
        return f"stax_i{extreme}<{self.lane_type}>({a}, {b})"

    def update(self, lane: str, value: str, position: str) -> list[str]:
        """Statements that take ``value``, at row-major ``position`` of the reduction, into lane ``lane``."""
        acc, pos = f"{self.name}_acc[{lane}]", f"{self.name}_pos[{lane}]"
        if not self.is_arg:
            given = (
                value if self.lane_type == value_type(self.dtype) else f"({self.lane_type}){value}"
            )
            return [f"{acc} = {self.merged(acc, given)};"]
        better = f"{self.name}_better"
        return [
            f"const bool {better} = stax_beats_{_EXTREMES[self.combine]}<{self.lane_type}>({value}, {acc});",
            f"{acc} = {better} ? {value} : {acc};",
            f"{pos} = {better} ? {position} : {pos};",
        ]

    def declare(self, lanes: int) -> list[str]:
        """Arrays of lanes, holding the identity."""
        lines = [f"{self.lane_type} {self.name}_acc[{lanes}];", *self.reset(lanes)]
        if self.is_arg:
            lines.append(f"int64_t {self.name}_pos[{lanes}];")
            lines.append(f"stax_fill<{lanes}>({self.name}_pos, INT64_MAX);")
        return lines

    def reset(self, lanes: int) -> list[str]:
        return [f"stax_fill<{lanes}>({self.name}_acc, {self.identity});"]

    def fold(self, lanes: int, acc: str = "", pos: str = "") -> str:
        """One value of all lanes of the array ``acc``; for argmax and argmin the arrays are folded in place, and the value is
        the position."""
        array = acc or f"{self.name}_acc"
        if self.is_arg:
            extreme = _EXTREMES[self.combine]
            return f"stax_fold_arg{extreme}<{lanes}>({array}, {pos or f'{self.name}_pos'})"
        if self.is_bool:
            kind = "any" if _LOGIC[self.combine] == "|" else "all"
        elif self.combine in ("sum", "prod"):
            kind = self.combine
        else:
            kind = _EXTREMES[self.combine]
        return f"stax_fold_{kind}<{lanes}>({array})"


def _end(dtype: str, *, lowest: bool) -> str:
    """The value that every value of ``dtype`` is at least, or at most."""
    kind, size = DTYPES[dtype].kind, DTYPES[dtype].itemsize
    if kind == "float":
        infinity = literal(float("inf"), "float64" if dtype == "float64" else "float32")
        return f"(-{infinity})" if lowest else infinity
    if kind == "bool":
        return "0" if lowest else "1"
    if kind == "uint":
        return "0" if lowest else f"UINT{size * 8}_MAX"
    return f"INT{size * 8}_{'MIN' if lowest else 'MAX'}"
