"""How a kernel's axes become index vectors: one group of axes a block dimension, one dimension but for transpositions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from stax.base.errors import VerifyError
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, product, sym
from stax.ir.kernel import Kernel
from stax.ir.program import Axis
from stax.ir.ranges import bounds

MAX_TILED_DIMS = 3
LEAST_TILED_EXTENT = 8
INT32_LIMIT = 2**31
# What one program may reach past the last element: the largest block, and a grid row of the y dimension.
INT32_MARGIN = 65_536 * 1024
MAX_GRID_YZ = 65_535

Dims = frozenset[str]


@dataclass(frozen=True)
class Group:
    """Neighbouring axes that share one index vector. ``prefix`` is x, y, z or r0_; ``first`` numbers its first axis."""

    prefix: str
    axes: tuple[Axis, ...]
    first: int

    @property
    def numel(self) -> Expr:
        return product(a.extent for a in self.axes)

    @property
    def block(self) -> str:
        return f"{self.prefix.upper()}BLOCK"

    def names(self) -> Iterator[tuple[Axis, str]]:
        """Each axis with its name in the text: numbered over all axes of the kernel, outer first."""
        for k, axis in enumerate(self.axes, self.first):
            yield axis, f"{self.prefix}{k}"


@dataclass(frozen=True)
class Layout:
    """``groups`` in the order of the block's dimensions, outer first. ``index`` is the dtype of index arithmetic;
    ``whole`` says that the reduced elements fill their block, so that their mask is always true."""

    groups: tuple[Group, ...]
    index: str
    whole: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Axis names of the kernel to names in the text."""
        return {a.name: text for g in self.groups for a, text in g.names()}

    @property
    def group_of(self) -> dict[str, str]:
        """Axis names of the kernel to the prefix of their group."""
        return {a.name: g.prefix for g in self.groups for a in g.axes}

    @property
    def outer(self) -> Dims:
        """The prefixes that are not reduced."""
        return frozenset(g.prefix for g in self.groups if g.prefix != "r0_")

    def shape(self, dims: Iterable[str]) -> str:
        """The block shape of a value that varies along ``dims``."""
        held = frozenset(dims)
        return f"[{', '.join(g.block if g.prefix in held else '1' for g in self.groups)}]"

    def spread(self, prefix: str) -> str:
        """The subscript that lays a vector along its dimension of the block: "[:, None]"."""
        if len(self.groups) == 1:
            return "[:]"
        return f"[{', '.join(':' if g.prefix == prefix else 'None' for g in self.groups)}]"

    def mask(self, dims: Iterable[str]) -> list[str]:
        """Names of the masks of ``dims`` that are not always true, the reduced one first, then x."""
        held = frozenset(dims)
        return [
            f"{p}mask"
            for p in ("r0_", "x", "y", "z")
            if p in held and not (p == "r0_" and self.whole)
        ]


def layout_of(kernel: Kernel) -> Layout:
    """The layout of a kernel; pure."""
    index = _index_dtype(kernel)
    if kernel.form == "poi":
        return Layout(_tiled(kernel), index)
    x, r = Group("x", kernel.axes, 0), Group("r0_", kernel.reduce_axes, len(kernel.axes))
    whole = kernel.form == "per" and r.numel.is_const and r.numel.value == persistent_block(kernel)
    return Layout((x, r), index, whole)


def persistent_block(kernel: Kernel) -> int:
    """R0_BLOCK of a persistent reduction: the least power of two that holds every length it may have."""
    most = bounds(kernel.rnumel, kernel.ranges)[1]
    if most is None:
        raise VerifyError("a persistent reduction without an upper bound", found=kernel.rnumel.text)
    return power_above(most)


def power_above(n: int) -> int:
    """The least power of two that is not less than ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def _index_dtype(kernel: Kernel) -> str:
    """int64 also where the last block, rounded up, would step over the end of int32."""
    for numel in (kernel.xnumel, kernel.rnumel):
        hi = bounds(numel, kernel.ranges)[1]
        if hi is not None and hi > INT32_LIMIT - INT32_MARGIN:
            return "int64"
    return kernel.index_dtype


# -- tiling (spec 9.3): the split of the axes that coalesces the most bytes


def _tiled(kernel: Kernel) -> tuple[Group, ...]:
    """One to three groups. Splits end a group at an axis along which some operand is contiguous."""
    count = len(kernel.axes)
    best: tuple[int, ...] = ()
    score = coalesced_bytes(kernel, best)
    for dims in range(1, min(MAX_TILED_DIMS, count)):
        for cuts in combinations(range(1, count), dims):
            found = coalesced_bytes(kernel, cuts)
            if found > score and _grid_allows(kernel, cuts):
                best, score = cuts, found
    edges = (0, *best, count)
    prefixes = ("z", "y", "x")[-len(edges) + 1 :]
    return tuple(Group(p, kernel.axes[lo:hi], lo) for p, lo, hi in zip(prefixes, edges, edges[1:]))


def coalesced_bytes(kernel: Kernel, cuts: tuple[int, ...]) -> int:
    """Bytes an element that neighbouring lanes read or write next to each other when groups end before ``cuts``. What
    does not vary along the last axis is the same for neighbours anyway, and does not count."""
    if not kernel.axes:
        return 0
    hints = kernel.hints
    last = [kernel.axes[c - 1] for c in (*cuts, len(kernel.axes))]
    wide = [a for a in last if a.extent.evaluate(hints) >= LEAST_TILED_EXTENT]
    return sum(
        DTYPES[dtype].itemsize
        for offset, dtype in accesses(kernel)
        if kernel.axes[-1].name in offset.symbols
        and any(_is_contiguous(offset, a.name) for a in wide)
    )


def accesses(kernel: Kernel) -> Iterator[tuple[Expr, str]]:
    """(offset, dtype) of every distinct load and store whose offset is an expression."""
    dtypes: Mapping[str, str] = {p.name: p.dtype for p in kernel.pointers}
    seen: set[tuple[str, str, bool]] = set()
    for s in kernel.statements:
        loads = [
            (str(v.attr[0]), v.args[0].attr[0], False)
            for v in s.body.loads
            if v.args[0].op == "index"
        ]
        for pointer, offset, stored in (*loads, *((t.pointer, t.offset, True) for t in s.stores)):
            assert isinstance(offset, Expr)
            if (pointer, offset.text, stored) not in seen:
                seen.add((pointer, offset.text, stored))
                yield offset, dtypes[pointer]


def _is_contiguous(offset: Expr, axis: str) -> bool:
    split = offset.linear(sym(axis).atoms[0]) if axis in offset.symbols else None
    return split is not None and split[0] == 1


def _grid_allows(kernel: Kernel, cuts: tuple[int, ...]) -> bool:
    """The y dimension may overflow into a grid's third one; with three dimensions y and z must fit for certain."""
    if len(cuts) < 2:
        return True
    edges = (0, *cuts)
    numels = [product(a.extent for a in kernel.axes[lo:hi]) for lo, hi in zip(edges, cuts)]
    ends = [bounds(n, kernel.ranges)[1] for n in numels]
    return all(hi is not None and hi <= MAX_GRID_YZ for hi in ends)
