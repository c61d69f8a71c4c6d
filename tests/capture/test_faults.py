"""What can not be traced is said at the user's line; what the program itself raises is not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import capture
from torch import Tensor

from stax.base.errors import CaptureError, DataDependent


def branches(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def in_a_helper(x: Tensor) -> Tensor:
    return branches(x + 1)


DATA: list[Callable[[Tensor], Any]] = [
    branches,
    in_a_helper,
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x.tolist(),
    lambda x: int(x.max()),
    lambda x: torch.unique(x),
    lambda x: x.numpy(),
    lambda x: torch.tensor([x[0, 0], 1.0]),
    lambda x: torch.allclose(x, x),
    lambda x: torch.masked_select(x, x > 0),
    lambda x: x[0].repeat_interleave(x[0].long()),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", DATA)
def test_data_dependence_is_named(fn: Callable[[Tensor], Any], dynamic: bool) -> None:
    with pytest.raises(DataDependent) as error:
        capture(fn, torch.rand(3, 4), dynamic=dynamic)
    assert error.value.where.startswith("test_faults.py:") and error.value.hint


def test_the_innermost_line_of_the_user_is_named() -> None:
    with pytest.raises(DataDependent) as error:
        capture(in_a_helper, torch.rand(3))
    assert error.value.where == f"test_faults.py:{branches.__code__.co_firstlineno + 1}"


def test_errors_of_the_program_propagate_as_they_are() -> None:
    class Own(ValueError):
        pass

    def fails(x: Tensor) -> Tensor:
        raise Own("no")

    with pytest.raises(Own):
        capture(fails, torch.rand(3))
    with pytest.raises(ZeroDivisionError):
        capture(lambda x: x + 1 // 0, torch.rand(3))
    with pytest.raises(RuntimeError, match=r"reduction dim|shapes cannot be multiplied"):
        capture(lambda x: x @ x, torch.rand(3, 4))
    with pytest.raises(IndexError):
        capture(lambda x: x[5], torch.rand(3))


def outside(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.neg, torch.abs, (x,))


REFUSED: list[tuple[Callable[[Tensor], Any], str]] = [
    (lambda x: x.data_ptr(), "address"),
    (lambda x: {x}, "returns result of type set"),
    (lambda x: (x, object()), r"returns result\[1\] of type object"),
    (lambda x: torch.rand(3, generator=torch.Generator()), "random generator"),
    (lambda x: x.expand(2, 3).add_(1), "share memory"),
    (lambda x: setattr(x, "data", x * 2), "assigns to x.data"),
    (lambda x: setattr(x * 1, "data", x * 2), "assigns to x.data"),
    (lambda x: (torch.manual_seed(0), x), "seeds"),
    (lambda x: (torch._assert_async((x > 0).all()), x), "checks data"),
    (outside, "compiles a part of itself|takes functions"),
    (torch.jit.script(torch.nn.ReLU()), "is scripted"),
]


@pytest.mark.parametrize(("fn", "text"), REFUSED)
def test_refusals_say_what(fn: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        capture(fn, torch.rand(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: torch.view_as_complex(torch.rand(3, 2)).conj(),
        lambda x: x.as_subclass(type("Mine", (Tensor,), {})),
    ],
)
def test_tensors_that_are_not_plain_are_refused(make: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match="x can not be traced"):
        capture(lambda x: x + 1, make(torch.rand(3)))
