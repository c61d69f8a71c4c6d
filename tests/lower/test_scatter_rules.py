"""Writes at computed places: equal to eager as a program and, kernel by kernel, as a schedule; errors where eager has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import bind, call_torch, check, compare, externs, lowered, run_program, to_numpy
from schedule.running import run_schedule
from torch import Tensor

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.program import Program
from stax.ir.verify import verify_kernel
from stax.lower.lower import lower
from stax.schedule.schedule import schedule
from tests.scatters import ADDS, ALL, SETS, Fn, aten, wide

CUDA = Target.parse("cuda:sm_90")
HALVES = (torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def scheduled(program: Program, args: list[Tensor], expected: Any) -> None:
    """The program's kernels one by one, fused and not."""
    for fusion in (True, False):
        plan = schedule(program, Options().with_(fusion=fusion))
        for step in plan.steps:
            verify_kernel(step.kernel)  # type: ignore[union-attr]
        inputs = [to_numpy(a) for a in args]
        compare(run_schedule(plan, inputs, bind(program, args), call_torch), expected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ALL)
def test_equals_eager(name: str, dynamic: bool) -> None:
    args = ALL[name].args()
    program = check(ALL[name].fn, args, dynamic)
    assert not externs(program)
    scheduled(program, args, ALL[name].fn(*args))


@pytest.mark.parametrize("name", [n for n in (*ADDS, *SETS) if "masked" not in n])
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers(name: str, dtype: torch.dtype) -> None:
    args = ALL[name].args(seed=3, dtype=dtype)
    program = check(ALL[name].fn, args)
    assert not externs(program)
    scheduled(program, args, ALL[name].fn(*args))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_no_worse_than_eager(name: str, dtype: torch.dtype) -> None:
    """Sums of halves are rounded once."""
    args = ALL[name].args(seed=4, dtype=dtype)
    program = lowered(ALL[name].fn, args)
    assert not externs(program)
    found = run_program(program, args)
    exact = ALL[name].fn(*(a.double() if a.is_floating_point() else a for a in args))
    eager = ALL[name].fn(*args)
    pairs = [(exact, eager)] if isinstance(exact, Tensor) else list(zip(exact, eager, strict=True))
    for ours, (right, theirs) in zip(found, pairs, strict=True):
        unit = torch.finfo(dtype).eps * right.abs().max()
        error = (torch.from_numpy(ours).double() - right).abs().max()
        assert error <= 2 * (theirs.double() - right).abs().max() + unit / 2


@pytest.mark.parametrize(
    "name", ["index_add", "scatter_add", "index_put", "index_copy", "index_fill", "embedding"]
)
def test_other_sizes(name: str) -> None:
    """One program of symbols for any number of rows and indices, and for none."""
    case = ALL[name]
    program = lowered(case.fn, case.args(), dynamic=name != "embedding")
    for rows, count in ((9, 4), (13, 2), (9, 9)):
        if name == "embedding":
            rows, count = 9, 4
        old, _, new = case.args(seed=rows)
        old = old[:1].expand(rows, 6).clone()
        index = torch.randperm(rows)[:count]
        new = new[:1].expand(count, new.shape[1]).clone()
        compare(run_program(program, [old, index, new]), case.fn(old, index, new))


# -- errors

BAD: dict[str, tuple[int, ...]] = {
    "index_add": (9, -1),
    "index_add_last": (9, -1),
    "scatter_add": (9, -1),
    "scatter_add_part": (9, -1),
    "scatter_reduce_sum": (9, -1),
    "scatter": (9, -1),
    "scatter_number": (9, -1),
    "index_copy": (9, -1),
    "index_put": (9, -10),
    "index_put_add": (9, -10),
    "index_put_last": (9, -10),
    "index_fill": (9, -10),
}


@pytest.mark.parametrize(("name", "bad"), [(n, b) for n, row in BAD.items() for b in row])
def test_out_of_range_raises(name: str, bad: int) -> None:
    """-1 in index_add (pytorch #185885) and scatter (#131321, #184287) is an error, not the last element."""
    args = ALL[name].args()
    program = lowered(ALL[name].fn, args)
    args[1].view(-1)[-1] = bad
    with pytest.raises((IndexError, RuntimeError)):
        ALL[name].fn(*args)
    with pytest.raises(IndexError, match="is out of bounds"):
        run_program(program, args)


LEFT: dict[str, Fn] = {
    "product": lambda x, i, v: x.scatter(0, wide(i, 6), v, reduce="multiply"),
    "mean": lambda x, i, v: x.scatter_reduce(0, wide(i, 6), v, "mean"),
    "amax": lambda x, i, v: x.scatter_reduce(0, wide(i, 6), v, "amax"),
    "without_old": lambda x, i, v: x.scatter_reduce(0, wide(i, 6), v, "sum", include_self=False),
    "masked": lambda x, i, v: x.masked_scatter(x > 0, v.repeat(4, 1)),
    "chosen": lambda x, i, v: x.index_put((x[:, 0] > 9,), v[:0]),
    "to_a_number": lambda x, i, v: x[0, 0].index_add(0, i[0] * 0, v[0, 0]),
    "by_frequency": lambda x, i, v: aten.embedding_dense_backward(v, i, 9, -1, True),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    args = ALL["index_add"].args()
    assert len(externs(check(LEFT[name], args))) == 1


# -- on a GPU


def lowered_for_cuda(fn: Fn, args: list[Tensor]) -> Program:
    captured = trace(
        fn, tuple(args), {}, dynamic=False, target=CUDA, decompositions=decompositions()
    )
    return lower(captured, options=Options())


@pytest.mark.parametrize(
    "name", ["index_add", "scatter", "index_put_add", "index_copy", "embedding"]
)
def test_deterministic_algorithms_are_torchs(name: str) -> None:
    """The order of writes on a GPU is not fixed: a sum would be rounded otherwise each time, one of two values win."""
    args = ALL[name].args()
    assert not externs(lowered_for_cuda(ALL[name].fn, args))
    torch.use_deterministic_algorithms(True)
    try:
        assert len(externs(lowered_for_cuda(ALL[name].fn, args))) == 1
        assert not externs(lowered(ALL[name].fn, args)), "the CPU writes in order"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["index_add", "index_put_add", "scatter_number", "index_fill"])
def test_whole_sums_and_single_values_come_out_the_same_in_any_order(name: str) -> None:
    args = ALL[name].args(dtype=torch.int32)
    torch.use_deterministic_algorithms(True)
    try:
        found = externs(lowered_for_cuda(ALL[name].fn, args))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not found


# -- any shapes


@st.composite
def puts(draw: st.DrawFn) -> tuple[list[Tensor], list[int | None], bool]:
    """(tensors x, values and the indices; which index stands at each dimension of x; whether values are added)."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    used = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)).filter(any))
    wide = draw(st.lists(st.integers(0, 4), min_size=0, max_size=2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    indices: list[Tensor] = []
    places: list[int | None] = []
    for size, here in zip(shape, used, strict=True):
        places.append(len(indices) if here else None)
        if here:
            own = [1 if n and draw(st.booleans()) else n for n in wide]
            indices.append(torch.randint(-size, size, own, generator=generator))
    x = torch.randint(-50, 50, shape, generator=generator)
    result = x[tuple(slice(None) if p is None else indices[p] for p in places)].shape
    skip = draw(st.integers(0, len(result)))
    own = [1 if n and draw(st.booleans()) else n for n in result[skip:]]
    values = torch.randint(-50, 50, own, generator=generator)
    return [x, values, *indices], places, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(puts())
def test_index_put_of_any_shape(case: tuple[list[Tensor], list[int | None], bool]) -> None:
    """Values for one place are all alike where they are set: which of them wins is not said."""
    args, places, accumulate = case
    if not accumulate:
        args[1] = args[1].flatten()[:1].reshape([1] * args[1].dim()) if args[1].numel() else args[1]

    def fn(x: Tensor, values: Tensor, *indices: Tensor) -> Tensor:
        at = [None if p is None else indices[p] for p in places]
        return aten.index_put(x, at, values, accumulate)

    program = check(fn, args)
    assert not externs(program)
    scheduled(program, args, fn(*args))
