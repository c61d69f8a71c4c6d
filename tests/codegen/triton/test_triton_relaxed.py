"""Cheaper functions before a half type: where they are taken, and that the result is as good as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stax.base.options import Options
from stax.schedule.schedule import schedule
from tests.lowering import bind, lowered, to_numpy
from tests.triton_interpret import Interpreter
from tests.triton_programs import run_interpreted

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
}


def interpreted(fn: Callable[..., Any], x: torch.Tensor, interpreter: Interpreter) -> torch.Tensor:
    plan = schedule(lowered(fn, [x], False), Options())
    (out,) = run_interpreted(plan, [to_numpy(x)], bind(plan.program, [x]), interpreter)
    return torch.as_tensor(getattr(out, "array", out)).double()


@pytest.mark.parametrize("length", [31, 2050])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_as_good_as_eager(
    name: str, dtype: torch.dtype, length: int, interpreter: Interpreter
) -> None:
    x = (torch.randn(3, length) * 4).to(dtype)
    fn = CASES[name]
    exact = fn(x.double())
    error = (interpreted(fn, x, interpreter) - exact).abs().max()
    assert error <= 2 * (fn(x).double() - exact).abs().max() + 1e-12


def test_rows_of_minus_infinity_and_nan_end_as_eager_s(interpreter: Interpreter) -> None:
    x = torch.randn(5, 2050).bfloat16()
    x[0, 3], x[1, 2000], x[4, :1500] = torch.nan, torch.inf, -torch.inf
    x[2] = -torch.inf
    found = interpreted(CASES["softmax"], x, interpreter)
    eager = F.softmax(x, -1).double()
    torch.testing.assert_close(found, eager, equal_nan=True, atol=1e-4, rtol=1e-2)
