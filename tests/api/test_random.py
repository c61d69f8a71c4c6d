"""Random numbers of a compiled module that its kernels draw: from torch's generator, reproducible, another for each call."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stax

PHILOX = stax.Options(random="philox")


def test_dropout_of_a_module_in_training() -> None:
    block = nn.Sequential(nn.Dropout(0.25), nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False)
    compiled = stax.compile(block, options=PHILOX, store="memory:", fullgraph=True)
    x = torch.rand(300, 1001) + 1
    torch.manual_seed(0)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)
    kept = first != 0
    assert abs(kept.double().mean() - 0.375) < 0.01
    torch.testing.assert_close(first[kept], x[kept] / 0.375)
    turned = x.t().contiguous().t()
    torch.manual_seed(0)
    assert torch.equal(compiled(turned), first)
    block.eval()
    assert torch.equal(compiled(x), x)


def test_the_generator_moves_by_one_number_a_call() -> None:
    def fn(x: Tensor) -> Any:
        return torch.randn_like(x), F.dropout(x, 0.5), torch.randint(7, (3,))

    compiled = stax.compile(fn, options=PHILOX, store="memory:", fullgraph=True)
    torch.manual_seed(1)
    compiled(torch.ones(9))
    after = torch.rand(2)
    torch.manual_seed(1)
    torch.randint(-(2**63), 2**63 - 1, [1])
    assert torch.equal(after, torch.rand(2))


def test_the_option_is_part_of_the_key() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.rand_like(x)

    x = torch.ones(50)
    eager = stax.compile(fn, store="memory:", fullgraph=True)
    torch.manual_seed(2)
    found = eager(x)
    torch.manual_seed(2)
    assert torch.equal(found, fn(x))
    philox = stax.compile(fn, options=PHILOX, store="memory:", fullgraph=True)
    torch.manual_seed(2)
    assert not torch.equal(found, philox(x))
