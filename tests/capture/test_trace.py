"""Captured programs do what eager does: callables, containers, constants and what a graph contains."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from capturing import agree, bind, capture, operators, run, same
from torch import Tensor, nn

from stax.artifact.guards import ConstantGuard, StateGuard, TensorGuard
from stax.base.errors import CaptureError
from stax.capture.captured import Meta
from stax.ir.expr import const


def test_a_function_of_two_tensors() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).sum(-1)

    captured = capture(fn, torch.randn(3, 4), torch.randn(4))
    agree(fn, captured, torch.randn(3, 4), torch.randn(4))
    assert operators(captured) == ["aten.add.Tensor", "aten.sum.dim_IntList"]


def test_a_module_lists_parameters_buffers_then_arguments() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    captured = capture(module, torch.randn(2, 3))
    entries = [(i.source, i.name) for i in captured.signature.inputs[:-1]]
    names = [("parameter", n) for n, _ in module.named_parameters()]
    names += [("buffer", n) for n, _ in module.named_buffers() if "num_batches" not in n]
    assert entries == names
    assert captured.signature.inputs[-1].source == "arg"
    agree(module, captured, torch.randn(2, 3), exact=False)


def test_a_tied_weight_is_one_input_under_its_first_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    captured = capture(Tied(), torch.tensor([1, 2]))
    assert captured.inputs == ("p_embed_weight", "arg0")


def test_parameters_that_are_not_read_are_no_inputs_but_arguments_are() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * self.b

    assert capture(Unused(), torch.ones(2), torch.ones(3)).inputs == ("p_b", "arg0", "arg1")


def test_a_module_is_as_it_was_after_a_trace_that_failed() -> None:
    module = nn.Linear(3, 4)
    before = dict(module.named_parameters())
    with pytest.raises(RuntimeError):
        capture(module, torch.randn(2, 5))
    assert all(p is before[n] for n, p in module.named_parameters())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def scaled(self, x: Tensor, by: float = 1.0) -> Tensor:
        return x * self.weight * by


def test_bound_methods_and_partials() -> None:
    module = Scaled()
    captured = capture(module.scaled, torch.ones(2))
    assert captured.signature.inputs[0].name == "weight"
    assert torch.equal(run(captured, module.scaled, torch.ones(2)), torch.tensor([2.0, 3.0]))
    half = functools.partial(module.scaled, by=0.5)
    captured = capture(half, torch.ones(2))
    assert captured.signature.inputs[0].name == "weight"


def test_a_closure_over_tensors_and_a_module() -> None:
    scale, module = torch.randn(4), nn.Linear(3, 4)

    def fn(x: Tensor) -> Tensor:
        return module(x) * scale

    captured = capture(fn, torch.randn(2, 3))
    assert {i.source for i in captured.signature.inputs} == {"arg", "constant"}
    named = [i.name for i in captured.signature.inputs if i.source == "constant"]
    assert named == [name for name, _ in captured.constants]
    held = {id(t) for _, t in captured.constants}
    assert held == {id(scale), id(module.weight), id(module.bias)}
    agree(fn, captured, torch.randn(2, 3), exact=False)


def test_a_tensor_made_in_the_program_is_made_anew() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.tensor([1.0, 2.0, 3.0])
        steps.add_(x)
        return steps, x * torch.tensor(2.0)

    captured = capture(fn, torch.ones(3))
    agree(fn, captured, torch.ones(3))
    agree(fn, captured, torch.ones(3))
    assert not captured.mutations and len(captured.constants) == 1


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclasses.dataclass
class Box:
    value: Tensor
    name: str


def test_containers_in_and_out() -> None:
    def fn(nest: Any, *, box: Box) -> Any:
        a, (b, c) = nest["x"], nest["pair"]
        out = collections.OrderedDict(sum=a + b, box=Box(c * 2, box.name))
        return [out, Pair(a - b, box.value), (None, 3, "text", 2.5, torch.float32, True)]

    def call() -> tuple[Any, Box]:
        nest = {"x": torch.randn(3), "pair": Pair(torch.randn(3), torch.randn(3))}
        return nest, Box(torch.randn(3), "b")

    nest, box = call()
    captured = capture(fn, nest, box=box)
    nest, box = call()
    found, expected = run(captured, fn, nest, box=box), fn(nest, box=box)
    assert isinstance(found[0], collections.OrderedDict) and isinstance(found[1], Pair)
    assert found[2] == expected[2] and found[0]["box"].name == "b"
    same(found[1], expected[1], True)


def test_python_constants_are_part_of_the_program() -> None:
    def fn(x: Tensor, n: int, mode: str, flag: bool) -> Tensor:
        return x * n if flag and mode == "up" else x / n

    captured = capture(fn, torch.ones(2), 3, "up", True)
    guards = [g for g in captured.guards.guards if isinstance(g, ConstantGuard)]
    assert [(g.leaf, g.value, g.type) for g in guards] == [
        (1, 3, "int"),
        (2, "up", "str"),
        (3, True, "bool"),
    ]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"cache": object()}, r"unsupported argument y\['cache'\].*found builtins.object"),
        ([1, b"bytes"], r"unsupported argument y\[1\]"),
        (__import__("numpy").ones(3), "numpy.ndarray.*torch.as_tensor"),
        (lambda: 0, "builtins.function"),
    ],
)
def test_an_unsupported_argument_is_named(argument: Any, text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        capture(lambda x, y: x, torch.ones(2), argument)


def test_a_container_that_the_program_changes_is_refused() -> None:
    def fn(x: Tensor, seen: list[Tensor]) -> Tensor:
        seen.append(x)
        return x + 1

    with pytest.raises(CaptureError, match="changes a container"):
        capture(fn, torch.ones(2), [])


def test_every_node_says_what_it_is_and_where_it_comes_from() -> None:
    def fn(x: Tensor) -> Tensor:
        a, b = x.split(1)
        return torch.nn.functional.layer_norm(a * b, (4,))

    captured = capture(fn, torch.randn(2, 4))
    for node in captured.graph.nodes:
        assert "stax" in node.meta and "where" in node.meta
        if node.op != "placeholder":
            assert node.meta["where"].startswith("test_trace.py:"), node
    split = next(n for n in captured.graph.nodes if "split" in str(n.target))
    assert [type(m) for m in split.meta["stax"]] == [Meta, Meta]


def test_nothing_dead_and_nothing_that_does_nothing() -> None:
    def fn(x: Tensor) -> Tensor:
        x.exp().sum()
        return x.detach().contiguous().to(torch.float32).data + 1

    assert operators(capture(fn, torch.randn(3))) == ["aten.add.Tensor"]


def test_an_output_that_is_the_input() -> None:
    captured = capture(lambda x: (x, x.detach(), x[1:]), torch.randn(3))
    assert captured.outputs[0].name == captured.outputs[1].name == "arg0"  # type: ignore[union-attr]
    agree(lambda x: (x, x.detach(), x[1:]), captured, torch.randn(3))


def test_guards_of_a_static_trace_are_numbers() -> None:
    captured = capture(torch.neg, torch.randn(4, 3).t())
    (guard,) = [g for g in captured.guards.guards if isinstance(g, TensorGuard)]
    assert guard.shape == (const(3), const(4)) and guard.strides == (const(1), const(3))
    assert captured.symbols == () and captured.guards.bindings == ()
    captured = capture(torch.neg, torch.randn(1, 3))
    (guard,) = [g for g in captured.guards.guards if isinstance(g, TensorGuard)]
    assert guard.strides == (None, const(1))


def test_states_that_matter_are_guarded() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(torch.matmul, torch.randn(3, 3), torch.randn(3, 3))
    states = {g.name: g.value for g in captured.guards.guards if isinstance(g, StateGuard)}
    assert states["autocast_cpu"] == "bfloat16"
    assert "aten._to_copy.default" in operators(captured)
    assert "grad_enabled" not in states and "inference_mode" not in states


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_graph_does_not_depend_on_the_gradient_mode(mode: Callable[[], Any]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Dropout(0.5))
    expected = operators(capture(module, torch.randn(2, 4)))
    with mode():
        x = torch.randn(2, 4)
        assert operators(capture(module, x)) == expected


def test_random_programs_draw_as_eager_does() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x) + torch.randn(3, 4)

    agree(fn, capture(fn, torch.ones(3, 4)), torch.ones(3, 4))


def test_attention_in_its_plain_form() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = tuple(torch.randn(2, 3, 5, 4) for _ in range(3))
    captured = capture(fn, *args)
    assert not [o for o in operators(captured) if "attention" in o]
    with torch.no_grad():
        torch.testing.assert_close(run(captured, fn, *args), fn(*args))


MODULES: list[tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = [
    (lambda: nn.Conv2d(3, 4, 3, padding=1), lambda: (torch.randn(2, 3, 8, 8),)),
    (lambda: nn.MultiheadAttention(8, 2).eval(), lambda: (torch.randn(3, 2, 8),) * 3),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16).eval(), lambda: (torch.randn(3, 2, 8),)),
    (lambda: nn.LSTMCell(4, 5), lambda: (torch.randn(2, 4),)),
    (lambda: nn.GRU(4, 5), lambda: (torch.randn(6, 2, 4),)),
    (lambda: nn.LSTM(4, 5), lambda: (torch.randn(6, 2, 4),)),
    (lambda: nn.GroupNorm(2, 4), lambda: (torch.randn(2, 4, 3),)),
    (lambda: nn.EmbeddingBag(9, 4), lambda: (torch.randint(0, 9, (3, 5)),)),
    (lambda: nn.Bilinear(3, 4, 5), lambda: (torch.randn(2, 3), torch.randn(2, 4))),
    (lambda: nn.MaxPool2d(2, return_indices=True), lambda: (torch.randn(1, 2, 4, 4),)),
    (lambda: nn.CrossEntropyLoss(), lambda: (torch.randn(4, 5), torch.tensor([0, 1, 2, 3]))),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), lambda: (torch.randn(2, 3),)),
]


@pytest.mark.parametrize("make", MODULES, ids=lambda m: type(m[0]()).__name__)
def test_modules_of_torch(make: Any) -> None:
    module, args = make[0](), make[1]()
    agree(module, capture(module, *args), *args, exact=False)


def test_inputs_bind_in_the_order_of_the_placeholders() -> None:
    module = nn.Linear(3, 4)
    captured = capture(module, torch.randn(2, 3))
    placeholders = [n.name for n in captured.graph.nodes if n.op == "placeholder"]
    assert list(captured.inputs) == placeholders
    assert list(bind(captured, module, (torch.randn(2, 3),), {})) == placeholders
