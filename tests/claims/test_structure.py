"""Claims 2.x: the kernel of Example 1.1, paragraph by paragraph (spec 9.2, Listing 9.1)."""

from __future__ import annotations

import pytest
import torch

import stax
from stax.base.digest import digest
from stax.base.target import Target
from tests.claims.examples import (
    Made,
    blocks,
    count,
    holds,
    lines,
    made,
    numels,
    random,
    relu_sum,
    softmax,
)
from tests.triton_interpret import Interpreter


@pytest.fixture(scope="module")
def example() -> Made:
    return made(relu_sum, random((64, 128), (64, 128)))


def test_claim_2_1_one_persistent_kernel(example: Made) -> None:
    """The claim: exactly one kernel triton_per_fused_0 under @persistent_reduction, size hints x 64 and r0_ 128. Stax: one
    kernel, named by its operators instead of by its place in the program, so that equal work has equal text and is
    built once; form and lengths are fields of its Source, not a decorator, because the launcher is no part of the text."""
    source = example.source
    assert not example.externs
    assert source.entry == "triton_per_fused_add_mul_relu_sum"
    assert source.form == "per"
    assert numels(source) == {"x": 64, "r0_": 128}
    assert source.text.count("@triton.jit") == 1


def test_claim_2_2_parameters_in_order(example: Made) -> None:
    names = [p.name for p in example.source.params]
    assert names == ["in_ptr0", "in_ptr1", "out_ptr0", "xnumel", "r0_numel", "XBLOCK"]
    assert f"({', '.join(names)}: tl.constexpr)" in example.source.text


def test_claim_2_3_static_numels_are_literals_and_dynamic_ones_parameters(example: Made) -> None:
    assert lines(example.source)[:2] == ["xnumel = 64", "r0_numel = 128"]
    dynamic = made(relu_sum, random((64, 128), (64, 128)), dynamic=True).source
    assert count(dynamic, r"^(xnumel|r0_numel) =") == 0
    assert {"xnumel", "r0_numel"} <= {p.name for p in dynamic.params if p.kind == "size"}


def test_claim_2_4_index_vectors_of_a_block(example: Made) -> None:
    holds(
        example.source,
        "R0_BLOCK: tl.constexpr = 128",
        "rnumel = r0_numel",
        "RBLOCK: tl.constexpr = R0_BLOCK",
        "xindex = xoffset + tl.arange(0, XBLOCK)[:, None]",
        "r0_index = tl.arange(0, R0_BLOCK)[None, :]",
    )


def test_claim_2_5_a_full_block_has_a_constant_mask(example: Made) -> None:
    holds(
        example.source,
        "r0_mask = tl.full([R0_BLOCK], True, tl.int1)[None, :]",
        "xmask = xindex < xnumel",
    )
    ragged = made(relu_sum, random((64, 127), (64, 127))).source
    holds(ragged, "r0_mask = r0_index < r0_numel")


def test_claim_2_6_loads_that_are_read_once(example: Made) -> None:
    for k in (0, 1):
        holds(
            example.source,
            f"= tl.load(in_ptr{k} + (r0_1 + 128*x0), xmask, eviction_policy='evict_first', other=0.0)",
        )


def test_claim_2_7_relu_hands_a_nan_on(example: Made, interpreter: Interpreter) -> None:
    holds(example.source, "tl.PropagateNan.ALL")
    x, y = random((64, 128), (64, 128))
    x[3, 7] = y[5, 0] = torch.nan
    (out,) = example.run([x, y], interpreter)
    torch.testing.assert_close(out, relu_sum(x, y), equal_nan=True)
    assert out.isnan().nonzero().flatten().tolist() == [3, 5]


def test_claim_2_8_literals_are_full_tensors_of_their_dtype(example: Made) -> None:
    """The claim: 0 as int32 in relu, 2.0 as float32. Stax writes relu's zero as float32, the dtype it is compared in: Triton
    would convert the other one anyway."""
    holds(
        example.source, "= tl.full([1, 1], 0.0, tl.float32)", "= tl.full([1, 1], 2.0, tl.float32)"
    )


def test_claim_2_9_masked_lanes_are_the_identity_of_the_sum(example: Made) -> None:
    text = "\n".join(lines(example.source))
    body = text[text.index("tl.broadcast_to") :].splitlines()
    assert [line.partition(" = ")[2] or line for line in body] == [
        "tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])",
        "tl.where(xmask, tmp7, 0)",
        "tl.sum(tmp8, 1)[:, None].to(tl.float32)",
        "tl.store(out_ptr0 + (x0), tmp9, xmask)",
    ]
    assert blocks(example.source) == ["XBLOCK"]


def test_claim_2_10_one_loop_ir_for_both_printers(interpreter: Interpreter) -> None:
    """The kernels of the CPU and of the GPU are one object, by digest; the C++ and the Triton text of it are both right."""
    for fn, shapes in ((relu_sum, ((64, 128), (64, 128))), (softmax, ((16, 100),))):
        args = random(*shapes)
        here, there = made(fn, args, target=Target("cpu", "x86-64-v3")), made(fn, args)
        assert here.kernel == there.kernel
        assert digest(here.kernel, "kernel") == digest(there.kernel, "kernel")
        exact = fn(*(a.double() for a in args))
        (interpreted,) = there.run(args, interpreter)
        compiled = stax.compile(fn, fullgraph=True)(*args)
        allowed = 2 * (fn(*args).double() - exact).abs().max() + 1e-7
        assert (interpreted.double() - exact).abs().max() <= allowed
        assert (compiled.double() - exact).abs().max() <= allowed
