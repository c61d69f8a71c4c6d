"""8-bit floats in programs: cast, moved, chosen and compared in kernels, equal to eager; arithmetic is torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import stax
from stax.base.options import Options
from stax.ir.program import Extern
from stax.schedule.schedule import schedule
from tests.lowering import check, externs, lowered

TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
Fn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def quantized(x: torch.Tensor, dtype: torch.dtype) -> Any:
    """A row's values scaled to the type's range, and the scale."""
    scale = x.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max
    return (x / scale).to(dtype), scale


FUNCTIONS: dict[str, Fn] = {
    "there_and_back": lambda x, a, b: (x * 3).to(a.dtype).float() + 1,
    "narrower": lambda x, a, b: (a.half(), a.bfloat16(), a.double(), a.int(), a.bool()),
    "from_halves": lambda x, a, b: (x.half().to(a.dtype), x.bfloat16().to(a.dtype)),
    "from_whole": lambda x, a, b: ((x * 100).int().to(a.dtype), (x > 0).to(a.dtype)),
    "quantized": lambda x, a, b: quantized(x, a.dtype),
    "where": lambda x, a, b: torch.where(x > 0, a, b),
    "where_number": lambda x, a, b: torch.where(x > 0, a, 0.0),
    "cat": lambda x, a, b: torch.cat([a, b.t().reshape(4, 6), a[:1]]),
    "pad": lambda x, a, b: F.pad(a, (1, 2), value=1.3),
    "made": lambda x, a, b: (torch.full_like(a, 1.3), torch.zeros_like(b), torch.ones_like(a)),
    "rows": lambda x, a, b: (a[(x[:, 0] > 0).long()], a.index_select(1, (x[:, 1] > 0).int())),
    "turned": lambda x, a, b: (a.t().contiguous(), b.flip(0), a.roll(1, 0), a.repeat(2, 1)),
    "compared": lambda x, a, b: (a == b, a != 0, a.isnan(), a.abs()),
    "scattered": lambda x, a, b: torch.slice_scatter(a, b[:2], 0, 1, 3),
}


def arguments(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(4, 6, generator=generator) * 10 for _ in range(3)]
    wide[1][0, :3] = torch.tensor([1e6, -1e6, float("nan")])
    return [wide[0], wide[1].to(dtype), wide[2].to(dtype)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_eager(name: str, dtype: torch.dtype) -> None:
    program = check(FUNCTIONS[name], arguments(dtype), strict_native=True)
    assert externs(program) == []


def test_quantizing_is_one_kernel() -> None:
    program = lowered(lambda x: quantized(x, TYPES[0]), [torch.randn(64, 256)])
    assert len(schedule(program, Options()).steps) == 1


def test_rounding_that_was_asked_for_stays() -> None:
    """Options.numerics "fast" drops round trips through half types alone."""
    x = torch.linspace(-3, 3, 24).view(4, 6)
    check(lambda x: x.to(TYPES[0]).float() * 2, [x])
    plan = schedule(lowered(lambda x: x.to(TYPES[0]).float() * 2, [x]), Options(numerics="fast"))
    (kernel,) = plan.steps
    assert not isinstance(kernel, Extern)
    assert "float8_e4m3fn" in kernel.kernel.statements[0].body.text


def test_arithmetic_is_torch_s() -> None:
    _, a, b = arguments(TYPES[0])
    assert externs(lowered(lambda a, b: a * b, [a, b])) == ["aten.mul.Tensor"]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_compiled_for_the_cpu(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        codes, scale = quantized(x, a.dtype)
        return codes, codes.float() * scale, torch.where(x > 0, a, b), torch.cat([a, b], 1)

    args = arguments(dtype)
    compiled = stax.compile(fn, store="memory:", fullgraph=True)
    for found, want in zip(compiled(*args), fn(*args), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found.float(), want.float())
