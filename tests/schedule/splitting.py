"""CUDA programs without a GPU, their schedules, and the shapes of the kernels in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.expr import product
from stax.ir.kernel import Kernel
from stax.ir.program import Extern, Program
from stax.ir.verify import verify_kernel, verify_program
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from tests.lowering import bind, call_torch, to_numpy
from tests.schedule.running import run_schedule

HOPPER = Target("cuda", "sm_90")


def program_of(
    fn: Callable[..., Any],
    args: Sequence[torch.Tensor],
    dynamic: bool = False,
    target: Target = HOPPER,
) -> Program:
    table = decompositions()
    captured = trace(fn, tuple(args), {}, dynamic=dynamic, target=target, decompositions=table)
    return lower(captured, options=Options())


def plan_of(
    fn: Callable[..., Any],
    args: Sequence[torch.Tensor],
    dynamic: bool = False,
    target: Target = HOPPER,
    **options: Any,
) -> Schedule:
    """The verified schedule of ``fn``; meta tensors will do."""
    plan = schedule(program_of(fn, args, dynamic, target), Options().with_(**options))
    verify_program(plan.program)
    for kernel in kernels(plan):
        verify_kernel(kernel)
    return plan


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def kernels(plan: Schedule) -> list[Kernel]:
    return [s.kernel for s in plan.steps if not isinstance(s, Extern)]


def extents(plan: Schedule) -> list[tuple[str, int, int]]:
    """(form, outer points, reduced points) of each kernel, at the hints."""
    return [
        (
            k.form,
            k.xnumel.evaluate(k.hints),
            product(a.extent for a in k.reduce_axes).evaluate(k.hints),
        )
        for k in kernels(plan)
    ]


def reasons(plan: Schedule) -> list[str]:
    """Why each reduction was not split."""
    return [d.reason for d in plan.decisions if d.subject.startswith("split") and not d.verdict]


def splits(plan: Schedule) -> list[str]:
    """How each split reduction was."""
    return [d.reason for d in plan.decisions if d.subject.startswith("split") and d.verdict]


def outputs_of(plan: Schedule, args: Sequence[torch.Tensor]) -> list[Any]:
    """What the kernels give by the numpy oracle."""
    return run_schedule(plan, [to_numpy(a) for a in args], bind(plan.program, args), call_torch)
