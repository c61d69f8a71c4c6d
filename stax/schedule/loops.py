"""Group → Kernel: offsets from coordinates, axis order and merging, reduction form, index width, canonical names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from stax.ir.expr import Expr, const, product, sym
from stax.ir.kernel import Kernel, Pointer, Size, Statement, Store
from stax.ir.program import Axis, Buffer, Program
from stax.ir.ranges import Range, bounds, simplify
from stax.ir.value import (
    Value,
    cast,
    index,
    load_parts,
    rebuild,
    rewrite,
    scalar,
    scatter,
    scatter_parts,
    walk,
)
from stax.ir.value import local as local_value
from stax.schedule.items import Group, Placed

MAX_PERSISTENT_INNER = 1024
MAX_PERSISTENT_OUTER = 64
# Rows that are needed again after their first reduction stay in registers up to this length.
MAX_PERSISTENT_AGAIN = 2048
INT32_LIMIT = 2**31


@dataclass(frozen=True)
class KernelCall:
    """One launch: ``tensors`` are buffer names in pointer order, ``sizes`` the program's expression of each kernel size."""

    kernel: Kernel
    tensors: tuple[str, ...]
    sizes: tuple[Expr, ...]


@dataclass(frozen=True)
class _Draft:
    """Statements over program buffers and symbols, before renaming."""

    x: tuple[Axis, ...]
    r: tuple[Axis, ...]
    statements: tuple[Statement, ...]

    @property
    def exprs(self) -> Iterator[Expr]:
        for s in self.statements:
            for value in walk(s.body):
                if value.op in ("index", "bound") and isinstance(value.attr[0], Expr):
                    yield value.attr[0]
            for store in s.stores:
                yield store.offset


def kernel_of(group: Group, program: Program, needed: frozenset[str]) -> KernelCall:
    """Build the kernel of a group; ``needed`` are the buffers that something outside the group reads."""
    table = program.table
    symbols = program.ranges
    draft = _draft(group, table, symbols, needed)
    hints = {s.name: s.hint for s in program.symbols}
    draft = _ordered(draft, hints)
    draft = _merged(draft)
    ranges = {**symbols, **{a.name: Range.axis(a.extent) for a in (*draft.x, *draft.r)}}
    wide = _needs_int64(draft, table, ranges)
    inner = _inner(draft, hints)
    form = _form(draft, symbols, inner)
    checked = any(v.op == "bound" for s in draft.statements for v in walk(s.body))
    fused = tuple(sorted({short_op(op) for m in group.members for op in m.item.ops}))
    names = _Names(draft, program)
    return KernelCall(
        Kernel(
            form=form,
            axes=names.axes(draft.x),
            reduce_axes=names.axes(draft.r),
            pointers=names.pointers,
            sizes=names.sizes,
            statements=names.statements(),
            index_dtype="int64" if wide else "int32",
            bounds_checked=checked,
            fused=fused,
            inner=inner,
        ),
        names.tensors,
        tuple(sym(s) for s in names.symbols),
    )


def short_op(op: str) -> str:
    """ "aten.add.Tensor" → "add"."""
    parts = op.split(".")
    return parts[1].strip("_") if len(parts) > 1 else op


# -- coordinates to offsets


def _draft(
    group: Group, table: Mapping[str, Buffer], symbols: Mapping[str, Range], needed: frozenset[str]
) -> _Draft:
    made = group.produced
    ranges = {**symbols, **group.frame.ranges}
    live = _live(group, needed)
    statements: list[Statement] = []
    for m in group.members:
        if m.item.out not in live:
            continue
        body = _with_offsets(m, made, table, ranges)
        stores: tuple[Store, ...] = ()
        if m.item.out in needed and body.op != "scatter":
            offset = _affine(m.coords, table[m.item.out].strides)
            stores = (Store(m.item.out, simplify(offset, ranges)),)
        statements.append(Statement(m.item.out, m.space, m.item.combine, body, stores))
    return _Draft(group.frame.x, group.frame.r, tuple(statements))


def _live(group: Group, needed: frozenset[str]) -> set[str]:
    """Members whose value is stored or read by a live member."""
    live: set[str] = set()
    for m in reversed(group.members):
        if m.item.out in needed or m.item.out in live:
            live.add(m.item.out)
            live |= set(m.body.buffers)
    return live


def _affine(coords: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    offset = const(0)
    for c, s in zip(coords, strides):
        offset = offset + c * s
    return offset


def _with_offsets(
    m: Placed, made: Mapping[str, Placed], table: Mapping[str, Buffer], ranges: Mapping[str, Range]
) -> Value:
    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        parts = scatter_parts(rebuild(value, args))
        if parts is not None:
            at = _offset_value(parts.indices, table[parts.buffer].strides, ranges)
            return scatter(parts.buffer, parts.value, [at], parts.mask, parts.mode)
        if value.op != "load":
            return rebuild(value, args)
        name = str(value.attr[0])
        if name in made:
            return local_value(name, table[name].dtype)
        _, indices, mask, other = load_parts(rebuild(value, args))
        offset = _offset_value(indices, table[name].strides, ranges)
        extra = () if mask is None else (mask,)
        return Value("load", value.dtype, (offset, *extra), (name, 1, other))

    return rewrite(m.body, swap)


def _offset_value(
    indices: Sequence[Value], strides: Sequence[Expr], ranges: Mapping[str, Range]
) -> Value:
    plain = const(0)
    computed: Value | None = None
    for at, stride in zip(indices, strides):
        if at.op == "index" and isinstance(at.attr[0], Expr):
            plain = plain + at.attr[0] * stride
            continue
        term = cast(at, "int64")
        term = term if stride == 1 else scalar("mul", term, index(stride))
        computed = term if computed is None else scalar("add", computed, term)
    plain = simplify(plain, ranges)
    if computed is None:
        return index(plain)
    return computed if plain == 0 else scalar("add", computed, index(plain))


# -- axes


def _ordered(draft: _Draft, hints: Mapping[str, int]) -> _Draft:
    """Outer axes so that the first full store walks memory forward; reduced axes along the first full load, unless a
    position counts in their order."""
    written = [s.offset for st in draft.statements for s in st.stores]
    read = [
        v.args[0].attr[0]
        for st in draft.statements
        for v in st.body.loads
        if v.args[0].op == "index"
    ]
    exprs = [*written, *(e for e in read if isinstance(e, Expr))]
    fixed = any(s.combine in ("argmax", "argmin") for s in draft.statements)
    over = draft.r if fixed else _by_stride(draft.r, exprs, hints)
    return replace(draft, x=_by_stride(draft.x, exprs, hints), r=over)


def _by_stride(
    axes: tuple[Axis, ...], exprs: Sequence[Expr], hints: Mapping[str, int]
) -> tuple[Axis, ...]:
    if len(axes) < 2:
        return axes
    for e in exprs:
        strides = [_stride(e, a.name, hints) for a in axes]
        if all(s for s in strides):
            keyed = sorted(zip(strides, range(len(axes))), key=lambda t: (-abs(t[0] or 0), t[1]))
            return tuple(axes[k] for _, k in keyed)
    return axes


def _stride(e: Expr, axis: str, hints: Mapping[str, int]) -> int | None:
    """The coefficient of an axis at the hints; None when it is not linear or holds another axis."""
    split = e.linear(sym(axis).atoms[0])
    if split is None or not split[0].symbols <= hints.keys():
        return None
    return split[0].evaluate(hints)


def _merged(draft: _Draft) -> _Draft:
    """Join neighbouring axes a, b into one wherever every expression sees them only as a*extent(b) + b (spec Prop. 6.3)."""
    for which in ("x", "r"):
        k = 0
        while k + 1 < len(getattr(draft, which)):
            axes: tuple[Axis, ...] = getattr(draft, which)
            joined = _merge_pair(draft, axes[k], axes[k + 1])
            if joined is None:
                k += 1
                continue
            merged = Axis(axes[k].name, axes[k].extent * axes[k + 1].extent)
            rest = (*axes[:k], merged, *axes[k + 2 :])
            draft = replace(joined, **{which: rest})
            k = max(k - 1, 0)
    return draft


def _merge_pair(draft: _Draft, a: Axis, b: Axis) -> _Draft | None:
    done: dict[Expr, Expr] = {}
    for e in draft.exprs:
        if e not in done:
            merged = _merge_in(e, a, b)
            if merged is None:
                return None
            done[e] = merged
    return _mapped(draft, done.__getitem__)


def _merge_in(e: Expr, a: Axis, b: Axis) -> Expr | None:
    if a.name not in e.symbols and b.name not in e.symbols:
        return e
    outer = e.linear(sym(a.name).atoms[0])
    inner = e.linear(sym(b.name).atoms[0])
    if outer is None or inner is None:
        return None
    if outer[0] != inner[0] * b.extent or b.name in outer[0].symbols or a.name in inner[0].symbols:
        return None
    rest = e - outer[0] * sym(a.name) - inner[0] * sym(b.name)
    if a.name in rest.symbols or b.name in rest.symbols:
        return None
    return inner[0] * sym(a.name) + rest


def _mapped(draft: _Draft, fn: Callable[[Expr], Expr]) -> _Draft:
    def swap(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op in ("index", "bound") and isinstance(value.attr[0], Expr):
            return Value(value.op, value.dtype, args, (fn(value.attr[0]),))
        return rebuild(value, args)

    statements = tuple(
        replace(
            s,
            body=rewrite(s.body, swap),
            stores=tuple(Store(t.pointer, fn(t.offset)) for t in s.stores),
        )
        for s in draft.statements
    )
    return replace(draft, statements=statements)


# -- decisions about the whole kernel


def _inner(draft: _Draft, hints: Mapping[str, int]) -> bool:
    """True when more elements are loaded along the last reduced axis, next to one another, than along the last outer axis.
    A load counts with the points of the axes it depends on: once a row is little beside once an element."""
    if not draft.r:
        return True
    extents = {a.name: a.extent.evaluate(hints) for a in (*draft.x, *draft.r)}
    last_x = draft.x[-1].name if draft.x else ""
    along_r = along_x = 0
    for s in draft.statements:
        for value in s.body.loads:
            at = value.args[0].attr[0] if value.args[0].op == "index" else None
            if not isinstance(at, Expr):
                continue
            points = prod(extents[n] for n in at.symbols if n in extents)
            along_r += points * (_stride(at, draft.r[-1].name, hints) == 1)
            along_x += points * (last_x in at.symbols and _stride(at, last_x, hints) == 1)
    return along_r >= along_x


def _form(draft: _Draft, symbols: Mapping[str, Range], inner: bool) -> str:
    """poi, per or red by the rules of spec 9.4: persistent up to 1024 along contiguous memory, else up to 64 when both
    bounds round up to the same power of two.

    Past the spec: a longer row that a loop would read twice is persistent too when its length is known and fills its
    block. Measured on an H200: causal softmax of 2048 bfloat16 at 97 % of the copy rate. From 4096 on the loop wins, for its
    second pass finds the row in the cache: softmax of 8192 bfloat16 4146 GB/s looped, 3909 persistent.
    """
    if not draft.r:
        return "poi"
    lo, hi = bounds(product(a.extent for a in draft.r), symbols)
    if hi is None:
        return "red"
    if inner:
        again = (
            hi <= MAX_PERSISTENT_AGAIN and lo == hi and 4 * hi >= 3 * _power(hi) and _again(draft)
        )
        return "per" if hi <= MAX_PERSISTENT_INNER or again else "red"
    same = lo is not None and _power(lo) == _power(hi)
    return "per" if hi <= MAX_PERSISTENT_OUTER and same else "red"


def _again(draft: _Draft) -> bool:
    """Whether some statement along the reduced axes needs the result of a reduction."""
    after: set[str] = set()
    for s in draft.statements:
        used = {str(v.attr[0]) for v in walk(s.body) if v.op == "local"}
        if used & after and s.space == "xr":
            return True
        if s.combine or used & after:
            after.add(s.name)
    return False


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _needs_int64(draft: _Draft, table: Mapping[str, Buffer], ranges: Mapping[str, Range]) -> bool:
    """True unless every offset, index and extent is proven below 2**31 (spec 10.3)."""
    totals = (product(a.extent for a in draft.x), product(a.extent for a in draft.r))
    if any(not _fits(e, ranges) for e in (*totals, *draft.exprs)):
        return True
    for s in draft.statements:
        for name in _computed(s.body):
            buffer = table[name]
            span = sum(((n - 1) * st for n, st in zip(buffer.shape, buffer.strides)), const(0))
            if not _fits(span, ranges):
                return True
    return False


def _computed(body: Value) -> Iterator[str]:
    """Buffers that are read or changed at offsets that are no expressions."""
    for value in body.loads:
        if value.args[0].op != "index":
            yield str(value.attr[0])
    if body.op == "scatter":
        yield str(body.attr[0])


def _fits(e: Expr, ranges: Mapping[str, Range]) -> bool:
    lo, hi = bounds(e, ranges)
    return lo is not None and hi is not None and -INT32_LIMIT <= lo and hi < INT32_LIMIT


# -- canonical names


class _Names:
    """Renames a draft's buffers, symbols, axes and statements by first appearance."""

    def __init__(self, draft: _Draft, program: Program) -> None:
        self.draft = draft
        table = program.table
        ins = _unique(str(v.attr[0]) for s in draft.statements for v in s.body.loads)
        outs = [s.pointer for st in draft.statements for s in st.stores]
        changed = [str(s.body.attr[0]) for s in draft.statements if s.body.op == "scatter"]
        self.tensors = (*ins, *outs, *changed)
        self.pointer_names = {n: f"in_ptr{k}" for k, n in enumerate(ins)}
        self.out_names = {n: f"out_ptr{k}" for k, n in enumerate((*outs, *changed))}
        self.pointers = tuple(
            [Pointer(self.pointer_names[n], "in", table[n].dtype) for n in ins]
            + [Pointer(self.out_names[n], "out", table[n].dtype) for n in outs]
            + [Pointer(self.out_names[n], "update", table[n].dtype) for n in changed]
        )
        axis_names = {a.name for a in (*draft.x, *draft.r)}
        extents = [a.extent for a in (*draft.x, *draft.r)]
        found = _unique(
            n for e in (*extents, *draft.exprs) for n in _in_text_order(e) if n not in axis_names
        )
        self.symbols = tuple(found)
        by_name = {s.name: s for s in program.symbols}
        self.sizes = tuple(
            Size(f"ks{k}", by_name[n].lo, by_name[n].hi, by_name[n].hint)
            for k, n in enumerate(found)
        )
        self.env: dict[str, Expr | int] = {n: sym(f"ks{k}") for k, n in enumerate(found)}
        for prefix, axes in (("x", draft.x), ("r0_", draft.r)):
            self.env |= {a.name: sym(f"{prefix}{k}") for k, a in enumerate(axes)}
        self.locals = {s.name: f"v{k}" for k, s in enumerate(draft.statements)}

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(str(self.env[a.name]), a.extent.subs(self.env)) for a in axes)

    def statements(self) -> tuple[Statement, ...]:
        return tuple(
            Statement(
                self.locals[s.name],
                s.space,
                s.combine,
                rewrite(s.body, self._swap),
                tuple(Store(self.out_names[t.pointer], t.offset.subs(self.env)) for t in s.stores),
            )
            for s in self.draft.statements
        )

    def _swap(self, value: Value, args: tuple[Value, ...]) -> Value:
        if value.op in ("index", "bound") and isinstance(value.attr[0], Expr):
            return Value(value.op, value.dtype, args, (value.attr[0].subs(self.env),))
        if value.op == "load":
            return Value(
                "load", value.dtype, args, (self.pointer_names[str(value.attr[0])], *value.attr[1:])
            )
        if value.op == "scatter":
            name = self.out_names[str(value.attr[0])]
            return Value("scatter", value.dtype, args, (name, *value.attr[1:]))
        if value.op == "local":
            return Value("local", value.dtype, (), (self.locals[str(value.attr[0])],))
        return rebuild(value, args)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _in_text_order(e: Expr) -> list[str]:
    return sorted(e.symbols, key=e.text.find)
