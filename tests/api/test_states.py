"""What a callable reads besides its arguments may change between calls: the answer is always eager's, and artifacts of a
state it returns to are used again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stax
from stax.artifact.places import CHUNK, Places
from stax.build.local import LocalBuilder

SCALE = 2
TABLE = {"shift": 1.0}
WEIGHT = torch.ones(5)
X = torch.arange(20.0).view(4, 5) / 7


@pytest.fixture(scope="module")
def builder() -> Iterator[LocalBuilder]:
    made = LocalBuilder()
    yield made
    made.close()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = 2
        self.table = [1, 2]
        self.named = {"a": 3.0}
        self.linear = nn.Linear(5, 5)
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
        self.register_parameter("extra", None)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.linear(x)) * self.scale + self.table[0] + self.named["a"]
        y = y if self.extra is None else y + self.extra
        return nn.functional.dropout(y, 0.999, self.training)


def tripled(module: Any, args: Any, out: Tensor) -> Tensor:
    return out * 3


CHANGES: dict[str, Callable[[Block], object]] = {
    "number": lambda m: setattr(m, "scale", 3),
    "equal number of another type": lambda m: setattr(m, "scale", 2.0),
    "tensor": lambda m: setattr(m, "scale", torch.tensor(5.0)),
    "list item": lambda m: m.table.__setitem__(0, 7),
    "dict item": lambda m: m.named.update(a=9.0),
    "hook": lambda m: m.linear.register_forward_hook(tripled),
    "submodule": lambda m: m.inner.__setitem__(1, nn.Tanh()),
    "one more submodule": lambda m: m.inner.append(nn.Sigmoid()),
    "parameter of none": lambda m: setattr(m, "extra", nn.Parameter(X[0].clone(), False)),
    "mode": lambda m: m.train(),
    "forward": lambda m: setattr(m.linear, "forward", lambda x: x - 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module(name: str, builder: LocalBuilder) -> None:
    block = Block().eval()
    compiled = stax.compile(block, store="memory:", builder=builder, fullgraph=True)
    torch.testing.assert_close(compiled(X), block(X))
    CHANGES[name](block)
    torch.manual_seed(0)
    found = compiled(X)
    torch.manual_seed(0)
    torch.testing.assert_close(found, block(X))


def test_states_are_found_again(builder: LocalBuilder) -> None:
    block = Block().eval()
    compiled = stax.compile(block, store="memory:", builder=builder, fullgraph=True)
    for scale in (2, 3, 2.5, 2, 3, 2.5, 2):
        block.scale = scale
        torch.testing.assert_close(compiled(X), block(X))
    assert compiled.stats().captures == 3 == compiled.stats().artifacts


def test_running_statistics_stay_when_the_mode_changes(builder: LocalBuilder) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).requires_grad_(False)
    other = copy.deepcopy(model)
    compiled = stax.compile(model, store="memory:", builder=builder, fullgraph=True)
    for train in (True, False, True, False):
        model.train(train)
        other.train(train)
        torch.testing.assert_close(compiled(X), other(X))
        torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_changed_globals(builder: LocalBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> Tensor:
        return x * SCALE * WEIGHT + TABLE["shift"]

    compiled = stax.compile(fn, store="memory:", builder=builder, fullgraph=True)
    torch.testing.assert_close(compiled(X), fn(X))
    monkeypatch.setitem(globals(), "SCALE", 5)
    torch.testing.assert_close(compiled(X), fn(X))
    monkeypatch.setitem(TABLE, "shift", 4.0)
    torch.testing.assert_close(compiled(X), fn(X))
    monkeypatch.setitem(globals(), "WEIGHT", torch.full((5,), 3.0))
    torch.testing.assert_close(compiled(X), fn(X))


def test_changed_closures(builder: LocalBuilder) -> None:
    factor, weight, linear = 2, torch.ones(5), nn.Linear(5, 3).requires_grad_(False)

    def fn(x: Tensor) -> Tensor:
        return linear(x * factor * weight)

    def agree() -> None:
        torch.testing.assert_close(compiled(X), fn(X))

    compiled = stax.compile(fn, store="memory:", builder=builder, fullgraph=True)
    agree()
    factor = 3
    agree()
    weight.mul_(2)
    agree()
    weight = torch.zeros(5)
    agree()
    linear.weight.mul_(2)
    linear.bias.add_(1)
    agree()
    linear.bias.data = torch.ones(3) * 9
    agree()


def test_gradients_of_what_a_closure_holds(builder: LocalBuilder) -> None:
    weight = torch.ones(5)
    compiled = stax.compile(lambda x: (x * weight).sum(), store="memory:", builder=builder)
    assert not compiled(X).requires_grad
    weight.requires_grad_()
    compiled(X).backward()
    torch.testing.assert_close(weight.grad, X.sum(0))


def test_what_a_trace_changes_is_no_other_state(builder: LocalBuilder) -> None:
    seen: list[int] = []

    def fn(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return x + 1

    compiled = stax.compile(fn, store="memory:", builder=builder, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X + 1)
    assert compiled.stats().captures == 1 == len(seen)


def test_compiled_inside_compiled_is_one_program(builder: LocalBuilder) -> None:
    inner = stax.compile(lambda x: x * 2 + 1, store="memory:", builder=builder, fullgraph=True)
    outer = stax.compile(
        lambda x: inner(x).sum(0), store="memory:", builder=builder, fullgraph=True
    )
    for _ in range(2):
        torch.testing.assert_close(outer(X), (X * 2 + 1).sum(0))
        torch.testing.assert_close(inner(X), X * 2 + 1)
    assert (outer.stats().captures, inner.stats().captures) == (1, 1)


def test_places() -> None:
    def cells() -> Callable[[], int]:
        number = 1

        def read(new: int | None = None) -> int:
            nonlocal number
            number = number if new is None else new
            return number

        return read

    read, tensor = cells(), torch.zeros(3)
    holders: Any = {"a": 1}, [1, 2], {1, 2}
    changes: list[Callable[[], object]] = [
        lambda: holders[0].update(a=2),
        lambda: holders[0].update(b=2),
        lambda: holders[0].pop("a"),
        lambda: holders[1].__setitem__(1, 3),
        lambda: holders[1].pop(),
        lambda: holders[2].add(3),
        lambda: tensor.add_(1),
        lambda: tensor.requires_grad_(),
        lambda: setattr(tensor, "data", torch.zeros(3)),
        lambda: read(2),  # type: ignore[call-arg]
    ]
    for change in changes:
        places = Places()
        places.items(holders[0])
        places.items(holders[1])
        places.members(holders[2])
        places.tensor(tensor)
        places.cell(read.__closure__[0])  # type: ignore[attr-defined]
        unchanged = places.unchanged()
        assert unchanged()
        with torch.no_grad():
            change()
        assert not unchanged()
    assert Places().unchanged()()


@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 2])
def test_every_one_of_many_places_is_looked_at(count: int) -> None:
    table: dict[Any, object] = {i if i % 2 else f"{i} '\"": object() for i in range(count)}
    places = Places()
    for key, value in table.items():
        places.item(table, key, value)
    unchanged = places.unchanged()
    assert unchanged()
    for key, value in list(table.items()):
        table[key] = object()
        assert not unchanged()
        del table[key]
        assert not unchanged()
        table[key] = value
        assert unchanged()
