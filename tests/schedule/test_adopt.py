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
from stax.ir.program import Extern
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


def cached(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """A cache of rows that is read after the write."""
    x.index_copy_(0, i, v)
    return x.sum(0)


def twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] = v
    x.index_add_(0, i, v)
    return x


def read_before(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.exp()
    x[i] = v
    return y + x


def returned_apart(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x.index_put((i,), v)
    x.copy_(y)
    return y


def of_another(x: Tensor, i: Tensor, v: Tensor) -> None:
    x.copy_((x * 2).index_put((i,), v))


# Name → the function, whether its input is written in place, and the kernels then.
INPUTS: dict[str, tuple[Callable[..., Any], bool, int]] = {
    "a cache": (cached, True, 2),
    "two writes": (twice, True, 2),
    "read before": (read_before, False, 3),
    "returned apart": (returned_apart, False, 2),
    "of another tensor": (of_another, False, 2),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_is_written_in_place_where_nobody_sees_a_difference(
    name: str, dynamic: bool
) -> None:
    fn, in_place, count = INPUTS[name]
    args = Scatter(fn, distinct=True).args()
    program = lowered(fn, args, dynamic)
    verify_program(adopt(drop_dead(program)))
    plan = schedule(program, Options())
    kernels = [s.kernel for s in plan.steps if not isinstance(s, Extern)]
    assert len(kernels) == count
    assert (plan.program.mutations == ()) == in_place
    assert ("arg0" in _updated(plan.steps)) == in_place
    inputs = [to_numpy(a) for a in args]
    found = run_schedule(plan, inputs, bind(program, args), call_torch)
    expected = fn(*[a.clone() for a in args])
    compare(found, expected)


def _updated(steps: Any) -> set[str]:
    """Tensors that some kernel changes in place."""
    return {
        tensor
        for s in steps
        if not isinstance(s, Extern)
        for tensor, p in zip(s.tensors, s.kernel.pointers)
        if p.kind == "update"
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bool], ids=str)
def test_sums_of_a_narrow_type_are_taken_elsewhere(dtype: torch.dtype) -> None:
    def fn(x: Tensor, i: Tensor, v: Tensor) -> None:
        x.index_add_(0, i, v)

    plan = schedule(lowered(fn, Scatter(fn).args(dtype=dtype)), Options())
    assert len(plan.program.mutations) == 1 and "arg0" not in _updated(plan.steps)
