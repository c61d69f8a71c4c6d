"""Claims 5.x: several reductions in one kernel (spec 9.5, Listing 9.5)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies

from stax.base.options import Options
from stax.codegen.triton.plan import loops
from stax.ir.program import Extern
from stax.ir.source import Source
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


Array = Any
SEGMENTS = 25


@dataclass(frozen=True)
class Merge:
    """The kernel that joins the segments of a split logsumexp, and the roles of its inputs."""

    source: Source
    maxima: str
    sums: str

    def __call__(self, m: Array, d: Array, interpreter: Interpreter) -> Array:
        """log Σ d·exp(m) of each row of segments (m, d)."""
        buffers = {self.maxima: m.astype(np.float32).ravel(), self.sums: d.astype(np.float32).ravel()}  # fmt: skip
        (out,) = (p.name for p in self.source.params if p.kind == "out")
        return interpreter.run(self.source, {**buffers, out: np.zeros(len(m), np.float32)})[out]


@pytest.fixture(scope="module")
def merge() -> Merge:
    found = made(lambda x: x.logsumexp(-1), [torch.empty(4, SEGMENTS * 8000, device="meta")])
    first, second = (s for s in found.plan.steps if not isinstance(s, Extern))
    assert [k.rnumel for k in found.kernels] == [8000, SEGMENTS]
    pointer = {s.combine: s.stores[0].pointer for s in first.kernel.statements if s.combine}
    buffer = dict(zip((p.name for p in first.kernel.pointers), first.tensors))
    role = dict(zip(second.tensors, (p.name for p in second.kernel.pointers)))
    return Merge(found.sources[1], *(role[buffer[pointer[c]]] for c in ("max", "sum")))


def segments(rows: Array, cuts: Array) -> tuple[Array, Array]:
    """(m, d) of every piece of the rows; (-inf, 0) for one without an element, or of -inf alone."""
    parts = np.split(rows, cuts, axis=1)
    m = np.stack([p.max(1, initial=-np.inf) for p in parts], 1)
    shift = np.where(np.isfinite(m), m, 0)
    d = np.stack([np.exp(p - s[:, None]).sum(1) for p, s in zip(parts, shift.T)], 1)
    return m, d


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rng=strategies.randoms(use_true_random=False))
def test_claim_5_4_segments_merge_in_any_order(
    rng: Random, merge: Merge, interpreter: Interpreter
) -> None:
    """(m, d) with m the maximum of a segment and d = Σ exp(x - m) merges associatively and commutatively, (-inf, 0) being
    the identity: however a row is cut, in whatever order the pieces come, also with pieces or whole rows of -inf, the
    kernel that joins segments gives the same result."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    rows = numbers.normal(0, numbers.choice([0.1, 3, 40]), (4, 200))
    rows[numbers.random(rows.shape) < numbers.choice([0, 0.3, 0.95])] = -np.inf
    rows[3, numbers.integers(0, 200) :] = -np.inf
    exact = torch.logsumexp(torch.from_numpy(rows), 1).numpy()
    for _ in range(2):
        cuts = np.sort(numbers.integers(0, 200, SEGMENTS - 1))
        m, d = segments(rows, cuts)
        order = numbers.permutation(SEGMENTS)
        found = merge(m[:, order], d[:, order], interpreter)
        np.testing.assert_allclose(found, exact, rtol=2e-6, atol=2e-5)
    whole, only = np.full((4, SEGMENTS), -np.inf), np.zeros((4, SEGMENTS))
    m, d = segments(rows, np.array([], int))
    whole[:, 7], only[:, 7] = m[:, 0], d[:, 0]
    np.testing.assert_allclose(merge(whole, only, interpreter), exact, rtol=2e-6, atol=2e-5)


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
