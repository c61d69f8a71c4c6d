"""Builder: the program under construction. Call: one node of the captured graph, as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stax.base.options import Options
from stax.capture.captured import Meta
from stax.ir.expr import Expr, const
from stax.ir.program import Axis, Buffer, Computation, Node, Origin, Symbol, TensorRef, contiguous
from stax.ir.ranges import Range
from stax.ir.value import Value, cast, scatter
from stax.lower import views
from stax.lower.scalars import Operand, operand_value, read
from stax.lower.views import Shape, View, axis_name, whole


@dataclass(frozen=True)
class Declined:
    """A rule does not cover this call; the operator is left to torch."""

    reason: str


Result = View | Expr | Declined | None | list["Result"]


class Builder:
    """Collects buffers and nodes in order. The only mutable thing of lowering."""

    def __init__(
        self, symbols: tuple[Symbol, ...], options: Options, deterministic: bool = False
    ) -> None:
        self.options = options
        self.deterministic = deterministic
        self.symbols = symbols
        self.ranges: Mapping[str, Range] = {s.name: Range.of(s.lo, s.hi) for s in symbols}
        self.hints: Mapping[str, int] = {s.name: s.hint for s in symbols}
        self.buffers: list[Buffer] = []
        self.nodes: list[Node] = []
        self.temps = 0
        self.layouts: dict[str, views.Layout] = {}
        self.seeds: dict[str, View] = {}
        self.streams = 0

    def temp(self, shape: Shape, strides: Shape, dtype: str, device: str) -> Buffer:
        buffer = Buffer(f"buf{self.temps}", "temp", dtype, shape, strides, const(0), device)
        self.temps += 1
        self.buffers.append(buffer)
        return buffer

    def compute(
        self,
        shape: Shape,
        strides: Shape,
        body: Value,
        origin: Origin,
        device: str,
        combine: str | None = None,
        over: Sequence[Axis] = (),
        result: Shape | None = None,
    ) -> View:
        """One computation over ``shape`` into a fresh temp (of shape ``result``, for a scatter); returns it as a whole
        view."""
        dtype = "int64" if combine in ("argmax", "argmin") else body.dtype
        buffer = self.temp(shape if result is None else result, strides, dtype, device)
        axes = tuple(Axis(axis_name(k), e) for k, e in enumerate(shape))
        self.nodes.append(Computation(buffer.name, axes, tuple(over), combine, body, origin))
        return whole(buffer)


@dataclass(frozen=True)
class Call:
    """``op`` is the overload's name; ``meta`` what the graph says of its result."""

    builder: Builder
    op: str
    where: str
    meta: Meta | tuple[Meta | None, ...] | Expr | None

    @cached_property
    def out(self) -> Meta:
        """The result's Meta, of the first one for several results."""
        found = self.meta[0] if isinstance(self.meta, tuple) else self.meta
        assert isinstance(found, Meta), f"{self.op} has no tensor result"
        return found

    @cached_property
    def device(self) -> str:
        """Where the results lie, also when the first of them is not wanted."""
        metas = self.meta if isinstance(self.meta, tuple) else (self.meta,)
        return next(m.device for m in metas if isinstance(m, Meta))

    @property
    def origin(self) -> Origin:
        return Origin(self.op, self.where)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Ranges of the size symbols."""
        return self.builder.ranges

    @property
    def hints(self) -> Mapping[str, int]:
        """The size symbols at capture."""
        return self.builder.hints

    def fill(self, body: Value, meta: Meta | None = None) -> View:
        """A result as ``meta`` says (default: this call's), computed as ``body`` at every point."""
        meta = self.out if meta is None else meta
        strides = views.dense_strides(meta.shape, meta.strides, self.hints)
        made = self.builder.compute(meta.shape, strides, body, self.origin, meta.device)
        return self._laid_out(made, strides, meta)

    def _laid_out(self, made: View, strides: Shape, meta: Meta) -> View:
        """A result, remembered under the strides that eager gives it."""
        if strides != meta.strides or meta.offset != 0:
            self.builder.layouts[made.buffer.name] = views.Layout(meta.strides, meta.offset)
        return made

    def scatter(
        self,
        start: Value,
        points: Shape,
        value: Value,
        places: Sequence[Expr | Value],
        *,
        mode: str = "set",
        mask: Value | None = None,
    ) -> View:
        """A result that is ``start`` at every point, then changed as ``value`` says at ``places``, once for each of
        ``points`` where the mask is true. Sums of a narrow type are taken in the type of ``start``."""
        meta = self.out
        strides = views.dense_strides(meta.shape, meta.strides, self.hints)
        base = self.builder.compute(meta.shape, strides, start, self.origin, meta.device)
        body = scatter(base.buffer.name, value, places, mask, mode)
        made = self.builder.compute(
            points, strides, body, self.origin, meta.device, result=meta.shape
        )
        if start.dtype != meta.dtype:
            return self.fill(cast(read(made), meta.dtype))
        return self._laid_out(made, strides, meta)

    def operand(self, operand: Operand, dtype: str) -> Value:
        """An operand as a value of ``dtype`` at every point of the result, broadcast."""
        return operand_value(operand, dtype, self.out.shape, self.hints)

    def expand(self, view: View, shape: Shape) -> View:
        """Broadcast to ``shape``."""
        return views.expand(view, shape, self.ranges, self.hints)

    def stage(self, shape: Shape, body: Value) -> View:
        """An intermediate of this call, contiguous."""
        return self.builder.compute(shape, contiguous(shape), body, self.origin, self.device)

    def copy(self, view: View) -> View:
        """The view's elements in a contiguous buffer of their own."""
        return self.builder.compute(
            view.shape, contiguous(view.shape), read(view), self.origin, view.buffer.device
        )

    def reduce(self, combine: str, shape: Shape, over: Sequence[Axis], body: Value) -> View:
        """The reduction of ``body`` over the axes ``over``, contiguous; the body itself when there is none."""
        if not over:
            return self.stage(shape, body)
        return self.builder.compute(
            shape, contiguous(shape), body, self.origin, self.device, combine, over
        )

    def ref(self, view: View) -> TensorRef:
        """The view as an argument of a call to torch; copied first when it is not affine."""
        found = views.tensor_ref(view)
        if found is None:
            found = views.tensor_ref(self.copy(view))
        assert found is not None
        return found


Rule = Callable[..., Result]
Table = Mapping[str, Rule]
