"""Rules of tensor creation."""

from __future__ import annotations

from stax.lower.build import Call, Table
from stax.lower.scalars import Operand, number
from stax.lower.views import View


def constant_fill(c: Call, value: Operand) -> View:
    return c.fill(number(value, c.out.dtype))


RULES: Table = {
    "aten.full.default": lambda c, size, value, **_: constant_fill(c, value),
}
