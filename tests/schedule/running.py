"""Runs a Schedule with the numpy oracle, kernel by kernel, so that fusion and loops are tested without any compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stax.ir import interp
from stax.ir.dtypes import DTYPES
from stax.ir.expr import product
from stax.ir.program import Extern
from stax.schedule.schedule import Schedule


def run_schedule(
    plan: Schedule, inputs: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int], extern: Any
) -> list[Any]:
    """Outputs of the schedule. Temps lie where the plan of memory says, poisoned before they are written, and are forgotten
    when they are dead."""
    program = plan.program
    table = program.table
    memory = {
        n: interp._stored(table[n], a, sizes) for n, a in zip(program.inputs, inputs, strict=True)
    }
    slots: list[np.ndarray[Any, Any]] = []
    for k, step in enumerate(plan.steps):
        for name in plan.memory.made[k]:
            _make(plan, name, sizes, memory, slots)
        if isinstance(step, Extern):
            interp._call(step, table, memory, sizes, extern)
        else:
            arrays = {p.name: memory[t] for p, t in zip(step.kernel.pointers, step.tensors)}
            bound = {s.name: e.evaluate(sizes) for s, e in zip(step.kernel.sizes, step.sizes)}
            interp.run_kernel(step.kernel, arrays, bound)
        for name in plan.memory.gone[k]:
            if name == plan.memory.arena:
                slots.clear()
            else:
                del memory[name]
    return [interp._output(o, memory, sizes) for o in program.outputs]


def _make(
    plan: Schedule, name: str, sizes: Mapping[str, int], memory: dict[str, Any], slots: list[Any]
) -> None:
    if name == plan.memory.arena:
        slots += [np.full(e.evaluate(sizes), 77, np.uint8) for e in plan.memory.slots]
        return
    b, spot = plan.program.table[name], plan.memory.spots.get(name)
    count, dtype = product(b.shape).evaluate(sizes), interp.numpy_dtype(b.dtype)
    # NOTE: the oracle holds some dtypes wider than memory does.
    if spot is None or not count or dtype.itemsize != DTYPES[b.dtype].itemsize:
        memory[name] = np.full(max(count, 1), 77, dtype)
        return
    inside = spot.home == plan.memory.arena
    home = slots[spot.slot] if inside else memory[spot.home].view(np.uint8)
    memory[name] = home[spot.offset : spot.offset + count * dtype.itemsize].view(dtype)
    memory[name][:] = np.full(1, 77, dtype)
