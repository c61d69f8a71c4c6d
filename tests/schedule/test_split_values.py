"""What split reductions compute, kernel by kernel through the numpy oracle, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import compare
from splitting import kernels, outputs_of, plan_of, splits

from stax.ir.interp import Space, evaluate
from stax.ir.value import Value, local
from stax.schedule import merge

Fn = Callable[..., Any]
INF, NAN = float("inf"), float("nan")

COMBINES: dict[str, Fn] = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "prod": lambda x, d: (1 + x / 4096).prod(d),
    "amax": lambda x, d: x.amax(d),
    "amin": lambda x, d: x.amin(d),
    "any": lambda x, d: (x > 3.9).any(d),
    "all": lambda x, d: (x > -4.1).all(d),
    "argmax": lambda x, d: x.argmax(d),
    "argmin": lambda x, d: x.argmin(d),
    "max_dim": lambda x, d: tuple(x.max(d)),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "var": lambda x, d: torch.var_mean(x, d),
    "aminmax_sum": lambda x, d: (x.amax(d), x.amin(d), x.sum(d), (x * x).sum(d)),
}
# shape, reduced dimension, and the order in which memory holds the dimensions
LAYOUTS: dict[str, tuple[tuple[int, int], int, tuple[int, int]]] = {
    "rows": ((3, 40960), 1, (0, 1)),
    "ragged_rows": ((3, 40961), 1, (0, 1)),
    "columns": ((20480, 8), 0, (0, 1)),
    "ragged_columns": ((20479, 8), 0, (0, 1)),
    "dealt": ((32768, 6), 0, (0, 1)),
    "transposed": ((40961, 3), 0, (1, 0)),
}


def laid_out(shape: tuple[int, int], order: tuple[int, int], seed: int) -> torch.Tensor:
    """Random numbers whose memory holds the dimensions in ``order``."""
    made = torch.randn([shape[d] for d in order], generator=torch.Generator().manual_seed(seed))
    return made if order == (0, 1) else made.t()


def check(fn: Fn, args: Sequence[torch.Tensor], dynamic: bool = False, scale: float = 4.0) -> None:
    """The kernels give what eager gives, and there was something to split."""
    plan = plan_of(fn, args, dynamic)
    assert splits(plan)
    compare(outputs_of(plan, args), fn(*args), scale)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", COMBINES)
def test_equals_eager(name: str, layout: str, dynamic: bool) -> None:
    shape, dim, order = LAYOUTS[layout]
    x = laid_out(shape, order, seed=len(name) + len(layout))
    check(lambda x: COMBINES[name](x, dim), [x], dynamic)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "argmin", "var", "logsumexp", "any"])
def test_equals_eager_in_other_dtypes(name: str, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point and name in ("var", "logsumexp"):
        pytest.skip("floats only")
    x = laid_out((2, 300001), (0, 1), seed=7) * (3 if name == "argmax" else 1)
    x = x > 3 if dtype == torch.bool else (x.abs() if dtype == torch.uint8 else x).to(dtype)
    fn = {"any": lambda x: (x == 2).any(1)}.get(name, lambda x: COMBINES[name](x, 1))
    if dtype == torch.bool and name in ("argmax", "argmin"):
        x = x.to(torch.uint8)  # eager has no argmax of booleans
    check(fn, [x])


# -- values that are not finite


def troubled(length: int) -> torch.Tensor:
    """Rows: good; a segment of -inf; all -inf; one inf; -inf and inf; one NaN; NaN and inf; all equal; all inf."""
    x = torch.randn(9, length, generator=torch.Generator().manual_seed(3))
    x[1, :30000] = -INF
    x[2] = -INF
    x[3, 12345] = INF
    x[4, :20000], x[4, -1] = -INF, INF
    x[5, length // 2] = NAN
    x[6, 5], x[6, length - 3] = INF, NAN
    x[7] = 1.5
    x[8] = INF
    return x


@pytest.mark.parametrize("length", [65536, 65537])
@pytest.mark.parametrize("name", COMBINES)
def test_troubled_rows(name: str, length: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        return COMBINES[name](x, 1)

    if name == "var":  # eager on a CPU has no mean of a row with inf
        check(lambda x: x.var(1), [troubled(length)])
        return
    check(fn, [troubled(length)])


@pytest.mark.parametrize("length", [1 << 19, (1 << 19) + 1])
def test_softmax_of_troubled_rows(length: int) -> None:
    x = troubled(length)
    check(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1)), [x], scale=50)


def test_the_first_of_equal_extremes_wins_wherever_segments_end() -> None:
    x = torch.zeros(4, 70001)
    x[1, [30000, 30001, 69999]] = 1
    x[2, [8191, 8192]] = -1
    x[3, [70000, 9216, 9215]] = NAN
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1).indices), [x])


def test_positions_count_over_all_axes() -> None:
    x = torch.randn(40, 37, 29, 3)
    check(lambda x: (x.argmax(), x.argmin()), [x])
    check(lambda x: x.permute(3, 1, 0, 2).argmax(), [x])


# -- several axes, batch norm


@pytest.mark.parametrize("dims", [(0, 2, 3), (1, 2), None, (3,)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_several_axes(dims: tuple[int, ...] | None, dynamic: bool) -> None:
    x = torch.randn(12, 3, 181, 127, generator=torch.Generator().manual_seed(5))
    if dims == (3,):
        x = x.reshape(2, 3, 2, -1)[:, :, :, ::2]
    check(lambda x: (x.sum(dims), x.var(dims), x.amax(dims or (0, 1, 2, 3))), [x], dynamic)


def test_batch_norm_in_training() -> None:
    def fn(x: torch.Tensor, *p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten._native_batch_norm_legit_functional(x, *p, True, 0.1, 1e-5)

    args = [torch.randn(6, 5, 400, 401) * 3 + 20, *(torch.randn(5).abs() for _ in range(4))]
    check(fn, args)


def test_a_producer_with_many_inputs_is_made_once() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x + y
        return h, h.var(-1), (h - h.mean(-1, keepdim=True)).abs().sum(-1)

    args = [torch.randn(2, 1 << 21), torch.randn(2, 1 << 21)]
    check(fn, args)
    first = kernels(plan_of(fn, args))[0]
    assert [p.kind for p in first.pointers].count("in") == 2


# -- sizes that are symbols


@pytest.mark.parametrize("shape", [(3, 2), (5, 100), (2, 8192), (2, 8193), (7, 100000), (300, 70)])
@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "logsumexp", "var", "all"])
def test_one_plan_serves_all_lengths(name: str, shape: tuple[int, int]) -> None:
    def fn(x: torch.Tensor) -> Any:
        return COMBINES[name](x, 1)

    plan = plan_of(fn, [torch.randn(64, 20000)], True)
    assert splits(plan)
    x = torch.randn(*shape)
    compare(outputs_of(plan, [x]), fn(x), scale=4)


# -- the two merges, for any order and any segments


@st.composite
def segmented(draw: st.DrawFn) -> list[list[float]]:
    """A row cut anywhere, in any order of its segments."""
    plain = st.floats(-1e3, 1e3, width=32)
    row = draw(st.lists(plain | st.sampled_from([-INF, 88.0, -88.0]), min_size=1, max_size=40))
    ends = sorted(draw(st.sets(st.integers(1, len(row)), max_size=8)) | {len(row)})
    cut = [row[a:b] for a, b in zip([0, *ends], ends)]
    return draw(st.permutations(cut))


def value_of(root: Value, **arrays: Any) -> float:
    """A Value over locals, in float64."""
    held = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
    with np.errstate(all="ignore"):
        return float(evaluate(root, Space((), {}, {}, held)))


def local_(name: str) -> Value:
    return local(name, "float64")


POWERS = merge.powers(local_("top"), local_("summed"), local_("shift"))
SQUARES = merge.squares(local_("count"), local_("mean"), local_("centred"), local_("shift"))


@settings(max_examples=200, deadline=None)
@given(segmented())
def test_claim_5_4_maxima_and_sums_of_exponentials_merge(parts: list[list[float]]) -> None:
    """Folding in segment after segment, in any order, gives the maximum and the sum of the whole row."""
    with np.errstate(all="ignore"):
        pairs = [(max(p), float(np.exp(np.array(p) - max(p)).sum())) for p in parts]
        row = np.array([v for p in parts for v in p])
        expected = np.exp(row - row.max()).sum()
    m, d = pairs[0]
    for top, summed in pairs[1:]:
        new = max(m, top)
        d = value_of(POWERS, top=m, summed=d, shift=new) + value_of(
            POWERS, top=top, summed=summed, shift=new
        )
        m = new
    assert m == row.max()
    np.testing.assert_allclose(d, expected, rtol=1e-12)
    for shift in (0.0, row.max() + 1):  # logsumexp shifts infinite maxima by nothing
        with np.errstate(all="ignore"):
            found = sum(value_of(POWERS, top=t, summed=s, shift=shift) for t, s in pairs)
            np.testing.assert_allclose(found, np.exp(row - shift).sum(), rtol=1e-12)


@settings(max_examples=200, deadline=None)
@given(segmented())
def test_counts_means_and_centred_squares_merge(parts: list[list[float]]) -> None:
    parts = [[v if v > -INF else 5e5 for v in p] for p in parts]
    count, mean, centred = len(parts[0]), np.mean(parts[0]), np.var(parts[0]) * len(parts[0])
    for p in parts[1:]:
        new = (count * mean + sum(p)) / (count + len(p))
        centred = value_of(SQUARES, count=count, mean=mean, centred=centred, shift=new) + value_of(
            SQUARES, count=len(p), mean=np.mean(p), centred=np.var(p) * len(p), shift=new
        )
        count, mean = count + len(p), new
    row = np.array([v for p in parts for v in p])
    np.testing.assert_allclose(mean, row.mean(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(centred, row.var() * len(row), rtol=1e-9, atol=1e-9)
