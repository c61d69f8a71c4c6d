"""Guards of one trace: what must hold of a later call for the captured graph to be its program."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stax.artifact.guards import (
    Binding,
    DistinctGuard,
    Guard,
    GuardSet,
    TensorGuard,
)
from stax.base.errors import CaptureError
from stax.capture.captured import Meta
from stax.capture.findings import Sizes
from stax.capture.graph import Graph
from stax.capture.inputs import Entry, overlap
from stax.runtime.literals import constant_guard
from stax.runtime.state import state_guards

STATES = ("autocast_cpu", "autocast_cuda", "default_dtype", "deterministic", "matmul_tf32")


def guard_set(
    entries: list[Entry], graph: Graph, sizes: Sizes, leaves: list[Any], written: list[Entry]
) -> GuardSet:
    """All guards; ``entries`` in the order of the graph's inputs, ``leaves`` the call's."""
    metas = [graph.node(e.value).meta["stax"] for e in entries]
    guards: list[Guard] = list(state_guards(STATES))
    guards += constants(leaves)
    guards += [
        tensor_guard(i, m) for i, (e, m) in enumerate(zip(entries, metas)) if e.source != "constant"
    ]
    guards += sizes.relations(texts(entries, metas))
    guards += distinct(entries, written)
    return GuardSet(bindings(entries, metas), tuple(guards))


def tensor_guard(index: int, meta: Meta) -> TensorGuard:
    """Sizes, strides and offset as they were; the stride of a dimension of at most one element is free."""
    strides = tuple(
        None if size.is_const and size.value <= 1 else stride
        for size, stride in zip(meta.shape, meta.strides)
    )
    return TensorGuard(index, meta.dtype, meta.device, meta.shape, strides, meta.offset)


def bindings(entries: list[Entry], metas: list[Meta]) -> tuple[Binding, ...]:
    """Where each symbol is read: the first dimension that is the symbol alone."""
    found: dict[str, Binding] = {}
    for index, meta in enumerate(metas):
        for dim, size in enumerate(meta.shape):
            name = size.text
            if size.symbols == {name} and name not in found:
                found[name] = Binding(name, index, dim)
    return tuple(found.values())


def constants(leaves: list[Any]) -> list[Guard]:
    """Leaves that are no tensors are part of the program."""
    return [
        constant_guard(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)
    ]


def distinct(entries: list[Entry], written: list[Entry]) -> list[Guard]:
    """What is written shares no memory with any other input. Pairs of the module's own tensors are looked at now alone:
    a later call brings the same module."""
    pairs: list[tuple[int, int]] = []
    order = {id(e): i for i, e in enumerate(entries)}
    marked = {id(e) for e in written}
    for one in written:
        for other in entries:
            if other is one or (id(other) in marked and order[id(other)] < order[id(one)]):
                continue
            if overlap(one.real, other.real):
                raise CaptureError(
                    f"the program writes {one.text}, which shares memory with {other.text}",
                    hint="pass a copy (x.clone()) of one of them",
                )
            if "arg" in (one.source, other.source):
                low, high = sorted((order[id(one)], order[id(other)]))
                pairs.append((low, high))
    return [DistinctGuard(tuple(sorted(set(pairs))))] if pairs else []


def texts(entries: list[Entry], metas: list[Meta]) -> dict[str, str]:
    """What the user calls each symbol: "x.size(0)"."""
    return {b.symbol: f"{entries[b.input].text}.size({b.dim})" for b in bindings(entries, metas)}
