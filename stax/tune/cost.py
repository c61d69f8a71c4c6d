"""What a configuration should cost, before anything of it is built: only used to choose what is worth measuring.

The prediction from bytes, grid and waves, made worse by what it does not know: registers that do not suffice, lanes
beyond the end of a dimension, sectors of memory of which little is used.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from stax.base.devices import Device
from stax.codegen.triton.cost import grid_of, predict_s
from stax.ir.dtypes import DTYPES
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.ir.traffic import Traffic
from stax.tune.space import WARP, Space

# 32-bit registers of one processor, of one thread at most, and what a thread needs besides its elements.
REGISTERS, MOST_REGISTERS, OWN_REGISTERS = 65_536, 255, 24
SECTOR_BYTES = 32
# What a thread should have in flight: two loads of 16 bytes.
THREAD_BYTES = 32


def cost_model(
    kernel: Kernel, source: Source, space: Space, moved: Traffic, device: Device
) -> Callable[[Config], float]:
    """Seconds of one launch by configuration, at the kernel's hints; infinite where registers can not suffice."""
    points = max(kernel.xnumel.evaluate(kernel.hints), 1)
    if kernel.form == "per":
        points *= max(kernel.rnumel.evaluate(kernel.hints), 1)
    widest = max((DTYPES[p.dtype].itemsize for p in kernel.pointers), default=4)
    # Values alive at once in one lane: the operands, and a few that are computed.
    alive = sum(p.kind != "out" for p in kernel.pointers) + 2
    # The block along contiguous memory; a whole row has no block of its own.
    run = {"per": "", "red": "R0_BLOCK"}.get(kernel.form, "XBLOCK") if kernel.inner else "XBLOCK"

    def cost(config: Config) -> float:
        threads = WARP * config["num_warps"]
        each = max(space.elements(config) / threads, 1.0)
        registers = OWN_REGISTERS + each * alive * max(widest, 4) / 4
        if registers > MOST_REGISTERS:
            return float("inf")
        seconds = predict_s(kernel, source, config, moved, device)
        # Fewer resident warps than the prediction takes for granted.
        crowded = max(registers * 2048 / REGISTERS, 1.0) ** 0.5
        per_program = config.get("XBLOCK", 1) * config.get("YBLOCK", 1) * config.get("ZBLOCK", 1)
        lanes = prod(grid_of(source, config, kernel.hints)) * per_program
        lanes *= space.row if kernel.form == "per" else 1
        idle = max(lanes / points, 1.0)
        used = max(SECTOR_BYTES / (config.get(run, SECTOR_BYTES) * widest), 1.0)
        narrow = max(THREAD_BYTES / (each * widest), 1.0) ** 0.25
        return seconds * crowded * idle**0.5 * used * narrow

    return cost
