"""The way out: a call to torch for an operator without a rule, and which of them strict_native accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stax.base.errors import MissingRule
from stax.capture.captured import Meta
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr
from stax.ir.program import Arg, Extern, Listed, Literal
from stax.lower.build import Call, Result
from stax.lower.views import View, whole

# Left to torch's libraries on purpose: strict_native accepts them.
PRODUCTS = (
    "mm bmm addmm baddbmm mv addmv dot vdot _int_mm _scaled_mm convolution convolution_backward"
)
SCANS = "cumsum"
LIBRARY_CALLS = frozenset(
    {
        *(f"aten.{name}.default" for name in f"{PRODUCTS} {SCANS}".split()),
        "aten.bmm.dtype",
        "aten.mm.dtype",
    }
)


def call_torch(
    c: Call, args: Sequence[object], kwargs: dict[str, object], read: Sequence[bool], reason: str
) -> Result:
    """Emit an Extern. ``read`` says for each result whether anybody reads it. Raises MissingRule under strict_native."""
    if c.builder.options.strict_native and c.op not in LIBRARY_CALLS:
        raise _missing(c, reason)
    target = _functional(c, reason)
    given = tuple(_argument(c, a) for a in args)
    named = tuple((k, _argument(c, v)) for k, v in sorted(kwargs.items()))
    metas = c.meta if isinstance(c.meta, tuple) else (c.meta,)
    results: list[Result] = []
    outs: list[str] = []
    for meta, wanted in zip(metas, read):
        if isinstance(meta, Meta) and meta.dtype not in DTYPES:
            raise _missing(c, f"{reason}; {meta.dtype} has no name in Stax")
        if isinstance(meta, Meta) and wanted:
            buffer = c.builder.temp(meta.shape, meta.strides, meta.dtype, meta.device)
            results.append(whole(buffer))
            outs.append(buffer.name)
        else:
            results.append(None)
            outs.append("")
    c.builder.nodes.append(Extern(tuple(outs), target, given, named, c.origin))
    return results if isinstance(c.meta, tuple) else results[0]


def _missing(c: Call, reason: str) -> MissingRule:
    return MissingRule(
        f"no lowering rule for {c.op}",
        expected="a rule for every operator under strict_native=True",
        found=reason,
        where=c.where,
        hint=f"add a row {c.op!r} to a RULES table of stax/lower, or compile with strict_native=False",
    )


def _functional(c: Call, reason: str) -> str:
    """The target, or its ``_copy`` form when its result would share memory with an argument."""
    space, name, overload = c.op.split(".")
    packet = getattr(getattr(torch.ops, space), name)
    schema = getattr(packet, overload)._schema
    if not any(r.alias_info is not None for r in schema.returns):
        return c.op
    copy = getattr(getattr(torch.ops, space), f"{name}_copy", None)
    if copy is None or overload not in copy.overloads():
        raise _missing(
            c, f"{reason}; its result shares memory with an argument and torch has no copying form"
        )
    return f"{space}.{name}_copy.{overload}"


def _argument(c: Call, value: object) -> Arg:
    if isinstance(value, View):
        return c.ref(value)
    if isinstance(value, Expr):
        return Literal(value.value) if value.is_const else value
    if isinstance(value, (list, tuple)):
        return Listed(tuple(_argument(c, v) for v in value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return Literal(value)
    return Literal(_tagged(c, value))


def _tagged(c: Call, value: object) -> tuple[str, str]:
    if isinstance(value, torch.device):
        return ("device", value.type)
    for tag, kind in (
        ("dtype", torch.dtype),
        ("layout", torch.layout),
        ("memory_format", torch.memory_format),
    ):
        if isinstance(value, kind):
            return (tag, str(value).removeprefix("torch."))
    raise _missing(
        c, f"an argument that torch cannot be handed at run time: {type(value).__name__}"
    )
