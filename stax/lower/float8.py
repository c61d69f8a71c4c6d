"""What loops do with 8-bit floats: cast, create, move, choose and compare them, as eager does. Nearly all arithmetic on
them is refused by eager, and the call to torch says so."""

from __future__ import annotations

from stax.ir.float8 import FLOAT8
from stax.lower.create import RULES as CREATE
from stax.lower.view import RULES as VIEWS

_REFUSED = "arange linspace iota tril triu"
_COPIES = "_to_copy.default clone.default lift_fresh_copy.default copy.default"
_PICKS = "index_select.default index.Tensor embedding.default slice_scatter.default select_scatter.default diagonal_scatter.default"
_CHOICES = "where.self where.ScalarSelf where.ScalarOther"
_QUESTIONS = "eq.Tensor eq.Scalar ne.Tensor ne.Scalar isnan.default abs.default"

FLOAT8_OPS = frozenset(
    (
        *(name for name in CREATE if name.split(".")[1] not in _REFUSED.split()),
        *VIEWS,
        *(f"aten.{name}" for name in f"{_COPIES} {_PICKS} {_CHOICES} {_QUESTIONS}".split()),
    )
)


def native(op: str) -> frozenset[str]:
    """The 8-bit floats that loops compute in for an operator."""
    return frozenset(FLOAT8) if op in FLOAT8_OPS else frozenset()
