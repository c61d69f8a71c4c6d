"""Writes at computed places as Triton text: equal to eager in the interpreter, and how many kernels they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stax.base.options import Options
from stax.base.target import Target, Toolchain
from stax.build.job import Job
from stax.build.triton import compile_triton
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.codegen.triton.emit import emit
from stax.ir.kernel import Kernel
from stax.ir.program import Extern
from stax.lower.lower import lower
from stax.schedule.schedule import Schedule, schedule
from tests.lowering import bind, compare, to_numpy
from tests.scatters import ADDS, ALL
from tests.triton_interpret import Failure, Interpreter
from tests.triton_programs import run_interpreted

CUDA = Target.parse("cuda:sm_90")
Fn = Callable[..., Any]


def planned(fn: Fn, args: Sequence[Tensor], dynamic: bool = False) -> Schedule:
    captured = trace(
        fn, tuple(args), {}, dynamic=dynamic, target=CUDA, decompositions=decompositions()
    )
    return schedule(lower(captured, options=Options()), Options())


def kernels(plan: Schedule) -> list[Kernel]:
    assert not [s.target for s in plan.steps if isinstance(s, Extern)]
    return [s.kernel for s in plan.steps if not isinstance(s, Extern)]


def interpreted(
    fn: Fn, args: list[Tensor], interpreter: Interpreter, dynamic: bool = False
) -> Schedule:
    plan = planned(fn, args, dynamic)
    found = run_interpreted(
        plan, [to_numpy(a) for a in args], bind(plan.program, args), interpreter
    )
    compare(found, fn(*args))
    return plan


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ALL)
def test_equals_eager(name: str, dynamic: bool, interpreter: Interpreter) -> None:
    kernels(interpreted(ALL[name].fn, ALL[name].args(seed=1), interpreter, dynamic))


@pytest.mark.parametrize(
    "name", ["index_add", "index_put_add", "index_put", "scatter_value_add", "masked_put_add"]
)
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool], ids=str
)
def test_whole_numbers(name: str, dtype: torch.dtype, interpreter: Interpreter) -> None:
    interpreted(ALL[name].fn, ALL[name].args(seed=2, dtype=dtype), interpreter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_added_in_float32(dtype: torch.dtype, interpreter: Interpreter) -> None:
    """Hundreds of small steps, each of which a half would lose beside its sum."""
    old, index = torch.full((2, 3), 256.0, dtype=dtype), torch.zeros(400, dtype=torch.int64)
    new = torch.full((400, 3), 0.25, dtype=dtype)
    plan = planned(ADDS["index_add"].fn, [old, index, new])
    args = [to_numpy(a) for a in (old, index, new)]
    (found,) = run_interpreted(plan, args, {}, interpreter)
    assert (found[0] == 356).all() and (found[1] == 256).all()
    assert len(kernels(plan)) == 3


def test_an_index_out_of_range_traps(interpreter: Interpreter) -> None:
    case = ALL["index_add"]
    args = case.args()
    plan = planned(case.fn, args)
    args[1][2] = -1
    with pytest.raises(Failure, match="index out of range"):
        run_interpreted(plan, [to_numpy(a) for a in args], {}, interpreter)


# -- how many kernels

COUNTS: dict[str, int] = {
    "index_add": 2,  # the old contents copied, then changed
    "index_put": 2,
    "to_zeros": 2,
    "of_computed": 3,  # what is computed of the values joins the scatter
    "embedding": 2,
    "beside_its_reader": 2,
    "after_a_sum": 2,  # softmax and scatter are one
    "of_row_sums": 2,
}


@pytest.mark.parametrize("name", COUNTS)
def test_kernels(name: str) -> None:
    assert len(kernels(planned(ALL[name].fn, ALL[name].args()))) == COUNTS[name]


def softmax_scattered(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    return x.index_add(0, i, v.softmax(-1))


@pytest.mark.parametrize(("columns", "form"), [(96, "per"), (2500, "red")])
def test_a_scatter_beside_a_reduction(columns: int, form: str, interpreter: Interpreter) -> None:
    """Each element is added once, in whichever loop it is known."""
    generator = torch.Generator().manual_seed(5)
    old, new = (torch.randn(n, columns, generator=generator) for n in (5, 7))
    plan = interpreted(softmax_scattered, [old, torch.arange(7) % 5, new], interpreter)
    assert [k.form for k in kernels(plan)] == ["poi", form]


@pytest.mark.parametrize("rows", [1, 3, 31])
def test_a_row_sum_is_added_once(rows: int, interpreter: Interpreter) -> None:
    """Not once for each lane that the reduction spread it over."""
    generator = torch.Generator().manual_seed(5)
    old, new = torch.randn(4, generator=generator), torch.randn(rows, 1500, generator=generator)
    interpreted(
        lambda x, i, v: x.index_add(0, i, v.sum(-1)),
        [old, torch.arange(rows) % 4, new],
        interpreter,
    )


READS: dict[str, tuple[Fn, tuple[tuple[int, ...], ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2 + 1, ((50, 64), (7, 9))),
    "index_select": (lambda w, i: w.index_select(0, i).relu(), ((50, 64), (9,))),
    "gather": (lambda w, i: w.gather(0, i).exp() + i, ((50, 64), (9, 64))),
    "index": (lambda w, i: (w[i] + w[i + 1]).tanh(), ((50, 64), (9,))),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", READS)
def test_a_gather_and_what_follows_are_one_kernel(
    name: str, dynamic: bool, interpreter: Interpreter
) -> None:
    fn, (table, index) = READS[name]
    generator = torch.Generator().manual_seed(6)
    args = [
        torch.randn(table, generator=generator),
        torch.randint(0, 49, index, generator=generator),
    ]
    assert len(kernels(interpreted(fn, args, interpreter, dynamic))) == 1


# -- offsets


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


LARGE: dict[str, Fn] = {
    "embedding": lambda w, i, v: F.embedding(i, w),
    "index": lambda w, i, v: w[i] * 2,
    "index_add": lambda w, i, v: w.index_add(0, i, v),
    "index_put": lambda w, i, v: w.index_put((i,), v),
}


@pytest.mark.parametrize("name", LARGE)
def test_offsets_into_a_large_tensor_are_wide(name: str) -> None:
    """3 billion elements under 4 rows of indices: the loops are small, the computed offset is not."""
    args = [meta(3 << 10, 1 << 20), meta(4, dtype=torch.int64), meta(4, 1 << 20)]
    for kernel in kernels(planned(LARGE[name], args)):
        assert kernel.index_dtype == "int64"
    small = [meta(3 << 5, 1 << 10), meta(4, dtype=torch.int64), meta(4, 1 << 10)]
    for kernel in kernels(planned(LARGE[name], small)):
        assert kernel.index_dtype == "int32"


def test_a_scatter_of_every_added_dtype_compiles_for_hopper() -> None:
    for dtype in (
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.bfloat16,
        torch.bool,
    ):
        for kernel in kernels(planned(ADDS["index_add"].fn, ADDS["index_add"].args(dtype=dtype))):
            source = emit(kernel, CUDA)
            job = Job(
                "triton",
                source.entry,
                source.text,
                source.params,
                source.default,
                CUDA,
                Toolchain(),
            )
            assert compile_triton(job)[0].startswith(b"\x7fELF")
