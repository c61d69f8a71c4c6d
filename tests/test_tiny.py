"""The whole path in seconds: trace, lower, fuse, emit, build, publish, pull, run. What to run before every commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import stax
from stax.base.errors import RequireHitMiss
from stax.build.local import LocalBuilder
from stax.store import MemoryStore


class Block(nn.Module):
    """A normalised layer with a residual: parameters, a matrix product, reductions and pointwise work."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.inner = nn.Linear(32, 64)
        self.outer = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x)))).softmax(-1)


def example_1_1(a: Tensor, b: Tensor) -> Tensor:
    return (torch.relu(a + b) * 2).sum(-1)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    builder = LocalBuilder(2)
    yield builder
    builder.close()


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 128, generator=generator), torch.randn(64, 128, generator=generator)


def test_compiled_once_then_pulled(builder: LocalBuilder, pair: tuple[Tensor, Tensor]) -> None:
    store = MemoryStore()
    first = stax.compile(example_1_1, store=store, builder=builder)
    torch.testing.assert_close(first(*pair), example_1_1(*pair))
    assert (first.stats().captures, first.stats().builds) == (1, 1)

    second = stax.compile(example_1_1, store=store, builder=builder, mode="require-hit")
    torch.testing.assert_close(second(*pair), example_1_1(*pair))
    assert (second.stats().captures, second.stats().builds) == (0, 0)


def test_nothing_to_pull_is_an_error_when_a_hit_is_required(
    builder: LocalBuilder, pair: tuple[Tensor, Tensor]
) -> None:
    compiled = stax.compile(example_1_1, store=MemoryStore(), builder=builder, mode="require-hit")
    with pytest.raises(RequireHitMiss, match="no record under request"):
        compiled(*pair)


def test_one_dynamic_artifact_serves_many_sizes(builder: LocalBuilder) -> None:
    block = Block().eval().requires_grad_(False)
    compiled = stax.compile(block, dynamic=True, store=MemoryStore(), builder=builder)
    for length in (2, 3, 17, 128):
        x = torch.randn(length, 32)
        torch.testing.assert_close(compiled(x), block(x))
    assert compiled.stats().captures == 1


def test_a_tag_runs_without_the_python_of_the_module(builder: LocalBuilder) -> None:
    block = Block().eval().requires_grad_(False)
    x = torch.randn(8, 32)
    store = MemoryStore()
    report = stax.warm(
        block,
        (x,),
        targets=["cpu:x86-64-v2", "cuda:sm_90"],
        store=store,
        builder=builder,
        tag="block",
    )
    assert report.artifacts == 2 and report.kernels_built == report.kernels_total > 0
    loaded = stax.load("block", store=store, state_dict=block.state_dict())
    torch.testing.assert_close(loaded(x), block(x))
