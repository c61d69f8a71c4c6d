"""Each composite is the fewest kernels that read and write the fewest bytes, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from lowering import bind, call_torch, compare, lowered, to_numpy
from running import run_schedule
from torch import Tensor

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.program import Extern
from stax.ir.traffic import traffic
from stax.ir.verify import verify_kernel
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from tests import composites, loss_composites
from tests.composites import Case, Draw

CASES: dict[str, Case] = {**composites.CASES, **loss_composites.CASES}
CUDA = Target.parse("cuda:sm_90")
# Statistics, weights and labels are small beside the main tensor.
SLACK = 0.06


def planned(case: Case, args: Sequence[Tensor], dynamic: bool) -> Schedule:
    captured = trace(
        case.fn, tuple(args), {}, dynamic=dynamic, target=CUDA, decompositions=decompositions()
    )
    return schedule(lower(captured, options=Options()), Options())


def moved_bytes(plan: Schedule) -> int:
    return sum(traffic(s.kernel).moved_bytes for s in plan.steps if not isinstance(s, Extern))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_and_bytes(name: str, dynamic: bool) -> None:
    case = CASES[name]
    if dynamic and name.startswith("group_norm"):
        pytest.skip("a model's channels are no symbols, and a number of groups divides no symbol")
    args = case.args(Draw(64, 4096, torch.bfloat16))
    plan = planned(case, args, dynamic)
    assert not [s.target for s in plan.steps if isinstance(s, Extern)]
    assert len(plan.steps) == case.kernels, [k for s in plan.steps for k in s.kernel.fused]  # type: ignore[union-attr]
    assert bool(case.fewest) == (case.kernels > 1), "more than one kernel needs a reason"
    unit = args[0].numel() * args[0].element_size()
    assert moved_bytes(plan) / unit == pytest.approx(case.moved, abs=SLACK * case.moved)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    """No further from the truth than twice eager, and what the last digit and another order of sums allow."""
    case = CASES[name]
    args = case.args(Draw(10, 24, dtype, seed=1))
    plan = schedule(lowered(case.fn, args), Options())
    for step in plan.steps:
        assert isinstance(step, Extern) or verify_kernel(step.kernel) is None
    arrays = [to_numpy(a) for a in args]
    found = run_schedule(plan, arrays, bind(plan.program, args), call_torch)
    case.check(args, found, room=0.5 if dtype == torch.bfloat16 else 8.0)


# Here the order of eager's own arithmetic decides which of its infinities cancel, and a GPU's is another than the CPU's.
CANCELLING = ("standard deviation", "layer_norm_backward", "group_norm_backward", "gelu")


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("bce")])
def test_what_is_not_finite(name: str) -> None:
    """NaN and infinities come out where eager has them."""
    case = CASES[name]
    args = list(case.args(Draw(10, 40, torch.float32, seed=4)))
    first = args[0].view(-1)
    first[3] = torch.nan
    if not name.startswith(CANCELLING):
        first[45], first[90] = torch.inf, -torch.inf
    plan = schedule(lowered(case.fn, args), Options())
    arrays = [to_numpy(a) for a in args]
    found = run_schedule(plan, arrays, bind(plan.program, args), call_torch)
    compare(found, (case.formula or case.fn)(*args), scale=20)


@pytest.mark.parametrize("size", [(0, 40), (1, 40), (2, 2), (3, 1025)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_sizes_at_the_edge(name: str, size: tuple[int, int]) -> None:
    case = CASES[name]
    if name == "batch_norm with running statistics":
        pytest.skip("eager's first call changes what a second one would read")
    try:
        args = list(case.args(Draw(*size, torch.float32, seed=6)))
        expected = (case.formula or case.fn)(*args)
        plan = planned(case, args, dynamic=False)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        pytest.skip(f"eager or torch's shape function: {type(error).__name__}")
    found = run_schedule(plan, [to_numpy(a) for a in args], {}, call_torch)
    compare(found, expected, scale=50)
