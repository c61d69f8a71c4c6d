"""Claims 1.x: how a GPU executes, and how the loops of the IR become blocks (spec 9.1)."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stax.base.devices import DEVICES
from stax.codegen.triton.layout import coalesced_bytes, layout_of
from stax.ir.dtypes import DTYPES
from tests.claims.examples import (
    blocks,
    configs,
    count,
    gelu_backward,
    holds,
    lines,
    made,
    random,
    relu_sum,
    softmax,
    sum_of_squares,
    transpose_add,
)
from tests.triton_interpret import Interpreter


def test_claim_1_1_bytes_in_flight_are_latency_times_bandwidth() -> None:
    """600 ns × 3.35 TB/s is about 2 MB, over 132 processors about 15 KB each."""
    hopper = DEVICES["sm_90"]
    assert (hopper.latency_s, hopper.bandwidth_bytes_s, hopper.processors) == (600e-9, 3.35e12, 132)
    assert hopper.bytes_in_flight == pytest.approx(2e6, rel=0.01)
    assert hopper.bytes_in_flight_each == pytest.approx(15e3, rel=0.02)


def test_claim_1_2_everything_but_products_becomes_a_triton_kernel() -> None:
    """The claim: matrix products and convolutions go to template generators, every other pointwise, reduction or fused
    node becomes a Triton kernel. Stax leaves products and convolutions whole as well, as calls to torch's own
    (cuBLAS, cuDNN), because it has no templates yet; everything else is a Triton kernel."""

    def fn(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        h = F.conv2d(x, k, padding=1).relu().mean((-1, -2))
        return F.softmax(h @ w + 1, -1)

    found = made(fn, random((2, 3, 8, 8), (4, 10), (4, 3, 3, 3)))
    assert [name.split(".")[1] for name in found.externs] == ["convolution", "mm"]
    assert len(found.kernels) == 2
    assert all(s.language == "triton" and "@triton.jit" in s.text for s in found.sources)


def test_claim_1_3_programs_of_a_grid_touch_nothing_that_is_masked(
    interpreter: Interpreter,
) -> None:
    """Index from program_id, vectors from arange, masked loads and stores: beyond 1000 elements, which no block ends at,
    NaNs are never read and marks never overwritten."""
    source = made(relu_sum, random((50, 100), (50, 100))).source
    assert count(source, r"tl\.program_id\(0\)") == 1 and count(source, r"tl\.arange\(0, ") == 2
    for access in [line for line in lines(source) if "tl.load" in line or "tl.store" in line]:
        assert "xmask" in access

    inputs = {name: np.full(8000, np.nan, np.float32) for name in ("in_ptr0", "in_ptr1")}
    for array in inputs.values():
        array[:5000] = 1.0
    out = {"out_ptr0": np.full(200, 77.0, np.float32)}
    for config in configs(source):
        after = interpreter.run(source, {**inputs, **out}, config=config)["out_ptr0"]
        assert (after[:50] == 400.0).all() and (after[50:] == 77.0).all(), config


def test_claim_1_4_block_sizes_are_left_open_powers_of_two() -> None:
    """Every block size is a constexpr parameter and a power of two, chosen with the configuration; R0_BLOCK of a
    persistent reduction follows from the length and is a constexpr of the body, as in Listing 9.1."""
    examples = (
        (relu_sum, ((64, 128), (64, 128))), (transpose_add, ((512, 256), (256, 512))), (gelu_backward, ((), (2048,))),
        (sum_of_squares, ((64, 100_000),)), (softmax, ((256, 1000),)),
    )  # fmt: skip
    for fn, shapes in examples:
        for source in made(fn, random(*shapes)).sources:
            (head,) = re.findall(rf"def {source.entry}\((.*)\):", source.text)
            for name in blocks(source):
                assert f"{name}: tl.constexpr" in head
                assert all(c[name] & (c[name] - 1) == 0 < c[name] for c in configs(source))


def test_claim_1_5_an_index_vector_a_dimension_and_a_block_operation_an_operator() -> None:
    for fn, shapes, dims in (
        (relu_sum, ((64, 128), (64, 128)), 2),
        (transpose_add, ((512, 256), (256, 512)), 2),
        (gelu_backward, ((), (2048,)), 1),
    ):
        found = made(fn, random(*shapes))
        (statement,) = found.kernel.statements
        operation = r"^tmp\d+ = (\(-?tmp|tl\.(maximum|sum)|libdevice\.)"
        assert count(found.source, r"tl\.arange") == dims
        assert count(found.source, operation) == statement.body.size + (
            statement.combine is not None
        )
        holds(found.source, "xmask = xindex < xnumel")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_claim_1_6_neighbouring_lanes_access_neighbouring_addresses(order: tuple[int, ...]) -> None:
    """Wherever some tiling allows it: whatever the order of one operand's dimensions, every access of the chosen tiling is
    contiguous along the last axis of one of its dimensions."""
    shape = (16, 24, 32)
    other = torch.empty([shape[d] for d in order]).permute(*np.argsort(order).tolist())
    kernel = made(lambda a, b: a + b, [torch.empty(shape), other]).kernel
    groups = layout_of(kernel).groups
    cuts = tuple(g.first for g in groups[1:])
    whole = sum(DTYPES[p.dtype].itemsize for p in kernel.pointers)
    assert coalesced_bytes(kernel, cuts) == whole
