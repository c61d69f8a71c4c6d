"""What a traced program returns: values of the graph, aliases of written inputs, sizes and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor

from stax.base.errors import CaptureError
from stax.capture.findings import Sizes
from stax.capture.graph import Graph
from stax.capture.recorder import Recorder
from stax.capture.value import Geometry, Value
from stax.ir.program import Literal, TensorRef
from stax.runtime.literals import to_literal


@dataclass(frozen=True)
class Alias:
    """A view of input ``owner``, which the program has written: eager returns memory that the caller sees changed."""

    owner: str
    geometry: Geometry


Result = Value | Alias | SymInt | Literal


def result_of(leaf: Any, name: str, recorder: Recorder) -> Result:
    """One leaf of the return value; ``name`` says where it stands. Raises CaptureError for what no artifact returns."""
    if isinstance(leaf, SymInt):
        return leaf
    if isinstance(leaf, SymBool):
        return Literal(bool(leaf))
    if isinstance(leaf, SymFloat):
        return Literal(float(leaf))
    if isinstance(leaf, Tensor):
        storage = recorder.handle(leaf).storage
        if storage.owner and storage.version > 0:
            return Alias(storage.owner, Geometry.of(leaf))
        return recorder.read(leaf)
    try:
        return Literal(to_literal(leaf))
    except TypeError as error:
        raise CaptureError(
            f"the program returns {name} of type {type(leaf).__name__}",
            expected="tensors and constants in tuples, lists, dicts and registered containers",
            hint="return its tensors, or register it with torch.utils._pytree.register_pytree_node",
        ) from error


def output_of(result: Result, graph: Graph, sizes: Sizes) -> Any:
    """The same as Captured.outputs holds it."""
    if isinstance(result, Value):
        return graph.node(result)
    if isinstance(result, SymInt):
        return sizes.expr(result)
    if isinstance(result, Alias):
        meta = graph.meta(result.geometry)
        return TensorRef(result.owner, meta.shape, meta.strides, meta.offset)
    return result
