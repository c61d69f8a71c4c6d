"""From calls to entries: several artifacts, most recent first, live modules, reasons of a miss, concurrency."""

from __future__ import annotations

import threading
import timeit
from dataclasses import replace

import pytest
import torch

from stax.artifact.artifact import Artifact, Return
from stax.artifact.guards import Binding, GuardSet
from stax.artifact.signature import Input
from stax.ir.expr import const
from stax.ir.program import Literal, Symbol
from stax.runtime.dispatch import Dispatcher, Hit, Miss
from stax.runtime.load import Executable, load
from stax.runtime.state import state_guards
from tests.artifacts import LEAF, S0, artifact, blobs, limited, linear_relu, shape, tensor


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 8))
        self.register_buffer("bias", torch.randn(4))

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight.detach().T + self.bias)


def loaded(one: Artifact) -> Executable:
    return load(one, blobs(one))


def hit(found: Hit | Miss) -> Hit:
    assert isinstance(found, Hit), found
    return found


def reasons(found: Hit | Miss) -> list[str]:
    assert isinstance(found, Miss)
    return [str(reason) for reason in found.reasons]


def run(dispatcher: Dispatcher, x: torch.Tensor) -> torch.Tensor:
    found = hit(dispatcher.lookup((x,), {}))
    return found.entry.call(found.inputs, found.symbols)[0]


def test_two_artifacts_answer_by_their_guards() -> None:
    module = Linear()
    small = loaded(limited(linear_relu(), S0, "<=", const(4), "x.size(0) <= 4"))
    large = loaded(limited(linear_relu(), const(4), "<", S0, "x.size(0) > 4"))
    dispatcher = Dispatcher(module)
    assert reasons(dispatcher.lookup((torch.randn(3, 8),), {})) == ["no artifact yet"]
    dispatcher.add(small, (torch.randn(3, 8),), {})
    assert reasons(dispatcher.lookup((torch.randn(7, 8),), {})) == [
        "expected x.size(0) <= 4 with s0 = 7 (model.py:7)"
    ]
    dispatcher.add(large, (torch.randn(7, 8),), {})
    assert len(dispatcher) == 2
    for n in (3, 7, 2, 9, 4, 11):
        x = torch.randn(n, 8)
        found = hit(dispatcher.lookup((x,), {}))
        assert found.entry.executable is (small if n <= 4 else large) and found.symbols == (n,)
        torch.testing.assert_close(run(dispatcher, x), module.expected(x))


def test_reasons_name_structure_dtype_and_missing_tensors() -> None:
    dispatcher = Dispatcher(Linear())
    dispatcher.add(loaded(linear_relu()), (torch.randn(3, 8),), {})
    x = torch.randn(3, 8)
    assert reasons(dispatcher.lookup((x, x), {})) == ["args has 2 items, the artifact has 1"]
    assert reasons(dispatcher.lookup((), {"x": x}))[0].startswith("args has 0 items")
    assert reasons(dispatcher.lookup(((x,),), {})) == [
        "args[0] is a tuple, expected a plain Tensor"
    ]
    assert reasons(dispatcher.lookup((x.double(),), {})) == [
        "args[0] has dtype torch.float64, expected torch.float32"
    ]
    assert reasons(dispatcher.lookup((3,), {})) == ["args[0] is a int, expected a plain Tensor"]
    lone = Dispatcher()
    lone.add(loaded(linear_relu()), (x,), {})
    assert reasons(lone.lookup((x,), {})) == [
        "the artifact has parameters, the callable has no module"
    ]


def test_replaced_tensors_are_bound_again() -> None:
    module, x = Linear(), torch.randn(3, 8)
    dispatcher = Dispatcher(module)
    dispatcher.add(loaded(linear_relu()), (x,), {})
    torch.testing.assert_close(run(dispatcher, x), module.expected(x))
    first = hit(dispatcher.lookup((x,), {})).inputs
    assert hit(dispatcher.lookup((x,), {})).inputs[1] is first[1] is module.weight
    module.load_state_dict({"weight": torch.randn(4, 8), "bias": torch.randn(4)}, assign=True)
    torch.testing.assert_close(run(dispatcher, x), module.expected(x))
    module.weight = torch.nn.Parameter(torch.randn(4, 8))
    torch.testing.assert_close(run(dispatcher, x), module.expected(x))
    with torch.no_grad():
        module.weight.mul_(2)
    torch.testing.assert_close(run(dispatcher, x), module.expected(x))
    module.double()
    assert "weight has dtype torch.float64" in reasons(dispatcher.lookup((x,), {}))[0]
    module.float()
    torch.testing.assert_close(run(dispatcher, x), module.expected(x))
    other = {"weight": torch.zeros(4, 8), "bias": torch.ones(4)}
    torch.func.functional_call(
        _Caller(module, dispatcher), {f"module.{k}": v for k, v in other.items()}, (x,)
    )
    del module.weight
    assert reasons(dispatcher.lookup((x,), {})) == ["the module has no parameter weight"]


class _Caller(torch.nn.Module):
    def __init__(self, module: Linear, dispatcher: Dispatcher) -> None:
        super().__init__()
        self.module = module
        self.dispatcher = [dispatcher]

    def forward(self, x: torch.Tensor) -> None:
        assert torch.equal(run(self.dispatcher[0], x), torch.ones(3, 4))


def parameters(names: list[str], guards: bool = True) -> Artifact:
    """Takes x: [s0, 8] and these parameters of [8, 8], gives 1."""
    tensors = [tensor(i, Input("parameter", name=n), shape(8, 8)) for i, n in enumerate(names)]
    tensors.append(tensor(len(names), Input("arg", 0), shape(S0, 8)))
    one = artifact(
        tuple(tensors),
        (Return((Literal(1),)),),
        args=1,
        symbols=(Symbol("s0", 3),),
        bindings=(Binding("s0", len(names), 0),),
        out=LEAF,
    )
    return replace(one, guards=GuardSet(one.guards.bindings, (*one.guards.guards, *state_guards())))


def test_a_swapped_submodule_is_seen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    dispatcher, x = Dispatcher(model), torch.randn(3, 8)
    dispatcher.add(loaded(parameters(["0.weight", "1.weight"])), (x,), {})
    before = hit(dispatcher.lookup((x,), {})).inputs
    model[1] = torch.nn.Linear(8, 8)
    after = hit(dispatcher.lookup((x,), {})).inputs
    assert after[0] is before[0] and after[1] is model[1].weight
    model[1] = torch.nn.ReLU()
    assert reasons(dispatcher.lookup((x,), {})) == ["the module has no parameter 1.weight"]


def test_tied_weights_must_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    dispatcher, x = Dispatcher(model), torch.randn(3, 8)
    dispatcher.add(loaded(parameters(["0.weight"])), (x,), {})
    hit(dispatcher.lookup((x,), {}))
    model[1].weight = torch.nn.Parameter(torch.randn(8, 8))
    assert reasons(dispatcher.lookup((x,), {})) == [
        "1.weight and 0.weight are no longer one tensor"
    ]
    model[0].weight = model[1].weight
    hit(dispatcher.lookup((x,), {}))


def test_add_refuses_a_call_of_another_structure() -> None:
    with pytest.raises(ValueError, match="args has 2 items"):
        Dispatcher().add(loaded(parameters([])), (1, 2), {})


def test_lookups_and_additions_run_together() -> None:
    module = Linear()
    dispatcher = Dispatcher(module)
    bounds = list(range(1, 9))
    entries = [loaded(limited(linear_relu(), S0, "==", const(n + 1), "n")) for n in bounds]
    wrong: list[object] = []

    def add() -> None:
        for n, entry in zip(bounds, entries):
            dispatcher.add(entry, (torch.randn(n + 1, 8),), {})

    def call(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        for i in range(300):
            x = torch.randn(2 + (i + seed) % 8, 8, generator=own)
            found = dispatcher.lookup((x,), {})
            if isinstance(found, Hit) and not torch.allclose(
                found.entry.call(found.inputs, found.symbols)[0], module.expected(x), atol=1e-5
            ):
                wrong.append(x.shape)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(7)]
    threads.append(threading.Thread(target=add))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(dispatcher) == 8
    for n in bounds:
        run(dispatcher, torch.randn(n + 1, 8))


@pytest.mark.parametrize("count", [1, 10, 150])
def test_a_repeated_call_is_cheap(count: int) -> None:
    """Printed, with a bound that only a mistake of order exceeds."""
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(count)])
    dispatcher, x = Dispatcher(model), torch.randn(3, 8)
    dispatcher.add(loaded(parameters([f"{i}.weight" for i in range(count)])), (x,), {})
    kwargs: dict[str, object] = {}
    hit(dispatcher.lookup((x,), kwargs))
    took = (
        min(timeit.repeat(lambda: dispatcher.lookup((x,), kwargs), number=500, repeat=9))
        / 500
        * 1e6
    )
    print(f"dispatch with {count} parameters: {took:.2f} us")
    assert took < 50 + 1.0 * count
