"""Runs a Captured with torch, as the reference for what its graph, mutations and aliases mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stax.base.target import Target
from stax.capture.captured import Captured
from stax.capture.trace import trace
from stax.ir.expr import Expr
from stax.ir.program import Literal, TensorRef
from stax.runtime.literals import from_literal
from stax.runtime.signature import flatten_call, unflatten

CPU = Target.parse("cpu:x86-64-v3")
CUDA = Target.parse("cuda:sm_90")


def capture(
    fn: Callable[..., Any], *args: Any, dynamic: bool = False, target: Target = CPU, **kwargs: Any
) -> Captured:
    return trace(fn, args, kwargs, dynamic=dynamic, target=target, decompositions={})


def own_tensors(fn: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return {}
    return dict(module.named_parameters()) | dict(module.named_buffers())


def run(captured: Captured, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """What an artifact of ``captured`` does for a call: compute, copy back, return."""
    _, leaves = flatten_call(args, kwargs)
    own = own_tensors(fn)
    constants = dict(captured.constants)
    inputs: dict[str, Tensor] = {}
    for name, entry in zip(captured.inputs, captured.signature.inputs, strict=True):
        if entry.source == "arg":
            inputs[name] = leaves[entry.leaf]
        else:
            inputs[name] = constants[name] if entry.source == "constant" else own[entry.name]
    env = symbols_of(captured, list(inputs.values()))
    values = interpret(captured.graph, inputs)
    updates = {name: values[node] for name, node in captured.mutations}
    for name, value in updates.items():
        assert value.shape == inputs[name].shape and value.dtype == inputs[name].dtype
    outputs = [output(o, values, env) for o in captured.outputs]
    for name, value in updates.items():
        inputs[name].copy_(value)
    done = [inputs_alias(o, inputs, env) if isinstance(o, TensorRef) else o for o in outputs]
    return unflatten(captured.signature.out, done)


def interpret(graph: torch.fx.Graph, inputs: Mapping[str, Tensor]) -> dict[torch.fx.Node, Any]:
    values: dict[torch.fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs[node.target]
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def symbols_of(captured: Captured, tensors: list[Tensor]) -> dict[str, int]:
    return {b.symbol: tensors[b.input].shape[b.dim] for b in captured.guards.bindings}


def output(found: Any, values: Mapping[torch.fx.Node, Any], env: Mapping[str, int]) -> Any:
    if isinstance(found, torch.fx.Node):
        return values[found]
    if isinstance(found, Expr):
        return found.evaluate(env)
    return from_literal(found.value) if isinstance(found, Literal) else found


def inputs_alias(ref: TensorRef, inputs: Mapping[str, Tensor], env: Mapping[str, int]) -> Tensor:
    shape, strides = ([e.evaluate(env) for e in part] for part in (ref.shape, ref.strides))
    return inputs[ref.buffer].as_strided(shape, strides, ref.offset.evaluate(env))
