"""The lattice of a source: what bounds it, and its neighbours."""

from __future__ import annotations

from random import Random

import pytest

from stax.base.target import Target
from stax.codegen.cpp.emit import emit as emit_cpp
from stax.codegen.triton.emit import emit
from stax.ir.source import Config, Source
from stax.tune.measurement import RESOLUTION_US, summary
from stax.tune.space import MOST_EACH, WARP, Space, space_of
from tests.kernels import cases

SM_90 = Target("cuda", "sm_90")


def sources() -> list[tuple[str, Source, dict[str, int]]]:
    return [(c.name, emit(c.kernel, SM_90), c.kernel.hints) for c in cases()]


@pytest.mark.parametrize(("name", "source", "hints"), sources(), ids=lambda v: str(v)[:20])
def test_every_member_can_be_held_and_no_block_is_larger_than_its_dimension(
    name: str, source: Source, hints: dict[str, int]
) -> None:
    space = space_of(source, hints)
    assert space.members and set(space.members) == {c for c in space.members if c in space}
    for config in space.members:
        threads = WARP * config["num_warps"]
        assert space.elements(config) <= threads * MOST_EACH
        assert {p.name for p in source.params if p.kind == "block"} <= {n for n, _ in config.values}
    for p, e in zip((p for p in source.params if p.kind == "size"), source.sizes):
        block = f"{p.name.removesuffix('numel').upper()}BLOCK"
        if e.is_const and any(n == block for n, _ in space.fragments):
            most = max([c[block] for c in source.space] + [max(2 * e.value - 1, 1)])
            assert all(c[block] <= most for c in space.members)


@pytest.mark.parametrize(("name", "source", "hints"), sources(), ids=lambda v: str(v)[:20])
def test_neighbours_differ_by_a_factor_of_two_in_one_parameter(
    name: str, source: Source, hints: dict[str, int]
) -> None:
    space = space_of(source, hints)
    for config in Random(0).sample(space.members, min(20, len(space.members))):
        for other in space.neighbours(config):
            changed = [(a, b) for (_, a), (_, b) in zip(config.values, other.values) if a != b]
            assert other in space and len(changed) == 1
            assert max(changed[0]) == 2 * min(changed[0])
            assert config in space.neighbours(other)


def test_a_row_in_registers_counts() -> None:
    space = Space(
        (("XBLOCK", (1, 2, 4, 8)), ("num_warps", (1, 2))), frozenset({"XBLOCK"}), row=2048
    )
    assert Config.of(XBLOCK=2, num_warps=1) in space
    assert Config.of(XBLOCK=4, num_warps=1) not in space
    assert Config.of(XBLOCK=4, num_warps=2) in space
    assert Config.of(XBLOCK=4) not in space and "XBLOCK" not in space


def test_draws_are_members_and_repeat_with_the_seed() -> None:
    _, source, hints = sources()[0]
    space = space_of(source, hints)
    drawn = [space.draw(random) for random in [Random(3)] for _ in range(50)]
    assert all(c in space for c in drawn) and len(set(drawn)) > 10
    assert drawn == [space.draw(random) for random in [Random(3)] for _ in range(50)]


def test_a_cpp_source_has_one_configuration() -> None:
    for case in cases():
        source = emit_cpp(case.kernel, Target("cpu", "x86-64-v3"))
        assert len(source.space) == 1
        assert space_of(source, case.kernel.hints).members == (source.default,)


def test_the_noise_of_a_median() -> None:
    steady = summary([10.0] * 50)
    assert steady.time_us == 10.0 and steady.noise == RESOLUTION_US / 20
    few, many = summary([9.0, 10.0, 11.0]), summary([9.0, 10.0, 11.0] * 40)
    assert few.noise == pytest.approx(0.1) and many.noise <= few.noise
    random = Random(0)
    held = 0
    for _ in range(400):
        found = summary([random.gauss(100, 3) for _ in range(25)])
        held += abs(found.time_us - 100) <= found.noise * found.time_us
    assert held >= 0.93 * 400
