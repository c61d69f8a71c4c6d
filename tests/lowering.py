"""Captures small functions for lowering tests, runs Programs by the numpy oracle and compares with eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from stax.artifact.guards import GuardSet
from stax.base.options import Options
from stax.capture.captured import Captured, Meta
from stax.capture.decompose import decompositions
from stax.ir.expr import Expr, const, parse
from stax.ir.interp import Tensor, run
from stax.ir.program import Computation, Extern, Literal, Program, Symbol
from stax.ir.verify import verify_program
from stax.lower.lower import lower


def to_expr(value: Any) -> Expr:
    """An int or SymInt as an Expr."""
    if isinstance(value, int):
        return const(value)
    text = str(value.node.expr)
    text = re.sub(r"\*\*(\d+)", lambda m: f"**{m[1]}", text)
    for power in re.findall(r"(\w+)\*\*(\d+)", text):
        text = text.replace(f"{power[0]}**{power[1]}", "*".join([power[0]] * int(power[1])))
    text = text.replace("Max(", "max(").replace("Min(", "min(")
    text = re.sub(r"(?:Python)?Mod\((.+?), (\d+)\)", r"((\1) % \2)", text)
    return parse(text)


def to_meta(value: FakeTensor) -> Meta:
    return Meta(
        tuple(map(to_expr, value.shape)),
        tuple(map(to_expr, value.stride())),
        to_expr(value.storage_offset()),
        str(value.dtype).removeprefix("torch."),
        value.device.type,
    )


def annotate(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_meta(value)
    if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
        return to_expr(value)
    if isinstance(value, (list, tuple)):
        return tuple(annotate(v) for v in value)
    return None


def capture(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], dynamic: bool = False, mutates: bool = True
) -> Captured:
    """A Captured of a function of tensors, without guards or signature."""
    mode = "symbolic" if dynamic else "fake"

    def positional(*flat: torch.Tensor) -> Any:
        return fn(*flat)

    traced = positional if dynamic or not mutates else torch.func.functionalize(positional, remove="mutations")
    module = make_fx(traced, decomposition_table=decompositions(), tracing_mode=mode)(*args)
    names, symbols = [], {}
    for node in module.graph.nodes:
        node.meta["stax"] = annotate(node.meta.get("val"))
        if node.op != "placeholder":
            continue
        names.append(f"arg{len(names)}")
        for size, hint in zip(node.meta["stax"].shape, args[len(names) - 1].shape):
            if len(size.symbols) == 1 and str(size) in size.symbols:
                symbols[str(size)] = Symbol(str(size), hint)
    (result,) = module.graph.find_nodes(op="output")
    leaves = [
        a if isinstance(a, torch.fx.Node) else Literal(a)
        for a in pytree.tree_leaves(result.args[0], is_leaf=lambda x: x is None)
    ]
    return Captured(
        module.graph,
        tuple(names),
        tuple(leaves),
        (),
        tuple(symbols[s] for s in sorted(symbols)),
        GuardSet((), ()),
        None,
        (),
        (),  # type: ignore[arg-type]
    )


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def from_numpy(tensor: Tensor) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    strides = tuple(s // tensor.array.itemsize for s in tensor.array.strides)
    flat = torch.from_numpy(np.array(tensor.array)).to(dtype)
    if any(n != 1 and s == 0 for n, s in zip(flat.shape, strides)):
        return flat
    return torch.empty_strided(flat.shape, strides, dtype=dtype).copy_(flat)


def call_torch(target: str, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor | None]:
    """The callback of external calls: torch itself."""
    space, name, overload = target.split(".")
    op = getattr(getattr(getattr(torch.ops, space), name), overload)
    found = op(*map(_to_torch, args), **{k: _to_torch(v) for k, v in kwargs.items()})
    results = found if isinstance(found, (tuple, list)) else (found,)
    return [
        Tensor(to_numpy(r), str(r.dtype).removeprefix("torch."))
        if isinstance(r, torch.Tensor)
        else None
        for r in results
    ]


def _to_torch(value: Any) -> Any:
    if isinstance(value, Tensor):
        return from_numpy(value)
    if isinstance(value, list):
        return [_to_torch(v) for v in value]
    if isinstance(value, tuple):
        tag, name = value
        return torch.device(name) if tag == "device" else getattr(torch, name)
    return value


def bind(program: Program, args: Sequence[torch.Tensor]) -> dict[str, int]:
    """Sizes of the symbols from the shapes of the arguments."""
    sizes: dict[str, int] = {}
    for name, arg in zip(program.inputs, args):
        for expr, size in zip(program.buffer(name).shape, arg.shape):
            if str(expr) in expr.symbols:
                sizes[str(expr)] = size
    return sizes


def lowered(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], dynamic: bool = False, **options: Any
) -> Program:
    program = lower(capture(fn, args, dynamic), options=Options().with_(**options))
    verify_program(program)
    return program


def run_program(program: Program, args: Sequence[torch.Tensor]) -> list[Any]:
    return run(program, [to_numpy(a) for a in args], bind(program, args), call_torch)


def externs(program: Program) -> list[str]:
    return [n.target for n in program.nodes if isinstance(n, Extern)]


def computations(program: Program) -> list[Computation]:
    return [n for n in program.nodes if isinstance(n, Computation)]


TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-5, 2e-6),
    torch.bfloat16: (8e-3, 1e-3),
    torch.float16: (2e-3, 2e-4),
}


def compare(found: Sequence[Any], expected: Any, scale: float = 1.0) -> None:
    """Each leaf in dtype, shape and value, NaN equal to NaN."""
    leaves = pytree.tree_leaves(expected, is_leaf=lambda x: x is None)
    assert len(found) == len(leaves)
    for f, e in zip(found, leaves):
        if not isinstance(e, torch.Tensor):
            assert f == e
            continue
        assert f.shape == tuple(e.shape)
        assert f.dtype == to_numpy(e).dtype
        rtol, atol = TOLERANCE.get(e.dtype, (0.0, 0.0))
        np.testing.assert_allclose(f, to_numpy(e), rtol=rtol * scale, atol=atol * scale)


def check(
    fn: Callable[..., Any],
    args: Sequence[torch.Tensor],
    dynamic: bool = False,
    scale: float = 1.0,
    **options: Any,
) -> Program:
    """The program of ``fn`` gives what eager gives, with the same strides. Returns it."""
    program = lowered(fn, args, dynamic, **options)
    expected = fn(*args)
    compare(run_program(program, args), expected, scale)
    leaves = pytree.tree_leaves(expected, is_leaf=lambda x: x is None)
    sizes = bind(program, args)
    for out, leaf in zip(program.outputs, leaves):
        if isinstance(leaf, torch.Tensor):
            assert tuple(s.evaluate(sizes) for s in out.strides) == leaf.stride()  # type: ignore[union-attr]
    return program
