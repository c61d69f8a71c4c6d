"""Split reductions as Triton text: Listing 9.4 as the compiler itself makes it, and eager's values under the interpreter."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stax.codegen.triton.emit import emit
from tests.codegen.triton.test_triton_emit import split_sum
from tests.codegen.triton.test_triton_programs import Fn
from tests.lowering import bind, compare, to_numpy
from tests.schedule.splitting import kernels, meta, plan_of, splits
from tests.triton_interpret import Interpreter
from tests.triton_programs import TARGET, run_interpreted


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1)


def test_example_6_2_makes_the_kernels_of_listing_9_4() -> None:
    """Their texts are the golden ones, listing_9_4_first and listing_9_4_second."""
    first, second = split_sum()
    assert kernels(plan_of(squares, [meta(64, 16384)])) == [first, replace(second, fused=("sum",))]


def test_claims_4_4_to_4_6_in_the_text() -> None:
    first, second = (emit(k, TARGET).text for k in kernels(plan_of(squares, [meta(64, 16384)])))
    assert "    xnumel = 128\n    r0_numel = 8192\n" in first
    assert "    xnumel = 64\n    r0_numel = 2\n" in second
    loop = first.split("for r0_offset")[1].split("\n    tmp")[0]
    assert re.findall(r"tl\.load\((.*?)\)", loop)[0].startswith("in_ptr0 + (r0_1 + 8192*x0")
    assert first.count("tl.load") == loop.count("tl.load") == 1


CASES: dict[str, tuple[Fn, tuple[int, ...]]] = {
    "sum": (squares, (2, 40960)),
    "ragged": (lambda x: (x.sum(-1), x.amin(-1), (x > 4).any(-1)), (2, 40961)),
    "columns": (lambda x: (x.sum(0), x.prod(0)), (40961, 3)),
    "positions": (lambda x: (x.argmax(-1), x.min(-1)), (2, 40961)),
    "logsumexp": (lambda x: x.logsumexp(-1), (2, 40961)),
    "variance": (lambda x: torch.var_mean(x, -1), (2, 40961)),
    "channels": (lambda x: torch.var_mean(x, (0, 2)), (3, 4, 16384)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, dynamic: bool, interpreter: Interpreter) -> None:
    fn, shape = CASES[name]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(len(name)))
    if name == "logsumexp":
        x[0, :20000], x[1] = float("-inf"), float("-inf")
    if name == "positions":
        x[0, [30000, 20000]] = float("nan")
    plan = plan_of(fn, [x], dynamic)
    assert splits(plan)
    out = run_interpreted(plan, [to_numpy(x)], bind(plan.program, [x]), interpreter)
    compare(out, fn(x), scale=4)


def test_softmax_of_a_few_long_rows(interpreter: Interpreter) -> None:
    x = torch.randn(2, (1 << 21) + 1, generator=torch.Generator().manual_seed(1))
    plan = plan_of(lambda x: F.softmax(x, -1), [x])
    assert len(kernels(plan)) == 3
    out = run_interpreted(plan, [to_numpy(x)], {}, interpreter)
    compare(out, F.softmax(x, -1), scale=4)
