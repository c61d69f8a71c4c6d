"""Functional forms of operators that write their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


@dataclass(frozen=True)
class Functional:
    """``func`` computes what the writing operator leaves in its written arguments. ``written``: their names in order;
    ``drop``: arguments it does not take. Its last len(written) results are the new contents; the first ``results`` ones
    are what the writing operator returns besides."""

    func: OpOverload
    written: tuple[str, ...]
    drop: tuple[str, ...]
    results: int


def written_names(func: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that an operator's schema says it writes."""
    return tuple(
        a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )


@cache
def functional_form(func: OpOverload) -> Functional | None:
    """By torch's naming rules: add_.Tensor → add.Tensor, abs.out → abs, x → x_functional. None when there is none."""
    written = written_names(func)
    schema = func._schema
    space = getattr(torch.ops, func.namespace)
    name = func.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__"):
        found = _same_arguments((space, name[:-1]), func) or _same_arguments(
            (space, f"{name}functional"), func
        )
        return found and Functional(found, written, (), 0)
    if all(a.kwarg_only for a in schema.arguments if a.name in written):
        found = _without_out(func.overloadpacket, func, written)
        return found and Functional(found, written, written, 0)
    found = _same_arguments((space, f"{name}_functional"), func)
    return found and Functional(found, written, (), len(schema.returns))


def _same_arguments(place: tuple[Any, str], func: OpOverload) -> OpOverload | None:
    """The overload of the operator there that takes the arguments of ``func`` and writes none; its namesake first."""
    packet = getattr(place[0], place[1], None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in sorted(packet.overloads(), key=lambda o: o != func._overloadname):
        found = getattr(packet, overload)
        have = [(a.name, str(a.type)) for a in found._schema.arguments]
        if have == wanted and not written_names(found):
            return found
    return None


def _without_out(packet: Any, func: OpOverload, written: tuple[str, ...]) -> OpOverload | None:
    """The overload of the same operator that takes the same arguments but the outs."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name not in written]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if written_names(found):
            continue
        have = [(a.name, str(a.type)) for a in found._schema.arguments]
        extra = [a for a in have if a not in wanted]
        if [a for a in have if a in wanted] == wanted and all(
            n in ("dtype", "layout", "device", "pin_memory") for n, _ in extra
        ):
            return found
    return None


# native_batch_norm and its kin write running_mean and running_var without saying so in their schemas.
SILENT_WRITES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit.default,
    aten.cudnn_batch_norm.default: aten._native_batch_norm_legit.default,
}
