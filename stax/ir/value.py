"""Value: the per-element computation of one output element, as an immutable expression DAG with content identity."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from stax.base.errors import VerifyError
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Atom, Expr, const
from stax.ir.ops import SCALAR_OPS

Attr = tuple[object, ...]


class Value:
    """One node.

    ``op`` and its ``attr``:
      scalar operator   see :mod:`stax.ir.ops`; attr ()
      const             attr (number,)
      index             attr (Expr over axes and size symbols,): its integer value as int64
      load              attr (buffer, rank, other); args are ``rank`` int64 indices, then optionally a bool mask: where the
                        mask is false nothing is read and the value is ``other``. In a Program the indices are the logical
                        coordinates of the buffer; in a Kernel rank is 1 and the index is the offset in elements.
      local             attr (name,): a value computed earlier in the same kernel at the same point
      cast              convert the argument to ``dtype`` as torch does (float to int truncates, to bool is != 0)
      where             args (condition: bool, a, b)
      bound             args (index: int64,), attr (extent Expr,): the index itself, and an IndexError at run time
                        when it is not in 0 .. extent-1
      scatter           attr (buffer, rank, mode); args are the value, ``rank`` int64 indices, then optionally a bool mask.
                        Only as the root of a body: at every point where the mask is true the element of ``buffer`` at the
                        indices becomes the value (mode "set": any one of several to the same place) or grows by it ("add").
    """

    __slots__ = ("__dict__", "args", "attr", "dtype", "key", "op")

    def __init__(self, op: str, dtype: str, args: tuple[Value, ...] = (), attr: Attr = ()) -> None:
        self.op = op
        self.dtype = dtype
        self.args = args
        self.attr = attr
        self.key = blake2b(
            b"\0".join((op.encode(), dtype.encode(), _attr_bytes(attr), *(a.key for a in args))),
            digest_size=16,
        ).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Value({self.text})"

    def to_data(self) -> bytes:
        return self.key

    @cached_property
    def text(self) -> str:
        """A flat one-line form, for messages; see stax.ir.text for the numbered form."""
        inner = [a.text for a in self.args]
        if self.op == "const":
            return f"{self.attr[0]!r}:{self.dtype}"
        if self.op == "index":
            return f"[{self.attr[0]}]"
        if self.op == "load":
            return f"{self.attr[0]}[{', '.join(inner)}]"
        if self.op == "local":
            return str(self.attr[0])
        if self.op == "cast":
            return f"{self.dtype}({inner[0]})"
        return f"{self.op}({', '.join(inner)})"

    @cached_property
    def loads(self) -> tuple[Value, ...]:
        """Every load in the DAG, each once, in evaluation order."""
        return tuple(v for v in walk(self) if v.op == "load")

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Every buffer that the DAG reads or, by a scatter, changes; each once."""
        names = [str(v.attr[0]) for v in self.loads]
        return tuple(dict.fromkeys((*names, str(self.attr[0])) if self.op == "scatter" else names))

    @cached_property
    def size(self) -> int:
        """Number of distinct nodes that compute something (not const, index, load or local)."""
        return sum(v.op not in ("const", "index", "load", "local") for v in walk(self))


def _attr_bytes(attr: Attr) -> bytes:
    parts: list[bytes] = []
    for a in attr:
        if isinstance(a, float):
            parts.append(b"f" + struct.pack(">d", a))
        else:
            parts.append(f"{type(a).__name__}:{a}".encode())
    return b"\1".join(parts)


def walk(root: Value) -> Iterator[Value]:
    """Every distinct node, arguments before users."""
    seen: set[bytes] = set()
    stack: list[tuple[Value, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node.key not in seen:
            seen.add(node.key)
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))


def rewrite(root: Value, fn: Callable[[Value, tuple[Value, ...]], Value]) -> Value:
    """Rebuild the DAG bottom-up: ``fn(node, new_args)`` returns the replacement. Each distinct node is visited once."""
    done: dict[bytes, Value] = {}
    for node in walk(root):
        done[node.key] = fn(node, tuple(done[a.key] for a in node.args))
    return done[root.key]


def rebuild(node: Value, args: tuple[Value, ...]) -> Value:
    """``node`` with other arguments."""
    return node if args == node.args else Value(node.op, node.dtype, args, node.attr)


def substitute(root: Value, env: Mapping[str, Expr | int]) -> Value:
    """Replace axis or size symbols inside every index and bound."""

    def swap(node: Value, args: tuple[Value, ...]) -> Value:
        if node.op in ("index", "bound"):
            old = node.attr[0]
            assert isinstance(old, Expr)
            return Value(node.op, node.dtype, args, (old.subs(env),))
        return rebuild(node, args)

    return rewrite(root, swap)


# -- constructors: they check dtypes, so that a wrong body is refused where it is made


def constant(number: bool | int | float, dtype: str) -> Value:
    kind = DTYPES[dtype].kind
    typed: bool | int | float = (
        bool(number) if kind == "bool" else float(number) if kind == "float" else int(number)
    )
    return Value("const", dtype, (), (typed,))


def index(e: Expr | int) -> Value:
    return Value("index", "int64", (), (const(e),))


def load(
    buffer: str,
    dtype: str,
    indices: Sequence[Expr | int | Value],
    mask: Value | None = None,
    other: float | int | bool = 0,
) -> Value:
    args = tuple(i if isinstance(i, Value) else index(i) for i in indices)
    extra = () if mask is None else (mask,)
    return Value("load", dtype, (*args, *extra), (buffer, len(args), other))


def local(name: str, dtype: str) -> Value:
    return Value("local", dtype, (), (name,))


def cast(value: Value, dtype: str) -> Value:
    return value if value.dtype == dtype else Value("cast", dtype, (value,))


def where(condition: Value, a: Value, b: Value) -> Value:
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise VerifyError(
            "bad where", expected="bool, T, T", found=f"{condition.dtype}, {a.dtype}, {b.dtype}"
        )
    return Value("where", a.dtype, (condition, a, b))


def bound(value: Value, extent: Expr | int) -> Value:
    return Value("bound", "int64", (cast(value, "int64"),), (const(extent),))


def scatter(
    buffer: str,
    value: Value,
    indices: Sequence[Expr | int | Value],
    mask: Value | None = None,
    mode: str = "set",
) -> Value:
    places = tuple(i if isinstance(i, Value) else index(i) for i in indices)
    extra = () if mask is None else (mask,)
    return Value("scatter", value.dtype, (value, *places, *extra), (buffer, len(places), mode))


def scalar(op: str, *args: Value) -> Value:
    """Apply a scalar operator; the arguments must already agree in dtype."""
    row = SCALAR_OPS.get(op)
    if row is None or row.arity != len(args):
        raise VerifyError(f"no scalar operator {op} of {len(args)} arguments")
    if len({a.dtype for a in args}) != 1:
        raise VerifyError(
            f"mixed dtypes in {op}", expected="one dtype", found=", ".join(a.dtype for a in args)
        )
    if row.domain == "float" and not DTYPES[args[0].dtype].is_float:
        raise VerifyError(f"{op} of {args[0].dtype}", expected="a float dtype", found=args[0].dtype)
    if row.domain == "int64" and args[0].dtype != "int64":
        raise VerifyError(f"{op} of {args[0].dtype}", expected="int64", found=args[0].dtype)
    return Value(op, "bool" if row.result == "bool" else args[0].dtype, args)


def evaluate(e: Expr, env: Mapping[str, Value]) -> Value:
    """An expression in int64 arithmetic on values; symbols outside ``env`` stay symbols."""
    if not env.keys() & e.symbols:
        return index(e)
    total: Value | None = None
    for monomial, coef in e.terms:
        term: Value | None = None if coef == 1 and monomial else constant(coef, "int64")
        for atom, power in monomial:
            factor = _evaluate_atom(atom, env)
            for _ in range(power):
                term = factor if term is None else scalar("mul", term, factor)
        assert term is not None
        total = term if total is None else scalar("add", total, term)
    return constant(0, "int64") if total is None else total


_EXPR_OPS = {"floordiv": "floordiv", "mod": "remainder", "max": "maximum", "min": "minimum"}


def _evaluate_atom(atom: Atom, env: Mapping[str, Value]) -> Value:
    if atom.op == "sym":
        found = env.get(atom.name)
        return index(Expr({((atom, 1),): 1})) if found is None else found
    left, right = (evaluate(a, env) for a in atom.args)
    return scalar(_EXPR_OPS[atom.op], left, right)


def load_parts(node: Value) -> tuple[str, tuple[Value, ...], Value | None, object]:
    """(buffer, indices, mask or None, other) of a load."""
    buffer, rank, other = node.attr
    assert isinstance(buffer, str) and isinstance(rank, int)
    mask = node.args[rank] if len(node.args) > rank else None
    return buffer, node.args[:rank], mask, other


@dataclass(frozen=True)
class ScatterParts:
    """A scatter taken apart."""

    buffer: str
    value: Value
    indices: tuple[Value, ...]
    mask: Value | None
    mode: str


def scatter_parts(root: Value) -> ScatterParts | None:
    """The parts of a body that is a scatter; None for any other body."""
    if root.op != "scatter":
        return None
    buffer, rank, mode = root.attr
    assert isinstance(buffer, str) and isinstance(rank, int) and isinstance(mode, str)
    mask = root.args[1 + rank] if len(root.args) > 1 + rank else None
    return ScatterParts(buffer, root.args[0], root.args[1 : 1 + rank], mask, mode)
