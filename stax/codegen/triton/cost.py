"""How long a kernel should take on a device under a configuration: predicted from bytes, grid and blocks, measuring nothing.

What limits a kernel bound by memory is how many bytes are on their way at once. Resident programs times the bytes that one
has in flight, over the latency, is the rate they can ask for; the device gives no more than its copy rate. What is read again
comes from the cache while all that is resident fits there, beside the traffic of the memory, else from memory. Where there
are few waves of programs, the last one leaves processors idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from stax.base.devices import Device
from stax.codegen.triton.layout import persistent_block
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.ir.traffic import Traffic

WARP = 32
# Between the start of an empty kernel and its end.
LEAST_S = 2e-6
# Warps and programs that one processor holds, and the elements of one lane in all of its warps that its registers hold.
MOST_WARPS, MOST_PROGRAMS, LANE_ELEMENTS = 64, 32, 512
# How much of the L2 cache what is read again may fill, and the rate of the cache over that of a copy. The share is that of
# heuristics.L2_SHARE; the rate is a guess from published L2 bandwidths of the H100, some 6 TB/s.
CACHE_SHARE = 0.4
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
    resident = device.processors * _resident(kernel, config)
    steps = 1
    if kernel.form == "red":
        steps = max(ceil(kernel.rnumel.evaluate(kernel.hints) / config["R0_BLOCK"]), 1)
    at_once = min(programs, resident)
    in_flight = at_once * moved.moved_bytes / programs / steps
    rate = min(device.floor_bytes_s, in_flight / device.latency_s)
    if not rate:
        return LEAST_S
    waves = programs / resident
    late = 1 + (ceil(waves) / waves - 1) / ceil(waves) if waves > 1 and steps == 1 else 1.0
    all_bytes = moved.moved_bytes + moved.reread_bytes
    held = at_once * min(moved.reread_bytes, moved.read_bytes) / programs
    if held > CACHE_SHARE * device.l2_bytes:
        return LEAST_S + all_bytes / rate
    return LEAST_S + max(moved.moved_bytes / rate * late, all_bytes / (rate * CACHE_SPEED))


def _resident(kernel: Kernel, config: Config) -> int:
    """Programs that one processor holds at once, one at least."""
    warps = config["num_warps"]
    elements = prod(value for name, value in config.values if name.endswith("BLOCK"))
    if kernel.form == "per":
        elements *= persistent_block(kernel)
    each = max(elements // (WARP * warps), 1)
    return max(min(min(LANE_ELEMENTS // each, MOST_WARPS) // warps, MOST_PROGRAMS), 1)
