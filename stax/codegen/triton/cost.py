"""How long a kernel should take on a device under a configuration: predicted from bytes, grid and blocks, measuring nothing.

What limits a kernel bound by memory is how many bytes are on their way at once. Resident programs times the bytes that one
has in flight, over the latency, is the rate they can ask for; the device gives no more than its copy rate. The last wave of
programs counts as a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from stax.base.devices import Device
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.ir.traffic import Traffic

# Between the start of an empty kernel and its end.
LEAST_S = 2e-6
# Warps and programs that one processor holds, and what a second read costs while the cache still has it.
MOST_WARPS, MOST_PROGRAMS = 64, 32
CACHE_SPEED = 1.5


def grid_of(source: Source, config: Config, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Programs by dimension, with these values of the kernel's size symbols."""
    names = [p.name for p in source.params if p.kind == "size"]
    env = {n: e.evaluate(sizes) for n, e in zip(names, source.sizes)}
    return tuple(e.evaluate({**env, **dict(config.values)}) for e in source.grid)


def predict_s(
    kernel: Kernel, source: Source, config: Config, moved: Traffic, device: Device
) -> float:
    """Seconds of one launch at the hints."""
    programs = prod(grid_of(source, config, kernel.hints))
    if not programs:
        return 0.0
    resident = device.processors * min(MOST_WARPS // config["num_warps"], MOST_PROGRAMS)
    steps = 1
    if kernel.form == "red":
        steps = max(ceil(kernel.rnumel.evaluate(kernel.hints) / config["R0_BLOCK"]), 1)
    in_flight = min(programs, resident) * moved.moved_bytes / programs / steps
    rate = min(device.floor_bytes_s, in_flight / device.latency_s)
    waves = programs / resident
    late = ceil(waves) / waves if waves > 1 and steps == 1 else 1.0
    again = moved.reread_bytes / (rate * CACHE_SPEED) if rate else 0.0
    return LEAST_S + (moved.moved_bytes / rate * late if rate else 0.0) + again
