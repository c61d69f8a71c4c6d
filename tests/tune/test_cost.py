"""The cost model that decides what is worth measuring."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

import pytest

from stax.base.devices import device_of
from stax.base.target import Target
from stax.codegen.triton.emit import emit
from stax.ir.kernel import Kernel
from stax.ir.source import Config, Source
from stax.ir.traffic import traffic
from stax.tune.cost import cost_model
from stax.tune.space import Space, space_of
from tests.kernels import KernelCase, add_transposed, cases, layer_norm, outer_sum, softmax

SM_90 = Target("cuda", "sm_90")
H200 = device_of("sm_90", "NVIDIA H200")


def model(kernel: Kernel) -> tuple[Source, Space, Callable[[Config], float]]:
    source = emit(kernel, SM_90)
    space = space_of(source, kernel.hints)
    return source, space, cost_model(kernel, source, space, traffic(kernel), H200)


BIG = [
    add_transposed(8192, 8192),
    outer_sum(16384, 4096),
    softmax(32768, 1024),
    layer_norm(16384, 4096),
]


@pytest.mark.parametrize("case", BIG, ids=lambda c: c.name)
def test_the_candidates_are_among_what_it_likes(case: KernelCase) -> None:
    """The heuristics' own choices come in the faster half of the lattice."""
    source, space, cost = model(case.kernel)
    ranked = sorted(map(cost, space.members))
    assert cost(source.default) <= ranked[len(ranked) // 2]


@pytest.mark.parametrize("case", BIG, ids=lambda c: c.name)
def test_nothing_is_faster_than_the_memory(case: KernelCase) -> None:
    _, space, cost = model(case.kernel)
    floor_s = traffic(case.kernel).moved_bytes / H200.floor_bytes_s
    assert min(map(cost, space.members)) >= floor_s


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_every_member_has_a_cost(case: KernelCase) -> None:
    _, space, cost = model(case.kernel)
    found = [cost(c) for c in space.members]
    assert all(v >= 0 for v in found) and any(map(isfinite, found))


def test_what_can_not_be_held_in_registers_is_infinite() -> None:
    _, space, cost = model(softmax(4096, 1024).kernel)
    assert cost(Config.of(XBLOCK=4, num_stages=1, num_warps=1)) == inf
    assert isfinite(cost(Config.of(XBLOCK=1, num_stages=1, num_warps=4)))
    assert Config.of(XBLOCK=4, num_stages=1, num_warps=1) in space


def test_idle_lanes_and_narrow_rows_of_memory_cost() -> None:
    _, _, cost = model(outer_sum(16384, 4096).kernel)
    wide = Config.of(R0_BLOCK=128, XBLOCK=32, num_stages=1, num_warps=8)
    narrow = Config.of(R0_BLOCK=4096, XBLOCK=1, num_stages=1, num_warps=8)
    assert cost(narrow) > 2 * cost(wide)
