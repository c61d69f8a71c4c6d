"""Candidate launch configurations (spec 9.6): one to six, the best guess first. Pure arithmetic over a kernel's hints."""

from __future__ import annotations

from collections.abc import Mapping

from stax.base.devices import DEVICES, Device
from stax.codegen.triton.layout import Layout, persistent_block, power_above
from stax.codegen.triton.pairs import pairs_of
from stax.codegen.triton.plan import plan
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel
from stax.ir.source import Config
from stax.ir.value import Value, walk

LOAD_BYTES = 16
MOST_CANDIDATES = 6
LEAST_DYNAMIC = 1024
WARP = 32
# A plane of this many elements has enough large tiles for every processor.
LARGE_PLANE = 1 << 23
# Rows being read and their results share the L2 cache; measured on an H200, where 17 MB of rows stay in its 50 MB and
# 35 MB do not.
L2_SHARE = 0.4


def candidates(kernel: Kernel, layout: Layout, arch: str) -> tuple[Config, ...]:
    """Distinct configurations, the default first."""
    device = DEVICES[arch]
    hints = kernel.hints
    numels = [_numel(g.numel, hints) for g in layout.groups]
    if kernel.form == "per":
        found = _persistent(kernel, numels[0], device)
    elif kernel.form == "red":
        found = _looped(kernel, numels[0], numels[1], device)
    elif len(numels) == 1:
        found = _flat(kernel, numels[0], device)
    else:
        found = _tiles(kernel, numels)
    return tuple(dict.fromkeys(found))[:MOST_CANDIDATES]


def _numel(numel: Expr, hints: Mapping[str, int]) -> int:
    """The number that blocks are chosen for. A size that may change is taken as large enough to fill blocks: idle lanes
    of a short call cost little, short blocks of a long call much."""
    value = max(numel.evaluate(hints), 1)
    return value if numel.is_const else max(value, LEAST_DYNAMIC)


def _lanes(kernel: Kernel) -> int:
    """Elements that one thread reads at once: 16 bytes of the narrowest operand, two-byte ones at least."""
    sizes = [DTYPES[p.dtype].itemsize for p in kernel.pointers]
    return max(LOAD_BYTES // max(min(sizes, default=4), 2), 1)


def _is_heavy(kernel: Kernel) -> bool:
    """Many operands or operators: registers run out before bytes in flight do."""
    return len(kernel.pointers) > 8 or sum(s.body.size for s in kernel.statements) > 60


def _flat(kernel: Kernel, numel: int, device: Device) -> list[Config]:
    """Blocks of 128 threads with two wide loads in flight each, from one operand or from two, while that still gives
    every processor work."""
    best = 128 * _lanes(kernel) * (1 if _is_heavy(kernel) or _streams(kernel) > 1 else 2)
    fixed = all(a.extent.is_const for a in kernel.axes) or numel > best * device.processors // 4
    while fixed and best > 128 and numel // best < 2 * device.processors:
        best //= 2
    warps = 4 if best >= 256 else 2
    if best == 256 * 8 and any(
        v.op in ("erf", "tanh") for s in kernel.statements for v in walk(s.body)
    ):
        best, warps = (
            2 * best,
            warps // 2,
        )  # bound by arithmetic: 64 elements a thread, 4010 GB/s against 3846
    pairs = [
        (best, warps), (2 * best, 2 * warps), (2 * best, warps), (2 * best, max(warps // 2, 1)), (best // 2, max(warps // 2, 1)),
        (best, 2 * warps),
    ]  # fmt: skip
    return [Config.of(XBLOCK=block, num_warps=w, num_stages=1) for block, w in pairs]


def _streams(kernel: Kernel) -> int:
    """Loads whose elements differ from lane to lane everywhere: what all rows share comes from the cache."""
    names = {a.name for a in (*kernel.axes, *kernel.reduce_axes)}
    found = {v.key for s in kernel.statements for v in s.body.loads if names <= _symbols(v)}
    return max(len(found), 1)


def _symbols(load: Value) -> frozenset[str]:
    """The axes that a load's place depends on."""
    exprs = [v.attr[0] for v in walk(load) if v.op == "index"]
    return frozenset(n for e in exprs if isinstance(e, Expr) for n in e.symbols)


def _tiles(kernel: Kernel, numels: list[int]) -> list[Config]:
    """Squares first: both directions then move whole sectors, and of half types whole lines. A block never exceeds what
    its dimension holds."""
    if len(numels) == 3:
        z, y, x = (power_above(n) for n in numels)
        shapes = [(4, 16, 32, 4), (1, 32, 32, 4), (8, 8, 32, 4), (16, 4, 32, 4)]
        return [
            Config.of(
                ZBLOCK=min(a, z), YBLOCK=min(b, y), XBLOCK=min(c, x), num_warps=w, num_stages=1
            )
            for a, b, c, w in shapes
        ]
    y, x = (power_above(n) for n in numels)
    pairs = [(32, 32, 4), (64, 64, 8), (32, 64, 4), (64, 32, 4), (16, 128, 4), (128, 16, 4)]
    if _lanes(kernel) > LOAD_BYTES // 4 and y * x >= LARGE_PLANE:
        pairs = [
            (128, 128, 16),
            (128, 256, 16),
            (128, 128, 8),
            (64, 64, 8),
            (64, 128, 8),
            (128, 64, 8),
        ]
    return [
        Config.of(YBLOCK=min(a, y), XBLOCK=min(b, x), num_warps=w, num_stages=1)
        for a, b, w in pairs
    ]


def _warps(elements: int, each: int) -> int:
    """``each`` elements a thread, one to sixteen warps."""
    return min(max(power_above(elements) // (WARP * each), 1), 16)


def _persistent(kernel: Kernel, rows: int, device: Device) -> list[Config]:
    """Rows in registers: about 1024 elements a program, fewer where there would be too few programs. Sixteen elements
    a thread: two wide loads of a half type in flight, four of float32."""
    length = persistent_block(kernel)
    limit = 4096 if kernel.inner else 8192
    each = 16 if kernel.inner and not _is_heavy(kernel) else 8
    best = max(1024 // length, 1)
    if not kernel.inner:
        best = max(best, 32)
    while best > 1 and rows // best < 2 * device.processors:
        best //= 2
    warps = _warps(best * length, each)
    blocks = [min(best * 2, power_above(rows)), max(best // 2, 1), max(best // 4, 1), best * 4]
    pairs = [(best, warps), (best, min(2 * warps, 16)), (best, max(warps // 2, 1))]
    pairs += [(b, _warps(b * length, each)) for b in blocks if b * length <= limit]
    return [Config.of(XBLOCK=b, num_warps=w, num_stages=1) for b, w in pairs]


def _looped(kernel: Kernel, rows: int, length: int, device: Device) -> list[Config]:
    shapes = _along(kernel, rows, length, device) if kernel.inner else _across(kernel, rows, device)
    return [_looped_config(rows, length, *shape) for shape in shapes]


def _along(kernel: Kernel, rows: int, length: int, device: Device) -> list[tuple[int, int, int]]:
    """(XBLOCK, R0_BLOCK, num_warps) along contiguous memory: one row a program, as much of it at once as 1024 threads
    hold, 32 bytes a thread over all operands. What is read again must still be in the L2 cache: rows of which few fit
    get all threads of a processor, and up to 64 elements each, so that fewer rows are on their way."""
    lanes = _lanes(kernel)
    each = max(2 * lanes // _streams(kernel), lanes, 4)
    pairs = pairs_of(kernel)
    if any(s.combine in ("argmax", "argmin") for s in kernel.statements):
        return _shapes(2048, 8, 8)
    if any(p.kind == "moments" for p in pairs) and length >= 16384:
        each = 32
    if row := _bytes_read_again(kernel, length):
        at_once = device.l2_bytes * L2_SHARE / device.processors / row
        if at_once < 4:
            # Squares around a mean hold twice the accumulators: 64 elements a thread would spill.
            far = 4 * lanes if any(p.kind == "moments" for p in pairs) else 8 * lanes
            each = far if at_once < 1 else 2 * lanes if lanes == 8 else lanes
            return _shapes(min(1024 * each, power_above(length)), 32, each)
    if _is_heavy(kernel):
        each = min(each, 8)
    most = 16 if pairs else 32
    block = min(most * WARP * each, power_above(length))
    return _shapes(block, max(block // (WARP * each), 4), each)


def _shapes(block: int, warps: int, each: int) -> list[tuple[int, int, int]]:
    """The best guess and its neighbours."""
    return [
        (1, block, warps), (1, block, 2 * warps), (1, max(block // 2, 1024), warps), (1, max(block // 2, 1024), max(warps // 2, 4)),
        (1, 2 * block, min(2 * warps, 32)), (1, 2 * block, warps), (1, 4096, 16),
    ]  # fmt: skip


def _bytes_read_again(kernel: Kernel, length: int) -> int:
    """Bytes of one row that a later pass over it reads once more; what all rows share stays in the cache anyway."""
    if sum(bool(phase.inside) for phase in plan(kernel)) < 2:
        return 0
    outer = {a.name for a in kernel.axes}
    dtypes = {p.name: p.dtype for p in kernel.pointers}
    read = {
        str(v.attr[0])
        for s in kernel.statements
        if s.space == "xr"
        for v in s.body.loads
        if v.args[0].op != "index" or not outer.isdisjoint(v.args[0].attr[0].symbols)  # type: ignore[union-attr]
    }
    return length * sum(DTYPES[dtypes[name]].itemsize for name in read)


def _across(kernel: Kernel, rows: int, device: Device) -> list[tuple[int, int, int]]:
    """(XBLOCK, R0_BLOCK, num_warps) across contiguous memory: a line of 128 bytes of columns a program, down to 16 bytes
    while some processor would have no program, and 4096 elements in flight."""
    x = 8 * _lanes(kernel)
    while x > _lanes(kernel) and rows // x < device.processors:
        x //= 2
    count, warps = (2048, 8) if _is_heavy(kernel) else (4096, 16)
    if _lanes(kernel) == 8 and not _is_heavy(kernel):
        count, warps = 8192, 8
    return [
        (x, count // x, warps), (x, count // x // 2, warps // 2), (x, 2 * count // x, warps),
        (2 * x, count // x // 2, warps), (2 * x, count // x, warps), (max(x // 2, 1), 2 * count // x, warps),
    ]  # fmt: skip


def _looped_config(rows: int, length: int, x: int, r: int, warps: int) -> Config:
    """No block larger than what it holds; four elements a thread at least, as far as there are any."""
    x, r = min(x, power_above(rows)), min(r, power_above(length))
    warps = min(max(warps, 1), max(x * r // (WARP * 4), 1), 32)
    return Config.of(XBLOCK=x, R0_BLOCK=r, num_warps=warps, num_stages=1)
