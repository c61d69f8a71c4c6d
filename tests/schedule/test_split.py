"""Reductions with few outputs become two: the shapes that the specification and the device demand, and eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering import TARGET as CPU
from splitting import extents, kernels, meta, plan_of, reasons, splits

from stax.ir.dtypes import DTYPES
from stax.ir.expr import product

Fn = Callable[..., Any]
BF16 = torch.bfloat16


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1)


def batch_norm(x: torch.Tensor, *p: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, p[0], p[1], p[2], p[3], True)


# -- Example 6.2


def test_claim_4_4_example_6_2_is_128_by_8192_then_64_by_2() -> None:
    plan = plan_of(squares, [meta(64, 16384)])
    assert extents(plan) == [("red", 128, 8192), ("per", 64, 2)]
    assert all(k.inner and k.index_dtype == "int32" for k in kernels(plan))


def test_claim_4_5_outputs_and_segments_merge_into_one_axis() -> None:
    first, second = kernels(plan_of(squares, [meta(64, 16384)]))
    assert [a.name for a in first.axes] == ["x0"] and [a.name for a in second.axes] == ["x0"]
    assert [v.args[0].text for v in first.statements[0].body.loads] == ["[r0_0 + 8192*x0]"]
    assert [v.args[0].text for v in second.statements[0].body.loads] == ["[r0_0 + 2*x0]"]


def test_claim_4_6_one_load_in_the_loop() -> None:
    first = kernels(plan_of(squares, [meta(64, 16384)]))[0]
    assert sum(len(s.body.loads) for s in first.statements) == 1


def test_claim_4_7_the_partial_buffer_has_512_bytes() -> None:
    plan = plan_of(squares, [meta(64, 16384)])
    (partial,) = [b for b in plan.program.buffers if b.name.endswith("partial")]
    count = product(partial.shape).value
    assert (partial.dtype, count * DTYPES[partial.dtype].itemsize) == ("float32", 512)


# -- how many segments, and along which axis

SHAPES: dict[str, tuple[Fn, list[torch.Tensor], list[tuple[str, int, int]]]] = {
    "long_rows": (squares, [meta(64, 1 << 22)], [("red", 4096, 65536), ("per", 64, 64)]),
    "full_sum": (
        lambda x: x.sum(),
        [meta(1 << 28)],
        [("red", 4096, 65536), ("red", 1, 4096)],
    ),
    "columns": (
        lambda x: x.sum(0),
        [meta(16384, 8192)],
        [("red", 32 * 8192, 512), ("per", 8192, 32)],
    ),
    "batch_norm": (
        batch_norm,
        [meta(32, 64, 512, 512, dtype=BF16), *(meta(64) for _ in range(4))],
        [("red", 64 * 32, 512 * 512), ("per", 64, 32), ("poi", 32 * 64 * 512 * 512, 1)],
    ),
    "small_batch_norm": (
        batch_norm,
        [meta(2, 64, 512, 512, dtype=BF16), *(meta(64) for _ in range(4))],
        [("red", 64 * 64, 16 * 512), ("per", 64, 64), ("poi", 2 * 64 * 512 * 512, 1)],
    ),
    "few_long_softmax": (
        lambda x: F.softmax(x, -1),
        [meta(4, 1 << 22)],
        [("red", 4 * 512, 8192), ("per", 4, 512), ("poi", 1 << 24, 1)],
    ),
    "many_rows": (lambda x: x.sum(-1), [meta(4096, 16384)], [("red", 4096, 16384)]),
    "prime": (lambda x: x.sum(), [meta(7919 * 1009)], [("red", 867, 9216), ("per", 1, 867)]),
    "two_reduced_axes": (
        lambda x: x.sum((1, 2)),
        [meta(64, 4, 4096)],
        [("red", 128, 8192), ("per", 64, 2)],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_kernels(name: str) -> None:
    fn, args, expected = SHAPES[name]
    assert extents(plan_of(fn, args)) == expected


@pytest.mark.parametrize(
    ("fn", "args", "reason"),
    [
        (lambda x: x.sum(-1), [meta(4096, 65536)], "4096 work items fill the device"),
        (lambda x: x.sum(-1), [meta(4, 8000)], "reads 128000 bytes only"),
        (lambda x: x.sum(-1), [meta(256, 8192)], "8192 elements an output are few"),
        (
            lambda x: F.softmax(x, -1),
            [meta(16, 65536)],
            "the 4194304 bytes are read again: one kernel keeps them near",
        ),
        (
            lambda x: F.softmax(x, -1),
            [meta(128, 131072)],
            "128 work items that read their elements again nearly fill the device",
        ),
    ],
)
def test_each_refusal_has_its_reason(fn: Fn, args: list[torch.Tensor], reason: str) -> None:
    plan = plan_of(fn, args)
    assert len(kernels(plan)) == 1 and set(reasons(plan)) == {reason} and not splits(plan)


def test_each_split_is_told() -> None:
    plan = plan_of(squares, [meta(64, 16384)])
    assert splits(plan) == ["64 outputs of 16384 elements in 2 segments each"]


def test_no_fusion_means_no_split() -> None:
    plan = plan_of(squares, [meta(64, 16384)], fusion=False)
    assert not splits(plan) and not reasons(plan)


def test_the_cpu_keeps_its_reductions_whole() -> None:
    for fn in (squares, lambda x: F.softmax(x, -1), lambda x: x.var()):
        plan = plan_of(fn, [meta(64, 1 << 20)], target=CPU)
        assert not splits(plan) and not reasons(plan)


def test_two_reductions_of_one_tensor_are_split_alike_and_share_the_pass() -> None:
    plan = plan_of(lambda x: (x.sum(), x.amax(), x.var()), [meta(4096, 4096)])
    assert extents(plan) == [("red", 2048, 8192), ("per", 1, 2048)]


def test_a_segment_of_transposed_memory_is_contiguous() -> None:
    (first, *_) = kernels(plan_of(lambda x: x.permute(2, 0, 1).sum(), [meta(256, 64, 1024)]))
    assert [a.extent for a in first.reduce_axes] == [8192]
    assert [v.args[0].text for v in first.statements[0].body.loads] == ["[r0_0 + 8192*x0]"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_segments_that_stick_out_need_is_read_from_its_inputs(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        d = (x - y).abs()
        return torch.where(d < 1, d * d, d - 1).sum(-1), d.amax(-1)

    plan = plan_of(fn, [meta(8, 100003), meta(8, 100003)], dynamic)
    first = kernels(plan)[0]
    assert len(kernels(plan)) <= 3 and [p.kind for p in first.pointers] == ["in"] * 2 + ["out"] * 2


def test_whole_symbolic_axes_number_segments_without_a_mask() -> None:
    for kernel in kernels(plan_of(lambda x: x.sum(), [meta(1000, 16384)], True)):
        assert not [v for s in kernel.statements for v in s.body.loads if len(v.args) > 1]


def test_axes_that_are_one_in_memory_stay_one_where_segments_stick_out() -> None:
    for dynamic in (False, True):
        plan = plan_of(lambda x: x.sum(), [meta(7919, 1009)], dynamic)
        assert [len(k.reduce_axes) for k in kernels(plan)] == [1, 1]


def test_vectors_beside_a_matrix_do_not_decide_which_way_memory_runs() -> None:
    def fn(g: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((g - mean[:, None]) * rstd[:, None]).sum(0), g.sum(0)

    plan = plan_of(fn, [meta(16384, 4096), meta(16384), meta(16384)])
    assert extents(plan) == [("red", 64 * 4096, 256), ("per", 4096, 64)]


def test_rows_of_few_outputs_are_dealt_to_segments_and_read_as_one() -> None:
    (first, second) = kernels(plan_of(lambda x: (x.sum(0), x.var(0)), [meta(1 << 22, 4)]))
    assert first.xnumel == 8192 and second.xnumel == 4
    loads = {v.args[0].text for s in first.statements for v in s.body.loads}
    assert loads == {"[8192*r0_0 + x0]"}
