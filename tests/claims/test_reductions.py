"""Claims 4.x: the three forms of reduction kernels (spec 9.4, Listing 9.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stax.schedule.loops import MAX_PERSISTENT_INNER, MAX_PERSISTENT_OUTER
from tests.claims.examples import blocks, count, holds, lines, made, numels, random, sum_of_squares
from tests.triton_interpret import Interpreter

# Rows beyond what registers hold, and enough of them to occupy every processor: looped, and never split.
LONG = (4096, 200_000)
EXAMPLE = (64, 16384)


def form(fn: Callable[..., torch.Tensor], *shape: int, dynamic: bool = False) -> str:
    return made(fn, [torch.empty(shape, device="meta")], dynamic=dynamic).kernel.form


def where_length(lo: int, hi: int, dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A sum along ``dim`` under a guard that bounds its length."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim) if lo <= x.shape[dim] <= hi else x

    return fn


def test_claim_4_1_which_reductions_are_persistent() -> None:
    """The claim: along contiguous memory up to 1024; otherwise up to 64, and then only when both bounds of the length
    round up to the same power of two."""
    assert MAX_PERSISTENT_INNER >= 1024 and MAX_PERSISTENT_OUTER == 64
    for length in (2, 33, 1023, 1024):
        assert form(lambda x: x.sum(1), 4096, length) == "per"
    assert form(lambda x: x.sum(1), 4096, MAX_PERSISTENT_INNER) == "per"
    assert form(lambda x: x.sum(1), 4096, MAX_PERSISTENT_INNER + 1) == "red"
    assert form(lambda x: x.sum(1), *LONG) == "red"
    assert form(lambda x: x.sum(0), 64, 4096) == "per"
    assert form(lambda x: x.sum(0), 65, 4096) == "red"


@pytest.mark.parametrize(
    ("lo", "hi", "dim", "expected"),
    [
        (33, 64, 0, "per"), (5, 8, 0, "per"),  # one power of two
        (32, 64, 0, "red"), (4, 8, 0, "red"), (2, 64, 0, "red"),  # several
        (40, 65, 0, "red"),  # too long
        (2, 1024, 1, "per"), (33, 600, 1, "per"),  # along contiguous memory the upper bound alone counts
    ],
)  # fmt: skip
def test_claim_4_1_with_symbolic_lengths(lo: int, hi: int, dim: int, expected: str) -> None:
    shape = (hi - 1, 4096) if dim == 0 else (4096, hi - 1)
    assert form(where_length(lo, hi, dim), *shape, dynamic=True) == expected


@pytest.mark.parametrize("length", [2, 3, 31, 33, 100, 128, 129, 1000, 1023, 1024])
def test_claim_4_2_r0_block_is_the_least_power_of_two(
    length: int, interpreter: Interpreter
) -> None:
    args = random((37, length))
    found = made(sum_of_squares, args)
    block = 1 << (length - 1).bit_length()
    holds(found.source, f"R0_BLOCK: tl.constexpr = {block}")
    if block > length:
        holds(found.source, "r0_mask = r0_index < r0_numel", "tl.where(r0_mask & xmask, ")
    (out,) = found.run(args, interpreter)
    torch.testing.assert_close(out, sum_of_squares(*args))


def test_claim_4_3_the_looped_form(interpreter: Interpreter) -> None:
    """Prefix red; a loop in steps of R0_BLOCK over an accumulator that starts as the identity, and one reduction of it after
    the loop."""
    source = made(sum_of_squares, [torch.empty(LONG, device="meta")]).source
    assert source.entry.startswith("triton_red_") and blocks(source) == ["XBLOCK", "R0_BLOCK"]
    assert numels(source) == {"x": LONG[0], "r0_": LONG[1]}
    body = lines(source)
    at = [
        next(k for k, line in enumerate(body) if text in line)
        for text in (
            "= tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)",
            "for r0_offset in tl.range(0, r0_numel, R0_BLOCK):",
            "tl.load(in_ptr0",
            "= tl.where(",
            "= tl.sum(",
            "tl.store(",
        )
    ]
    assert at == sorted(at)
    args = random((40, 20_000))
    (out,) = made(sum_of_squares, args).run(args, interpreter)
    exact = sum_of_squares(args[0].double())
    own = (sum_of_squares(*args).double() - exact).abs().max()
    assert (out.double() - exact).abs().max() <= 2 * own + 1e-3


def test_claim_4_4_few_outputs_are_split_into_two_kernels(interpreter: Interpreter) -> None:
    """64 × 16384: a looped kernel of 128 outputs × 8192, then a persistent one of 64 × 2, both along contiguous memory."""
    args = random(EXAMPLE)
    found = made(sum_of_squares, args)
    assert [s.form for s in found.sources] == ["red", "per"]
    assert [numels(s) for s in found.sources] == [{"x": 128, "r0_": 8192}, {"x": 64, "r0_": 2}]
    assert all(k.inner for k in found.kernels)
    (out,) = found.run(args, interpreter)
    exact = sum_of_squares(args[0].double())
    own = (sum_of_squares(*args).double() - exact).abs().max()
    assert (out.double() - exact).abs().max() <= 2 * own + 1e-3


def test_claim_4_5_outer_dimensions_merge() -> None:
    """[64, 2] is one dimension: 16384*i0 + 8192*i1 is 8192*(2*i0 + i1), so a_j = s_{j+1}·a_{j+1} holds. Where it does
    not, there are two."""
    first = made(sum_of_squares, random(EXAMPLE)).kernels[0]
    assert [(a.name, a.extent) for a in first.axes] == [("x0", 128)]
    (load,) = [v for s in first.statements for v in s.body.loads]
    assert load.args[0].text == "[r0_0 + 8192*x0]"
    holds(made(sum_of_squares, random(EXAMPLE)).sources[0], "tl.load(in_ptr0 + (r0_1 + 8192*x0)")
    apart = made(sum_of_squares, [torch.empty(64, 3, 512)[:, :2]]).kernel
    assert [a.extent for a in apart.axes] == [64, 2]


def test_claim_4_6_one_load_in_the_loop_body() -> None:
    """x * x reads x once."""
    source = made(sum_of_squares, [torch.empty(LONG, device="meta")]).source
    assert count(source, r"tl\.load") == 1
    first, _ = made(sum_of_squares, random(EXAMPLE)).sources
    assert count(first, r"tl\.load") == 1


def test_claim_4_7_the_partial_buffer_has_512_bytes() -> None:
    """64 × 2 float32, in the call's temporary memory."""
    plan = made(sum_of_squares, random(EXAMPLE)).plan
    (partial,) = plan.memory.spots
    buffer = plan.program.buffer(partial)
    assert buffer.dtype == "float32" and [e.value for e in buffer.shape] == [64, 2]
    assert [e.value for e in plan.memory.slots] == [512]
