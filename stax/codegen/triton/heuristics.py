"""Candidate launch configurations (spec 9.6): one to six, the best guess first. Pure arithmetic over a kernel's hints."""

from __future__ import annotations

from dataclasses import dataclass

from stax.codegen.triton.layout import Layout, power_above
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel
from stax.ir.source import Config

LOAD_BYTES = 16
MOST_CANDIDATES = 6


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
    numels = [max(g.numel.evaluate(hints), 1) for g in layout.groups]
    if kernel.form == "per":
        found = _persistent(kernel, numels[0], device)
    elif kernel.form == "red":
        found = _looped(kernel, numels[0], numels[1], device)
    elif len(numels) == 1:
        found = _flat(kernel, numels[0], device)
    else:
        found = _tiles(layout)
    return tuple(dict.fromkeys(found))[:MOST_CANDIDATES]


def _lanes(kernel: Kernel) -> int:
    """Elements that one thread reads at once, 16 bytes of the widest common type."""
    sizes = [DTYPES[p.dtype].itemsize for p in kernel.pointers]
    return max(LOAD_BYTES // max(min(sizes, default=4), 2), 1)


def _flat(kernel: Kernel, numel: int, device: Device) -> list[Config]:
    """Blocks of 128 threads, two wide loads each, while that still gives every processor work."""
    best = 128 * _lanes(kernel) * 2
    while best > 128 and numel // best < 2 * device.processors:
        best //= 2
    warps = 4 if best >= 512 else 2
    pairs = [
        (best, warps),
        (best, 2 * warps),
        (best * 2, 2 * warps),
        (best // 2, warps),
        (best * 2, warps),
    ]
    return [
        Config.of(XBLOCK=block, num_warps=w, num_stages=1)
        for block, w in pairs
        if 64 <= block <= 8192
    ]


def _tiles(layout: Layout) -> list[Config]:
    if len(layout.groups) == 3:
        shapes = [(4, 16, 32, 4), (1, 32, 32, 4), (8, 8, 32, 4), (16, 4, 32, 4)]
        return [
            Config.of(ZBLOCK=z, YBLOCK=y, XBLOCK=x, num_warps=w, num_stages=1)
            for z, y, x, w in shapes
        ]
    pairs = [(32, 32, 4), (64, 64, 8), (32, 64, 4), (64, 32, 4), (16, 128, 4), (128, 16, 4)]
    return [Config.of(YBLOCK=y, XBLOCK=x, num_warps=w, num_stages=1) for y, x, w in pairs]


def _warps(elements: int) -> int:
    """Eight elements a thread, one to sixteen warps."""
    return min(max(power_above(elements) // 256, 1), 16)


def _persistent(kernel: Kernel, rows: int, device: Device) -> list[Config]:
    """Rows in registers: about 2048 elements a program, fewer where there would be too few programs."""
    length = power_above(kernel.rnumel.evaluate(kernel.hints))
    limit = 4096 if kernel.inner else 8192
    best = max(2048 // length, 1)
    if not kernel.inner:
        best = max(best, 32)
    while best > 1 and rows // best < 2 * device.processors:
        best //= 2
    found = [best, max(best // 4, 1), best * 4, max(best // 2, 1), best * 2]
    blocks = [b for b in found if b == 1 or b * length <= limit]
    configs = [Config.of(XBLOCK=b, num_warps=_warps(b * length), num_stages=1) for b in blocks]
    first = blocks[0]
    configs.insert(
        1, Config.of(XBLOCK=first, num_warps=min(2 * _warps(first * length), 16), num_stages=1)
    )
    return configs


def _looped(kernel: Kernel, rows: int, length: int, device: Device) -> list[Config]:
    """Along contiguous memory long rows, one a program; across it wide blocks of columns."""
    reach = power_above(length)
    if kernel.inner:
        triples = [
            (1, 2048, 8),
            (1, 4096, 16),
            (1, 1024, 4),
            (4, 1024, 8),
            (8, 512, 8),
            (1, 8192, 16),
        ]
    else:
        triples = [(64, 16, 4), (64, 64, 8), (32, 64, 8), (128, 16, 8), (16, 128, 8), (8, 256, 8)]
        few = rows // 64 < device.processors
        triples = triples[2:] + triples[:2] if few else triples
    return [
        Config.of(XBLOCK=x, R0_BLOCK=min(r, reach), num_warps=w, num_stages=1)
        for x, r, w in triples
    ]
