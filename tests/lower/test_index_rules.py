"""Gathers, scatters to known places, creation, joins and pads against eager; bounds are errors as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import check, compare, computations, externs, lowered, run_program

Fn = Callable[..., Any]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        dtype
    )


def places(
    *shape: int, low: int = 0, high: int = 5, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


GATHERS: dict[str, tuple[Fn, tuple[int, ...], tuple[int, ...], int]] = {
    "embedding": (lambda x, i: F.embedding(i, x), (5, 3), (2, 4), 0),
    "embedding_padding": (lambda x, i: F.embedding(i, x, padding_idx=1), (5, 3), (2, 4), 0),
    "index_select": (lambda x, i: x.index_select(1, i), (3, 5, 2), (7,), 0),
    "gather": (lambda x, i: x.gather(1, i), (3, 5, 4), (2, 6, 3), 0),
    "gather_last": (lambda x, i: x.gather(-1, i), (3, 5), (3, 2), 0),
    "take": (lambda x, i: x.take(i), (3, 5), (2, 4), -5),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), (3, 5), (3, 2), 0),
    "index": (lambda x, i: x[i], (5, 3), (4,), -5),
    "index_last": (lambda x, i: x[:, i], (3, 5), (4,), -5),
    "index_two": (lambda x, i: x[i, i], (5, 5, 2), (4,), -5),
    "index_apart": (lambda x, i: x[i, :, i], (5, 2, 5), (4,), -5),
    "index_middle": (lambda x, i: x[:, i, i], (2, 5, 5, 3), (4, 2), -5),
    "index_broadcast": (lambda x, i: x[i[:, None], i], (5, 5), (4,), -5),
    "index_of_matrix": (lambda x, i: x[i], (5, 3), (2, 3), -5),
    "index_sliced": (lambda x, i: x[1:, i] + 1, (3, 5), (4,), -5),
    "index_of_transposed": (lambda x, i: x.t()[i], (3, 5), (4,), -5),
    "index_then_add": (lambda x, i: x[i] + x[i + 0], (5, 3), (4,), -5),
    "empty_index": (lambda x, i: x[i[:0]], (5, 3), (4,), 0),
}


@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_gather(name: str, dtype: torch.dtype) -> None:
    fn, shape, index_shape, low = GATHERS[name]
    if dtype == torch.int32 and name in ("gather", "gather_last", "take", "take_along_dim"):
        pytest.skip("eager takes int64 alone")
    program = check(fn, [numbers(*shape), places(*index_shape, low=low, dtype=dtype)])
    assert not externs(program)


@pytest.mark.parametrize("name", [n for n in GATHERS if n not in ("empty_index", "take_along_dim")])
@pytest.mark.parametrize("bad", [5, -6, 100], ids=str)
def test_out_of_range_raises(name: str, bad: int) -> None:
    fn, shape, index_shape, _ = GATHERS[name]
    index = places(*index_shape)
    program = lowered(fn, [numbers(*shape), index])
    index.view(-1)[-1] = bad if name != "take" else bad * 10
    with pytest.raises((IndexError, RuntimeError)):
        fn(numbers(*shape), index)
    with pytest.raises(IndexError, match="out of bounds"):
        run_program(program, [numbers(*shape), index])


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather", "gather_last"])
def test_minus_one_is_an_error_where_eager_says_so(name: str) -> None:
    fn, shape, index_shape, _ = GATHERS[name]
    index = places(*index_shape)
    program = lowered(fn, [numbers(*shape), index])
    index.view(-1)[0] = -1
    with pytest.raises(IndexError, match="-1 is out of bounds"):
        run_program(program, [numbers(*shape), index])


def test_gather_dynamic() -> None:
    program = lowered(lambda x, i: x[i] * 2, [numbers(5, 3), places(4, low=-5)], dynamic=True)
    for n, m in ((5, 4), (9, 3)):
        x, i = numbers(n, 3), places(m, low=-n, high=n)
        compare(run_program(program, [x, i]), x[i] * 2)


ONE_A_LINE: dict[str, Fn] = {
    "value": lambda x, i: x.scatter(1, i[:, None], 2.5),
    "source": lambda x, i: x.scatter(1, i[:, None], x * 2),
    "first_dim": lambda x, i: x.scatter(0, i[None, :], -1.0),
    "part": lambda x, i: x.scatter(1, i[:2, None], 9.0),
    "one_hot": lambda x, i: torch.zeros(5, 5, dtype=torch.int64).scatter(1, i[:, None], 1),
}


@pytest.mark.parametrize("name", ONE_A_LINE)
def test_scatter_of_one_index_a_line(name: str) -> None:
    """Each element knows whether it is the one; an index out of range is an error all the same."""
    x, i = numbers(5, 5), places(5)
    program = check(ONE_A_LINE[name], [x, i])
    assert not externs(program)
    i[0] = 5
    with pytest.raises(IndexError):
        run_program(program, [x, i])


SCATTERS: dict[str, Fn] = {
    "slice_scatter": lambda x, y: x.slice_scatter(y[:, :2], 1, 1, 3),
    "slice_scatter_step": lambda x, y: x.slice_scatter(y[:, :2], 1, 1, 6, 3),
    "slice_scatter_negative": lambda x, y: x.slice_scatter(y[:, :2], 1, -2),
    "slice_scatter_whole": lambda x, y: x.slice_scatter(y),
    "slice_scatter_nothing": lambda x, y: x.slice_scatter(y[:, :0], 1, 2, 2),
    "select_scatter": lambda x, y: x.select_scatter(y[0], 0, 2),
    "select_scatter_negative": lambda x, y: x.select_scatter(y[:, 0], 1, -1),
    "diagonal_scatter": lambda x, y: x.diagonal_scatter(y[0, :4], 1),
    "diagonal_scatter_below": lambda x, y: x.diagonal_scatter(y[0, :3], -1),
    "masked_put": lambda x, y: x.index_put((y > 0,), torch.zeros(())),
    "row_mask_put": lambda x, y: x.index_put((y[:, 0] > 0,), torch.ones(())),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_to_known_places(name: str) -> None:
    program = check(SCATTERS[name], [numbers(4, 6), numbers(4, 6) * 2])
    assert not externs(program)


CREATIONS: dict[str, Fn] = {
    "zeros": lambda x: torch.zeros(3, 4),
    "ones": lambda x: torch.ones(2, dtype=torch.int32),
    "full": lambda x: torch.full((2, 2), 7.5),
    "full_bool": lambda x: torch.full((2,), True),
    "full_like": lambda x: torch.full_like(x.t(), -math.inf),
    "zeros_like": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "ones_like": lambda x: torch.ones_like(x.t()),
    "new_zeros": lambda x: x.new_zeros(2, 3),
    "new_ones": lambda x: x.new_ones((2,), dtype=torch.bool),
    "new_full": lambda x: x.new_full((2,), 3.5),
    "scalar_tensor": lambda x: x + torch.scalar_tensor(2.5),
    "arange": lambda x: torch.arange(7),
    "arange_from": lambda x: torch.arange(3, 11),
    "arange_step": lambda x: torch.arange(1, 12, 3),
    "arange_down": lambda x: torch.arange(10, -5, -4),
    "arange_float": lambda x: torch.arange(0.5, 3, 0.25),
    "arange_float_down": lambda x: torch.arange(1.0, -1.0, -0.3),
    "arange_as_float": lambda x: torch.arange(5, dtype=torch.float32),
    "arange_empty": lambda x: torch.arange(0),
    "arange_wide": lambda x: torch.arange(9) * 1_500_000_000,
    "linspace": lambda x: torch.linspace(-1, 1, 7),
    "eye": lambda x: torch.eye(4),
    "eye_wide": lambda x: torch.eye(2, 5, dtype=torch.int64),
    "tril": lambda x: x.tril(),
    "tril_above": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-2),
    "triu_bool": lambda x: torch.ones(4, 4, dtype=torch.bool).triu(1),
    "fill": lambda x: torch.ops.aten.fill(x, 2.0),
    "fill_tensor": lambda x: torch.ops.aten.fill(x, x[0, 0]),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"),
    "one_hot_compare": lambda x: (torch.arange(5) == torch.arange(3)[:, None]).float(),
    "diag_embed": lambda x: x.diag_embed(),
    "copy": lambda x: torch.ops.aten.copy(x, x[0]),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_creation(name: str) -> None:
    program = check(CREATIONS[name], [numbers(4, 6)])
    assert not externs(program)


def test_arange_of_sizes() -> None:
    """Bounds and steps may be sizes; nothing wraps at 32 bits."""

    def fn(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return (
            torch.arange(n),
            torch.arange(n, 2 * n, 2),
            torch.arange(n) * 1_500_000_000,
            torch.arange(n, 0, -1),
        )

    program = lowered(fn, [numbers(9)], dynamic=True)
    for n in (9, 4, 30):
        compare(run_program(program, [numbers(n)]), fn(numbers(n)))


JOINS: dict[str, Fn] = {
    "cat": lambda x, y: torch.cat([x, y]),
    "cat_last": lambda x, y: torch.cat([x, y, x[:, :1]], -1),
    "cat_three": lambda x, y: torch.cat([x, y[:1], x * 2], 0),
    "cat_one": lambda x, y: torch.cat([x]),
    "cat_empty": lambda x, y: torch.cat([torch.zeros(0), x, y[:0], y], 0),
    "cat_all_empty": lambda x, y: torch.cat([x[:0], y[:0]], 0),
    "cat_mixed": lambda x, y: torch.cat([x, y.double(), y.int()], 0),
    "cat_views": lambda x, y: torch.cat([x.t(), y.t()[1:]], 0),
    "cat_halves": lambda x, y: torch.cat([x.half(), y.half()], 1),
    "stack": lambda x, y: torch.stack([x, y]),
    "stack_last": lambda x, y: torch.stack([x, y, x], -1),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "pad": lambda x, y: F.pad(x, (1, 2)),
    "pad_two": lambda x, y: F.pad(x, (0, 2, 1, 0), value=-1.5),
    "pad_cut": lambda x, y: F.pad(x, (-1, 2, 1, -2)),
    "pad_bool": lambda x, y: F.pad(x > 0, (1, 1), value=True),
    "pad_inf": lambda x, y: F.pad(x, (1, 1), value=-math.inf),
    "pad_half": lambda x, y: F.pad(x.bfloat16(), (1, 1), value=0.1),
    "pad_reflect": lambda x, y: F.pad(x[None], (2, 1), mode="reflect"),
    "pad_replicate": lambda x, y: F.pad(x[None], (2, 1), mode="replicate"),
    "repeat": lambda x, y: x.repeat(2, 3),
    "repeat_new": lambda x, y: x.repeat(2, 1, 2),
    "repeat_zero": lambda x, y: x.repeat(0, 2),
    "tile": lambda x, y: x.tile(3),
    "repeat_interleave": lambda x, y: x.repeat_interleave(3, 1),
    "roll": lambda x, y: x.roll(2, 1),
    "roll_two": lambda x, y: x.roll((1, -2), (0, 1)),
    "roll_flat": lambda x, y: x.roll(5),
    "roll_far": lambda x, y: x.roll(-13, 0),
    "flip": lambda x, y: x.flip(0),
    "flip_all": lambda x, y: x.flip(0, 1),
    "rot90": lambda x, y: x.rot90(),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "upsample_nearest": lambda x, y: F.interpolate(x[None, None], scale_factor=2, mode="nearest"),
    "upsample_bilinear": lambda x, y: F.interpolate(x[None, None], size=(7, 5), mode="bilinear"),
    "upsample_corners": lambda x, y: F.interpolate(
        x[None, None], size=(7, 5), mode="bilinear", align_corners=True
    ),
    "trace": lambda x, y: torch.trace(x),
    "where_index": lambda x, y: torch.where(torch.arange(6) < 3, x, y),
}


@pytest.mark.parametrize("name", JOINS)
def test_join(name: str) -> None:
    program = check(JOINS[name], [numbers(4, 6), numbers(4, 6) + 1])
    assert not externs(program)


@pytest.mark.parametrize(
    "name",
    ["cat", "cat_last", "cat_three", "stack", "repeat", "roll", "flip", "tile"],
)
def test_join_dynamic(name: str) -> None:
    fn = JOINS[name]
    program = lowered(fn, [numbers(4, 6), numbers(4, 6)], dynamic=True)
    for shape in ((4, 6), (3, 9), (7, 5)):
        x, y = numbers(*shape), numbers(*shape) + 1
        compare(run_program(program, [x, y]), fn(x, y))


def test_roll_of_nothing() -> None:
    x = torch.empty(0, 3)
    check(
        lambda x: (x.roll(1, 0), x.repeat(2, 2), x.flip(0), F.pad(x, (1, 1)), torch.cat([x, x])),
        [x],
    )


def test_padding_an_empty_tensor_reads_nothing() -> None:
    check(lambda x: F.pad(x, (2, 2), value=3.0) + 1, [torch.empty(3, 0)])


def test_pad_then_cut_back() -> None:
    """Padding to a multiple of 4 and slicing back, at several sizes of one program."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return torch.cat([x, x.new_zeros((-n) % 4)])[:n] * 2

    for n in (3, 5, 8, 9):
        check(fn, [numbers(n)], dynamic=True)


def test_one_computation_each() -> None:
    program = lowered(lambda x, y: torch.cat([x, y]).flip(0), [numbers(4, 6), numbers(4, 6)])
    assert [c.origin.op for c in computations(program)] == ["aten.cat.default", "aten.flip.default"]
