"""Random valid Kernels with inputs, for comparing an emitter with the interpreter.

Where a small difference in rounding could become a large one (comparisons, rounding, casts to integers and half types,
argmax), only values that every correct target computes bit for bit are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies

from stax.ir.dtypes import DTYPES
from stax.ir.expr import Expr, const, product, sym
from stax.ir.kernel import Kernel, Pointer, Size, Statement, Store
from stax.ir.program import Axis
from stax.ir.value import (
    Value,
    bound,
    cast,
    constant,
    index,
    load,
    local,
    scalar,
    walk,
    where,
)
from tests.kernels import KernelCase

EXTENTS = (1, 2, 3, 5, 8, 17, 33, 64, 100)
LOADED = ("float32", "float32", "float64", "int64", "int32", "bool", "uint8", "float16", "bfloat16")
COMPUTED = ("float32", "float32", "float32", "float64", "int64", "int32", "bool", "uint8", "int8")
COMBINES = ("sum", "sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


@dataclass(frozen=True)
class Local:
    name: str
    dtype: str
    in_x: bool
    exact: bool


@dataclass
class Draft:
    """A kernel in the making."""

    rng: Random
    axes: list[Axis]
    reduce_axes: list[Axis]
    env: dict[str, int]
    pointers: list[Pointer] = field(default_factory=list[Pointer])
    elements: dict[str, int] = field(default_factory=dict[str, int])
    limits: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    locals: list[Local] = field(default_factory=list[Local])
    statements: list[Statement] = field(default_factory=list[Statement])
    ints: int = 0
    outs: int = 0

    def space(self, in_x: bool) -> list[Axis]:
        return self.axes if in_x else self.axes + self.reduce_axes

    def pointer(self, kind: str, dtype: str, count: Expr | int) -> str:
        number = self.ints if kind == "in" else self.outs
        self.ints, self.outs = self.ints + (kind == "in"), self.outs + (kind == "out")
        name = f"{kind}_ptr{number}"
        self.pointers.append(Pointer(name, kind, dtype))
        self.elements[name] = const(count).evaluate(self.env)
        return name


def kernel_cases() -> strategies.SearchStrategy[KernelCase]:
    """Hypothesis strategy of random cases."""
    return strategies.randoms(use_true_random=False).map(random_case)


def random_case(rng: Random) -> KernelCase:
    """One random valid case; its ``reference`` is None."""
    env = {"ks0": rng.choice((2, 7, 40)), "ks1": rng.choice((3, 16, 65))}
    axes = [Axis(f"x{i}", _extent(rng)) for i in range(rng.choice((0, 1, 1, 2, 2, 3)))]
    reduced = [Axis(f"r0_{i}", _extent(rng)) for i in range(rng.choice((0, 0, 1, 1, 2)))]
    draft = Draft(rng, axes, reduced, env)
    for i in range(rng.choice((1, 2, 3, 5))):
        _add_statement(draft, f"v{i}")
    _store_unused(draft)
    static = all(a.extent.is_const for a in reduced)
    used = {n for a in (*axes, *reduced) for n in a.extent.symbols}
    kernel = Kernel(
        form="poi" if not reduced else rng.choice(("per", "red")) if static else "red",
        axes=tuple(axes),
        reduce_axes=tuple(reduced),
        pointers=tuple(
            sorted(draft.pointers, key=lambda p: (p.kind, int(p.name[len(p.kind) + 4 :])))
        ),
        sizes=tuple(Size(n, 0, rng.choice((None, 4096)), env[n]) for n in sorted(used)),
        statements=tuple(draft.statements),
        index_dtype="int64" if used else rng.choice(("int32", "int64")),
        bounds_checked=any(v.op == "bound" for s in draft.statements for v in walk(s.body)),
        fused=("random",),
        inner=rng.random() < 0.5,
    )
    return KernelCase(
        "random", kernel, draft.elements, None, {n: env[n] for n in used}, draft.limits
    )


def _extent(rng: Random) -> Expr:
    roll = rng.random()
    if roll < 0.03:
        return const(0)
    return sym(rng.choice(("ks0", "ks1"))) if roll < 0.25 else const(rng.choice(EXTENTS))


def _add_statement(d: Draft, name: str) -> None:
    in_x = not d.reduce_axes or d.rng.random() < 0.25
    nothing = any(a.extent == 0 for a in d.reduce_axes)
    combines = ("sum", "prod", "any", "all") if nothing else COMBINES
    combine = d.rng.choice((*combines, None, None, None, None)) if not in_x else None
    dtype = "bool" if combine in ("any", "all") else d.rng.choice(COMPUTED)
    arg = combine in ("argmax", "argmin")
    if dtype == "bool" and combine not in (None, "any", "all"):
        dtype = "int64"
    exact = arg or d.rng.random() < 0.5
    body = _value(d, dtype, in_x, exact, d.rng.choice((1, 2, 3)))
    if combine is None and exact and dtype == "float32" and d.rng.random() < 0.2:
        body = cast(body, d.rng.choice(("float16", "bfloat16")))
    loose = DTYPES[body.dtype].is_float and (combine in ("sum", "prod") or not exact)
    statement = Statement(name, "x" if in_x else "xr", combine, body, ())
    per_x = in_x or combine is not None
    if d.rng.random() < 0.6:
        statement = _stored(d, statement)
    d.statements.append(statement)
    if not (DTYPES[statement.dtype].is_float and DTYPES[statement.dtype].itemsize < 4):
        d.locals.append(Local(name, statement.dtype, per_x, not loose))


def _stored(d: Draft, s: Statement) -> Statement:
    """The statement with a store that writes every point of its space once, in a random order of axes."""
    axes = d.space(s.space == "x" or s.combine is not None)
    count = product(a.extent for a in axes)
    name = d.pointer("out", s.dtype, count)
    return Statement(s.name, s.space, s.combine, s.body, (Store(name, _dense(d.rng, axes)),))


def _store_unused(d: Draft) -> None:
    used = {v.attr[0] for s in d.statements for v in walk(s.body) if v.op == "local"}
    for i, s in enumerate(d.statements):
        if not s.stores and s.name not in used:
            d.statements[i] = _stored(d, s)


def _dense(rng: Random, axes: Sequence[Axis]) -> Expr:
    order = list(axes)
    if rng.random() < 0.4:
        rng.shuffle(order)
    offset, step = const(0), const(1)
    for axis in reversed(order):
        offset, step = offset + sym(axis.name) * step, step * axis.extent
    return offset


# -- bodies


def _value(d: Draft, dtype: str, in_x: bool, exact: bool, depth: int) -> Value:
    """A random body of ``dtype``."""
    if depth == 0 or d.rng.random() < 0.1:
        return _leaf(d, dtype, in_x, exact)
    kind = DTYPES[dtype].kind
    if d.rng.random() < 0.15:
        return _converted(d, dtype, in_x, exact, depth)
    if d.rng.random() < 0.12:
        a, b = (_value(d, dtype, in_x, exact, depth - 1) for _ in range(2))
        return where(_value(d, "bool", in_x, True, depth - 1), a, b)
    if kind == "bool":
        return _truth(d, in_x, depth)
    a, b = (_value(d, dtype, in_x, exact, depth - 1) for _ in range(2))
    return _of_float(d, a, b, exact) if kind == "float" else _of_int(d, a, b)


def _truth(d: Draft, in_x: bool, depth: int) -> Value:
    if d.rng.random() < 0.3:
        a, b = (_value(d, "bool", in_x, True, depth - 1) for _ in range(2))
        return d.rng.choice(
            (scalar("and", a, b), scalar("or", a, b), scalar("xor", a, b), scalar("not", a))
        )
    dtype = d.rng.choice(COMPUTED)
    a, b = (_value(d, dtype, in_x, True, depth - 1) for _ in range(2))
    return scalar(d.rng.choice(("eq", "ne", "lt", "le", "gt", "ge")), a, b)


def _of_float(d: Draft, a: Value, b: Value, exact: bool) -> Value:
    one = constant(1, a.dtype)
    positive = scalar("abs", a)
    choices = ["add", "sub", "mul", "maximum", "minimum", "neg", "abs", "sign", "truediv", "sqrt"]
    choices += (
        ["floor", "ceil", "trunc", "round"] if exact else ["exp", "tanh", "erf", "log1p", "rsqrt"]
    )
    choices += [] if exact else ["sin", "cos", "atan", "sigmoid", "log", "expm1"]
    op = d.rng.choice(choices)
    if op in ("add", "sub", "mul", "maximum", "minimum"):
        return scalar(op, a, b)
    if op == "truediv":
        return scalar(op, b, scalar("add", positive, one))
    if op in ("sqrt", "log1p"):
        return scalar(op, positive)
    if op in ("rsqrt", "log"):
        return scalar(op, scalar("add", positive, one))
    if op in ("exp", "expm1"):
        return scalar(op, scalar("neg", positive))
    if op in ("sin", "cos"):
        return scalar(op, scalar("tanh", a))
    if op == "sigmoid":
        return scalar("truediv", one, scalar("add", one, scalar("exp", scalar("neg", positive))))
    return scalar(op, a)


def _of_int(d: Draft, a: Value, b: Value) -> Value:
    unsigned = DTYPES[a.dtype].kind == "uint"
    op = d.rng.choice(
        (
            "add",
            "sub",
            "mul",
            "maximum",
            "minimum",
            "floordiv",
            "remainder",
            "fmod",
            "and",
            "or",
            "xor",
        )
        + (("lshift", "rshift") if unsigned else ("not", "neg", "abs", "sign", "lshift", "rshift"))
    )
    if op in ("floordiv", "remainder", "fmod"):
        zero, three = constant(0, a.dtype), constant(3, a.dtype)
        small = scalar("remainder", b, constant(50, a.dtype))
        b = where(scalar("eq", small, zero), three, small)
    if op in ("lshift", "rshift"):
        b = scalar("and", b, constant(3, a.dtype))
    return scalar(op, a) if op in ("not", "neg", "abs", "sign") else scalar(op, a, b)


def _converted(d: Draft, dtype: str, in_x: bool, exact: bool, depth: int) -> Value:
    to, source = DTYPES[dtype], d.rng.choice(COMPUTED)
    narrow = DTYPES[source].is_float and not to.is_float
    inner = _value(d, source, in_x, exact or narrow or not to.is_float, depth - 1)
    if narrow and to.kind != "bool":
        limit = 0 if to.kind == "uint" else -100
        low, high = constant(limit, source), constant(100, source)
        inner = scalar("minimum", scalar("maximum", inner, low), high)
    return cast(inner, dtype)


def _leaf(d: Draft, dtype: str, in_x: bool, exact: bool) -> Value:
    usable = [
        v for v in d.locals
        if v.dtype == dtype and (v.in_x or not in_x) and (v.exact or not exact)
    ]  # fmt: skip
    roll = d.rng.random()
    if usable and roll < 0.5:
        chosen = d.rng.choice(usable)
        return local(chosen.name, chosen.dtype)
    if roll < 0.6:
        return constant(d.rng.choice((0, 1, 2, 3)), dtype)
    axes = d.space(in_x)
    if axes and roll < 0.68 and dtype == "int64":
        return index(sym(d.rng.choice(axes).name) * 3 + 1)
    return _load(d, dtype, axes)


def _load(d: Draft, dtype: str, axes: list[Axis]) -> Value:
    stored = dtype
    if dtype == "float32":
        stored = d.rng.choice(("float32", "float32", "float16", "bfloat16"))
    picked = [a for a in axes if d.rng.random() < 0.8]
    offset = _dense(d.rng, picked)
    count = product(a.extent for a in picked)
    if d.rng.random() < 0.1:
        return cast(_indirect(d, stored, axes), dtype)
    name = d.pointer("in", stored, count)
    if picked and d.rng.random() < 0.2:
        axis = d.rng.choice(picked)
        shift = d.rng.choice((-3, -1, 1, 2, 500))
        moved = index(sym(axis.name) + shift)
        mask = scalar("and", scalar("ge", moved, index(0)), scalar("lt", moved, index(axis.extent)))
        offset = offset.subs({axis.name: sym(axis.name) + shift})
        return cast(load(name, stored, (offset,), mask, d.rng.choice((0, 1))), dtype)
    return cast(load(name, stored, (offset,)), dtype)


def _indirect(d: Draft, dtype: str, axes: list[Axis]) -> Value:
    picked = [a for a in axes if d.rng.random() < 0.5]
    rows, width = d.rng.choice((1, 4, 11)), d.rng.choice((1, 3))
    which = d.pointer("in", "int64", product(a.extent for a in picked))
    d.limits[which] = (0, rows)
    table = d.pointer("in", dtype, rows * width)
    row = bound(load(which, "int64", (_dense(d.rng, picked),)), rows)
    offset = scalar("add", scalar("mul", row, index(width)), index(width - 1))
    return load(table, dtype, (offset,))
