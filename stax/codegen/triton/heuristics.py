"""Candidate launch configurations (spec 9.6): one to six, the best guess first. Pure arithmetic over a kernel's hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stax.codegen.triton.layout import Layout, persistent_block, power_above
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel
from stax.ir.source import Config

LOAD_BYTES = 16
MOST_CANDIDATES = 6
LEAST_DYNAMIC = 1024


@dataclass(frozen=True)
class Device:
    """What decides how much must be in flight."""

    processors: int
    bandwidth_bytes_s: float
    latency_s: float = 600e-9

    @property
    def bytes_in_flight(self) -> float:
        """Little's law: latency times bandwidth."""
        return self.latency_s * self.bandwidth_bytes_s

    @property
    def bytes_in_flight_each(self) -> float:
        """The share of one processor."""
        return self.bytes_in_flight / self.processors


DEVICES = {
    "sm_75": Device(40, 0.32e12),
    "sm_80": Device(108, 2.04e12),
    "sm_86": Device(84, 0.77e12),
    "sm_89": Device(128, 1.01e12),
    "sm_90": Device(132, 3.35e12),
    "sm_100": Device(148, 8.0e12),
    "sm_120": Device(170, 1.79e12),
}


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
        found = _tiles(numels)
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
    """Blocks of 128 threads, two wide loads each, while that still gives every processor work."""
    best = 128 * _lanes(kernel) * (1 if _is_heavy(kernel) else 2)
    fixed = all(a.extent.is_const for a in kernel.axes) or numel > best * device.processors // 4
    while fixed and best > 128 and numel // best < 2 * device.processors:
        best //= 2
    warps = 4 if best >= 256 else 2
    pairs = [
        (best, warps), (best, 2 * warps), (2 * best, 2 * warps), (best // 2, warps), (2 * best, warps),
    ]  # fmt: skip
    return [Config.of(XBLOCK=block, num_warps=w, num_stages=1) for block, w in pairs]


def _tiles(numels: list[int]) -> list[Config]:
    """Squares first: both directions then move whole sectors. A block never exceeds what its dimension holds."""
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
    return [
        Config.of(YBLOCK=min(a, y), XBLOCK=min(b, x), num_warps=w, num_stages=1)
        for a, b, w in pairs
    ]


def _warps(elements: int) -> int:
    """Eight elements a thread, one to sixteen warps."""
    return min(max(power_above(elements) // 256, 1), 16)


def _persistent(kernel: Kernel, rows: int, device: Device) -> list[Config]:
    """Rows in registers: about 1024 elements a program, fewer where there would be too few programs."""
    length = persistent_block(kernel)
    limit = 4096 if kernel.inner else 8192
    best = max(1024 // length, 1)
    if not kernel.inner:
        best = max(best, 32)
    while best > 1 and rows // best < 2 * device.processors:
        best //= 2
    warps = _warps(best * length)
    blocks = [max(best // 2, 1), min(best * 2, power_above(rows)), max(best // 4, 1), best * 4]
    pairs = [(best, warps), (best, min(2 * warps, 16)), (best, max(warps // 2, 1))]
    pairs += [(b, _warps(b * length)) for b in blocks if b * length <= limit]
    return [Config.of(XBLOCK=b, num_warps=w, num_stages=1) for b, w in pairs]


def _looped(kernel: Kernel, rows: int, length: int, device: Device) -> list[Config]:
    """Along contiguous memory one long row a program, across it wide blocks of columns. Few programs get more threads."""
    if kernel.inner:
        few = rows < 2 * device.processors
        shapes = [
            (1, 2048, 8),
            (1, 4096, 16),
            (1, 1024, 4),
            (2, 1024, 8),
            (8, 512, 8),
            (1, 8192, 16),
        ]
        if few != _is_heavy(kernel):
            shapes[:2] = [(1, 4096, 16), (1, 2048, 8)] if few else [(1, 1024, 4), (1, 2048, 8)]
    else:
        few = rows // 64 < 2 * device.processors
        shapes = [(64, 16, 4), (64, 64, 8), (32, 64, 8), (128, 16, 8), (16, 128, 8), (8, 256, 8)]
        shapes = shapes[2:3] + shapes[4:] + shapes[:2] if few else shapes
    return [_looped_config(rows, length, *shape) for shape in shapes]


def _looped_config(rows: int, length: int, x: int, r: int, warps: int) -> Config:
    """No block larger than what it holds, no thread without an element."""
    x, r = min(x, power_above(rows)), min(r, power_above(length))
    warps = min(warps, max(x * r // 64, 1))
    return Config.of(XBLOCK=x, R0_BLOCK=r, num_warps=warps, num_stages=1)
