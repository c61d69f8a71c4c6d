"""Containers that compute while they are rebuilt, as transformers' caches do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from capturing import agree, capture
from torch import Tensor
from torch.utils import _pytree

from stax.base.errors import CaptureError


class Joined:
    """Rebuilt by joining what it holds to nothing."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = torch.cat([torch.tensor([]), tensor])


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    _pytree.register_pytree_node(
        Joined,
        lambda x: ([x.tensor], None),
        lambda children, _: Joined(next(iter(children))),
        serialized_type_name="test_containers.Joined",
    )
    yield
    _pytree._deregister_pytree_node(Joined)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_container_computes_is_traced(dynamic: bool) -> None:
    def fn(x: Tensor, held: Joined) -> Tensor:
        return x + held.tensor.sum()

    args = torch.randn(3), Joined(torch.randn(5))
    agree(fn, capture(fn, *args, dynamic=dynamic), *args)


def test_a_change_to_a_container_is_refused() -> None:
    def fn(held: Joined) -> Tensor:
        held.tensor = held.tensor + 1
        return held.tensor

    with pytest.raises(CaptureError, match="changes a container among its arguments: held"):
        capture(fn, Joined(torch.randn(5)))
