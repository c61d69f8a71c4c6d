"""The lines of one kernel's body: values to tmp variables, each computed once where it is first needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stax.codegen.triton.layout import Dims, Layout
from stax.codegen.triton.relaxed import SPELLINGS
from stax.codegen.triton.spell import (
    cast_text,
    constant_text,
    index_text,
    number_text,
    scalar_text,
)
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Store
from stax.ir.value import Value, load_parts, scatter_parts, walk

NOWHERE: Dims = frozenset()


@dataclass(frozen=True)
class Var:
    """A name in the text, and the block dimensions along which its value varies."""

    text: str
    dims: Dims


@dataclass
class Body:
    """Lines in the making. ``outer`` receives what does not vary along the reduced dimension, ``inner`` the rest; they
    are one list unless a loop is open. Equal right sides share one variable while their list is open."""

    kernel: Kernel
    layout: Layout
    last_use: Mapping[bytes, int] = field(default_factory=dict[bytes, int])
    loop: int = 0
    outer: list[str] = field(default_factory=list[str])
    env: dict[str, Var] = field(default_factory=dict[str, Var])
    _count: int = 0

    def __post_init__(self) -> None:
        self.inner = self.outer
        self._known: dict[str, Var] = {}
        self._done: dict[bytes, Var] = {}
        self._known_inner: dict[str, Var] = {}
        self._done_inner: dict[bytes, Var] = {}
        self.names = self.layout.names
        self.ranges = self.kernel.ranges
        self.reduced = any(g.prefix == "r0_" for g in self.layout.groups)

    def open_loop(self, loop: int) -> None:
        """From here on, what varies along the reduced dimension goes to a fresh list."""
        self.loop = loop
        self.inner = []
        self._known_inner, self._done_inner = {}, {}

    def close_loop(self) -> None:
        """Later lines follow the loop."""
        self.outer = self.inner = []
        self._known_inner, self._done_inner = {}, {}

    # -- lines

    def number(self) -> int:
        self._count += 1
        return self._count - 1

    def line(self, text: str, dims: Dims) -> None:
        (self.inner if "r0_" in dims else self.outer).append(text)

    def let(self, right: str, dims: Dims) -> Var:
        """The variable that holds ``right``, new or known."""
        known = self._known_inner if "r0_" in dims else self._known
        found = known.get(right)
        if found is None:
            found = known[right] = Var(f"tmp{self.number()}", dims)
            self.line(f"{found.text} = {right}", dims)
        return found

    def _dims_of(self, e: Expr) -> Dims:
        groups = self.layout.group_of
        return frozenset(groups[n] for n in e.symbols if n in groups)

    def _text_of(self, e: Expr) -> str:
        return index_text(e, self.names, self.ranges)

    # -- values

    def value(self, root: Value) -> Var:
        """Emit a body."""
        for node in walk(root):
            if node.op not in ("const", "index") and self._find(node) is None:
                var = self._node(node)
                done = self._done_inner if "r0_" in var.dims else self._done
                done[node.key] = var
        return self._operand(root)

    def _find(self, node: Value) -> Var | None:
        return self._done_inner.get(node.key) or self._done.get(node.key)

    def _operand(self, node: Value) -> Var:
        if node.op == "const":
            shape = self.layout.shape(NOWHERE)
            return self.let(constant_text(node.attr[0], node.dtype, shape), NOWHERE)
        if node.op == "index":
            e = node.attr[0]
            assert isinstance(e, Expr)
            dims = self._dims_of(e)
            if not dims:
                return self.let(
                    f"tl.full({self.layout.shape(dims)}, {self._text_of(e)}, tl.int64)", dims
                )
            return self.let(f"({self._text_of(e)}).to(tl.int64)", dims)
        found = self._find(node)
        assert found is not None, node
        return found

    def _node(self, node: Value) -> Var:
        if node.op == "load":
            return self._load(node)
        if node.op == "local":
            return self.env[str(node.attr[0])]
        args = [self._operand(a) for a in node.args]
        dims = NOWHERE.union(*(a.dims for a in args))
        if node.op == "cast":
            return self.let(cast_text(node.args[0].dtype, node.dtype, args[0].text), dims)
        if node.op == "where":
            return self.let(f"tl.where({', '.join(a.text for a in args)})", dims)
        if node.op == "bound":
            return self._bound(node, args[0])
        texts = [a.text for a in args]
        if node.op in SPELLINGS:
            return self.let(SPELLINGS[node.op].format(*texts), dims)
        return self.let(scalar_text(node.op, node.args[0].dtype, texts), dims)

    def _bound(self, node: Value, at: Var) -> Var:
        """The index itself; where it is out of range the kernel traps, as eager's does."""
        extent = node.attr[0]
        assert isinstance(extent, Expr)
        inside = f"(0 <= {at.text}) & ({at.text} < {self._text_of(extent)})"
        masks = self.layout.mask(at.dims)
        if masks:
            inside = f"({inside}) | ~({' & '.join(masks)})"
        self.line(f'tl.device_assert({inside}, "index out of range")', at.dims)
        return at

    # -- memory

    def _address(self, offset: Value | Expr, dims: Dims) -> tuple[str, Dims]:
        """(offset text, its dims), at least as wide as ``dims``."""
        at = offset.attr[0] if isinstance(offset, Value) and offset.op == "index" else offset
        if isinstance(at, Value):
            var = self._operand(at)
            text, held = var.text, var.dims
        else:
            assert isinstance(at, Expr)
            text, held = self._text_of(at), self._dims_of(at)
        if dims <= held:
            return f"({text})", held
        zeros = f"tl.full({self.layout.shape(held | dims)}, 0, tl.{self.layout.index})"
        return f"({text} + {zeros})" if text != "0" else f"({zeros})", held | dims

    def _load(self, node: Value) -> Var:
        pointer, (offset,), mask, other = load_parts(node)
        own = None if mask is None else self._operand(mask)
        at, dims = self._address(offset, NOWHERE if own is None else own.dims)
        masks = self.layout.mask(dims)
        if own is not None:
            masks.append(own.text)
            if not dims:
                at = f"({at} + tl.full({self.layout.shape(dims)}, 0, tl.{self.layout.index}))"
        words = [f"{pointer} + {at}"]
        if masks:
            words.append(" & ".join(masks))
        policy = self._eviction(node, dims)
        if policy:
            words.append(f"eviction_policy='{policy}'")
        if own is not None or (masks and self.reduced):
            words.append(f"other={self._other(other, node.dtype)}")
        loaded = self.let(f"tl.load({', '.join(words)})", dims)
        if dims or own is not None:
            return loaded
        shape = self.layout.shape(("x",) if len(self.layout.groups) == 1 else dims)
        return self.let(f"tl.broadcast_to({loaded.text}, {shape})", dims)

    def _other(self, other: object, dtype: str) -> str:
        """tl.load reads a bool as int8."""
        return number_text(other, "int8" if dtype == "bool" else dtype)

    def _eviction(self, node: Value, dims: Dims) -> str:
        """evict_last for what other programs or a later pass read again, evict_first for what a reduction reads once."""
        if not dims:
            return ""
        at = node.args[0]
        if at.op != "index" or not isinstance(at.attr[0], Expr):
            return ""
        e = at.attr[0]
        shared = any(
            a.name not in e.symbols
            for g in self.layout.groups
            if g.prefix in self.layout.outer
            for a in g.axes
        )
        again = self.last_use.get(node.key, self.loop) > self.loop
        if shared or again:
            return "evict_last"
        return "evict_first" if self.reduced else ""

    def store(self, value: Var, store: Store, dims: Iterable[str]) -> None:
        """Write a value at every point of ``dims``."""
        wide = frozenset(dims)
        at, held = self._address(store.offset, wide)
        masks = " & ".join(self.layout.mask(held | wide))
        self.line(f"tl.store({store.pointer} + {at}, {value.text}, {masks})", wide)

    def scatter_values(self, root: Value) -> None:
        """Emit what goes into a scatter, and leave the write for later."""
        for part in root.args:
            self.value(part)

    def scatter(self, root: Value, dims: Iterable[str]) -> None:
        """Write or add once at every point of ``dims``, also along those on which neither place nor value depends."""
        parts = scatter_parts(root)
        assert parts is not None
        self.scatter_values(root)
        wide = frozenset(dims)
        at, held = self._address(parts.indices[0], wide)
        masks = self.layout.mask(held | wide)
        if parts.mask is not None:
            masks.append(self._operand(parts.mask).text)
        words = [
            f"{parts.buffer} + {at}",
            self._operand(parts.value).text,
            *([" & ".join(masks)] if masks else []),
        ]
        call = f"tl.store({', '.join(words)})"
        if parts.mode == "add":
            call = f"tl.atomic_add({', '.join(words)}, sem='relaxed')"
        self.line(call, wide)
