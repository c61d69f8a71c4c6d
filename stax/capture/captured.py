"""Captured: what tracing hands to lowering. The graph is functional ATen; every shape in it is already an Expr."""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx
from torch import Tensor

from stax.artifact.artifact import TracedSource
from stax.artifact.guards import GuardSet
from stax.artifact.signature import Signature
from stax.ir.expr import Expr
from stax.ir.program import Literal, Symbol, TensorRef


@dataclass(frozen=True)
class Meta:
    """A tensor's shape, strides and storage offset in elements over the size symbols; dtype by torch name; device kind."""

    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: str
    device: str


@dataclass(frozen=True)
class Captured:
    """``graph``: functional ATen operators only, no mutation; views stay views. Its placeholders are the flat tensor
    inputs, in the order of ``signature.inputs`` and named as ``inputs``. Each node carries ``meta["stax"]``: a Meta, a
    tuple of Meta or None for several results, or an Expr when the node is a symbolic integer; and ``meta["where"]``: the
    user's "file.py:line" ("" when unknown).

    ``outputs``, in the order of the leaves of ``signature.out``: a graph node, a TensorRef (an alias of the input that it
    names, geometry given, for outputs that eager returns as views of a mutated input), an Expr or a Literal.
    ``mutations``: (input name, node whose value the input holds after the call).
    ``constants``: tensors baked in at capture, by input name. ``joint`` names what the backward will need; empty for
    inference."""

    graph: torch.fx.Graph
    inputs: tuple[str, ...]
    outputs: tuple[torch.fx.Node | TensorRef | Expr | Literal, ...]
    mutations: tuple[tuple[str, torch.fx.Node], ...]
    symbols: tuple[Symbol, ...]
    guards: GuardSet
    signature: Signature
    constants: tuple[tuple[str, Tensor], ...]
    traced_sources: tuple[TracedSource, ...]
    joint: tuple[str, ...] = ()
