"""Per-element values as C++ declarations, each placed in the outermost loop in which it can be computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stax.codegen.cpp.index import spell_expr, spell_factor
from stax.codegen.cpp.spell import spell_cast, spell_load, spell_op, spell_store
from stax.codegen.cpp.types import NARROW, is_exact, literal, memory_type, value_type
from stax.ir.expr import Expr
from stax.ir.kernel import Kernel, Statement
from stax.ir.value import Value, load_parts, local, rebuild, rewrite, walk


@dataclass(frozen=True)
class Known:
    """A value at hand: its text, and the depth of the loop in which the text is valid (0: outside all loops). ``stored``: the
    text of the element as memory holds it."""

    text: str
    depth: int
    stored: str


def known(text: str, depth: int, dtype: str) -> Known:
    """A value of ``dtype``, of which nothing more is known than its text."""
    return Known(text, depth, spell_store(text, dtype))


@dataclass
class Names:
    """The values at hand in one scope, and the counters of the whole function."""

    kernel: Kernel
    known: dict[bytes, Known] = field(default_factory=dict[bytes, Known])
    checks: dict[bytes, str] = field(default_factory=dict[bytes, str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])

    def inner(self) -> Names:
        """A scope within this one: sees these values, keeps its own."""
        return Names(self.kernel, dict(self.known), dict(self.checks), self.numbers)

    def absorb(self, inner: Names, depth: int) -> None:
        """Learn what ``inner`` declared no deeper than ``depth`` loops."""
        for key, known in inner.known.items():
            if known.depth <= depth:
                self.known[key] = known
                if key in inner.checks:
                    self.checks[key] = inner.checks[key]

    def fresh(self, prefix: str) -> str:
        number = self.numbers.get(prefix, 0)
        self.numbers[prefix] = number + 1
        return f"{prefix}{number}"

    def set_local(self, name: str, dtype: str, text: str, depth: int) -> None:
        self.known[local(name, dtype).key] = known(text, depth, dtype)

    def name_statement(self, s: Statement) -> Known:
        """The local of a statement whose body was placed; returns it."""
        self.known[local(s.name, s.dtype).key] = found = self.known[s.body.key]
        return found


@dataclass(frozen=True)
class Loops:
    """Names of the loop axes, outermost first. Declarations go no higher than ``shared`` loops deep, and memory is not
    touched above ``safe`` loops: an inner loop that may be empty must not have its loads done before it."""

    axes: tuple[str, ...]
    shared: int = 0
    safe: int = 0

    def depth_of(self, e: Expr) -> int:
        found = [i + 1 for i, name in enumerate(self.axes) if name in e.symbols]
        return max([self.shared, *found])


def place(roots: Iterable[Value], loops: Loops, names: Names) -> list[list[str]]:
    """Declarations of everything the roots need, by loop depth 0 .. len(axes); ``names`` learns every value."""
    lines: list[list[str]] = [[] for _ in range(len(loops.axes) + 1)]
    for root in roots:
        nodes = list(walk(root))
        needed = {a.key for node in nodes for a in _operands(node)} | {root.key}
        for node in nodes:
            if node.key in needed and node.key not in names.known:
                _declare(node, loops, names, lines)
    return lines


def _operands(node: Value) -> tuple[Value, ...]:
    """The arguments that need a name: a load's plain offset is written inside its brackets."""
    return node.args[1:] if node.op == "load" and node.args[0].op == "index" else node.args


def _declare(node: Value, loops: Loops, names: Names, lines: list[list[str]]) -> None:
    if node.op == "local":
        raise AssertionError(f"local {node.attr[0]} is not at hand here")
    if node.op == "const":
        text = _constant(node.attr[0], node.dtype)
        names.known[node.key] = known(text, 0, node.dtype)
        return
    args = [names.known[a.key] for a in _operands(node)]
    texts = tuple(a.text for a in args)
    depth = max([_own_depth(node, loops), *(a.depth for a in args)])
    if node.op == "bound":
        lines[depth].extend(_bound(node, texts[0], names, depth))
        return
    text = _text(node, texts, names)
    if text in texts or (node.op == "index" and _is_short(text)):
        names.known[node.key] = known(text, depth, node.dtype)
        return
    name = names.fresh("t")
    names.known[node.key] = known(name, depth, node.dtype)
    if node.dtype in NARROW:
        text = _narrow(node, text, texts, name, names, lines[depth])
    lines[depth].append(f"const {value_type(node.dtype)} {name} = {text};")


def _narrow(
    node: Value, text: str, args: Sequence[str], name: str, names: Names, lines: list[str]
) -> str:
    """The text of a narrow float; its memory form is the loaded code itself, or rounded from the value before the cast."""
    if node.op == "load":
        code = name.replace("t", "c")
        lines.append(f"const {memory_type(node.dtype)} {code} = {text};")
        names.known[node.key] = Known(name, names.known[node.key].depth, code)
        return spell_load(code, node.dtype)
    if node.op == "cast" and node.args[0].dtype == "float32":
        stored = spell_store(args[0], node.dtype)
        names.known[node.key] = Known(name, names.known[node.key].depth, stored)
    return text


def _own_depth(node: Value, loops: Loops) -> int:
    """The outermost depth at which the node itself may stand, whatever its operands."""
    if node.op == "index":
        return loops.depth_of(_expr(node))
    if node.op == "bound":
        return loops.safe
    if node.op == "load":
        offset = node.args[0]
        return max(loops.safe, loops.depth_of(_expr(offset)) if offset.op == "index" else 0)
    return loops.shared


def _constant(number: object, dtype: str) -> str:
    text = literal(number, dtype)
    exact = dtype not in NARROW or is_exact(number, dtype)
    return text if exact else f"stax_round_{NARROW[dtype]}({text})"


def _is_short(text: str) -> bool:
    """Short enough to be repeated where it is used."""
    return text.isidentifier() or text.isdigit()


def _text(node: Value, args: Sequence[str], names: Names) -> str:
    if node.op == "index":
        return spell_expr(_expr(node), names.kernel.ranges)
    if node.op == "load":
        return _load(node, args, names)
    if node.op == "cast":
        return spell_cast(args[0], node.args[0].dtype, node.dtype)
    if node.op == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    return spell_op(node.op, node.args[0].dtype, tuple(args))


def _bound(node: Value, text: str, names: Names, depth: int) -> list[str]:
    """A checked index keeps its value; loads that use it are masked by its check."""
    check = names.fresh("ok")
    number = min(int(check[2:]), 63)
    names.checks[node.key] = check
    names.known[node.key] = known(text, depth, node.dtype)
    extent = spell_factor(_expr(node), names.kernel.ranges)
    return [
        f"const bool {check} = (uint64_t){text} < (uint64_t){extent};",
        f"bad |= (uint64_t)!{check} << {number};",
    ]


def _load(node: Value, args: Sequence[str], names: Names) -> str:
    """The element as memory holds it; ``args`` are the texts of the node's operands."""
    pointer, _, mask, other = load_parts(node)
    offset = node.args[0]
    plain = offset.op == "index"
    where = spell_expr(_expr(offset), names.kernel.ranges) if plain else args[0]
    text = f"{pointer}[{where}]"
    conditions = [names.checks[v.key] for v in bounds_under(offset)]
    if mask is not None:
        conditions.append(args[-1])
    if not conditions:
        return text
    default = spell_store(_constant(other, node.dtype), node.dtype)
    return f"{' && '.join(conditions)} ? {text} : {default}"


def bounds_under(index: Value) -> list[Value]:
    """The checks that the value of ``index`` depends on, not through memory."""
    found: dict[bytes, Value] = {}
    stack = [index]
    while stack:
        node = stack.pop()
        if node.op == "bound":
            found[node.key] = node
        if node.op != "load":
            stack.extend(node.args)
    return list(found.values())


def _expr(node: Value) -> Expr:
    e = node.attr[0]
    assert isinstance(e, Expr)
    return e


def inline_locals(root: Value, bodies: Mapping[str, Value]) -> Value:
    """``root`` with each local named in ``bodies`` replaced by its body, through and through."""

    def swap(node: Value, args: tuple[Value, ...]) -> Value:
        name = node.attr[0] if node.op == "local" else None
        if isinstance(name, str) and name in bodies:
            return inline_locals(bodies[name], bodies)
        return rebuild(node, args)

    return rewrite(root, swap)
