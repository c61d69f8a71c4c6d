"""Runs a Captured with torch, as the reference for what its graph, mutations and aliases mean."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from stax.artifact.containers import register_known
from stax.base.target import Target
from stax.capture.captured import Captured
from stax.capture.trace import trace
from stax.ir.expr import Expr
from stax.ir.program import Literal, TensorRef
from stax.runtime.guards import Bound, holds
from stax.runtime.literals import from_literal
from stax.runtime.signature import flatten_call, unflatten

CPU = Target.parse("cpu:x86-64-v3")
CUDA = Target.parse("cuda:sm_90")


def capture(
    fn: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    target: Target = CPU,
    decompositions: Mapping[Any, Any] | None = None,
    **kwargs: Any,
) -> Captured:
    table = decompositions or {}
    return trace(fn, args, kwargs, dynamic=dynamic, target=target, decompositions=table)


def operators(captured: Captured) -> list[str]:
    return [str(n.target) for n in captured.graph.nodes if n.op == "call_function"]


def run(captured: Captured, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """What an artifact of ``captured`` does for a call: compute, copy back, return."""
    inputs = bind(captured, fn, args, kwargs)
    env = symbols_of(captured, list(inputs.values()))
    values = interpret(captured.graph, inputs, env)
    updates = {name: values[node] for name, node in captured.mutations}
    for name, value in updates.items():
        assert value.shape == inputs[name].shape and value.dtype == inputs[name].dtype
    outputs = [output(o, values, env) for o in captured.outputs]
    with torch.no_grad():
        for name, value in updates.items():
            inputs[name].copy_(value)
    done = [alias(o, inputs, env) if isinstance(o, TensorRef) else o for o in outputs]
    register_known()
    return unflatten(captured.signature.out, done)


def bind(captured: Captured, fn: Any, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """The tensors of a call by input name."""
    register_known()
    _, leaves = flatten_call(args, kwargs)
    own = own_tensors(fn)
    constants = dict(captured.constants)
    inputs: dict[str, Tensor] = {}
    for name, entry in zip(captured.inputs, captured.signature.inputs, strict=True):
        if entry.source == "arg":
            inputs[name] = leaves[entry.leaf]
        else:
            inputs[name] = constants[name] if entry.source == "constant" else own[entry.name]
    return inputs


def own_tensors(fn: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return {}
    return dict(module.named_parameters()) | dict(module.named_buffers())


def reason(captured: Captured, fn: Any, *args: Any, **kwargs: Any) -> str:
    """Why the guards refuse a call, "" when they hold."""
    tree, leaves = flatten_call(args, kwargs)
    if tree != captured.signature.call:
        return "structure"
    tensors = list(bind(captured, fn, args, kwargs).values())
    found = holds(captured.guards, Bound(leaves, tensors), captured.symbols)
    return "" if found is None else str(found)


def interpret(
    graph: torch.fx.Graph, inputs: Mapping[str, Tensor], env: Mapping[str, int]
) -> dict[torch.fx.Node, Any]:
    """The value of every node; each is checked against what its meta promises."""
    values: dict[torch.fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs[node.target]
            else:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
            check(values[node], node.meta["stax"], env, node)
    return values


def check(value: Any, meta: Any, env: Mapping[str, int], node: torch.fx.Node) -> None:
    if isinstance(meta, Expr):
        assert value == meta.evaluate(env), node
    elif isinstance(meta, tuple):
        for one, its in zip(value, meta, strict=True):
            check(one, its, env, node)
    elif meta is not None and value is not None:
        assert tuple(value.shape) == tuple(e.evaluate(env) for e in meta.shape), node
        assert str(value.dtype) == f"torch.{meta.dtype}", node
        strides = tuple(e.evaluate(env) for e in meta.strides)
        for size, found, promised in zip(value.shape, value.stride(), strides, strict=True):
            assert size <= 1 or found == promised, (node.format_node(), value.stride(), strides)


def symbols_of(captured: Captured, tensors: list[Tensor]) -> dict[str, int]:
    return {b.symbol: tensors[b.input].shape[b.dim] for b in captured.guards.bindings}


def output(found: Any, values: Mapping[torch.fx.Node, Any], env: Mapping[str, int]) -> Any:
    if isinstance(found, torch.fx.Node):
        return values[found]
    if isinstance(found, Expr):
        return found.evaluate(env)
    return from_literal(found.value) if isinstance(found, Literal) else found


def alias(ref: TensorRef, inputs: Mapping[str, Tensor], env: Mapping[str, int]) -> Tensor:
    shape, strides = ([e.evaluate(env) for e in part] for part in (ref.shape, ref.strides))
    return inputs[ref.buffer].as_strided(shape, strides, ref.offset.evaluate(env))


def agree(fn: Callable[..., Any], captured: Captured, *args: Any, exact: bool = True) -> None:
    """Eager and captured give the same results, leave the same in their arguments and in the module, and share the same
    memory between results and arguments."""
    mine, theirs = copy.deepcopy((fn, args)), copy.deepcopy((fn, args))
    with torch.no_grad():
        torch.manual_seed(0)
        expected = theirs[0](*theirs[1])
        torch.manual_seed(0)
        found = run(captured, mine[0], *mine[1])
    same(found, expected, exact)
    same(mine[1], theirs[1], exact)
    same(own_tensors(mine[0]), own_tensors(theirs[0]), exact)
    assert sharing(found, mine[1]) == sharing(expected, theirs[1])


def same(found: Any, expected: Any, exact: bool) -> None:
    left, spec = _pytree.tree_flatten(found)
    right, other = _pytree.tree_flatten(expected)
    assert spec == other
    for a, b in zip(left, right, strict=True):
        if isinstance(b, Tensor):
            assert a.dtype == b.dtype and a.shape == b.shape
            if exact:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            else:
                torch.testing.assert_close(a, b, equal_nan=True)
        else:
            assert type(a) is type(b) and (a == b or a != a)


def sharing(results: Any, args: Any) -> list[tuple[int, int]]:
    """Pairs of results and arguments, and of results, that lie in one memory."""
    outs = [t for t in _pytree.tree_leaves(results) if isinstance(t, Tensor)]
    ins = [t for t in _pytree.tree_leaves(args) if isinstance(t, Tensor)]
    every = [*outs, *ins]
    keys = [t.untyped_storage().data_ptr() for t in every]
    return [
        (i, j) for i in range(len(outs)) for j in range(i + 1, len(every)) if keys[i] == keys[j]
    ]
