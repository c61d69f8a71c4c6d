"""From recorded values to the fx graph that lowering reads: only what the results need, every size an Expr."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx
from torch import SymInt

from stax.capture.captured import Meta
from stax.capture.findings import Sizes
from stax.capture.value import Geometry, Shape, Value, rebuild
from stax.ir.expr import Atom, Expr, const

Where = Mapping[str, tuple[torch.fx.Node, int]]


def live(values: Iterable[Value], roots: Iterable[Value]) -> list[Value]:
    """The values that ``roots`` need, in recorded order."""
    needed: set[int] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if id(value) not in needed:
            needed.add(id(value))
            stack.extend(value.operands())
    return [v for v in values if id(v) in needed]


class Graph:
    """Builds the graph: placeholders first, then sizes where they are first used, then operators."""

    def __init__(self, sizes: Sizes) -> None:
        self.fx = torch.fx.Graph()
        self._sizes = sizes
        self._nodes: dict[int, torch.fx.Node] = {}
        self._size_nodes: dict[str, torch.fx.Node | int] = {}
        self._bound: dict[str, tuple[torch.fx.Node, int]] = {}

    def placeholder(self, value: Value) -> None:
        """An input; its plain symbolic sizes are where symbols are read from."""
        node = self.fx.create_node("placeholder", value.name, name=value.name)
        assert isinstance(value.geometry, Geometry)
        self._finish(node, value)
        for dim, extent in enumerate(node.meta["stax"].shape):
            name = extent.text
            if extent.symbols == {name} and name not in self._bound:
                self._bound[name] = (node, dim)

    def add(self, value: Value) -> None:
        """One operator or one item of a result."""
        if value.index is not None:
            whole = self._nodes[id(value.args[0])]
            node = self.fx.call_function(operator.getitem, (whole, value.index))
        else:
            assert value.func is not None
            args = rebuild(value.args, self._argument)
            kwargs = rebuild(value.kwargs, self._argument)
            node = self.fx.call_function(value.func, args, kwargs)
        self._finish(node, value)

    def node(self, value: Value) -> torch.fx.Node:
        return self._nodes[id(value)]

    def _finish(self, node: torch.fx.Node, value: Value) -> None:
        self._nodes[id(value)] = node
        node.meta["stax"] = self.meta(value.geometry)
        node.meta["where"] = value.where

    def meta(self, shape: Shape) -> Any:
        """A Meta, or a tuple of them for several results."""
        if shape is None:
            return None
        if isinstance(shape, tuple):
            return tuple(self.meta(item) for item in shape)
        return Meta(
            tuple(self._sizes.expr(s) for s in shape.shape),
            tuple(self._sizes.expr(s) for s in shape.strides),
            self._sizes.expr(shape.offset),
            str(shape.dtype).removeprefix("torch."),
            shape.device,
        )

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return self._nodes[id(leaf)]
        if isinstance(leaf, SymInt):
            return self._size(self._sizes.expr(leaf))
        if isinstance(leaf, torch.device):
            return torch.device(leaf.type)
        return leaf

    # -- sizes as nodes
    def _size(self, e: Expr) -> torch.fx.Node | int:
        if e.is_const:
            return e.value
        found = self._size_nodes.get(e.text)
        if found is None:
            found = self._size_nodes[e.text] = self._sum(e)
        return found

    def _sum(self, e: Expr) -> torch.fx.Node | int:
        total: torch.fx.Node | int | None = None
        partial = const(0)
        for monomial, coef in e.terms:
            term, text = self._product(monomial, coef)
            partial = partial + text
            total = term if total is None else self._apply(operator.add, total, term, partial)
        assert total is not None
        return total

    def _product(
        self, monomial: tuple[tuple[Atom, int], ...], coef: int
    ) -> tuple[torch.fx.Node | int, Expr]:
        out: torch.fx.Node | int = coef
        text = const(coef)
        for atom, power in monomial:
            one = Expr({((atom, 1),): 1})
            for _ in range(power):
                text = text * one
                factor = self._atom(atom, one)
                out = factor if out == 1 else self._apply(operator.mul, out, factor, text)
        return out, text

    def _atom(self, atom: Atom, e: Expr) -> torch.fx.Node | int:
        found = self._size_nodes.get(e.text)
        if found is not None:
            return found
        if atom.op == "sym":
            node, dim = self._bound[atom.name]
            made = self._apply(torch.ops.aten.sym_size.int, node, dim, e)
        else:
            left, right = (self._size(a) for a in atom.args)
            made = self._apply(_ATOMS[atom.op], left, right, e)
        self._size_nodes[e.text] = made
        return made

    def _apply(self, func: Callable[..., Any], a: Any, b: Any, e: Expr) -> torch.fx.Node:
        node = self.fx.call_function(func, (a, b))
        node.meta["stax"] = e
        node.meta["where"] = ""
        return node


_ATOMS: Mapping[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}
