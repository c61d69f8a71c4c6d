"""Claims 5.x: several reductions in one kernel (spec 9.5, Listing 9.5)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stax.base.options import Options
from stax.codegen.triton.plan import loops
from stax.ir.traffic import traffic
from tests.claims.examples import blocks, count, holds, lines, made, numels, random, softmax
from tests.triton_interpret import Interpreter


def test_claim_5_1_softmax_is_one_persistent_kernel() -> None:
    """256 × 1000: a block of 1024, of which the last 24 lanes are masked."""
    found = made(softmax, random((256, 1000)))
    source = found.source
    assert not found.externs and source.form == "per"
    assert numels(source) == {"x": 256, "r0_": 1000} and blocks(source) == ["XBLOCK"]
    holds(source, "R0_BLOCK: tl.constexpr = 1024", "r0_mask = r0_index < r0_numel")
    assert count(source, r"tl\.load") == count(source, r"tl\.store") == 1


def test_claim_5_2_masked_lanes_are_the_identity_of_each_reduction(
    interpreter: Interpreter,
) -> None:
    """-inf for the maximum, 0 for the sum; and what is NaN or infinite in a row is so as in eager."""
    source = made(softmax, random((256, 1000))).source
    holds(source, 'tl.where(r0_mask & xmask, tmp1, float("-inf"))')
    assert count(source, r"tl\.where\(r0_mask & xmask, tmp\d+, 0\)") == 1
    x = torch.randn(6, 100)
    x[0, 3], x[1, 4], x[2] = torch.nan, torch.inf, -torch.inf
    x[3, :50], x[4] = -torch.inf, -1e30
    (out,) = made(softmax, [x]).run([x], interpreter)
    torch.testing.assert_close(out, softmax(x), equal_nan=True)
    assert out[0].isnan().all()


def test_claim_5_3_fused_softmax_moves_2n_and_five_kernels_8n() -> None:
    """N elements in n rows. The five kernels read N, N+n, N, N, N+n and write n, N, N, n, N."""
    args = random((256, 1000))
    n, row = 256 * 1000 * 4, 256 * 4
    fused = traffic(made(softmax, args).kernel)
    assert (fused.read_bytes, fused.written_bytes) == (n, n)
    five = [traffic(k) for k in made(softmax, args, options=Options(fusion=False)).kernels]
    assert [t.read_bytes for t in five] == [n, n + row, n, n, n + row]
    assert [t.written_bytes for t in five] == [row, n, n, row, n]
    assert sum(t.moved_bytes for t in five) == pytest.approx(8 * n, rel=0.01)


def test_claim_5_5_rows_beyond_the_persistent_limit() -> None:
    """Two passes over the row find the maximum and the sum, or one online pass finds both; the results are then written in
    one more. A row in registers takes the two-pass form: a maximum, then a sum."""
    kernel = made(softmax, [torch.empty(4096, 200_000, device="meta")]).kernel
    assert kernel.form == "red"
    passes = loops(kernel)
    assert len(passes) - 1 in (1, 2)
    assert all(any(s.body.loads for s in one) for one in passes)

    short = made(softmax, random((256, 1000)))
    text = "\n".join(lines(short.source))
    assert loops(short.kernel) == () and "for r0_offset" not in text
    assert text.index("max2(") < text.index("tl.sum(")


def test_claim_5_6_a_name_begins_with_its_form() -> None:
    """poi, red and per; tem is reserved for templates, of which there is none yet."""
    for fn, shape, form in (
        (torch.relu, (64, 128), "poi"),
        (lambda x: F.softmax(x, -1), (64, 128), "per"),
        (lambda x: x.sum(0), (5000, 128), "red"),
    ):
        for source in made(fn, random(shape)).sources[:1]:
            assert source.form == form and source.entry.startswith(f"triton_{form}_fused_")
