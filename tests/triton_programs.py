"""Runs a Schedule whose kernels are Triton text, in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stax.base.target import Target
from stax.codegen.triton.emit import emit
from stax.ir import interp
from stax.ir.expr import product
from stax.ir.program import Extern
from stax.schedule.schedule import Schedule
from tests.lowering import call_torch
from tests.triton_interpret import Interpreter

TARGET = Target("cuda", "sm_90")


def run_interpreted(
    plan: Schedule,
    inputs: Sequence[np.ndarray[Any, Any]],
    sizes: Mapping[str, int],
    interpreter: Interpreter,
) -> list[Any]:
    """The outputs of a schedule whose kernels run as Triton text; external calls go to torch."""
    program = plan.program
    table = program.table
    memory = {
        n: interp._stored(table[n], a, sizes) for n, a in zip(program.inputs, inputs, strict=True)
    }
    for k, step in enumerate(plan.steps):
        for name in plan.lifetimes.born[k]:
            count = product(table[name].shape).evaluate(sizes)
            memory[name] = np.full(max(count, 1), 77, dtype=interp.numpy_dtype(table[name].dtype))
        if isinstance(step, Extern):
            interp._call(step, table, memory, sizes, call_torch)
            continue
        arrays = {p.name: memory[t] for p, t in zip(step.kernel.pointers, step.tensors)}
        bound = {s.name: e.evaluate(sizes) for s, e in zip(step.kernel.sizes, step.sizes)}
        after = interpreter.run(emit(step.kernel, TARGET), arrays, bound)
        for p, tensor in zip(step.kernel.pointers, step.tensors):
            if p.kind != "in":
                memory[tensor] = after[p.name]
    return [interp._output(o, memory, sizes) for o in program.outputs]
