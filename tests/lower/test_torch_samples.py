"""torch's own sample inputs for every operator that it documents as testable: traced, lowered, run, compared with eager."""

from __future__ import annotations

import random
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lowering import call_torch, capture, compare, externs, to_numpy
from torch.utils import _pytree as pytree

from stax.base.errors import CaptureError
from stax.base.options import Options
from stax.ir.interp import run
from stax.ir.verify import verify_program
from stax.lower.lower import lower

# Random results, memory that nobody wrote, and results that are right up to a sign.
SKIPPED = re.compile(
    r"rand|empty|normal|uniform|bernoulli|cauchy|geometric|exponential|multinomial|dropout|rrelu|lowrank|fractional|svd|eig|qr"
    r"|multi_head|chalf|partial_views|scaled_dot_product|lobpcg|ormqr|householder|kaiming|sparse|jiterator"
)


def samples(
    dtype: torch.dtype, count: int, only: str = ""
) -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """(name, function of tensors, tensors), of operators whose name has ``only`` in it."""
    for op in _operators():
        if SKIPPED.search(f"{op.name}.{op.variant_test_name}") or dtype not in op.dtypes:
            continue
        if not re.search(only, op.name):
            continue
        found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        random.Random(op.name).shuffle(found)
        for sample in found[:count]:
            leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            yield op.name, _function(op.op, leaves, tree), tensors


def _operators() -> list[Any]:
    # torch's test code asks for expecttest, of which nothing is used here.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    from torch.testing._internal.common_methods_invocations import op_db  # seconds of import

    return list(op_db)


def _function(op: Callable[..., Any], leaves: list[Any], tree: Any) -> Callable[..., Any]:
    def fn(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = pytree.tree_unflatten(filled, tree)
        return op(first, *args, **kwargs)

    return fn


def outcome(fn: Callable[..., Any], tensors: list[torch.Tensor]) -> str:
    """ "equal", "refused" by tracing, or what went wrong."""
    try:
        expected = fn(*[t.clone() for t in tensors])
    except (RuntimeError, ValueError, NotImplementedError, TypeError):
        return "refused"
    try:
        found = capture(fn, tensors)
    except (CaptureError, RuntimeError, NotImplementedError):
        return "refused"
    program = lower(found, options=Options())
    verify_program(program)
    if any("rand" in target or "bernoulli" in target for target in externs(program)):
        return "refused"
    constants = dict(found.constants)
    inputs = [
        to_numpy((constants[name] if name in constants else tensors[i.leaf]).clone())
        for name, i in zip(found.inputs, found.signature.inputs)
    ]
    leaves = pytree.tree_leaves(expected, is_leaf=lambda x: x is None)
    try:
        compare(run(program, inputs, {}, call_torch), leaves, scale=10)
    except AssertionError as error:
        return re.sub(r"\s+", " ", str(error))[:160]
    return "equal"


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_samples(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    results = [(name, outcome(fn, tensors)) for name, fn, tensors in samples(dtype, 1)]
    assert not [r for r in results if r[1] not in ("equal", "refused")]
    assert sum(r[1] == "equal" for r in results) > 0.8 * len(results)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str
)
@pytest.mark.filterwarnings("ignore")
def test_samples_of_writes_at_computed_places(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    writes = r"^(index_(add|copy|fill|put)|scatter(_add)?|put)$"
    results = [(name, outcome(fn, tensors)) for name, fn, tensors in samples(dtype, 40, writes)]
    assert len({name for name, _ in results}) == 7
    assert not [r for r in results if r[1] not in ("equal", "refused")]
    assert sum(r[1] == "equal" for r in results) > 0.9 * len(results)
