"""A scatter changes in place what was made for it alone, and copies everything else first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering import bind, call_torch, compare, lowered, to_numpy
from running import run_schedule
from torch import Tensor

from stax.base.options import Options
from stax.ir.verify import verify_program
from stax.schedule.adopt import adopt
from stax.schedule.inline import drop_dead
from stax.schedule.schedule import schedule
from tests.scatters import ALL, Scatter

CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "of an input": (lambda x, i, v: x.index_add(0, i, v), 2),
    "of what was computed": (lambda x, i, v: (x * 2).index_add(0, i, v), 2),
    "of a sum": (lambda x, i, v: x[None].sum(0).index_add(0, i, v), 2),
    "of a scatter": (lambda x, i, v: x.index_add(0, i, v).index_add(0, i, v), 3),
    "of what is an output": (lambda x, i, v: ((y := x * 2), y.index_add(0, i, v)), 2),
    "of what is read before": (
        lambda x, i, v: ((y := x.exp()).index_add(0, i, v), y.sum(0)), 2,
    ),
    "of two scatters": (
        lambda x, i, v: ((y := x.exp()).index_add(0, i, v), y.index_add(0, i, v * 2)), 2,
    ),
    "of a transposed one": (lambda x, i, v: (x * 2).t().index_add(1, i, v.t()), 2),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dynamic: bool) -> None:
    fn, count = CASES[name]
    args = Scatter(fn).args()
    program = lowered(fn, args, dynamic)
    verify_program(adopt(drop_dead(program)))
    plan = schedule(program, Options())
    compare(
        run_schedule(plan, [to_numpy(a) for a in args], bind(program, args), call_torch), fn(*args)
    )
    assert len(plan.steps) == count


def test_what_torch_makes_is_copied() -> None:
    """Its result may share memory with something that the program does not know of."""
    case = ALL["index_add"]

    def fn(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return torch.mm(x, x[:6, :6]).index_add(0, i, v)

    plan = schedule(lowered(fn, case.args()), Options())
    assert len(plan.steps) == 3
