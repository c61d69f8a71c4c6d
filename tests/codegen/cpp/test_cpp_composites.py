"""Composites compiled for this machine and run, nothing left to torch: no further from the truth than twice eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils import _pytree as pytree

import stax
from stax.build.local import LocalBuilder
from stax.store import MemoryStore
from tests import composites, loss_composites
from tests.composites import Case, Draw
from tests.lowering import to_numpy

CASES: dict[str, Case] = {**composites.CASES, **loss_composites.CASES}
# One of each kind of kernel: picks, rows before their sum, gradients of rows and of columns.
NAMES = (
    "cross_entropy, weighted and smoothed",
    "cross_entropy with its gradient",
    "gradient of cross_entropy",
    "kl_div of softmaxes",
    "gelu_backward",
    "silu_backward",
    "elu_backward",
    "softmax_backward",
    "layer_norm_backward",
    "group_norm_backward",
    "batch_norm_backward",
    "rope of pairs",
    "adam at a step",
)


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    builder = LocalBuilder(2)
    yield builder
    builder.close()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, dynamic: bool, builder: LocalBuilder) -> None:
    case = CASES[name]
    compiled = stax.compile(
        case.fn, dynamic=dynamic, strict_native=True, store=MemoryStore(), builder=builder
    )
    for dtype, room in ((torch.bfloat16, 1.0), (torch.float32, 16.0)):
        args = list(case.args(Draw(10, 40, dtype, seed=3)))
        found = [to_numpy(t) for t in pytree.tree_leaves(compiled(*args))]
        case.check(args, found, room)
