"""Runs a Schedule with the numpy oracle, kernel by kernel, so that fusion and loops are tested without any compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stax.ir import interp
from stax.ir.expr import product
from stax.ir.program import Extern
from stax.schedule.schedule import Schedule


def run_schedule(
    plan: Schedule, inputs: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int], extern: Any
) -> list[Any]:
    """Outputs of the schedule; poisons temps before they are written and forgets them when they are dead."""
    program = plan.program
    table = program.table
    memory = {
        n: interp._stored(table[n], a, sizes) for n, a in zip(program.inputs, inputs, strict=True)
    }
    for k, step in enumerate(plan.steps):
        for name in plan.lifetimes.born[k]:
            count = product(table[name].shape).evaluate(sizes)
            dtype = interp.numpy_dtype(table[name].dtype)
            memory[name] = np.full(max(count, 1), 77, dtype=dtype)
        if isinstance(step, Extern):
            interp._call(step, table, memory, sizes, extern)
        else:
            arrays = {p.name: memory[t] for p, t in zip(step.kernel.pointers, step.tensors)}
            bound = {s.name: e.evaluate(sizes) for s, e in zip(step.kernel.sizes, step.sizes)}
            interp.run_kernel(step.kernel, arrays, bound)
        for name in plan.lifetimes.dead[k]:
            del memory[name]
    return [interp._output(o, memory, sizes) for o in program.outputs]
