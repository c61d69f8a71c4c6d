"""Claims 3.x: pointwise kernels and their tiling (spec 9.3, Listings 9.2 and 9.3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from stax.codegen.triton.layout import MAX_TILED_DIMS, coalesced_bytes, layout_of
from stax.ir.source import Source
from tests.claims.examples import (
    blocks,
    count,
    gelu_backward,
    grid,
    holds,
    lines,
    made,
    numels,
    random,
    relu_sum,
    transpose_add,
)
from tests.triton_interpret import Interpreter

SHAPES = ((512, 256), (256, 512))


def listing_9_2() -> Source:
    """The result of y + x.t() is laid out like y, as in the listing."""
    return made(lambda x, y: y + x.t(), random(*SHAPES)).source


def test_claim_3_1_two_dimensions() -> None:
    """The claim: triton_poi_fused_0 with size hints y 256 and x 512, parameters YBLOCK and XBLOCK. Stax: the same for a
    result that is laid out like y. The result of x.t() + y itself is laid out like x.t() in eager, strides (1, 256),
    which Stax keeps: x is then the dimension of 256 along which the result is contiguous. Names as in 2.1."""
    source = listing_9_2()
    assert (source.entry, source.form) == ("triton_poi_fused_add", "poi")
    assert numels(source) == {"y": 256, "x": 512}
    assert blocks(source) == ["YBLOCK", "XBLOCK"]
    found = made(transpose_add, random(*SHAPES))
    assert transpose_add(*random(*SHAPES)).stride() == (1, 256)
    assert numels(found.source) == {"y": 512, "x": 256}


def test_claim_3_2_a_grid_of_two_dimensions(interpreter: Interpreter) -> None:
    source = listing_9_2()
    holds(
        source,
        "yoffset = tl.program_id(1) * YBLOCK",
        "xoffset = tl.program_id(0) * XBLOCK",
        "+ (256*x1 + y0), xmask & ymask)",
        "+ (x1 + 512*y0), xmask & ymask)",
    )
    for access in [line for line in lines(source) if "tl.load" in line or "tl.store" in line]:
        assert access.endswith("xmask & ymask)")
    assert grid(source, XBLOCK=32, YBLOCK=64) == (512 // 32, 256 // 64)
    args = random((52, 36), (36, 52))
    (out,) = made(transpose_add, args).run(args, interpreter)
    torch.testing.assert_close(out, transpose_add(*args), rtol=0, atol=0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_claim_3_3_the_split_that_coalesces_most_bytes(order: tuple[int, ...]) -> None:
    """Of all splits into at most three dimensions none coalesces more than the chosen one, and no other with as many has
    fewer dimensions."""
    shape = (8, 12, 16, 20)
    other = torch.empty([shape[d] for d in order]).permute(*np.argsort(order).tolist())
    kernel = made(lambda a, b: a * b, [torch.empty(shape, dtype=torch.float16), other]).kernel
    chosen = tuple(g.first for g in layout_of(kernel).groups[1:])
    assert len(chosen) < MAX_TILED_DIMS == 3
    inner = range(1, len(kernel.axes))
    splits = [c for n in range(MAX_TILED_DIMS) for c in itertools.combinations(inner, n)]
    most = max(coalesced_bytes(kernel, c) for c in splits)
    assert coalesced_bytes(kernel, chosen) == most
    assert len(chosen) == min(len(c) for c in splits if coalesced_bytes(kernel, c) == most)


def test_claim_3_4_one_direction_is_one_dimension() -> None:
    """The operands of Example 1.1 are contiguous in one direction, those of Example 6.1 in two."""
    assert [g.prefix for g in layout_of(made(torch.add, random((64, 128), (64, 128))).kernel).groups] == ["x"]  # fmt: skip
    reduced = layout_of(made(relu_sum, random((64, 128), (64, 128))).kernel)
    assert [g.prefix for g in reduced.groups] == ["x", "r0_"]
    tiled = layout_of(made(transpose_add, random(*SHAPES)).kernel)
    assert [g.prefix for g in tiled.groups] == ["y", "x"]


def test_claim_3_5_gelu_backward(interpreter: Interpreter) -> None:
    """Listing 9.3: one dimension of 2048, the scalar gradient loaded once and broadcast, g·(Φ(h) + h·φ(h)). The claim lists
    an always compared xmask; Stax may leave it out, 2048 being a multiple of every block."""
    source = made(gelu_backward, random((), (2048,))).source
    assert numels(source) == {"x": 2048} and grid(source, XBLOCK=256) == (8,)
    holds(source, "xnumel = 2048", "tl.load(in_ptr0 + (0)", "tl.load(in_ptr1 + (x0)")
    assert count(source, r"tl\.load\(in_ptr0") == 1
    holds(source, "tl.broadcast_to(tmp0, [XBLOCK])", "libdevice.erf(", "libdevice.exp(")
    for number in ("0.7071067811865476", "0.5", "-0.5", "0.3989422804014327", "1.0"):
        holds(source, f"= tl.full([1], {number}, tl.float32)")

    g, h = random((), (2048,))
    (out,) = made(gelu_backward, [g, h]).run([g, h], interpreter)
    x, k = h.double(), g.double()
    slope = 0.5 * (1 + torch.erf(x / 2**0.5)) + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5
    error = (out.double() - k * slope).abs().max()
    assert error <= 2 * (gelu_backward(g, h).double() - k * slope).abs().max() + 1e-7
