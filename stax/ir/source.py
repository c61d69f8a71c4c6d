"""Source: the text of one kernel with what a builder and a launcher must know about it. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from stax.ir.expr import Expr


@dataclass(frozen=True)
class Param:
    """One kernel parameter in call order.

    ``kind``: "in" | "out" (a pointer to ``dtype`` elements), "size" (an int64 size expression) or "block" (a
    constexpr that a Config fixes). ``dtype`` is a dtype name for pointers, "int32" or "int64" for sizes.
    ``divisible16``: every value is known to be a multiple of 16 (bytes for pointers).
    """

    kind: str
    name: str
    dtype: str = ""
    divisible16: bool = False


@dataclass(frozen=True, order=True)
class Config:
    """One launch configuration: sorted (name, value), for example (("XBLOCK", 1024), ("num_warps", 4))."""

    values: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(**values: int) -> Config:
        return Config(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> int:
        return dict(self.values)[name]

    def get(self, name: str, default: int) -> int:
        return dict(self.values).get(name, default)


@dataclass(frozen=True)
class Source:
    """``language`` is "cpp" or "triton"; ``entry`` the function's name in ``text``; ``form`` poi, red, per or tem.

    ``sizes``: for each "size" parameter in order, its value over the program's size symbols. ``grid``: up to three
    expressions over the size symbols and the block names of a Config (empty for cpp). ``space``: every candidate
    Config, ``default`` the one used when nothing was measured.
    """

    language: str
    form: str
    entry: str
    text: str
    params: tuple[Param, ...]
    sizes: tuple[Expr, ...]
    grid: tuple[Expr, ...]
    space: tuple[Config, ...]
    default: Config
