"""Composites as they are scheduled for a GPU, each kernel as Triton text under the interpreter: no further from the truth
than twice eager, and what the last digit allows."""

from __future__ import annotations

import pytest
import torch

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from tests import composites, loss_composites
from tests.composites import Case, Draw
from tests.lowering import bind, to_numpy
from tests.triton_interpret import Interpreter
from tests.triton_programs import run_interpreted

CASES: dict[str, Case] = {**composites.CASES, **loss_composites.CASES}
CUDA = Target.parse("cuda:sm_90")


def planned(case: Case, args: list[torch.Tensor], dynamic: bool) -> Schedule:
    found = trace(
        case.fn, tuple(args), {}, dynamic=dynamic, target=CUDA, decompositions=decompositions()
    )
    return schedule(lower(found, options=Options()), Options())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype, interpreter: Interpreter) -> None:
    case = CASES[name]
    args = list(case.args(Draw(10, 40, dtype, seed=2)))
    plan = planned(case, args, dynamic=False)
    arrays = [to_numpy(a) for a in args]
    found = run_interpreted(plan, arrays, bind(plan.program, args), interpreter)
    case.check(args, found, room=1.0 if dtype == torch.bfloat16 else 16.0)


# To torch the normalised shape of this operator, and the number of classes in a smoothing, are numbers.
FIXED_COLUMNS = (
    "rms_norm_backward",
    "cross_entropy, smoothed",
    "cross_entropy, weighted and smoothed",
)


@pytest.mark.parametrize("name", CASES)
def test_a_dynamic_plan_at_other_sizes(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    plan = planned(case, list(case.args(Draw(10, 40, torch.float32))), dynamic=True)
    args = list(case.args(Draw(12, 40 if name in FIXED_COLUMNS else 56, torch.float32, seed=5)))
    arrays = [to_numpy(a) for a in args]
    found = run_interpreted(plan, arrays, bind(plan.program, args), interpreter)
    case.check(args, found, room=16.0)
