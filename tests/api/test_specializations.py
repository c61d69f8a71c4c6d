"""How many artifacts a sequence of calls makes (spec example 10.4 and its neighbours), and that each answer is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stax
from stax.base.errors import SpecializationLimit
from stax.build.local import LocalBuilder


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


def artifacts_after(
    fn: Callable[..., Any], calls: list[torch.Tensor], builder: LocalBuilder, **options: Any
) -> int:
    compiled = stax.compile(
        fn, strict_native=True, fullgraph=True, store="memory:", builder=builder, **options
    )
    for x in calls:
        torch.testing.assert_close(compiled(x), fn(x))
    assert compiled.stats().captures == compiled.stats().artifacts
    return compiled.stats().artifacts


def branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] > 4 else x * 2


def ramps(*sizes: int) -> list[torch.Tensor]:
    return [torch.arange(n, dtype=torch.float32) for n in sizes]


def test_example_10_4_two_artifacts_for_six_calls(builder: LocalBuilder) -> None:
    assert artifacts_after(branch, ramps(3, 7, 2, 9, 4, 11), builder, dynamic=True) == 2


def test_zero_and_one_are_their_own(builder: LocalBuilder) -> None:
    calls = ramps(3, 1, 0, 7, 1, 0, 11)
    assert artifacts_after(lambda x: x * 2 + 1, calls, builder, dynamic=True) == 3


def test_contiguous_and_transposed(builder: LocalBuilder) -> None:
    x, y = torch.randn(5, 7), torch.randn(9, 4).t()
    assert artifacts_after(lambda x: x * 2 + 1, [x, y, x + 1, y], builder, dynamic=True) == 2


def test_static_makes_one_a_shape(builder: LocalBuilder) -> None:
    assert artifacts_after(lambda x: x * 2 + 1, ramps(3, 4, 3, 4), builder) == 2


def test_example_1_1_is_one_kernel(builder: LocalBuilder) -> None:
    compiled = stax.compile(
        lambda a, b: (torch.relu(a + b) * 2).sum(-1),
        store="memory:",
        builder=builder,
        fullgraph=True,
    )
    a, b = torch.randn(64, 128), torch.randn(64, 128)
    torch.testing.assert_close(compiled(a, b), (torch.relu(a + b) * 2).sum(-1))
    (entry,) = compiled._states.current().dispatcher.entries
    assert [k.name for k in entry.executable.artifact.binaries] == [
        "cpp_per_fused_add_mul_relu_sum_0"
    ]


def test_limit_with_fullgraph_is_an_error(builder: LocalBuilder) -> None:
    options = stax.Options(max_specializations=2)
    compiled = stax.compile(
        lambda x: x + 1, fullgraph=True, options=options, store="memory:", builder=builder
    )
    for x in ramps(3, 4):
        compiled(x)
    with pytest.raises(SpecializationLimit, match="max_specializations"):
        compiled(*ramps(5))


def test_past_the_limit_calls_run_and_are_not_kept(builder: LocalBuilder) -> None:
    options = stax.Options(max_specializations=2, max_compilations=4)
    compiled = stax.compile(lambda x: x + 1, options=options, store="memory:", builder=builder)
    for n in (3, 4, 5, 6, 7, 5):
        torch.testing.assert_close(compiled(*ramps(n)), ramps(n)[0] + 1)
    stats = compiled.stats()
    assert stats.artifacts == 2 and stats.captures == 4 and stats.eager == 2
