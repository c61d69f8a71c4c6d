"""Writes at computed places as small functions of (old contents, index, values), for the tests of every stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Fn = Callable[..., Any]
OLD, NEW = (9, 6), (4, 6)


@dataclass(frozen=True)
class Scatter:
    """``old``, ``index`` and ``new`` are shapes; indices lie in low .. high-1, without two alike when ``distinct``."""

    fn: Fn
    old: tuple[int, ...] = OLD
    index: tuple[int, ...] = (4,)
    new: tuple[int, ...] = NEW
    low: int = 0
    high: int = 9
    distinct: bool = False

    def args(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        count = torch.Size(self.index).numel()
        index = torch.randint(self.low, self.high, (count,), generator=generator)
        if self.distinct:
            index = torch.randperm(self.high - self.low, generator=generator)[:count] + self.low
        old, new = (_draw(shape, dtype, generator) for shape in (self.old, self.new))
        return [old, index.reshape(self.index), new]


def _draw(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    numbers = torch.randn(shape, generator=generator) * (1 if dtype.is_floating_point else 40)
    return numbers > 0 if dtype == torch.bool else numbers.to(dtype)


def wide(index: Tensor, columns: int) -> Tensor:
    """One index a row, for every column: strides (1, 0)."""
    return index[:, None].expand(-1, columns)


ADDS: dict[str, Scatter] = {
    "index_add": Scatter(lambda x, i, v: x.index_add(0, i, v)),
    "index_add_int32": Scatter(lambda x, i, v: x.index_add(0, i.int(), v)),
    "index_add_last": Scatter(lambda x, i, v: x.index_add(-1, i, v), (6, 9), (4,), (6, 4)),
    "index_add_middle": Scatter(lambda x, i, v: x.index_add(1, i, v), (2, 9, 3), (5,), (2, 5, 3)),
    "index_add_one": Scatter(lambda x, i, v: x.index_add(0, i[0], v[:1])),
    "index_add_to_transposed": Scatter(lambda x, i, v: x.t().index_add(1, i, v.t())),
    "index_add_nothing": Scatter(lambda x, i, v: x.index_add(0, i[:0], v[:0])),
    "index_add_expanded": Scatter(lambda x, i, v: x.index_add(0, i, v[:1].expand(4, 6))),
    "index_add_strided": Scatter(
        lambda x, i, v: x[:, ::2].index_add(0, i[::2], v[::2, 1::2]), index=(8,), new=(8, 6)
    ),
    "scatter_add": Scatter(lambda x, i, v: x.scatter_add(0, wide(i, 6), v)),
    "scatter_add_part": Scatter(lambda x, i, v: x.scatter_add(1, i, v), (5, 9), (3, 4), (4, 7)),
    "scatter_add_3d": Scatter(
        lambda x, i, v: x.scatter_add(1, i, v), (2, 9, 4), (2, 5, 3), (2, 5, 3)
    ),
    "scatter_reduce_add": Scatter(lambda x, i, v: x.scatter(0, wide(i, 6), v, reduce="add")),
    "scatter_value_add": Scatter(lambda x, i, v: x.scatter(0, wide(i, 6), 1, reduce="add")),
    "scatter_reduce_sum": Scatter(lambda x, i, v: x.scatter_reduce(0, wide(i, 6), v, "sum")),
    "index_put_add": Scatter(lambda x, i, v: x.index_put((i,), v, accumulate=True), low=-9),
    "index_put_add_number": Scatter(
        lambda x, i, v: x.index_put((i,), v[0, 0], accumulate=True), low=-9
    ),
    "index_put_add_two": Scatter(
        lambda x, i, v: x.index_put((i, i[:1] % 6), v[:, 0], accumulate=True), low=-9
    ),
    "index_put_add_apart": Scatter(
        lambda x, i, v: aten.index_put(x, [i, None, i % 3], v, True), (9, 6, 3)
    ),
    "put_add": Scatter(lambda x, i, v: x.put(i, v[0, :4], accumulate=True), low=-54, high=54),
    "put_add_matrix": Scatter(
        lambda x, i, v: x.put(i.reshape(2, 2), v[:2, :2], accumulate=True), (3, 6, 2)
    ),
    "masked_put_add": Scatter(lambda x, i, v: x.index_put((x > 0,), v[0, 0], accumulate=True)),
}

SETS: dict[str, Scatter] = {
    "scatter": Scatter(lambda x, i, v: x.scatter(0, wide(i, 6), v), distinct=True),
    "scatter_number": Scatter(lambda x, i, v: x.scatter(0, wide(i, 6), 1)),
    "scatter_part": Scatter(
        lambda x, i, v: x.scatter(1, i[None].expand(3, 4), v), (5, 9), (4,), (4, 7), distinct=True
    ),
    "index_put": Scatter(lambda x, i, v: x.index_put((i,), v), low=-9, high=0, distinct=True),
    "index_put_broadcast": Scatter(
        lambda x, i, v: x.index_put((i[:, None], i[None] % 6), v[:, :1]),
        index=(4,),
        high=6,
        distinct=True,
    ),
    "index_put_last": Scatter(
        lambda x, i, v: aten.index_put(x, [None, i], v), (6, 9), (4,), (6, 4), -9, 0, distinct=True
    ),
    "put": Scatter(lambda x, i, v: x.put(i, v[:, 0]), high=54, distinct=True),
    "put_to_transposed": Scatter(lambda x, i, v: x.t().put(i, v[:, 0]), high=54, distinct=True),
    "index_put_nothing": Scatter(lambda x, i, v: x.index_put((i[:0],), v[:0])),
    "in_place": Scatter(lambda x, i, v: x.clone().index_put_((i,), v) * 2, distinct=True),
    "setitem": Scatter(lambda x, i, v: _assigned(x, i, v), distinct=True),
    "index_copy": Scatter(lambda x, i, v: x.index_copy(0, i, v), distinct=True),
    "index_copy_last": Scatter(
        lambda x, i, v: x.index_copy(1, i, v), (6, 9), (4,), (6, 4), distinct=True
    ),
    "index_fill": Scatter(lambda x, i, v: x.index_fill(0, i, 1), low=-9),
    "index_fill_tensor": Scatter(lambda x, i, v: x.index_fill(1, i, v[0, 0]), (6, 9), low=-9),
    "masked_put_rows": Scatter(lambda x, i, v: x.index_put((x[:, 0] > 0,), v[0])),
}


def _assigned(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    y = x + x
    y[i] = v
    return y + x


FLOATS: dict[str, Scatter] = {
    "index_add_alpha": Scatter(lambda x, i, v: x.index_add(0, i, v, alpha=-2.5)),
    "of_computed": Scatter(lambda x, i, v: x.index_add(0, i + 0, v.relu() * v.exp()).exp()),
    "to_zeros": Scatter(lambda x, i, v: torch.zeros_like(x).index_add(0, i, v)),
    "twice": Scatter(lambda x, i, v: x.index_add(0, i, v).index_add(0, (i + 1) % 9, v * 2)),
    "beside_its_reader": Scatter(lambda x, i, v: (x.index_add(0, i, v), x.relu(), v.relu())),
    "after_a_sum": Scatter(lambda x, i, v: x.index_add(0, i, v.softmax(-1) * v)),
    "of_row_sums": Scatter(lambda x, i, v: x[:, 0].index_add(0, i, v.sum(-1))),
    "embedding": Scatter(
        lambda x, i, v: aten.embedding_dense_backward(v, i, 9, -1, False), new=(4, 16)
    ),
    "embedding_padding": Scatter(
        lambda x, i, v: aten.embedding_dense_backward(v, i, 5, 2, False),
        index=(3, 7),
        new=(3, 7, 4),
        high=5,
    ),
}

ALL = {**ADDS, **SETS, **FLOATS}
