"""Guards as typed data: what must hold of a call for an artifact to be valid, and the slow reference check."""

from __future__ import annotations

from dataclasses import dataclass

from stax.ir.expr import Expr

RELATIONS = ("==", "!=", "<", "<=")


@dataclass(frozen=True)
class Binding:
    """Size symbol ``symbol`` takes the value of dimension ``dim`` of flat tensor input ``input``."""

    symbol: str
    input: int
    dim: int


@dataclass(frozen=True)
class TensorGuard:
    """Flat tensor input ``input``: dtype, device kind ("cpu"|"cuda"), rank, and the exact sizes, strides and storage offset
    as expressions over the bound symbols. A stride of None is not constrained (its dimension has at most one element)."""

    input: int
    dtype: str
    device: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr | None, ...]
    offset: Expr


@dataclass(frozen=True)
class RelationGuard:
    """``left relation right`` over the bound symbols; ``where`` is the user's file:line, ``text`` the condition in the
    user's terms ("x.size(0) <= 4")."""

    left: Expr
    relation: str
    right: Expr
    text: str = ""
    where: str = ""


@dataclass(frozen=True)
class ConstantGuard:
    """Leaf ``leaf`` of the call is this Python constant: same type and equal (NaN equals NaN, -0.0 differs from 0.0)."""

    leaf: int
    value: object
    type: str


@dataclass(frozen=True)
class DistinctGuard:
    """The storages of these flat tensor inputs do not overlap, pair by pair: the artifact writes one of each pair."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StateGuard:
    """A global state at capture: ``name`` grad_enabled | inference_mode | autocast_cpu | autocast_cuda | default_dtype |
    deterministic | matmul_tf32; ``value`` as text."""

    name: str
    value: str


Guard = TensorGuard | RelationGuard | ConstantGuard | DistinctGuard | StateGuard


@dataclass(frozen=True)
class GuardSet:
    """All guards of one artifact. It holds for a call when every guard does, after ``bindings`` gave the symbols values."""

    bindings: tuple[Binding, ...]
    guards: tuple[Guard, ...]
