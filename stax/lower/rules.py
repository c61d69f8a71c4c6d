"""Every lowering rule, by the name of its ATen overload. One table a family, merged here."""

from __future__ import annotations

from stax.lower import (
    activation,
    create,
    gradient,
    index,
    logic,
    loss,
    norm,
    norm_gradient,
    pointwise,
    pool,
    pool_gradient,
    random,
    reduce,
    scatter,
    view,
)
from stax.lower.build import Table

FAMILIES: tuple[tuple[str, Table], ...] = (
    ("pointwise", pointwise.RULES),
    ("logic", logic.RULES),
    ("activation", activation.RULES),
    ("reduce", reduce.RULES),
    ("gradient", gradient.RULES),
    ("view", view.RULES),
    ("create", create.RULES),
    ("index", index.RULES),
    ("scatter", scatter.RULES),
    ("norm", norm.RULES),
    ("norm_gradient", norm_gradient.RULES),
    ("loss", loss.RULES),
    ("pool", pool.RULES),
    ("pool_gradient", pool_gradient.RULES),
    ("random", random.RULES),
)

RULES: Table = {name: rule for _, table in FAMILIES for name, rule in table.items()}
