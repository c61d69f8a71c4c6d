"""Captures small functions for lowering tests, runs Programs by the numpy oracle and compares with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from stax.base.options import Options
from stax.base.target import Target
from stax.capture.captured import Captured
from stax.capture.decompose import decompositions
from stax.capture.trace import trace
from stax.ir.interp import Tensor, run
from stax.ir.program import Computation, Extern, Program
from stax.ir.verify import verify_program
from stax.lower.lower import lower

NO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
TARGET = Target("cpu", "x86-64-v3")


def capture(
    fn: Callable[..., Any], args: Sequence[torch.Tensor], dynamic: bool = False
) -> Captured:
    """The trace of a function of tensors, for this machine's kind of target."""
    return trace(
        fn, tuple(args), {}, dynamic=dynamic, target=TARGET, decompositions=decompositions()
    )


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.float().numpy() if tensor.dtype in NO_NUMPY else tensor.numpy()


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
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            assert tuple(s.evaluate(sizes) for s in out.strides) == leaf.stride()  # type: ignore[union-attr]
    return program
