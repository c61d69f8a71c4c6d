"""Building blocks of a wire schema: each Form says how a value becomes plain msgpack data and how it is read back.

Reading pulls one item at a time from the stream, so a length that lies, a bomb or deep nesting costs no memory. A fault
raises SchemaError whose ``where`` is the path from the root, as "forward[3].launch.sizes[0]".
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NoReturn, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from stax.base.errors import SchemaError
from stax.ir.expr import Atom, Expr, Monomial, const, sym

MAX_EXPR_CHARS = 4096
MAX_INT_DIGITS = 1024
INT64 = range(-(1 << 63), 1 << 63)
_CALLS = ("min", "max")
_STREAM_ERRORS = (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException)


class Reader:
    """A stream of msgpack items with the depth reached so far. ``exprs`` remembers the expressions already read."""

    def __init__(self, data: bytes) -> None:
        self.depth = 0
        self.exprs: dict[str, Expr] = {}
        self._data_bytes = len(data)
        self._stream = msgpack.Unpacker(
            raw=False,
            use_list=False,
            unicode_errors="surrogatepass",
            max_buffer_size=len(data) or 1,
            max_str_len=len(data),
            max_bin_len=0,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
        self._stream.feed(data)

    def scalar(self) -> Any:
        """The next item, which is no container."""
        try:
            return self._stream.unpack()
        except _STREAM_ERRORS as error:
            fault("a scalar", type(error).__name__)

    def header(self, least: int, most: int) -> int:
        """The length of the array that begins here."""
        try:
            length = self._stream.read_array_header()
        except _STREAM_ERRORS as error:
            fault("an array", type(error).__name__)
        if not least <= length <= most:
            fault(f"{least} items" if least == most else f"{least} to {most} items", str(length))
        return length

    def finish(self) -> None:
        """Raises SchemaError unless every byte was read."""
        if self._stream.tell() != self._data_bytes:
            fault("the end", f"{self._data_bytes - self._stream.tell()} more bytes")


@dataclasses.dataclass(frozen=True)
class Form:
    """``pack``: a value to plain data, ``read``: the next items of a stream to a value."""

    pack: Callable[[Any], Any]
    read: Callable[[Reader], Any]


def fault(expected: str, found: object) -> NoReturn:
    raise SchemaError("bad artifact data", expected=expected, found=str(found)[:120]) from None


def within(error: SchemaError, step: str) -> SchemaError:
    """The same error, one level further from the root."""
    joint = "." if error.where and not error.where.startswith("[") else ""
    return SchemaError(
        error.what, expected=error.expected, found=error.found, where=step + joint + error.where
    )


def _scalar(check: Callable[[Any], Any]) -> Form:
    return Form(check, lambda reader: check(reader.scalar()))


def text(most: int) -> Form:
    """A str of at most ``most`` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or len(value) > most:
            fault(f"text of at most {most} characters", _brief(value))
        return value

    return _scalar(check)


def integer(least: int, most: int) -> Form:
    """An int within bounds (of 64 bits at most)."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            fault(f"an integer of {least} .. {most}", _brief(value))
        return value

    return _scalar(check)


def _check_flag(value: Any) -> bool:
    if type(value) is not bool:
        fault("true or false", _brief(value))
    return value


boolean = _scalar(_check_flag)


def _brief(value: object) -> str:
    return (
        f"{type(value).__name__} {str(value)[:60]}"
        if isinstance(value, (str, int, float))
        else type(value).__name__
    )


def optional(item: Form) -> Form:
    """None or the scalar that ``item`` accepts."""
    return _scalar(lambda value: None if value is None else item.pack(value))


def either(first: Form, second: Form) -> Form:
    """The scalar that ``first`` (a str) or ``second`` (an int) accepts."""

    def check(value: Any) -> Any:
        return first.pack(value) if type(value) is str else second.pack(value)

    return _scalar(check)


def list_of(item: Form, most: int) -> Form:
    """A tuple of at most ``most`` items."""

    def pack(values: Any) -> list[Any]:
        given = _tuple(values)
        if len(given) > most:
            fault(f"at most {most} items", len(given))
        return [_packed(item, value, f"[{i}]") for i, value in enumerate(given)]

    def read(reader: Reader) -> tuple[Any, ...]:
        out: list[Any] = []
        try:
            for _ in range(reader.header(0, most)):
                out.append(item.read(reader))
        except SchemaError as error:
            raise within(error, f"[{len(out)}]") from None
        return tuple(out)

    return Form(pack, read)


def _tuple(values: Any) -> tuple[Any, ...]:
    if not isinstance(values, tuple):
        fault("a tuple", type(values).__name__)
    return cast(tuple[Any, ...], values)


def _packed(form: Form, value: Any, step: str) -> Any:
    try:
        return form.pack(value)
    except SchemaError as error:
        raise within(error, step) from None


def row(*items: Form) -> Form:
    """A tuple of exactly these items."""

    def pack(values: Any) -> list[Any]:
        if type(values) is not tuple or len(values) != len(items):
            fault(f"a tuple of {len(items)} items", type(values).__name__)
        return [
            _packed(form, value, f"[{i}]") for i, (form, value) in enumerate(zip(items, values))
        ]

    def read(reader: Reader) -> tuple[Any, ...]:
        reader.header(len(items), len(items))
        out: list[Any] = []
        try:
            for form in items:
                out.append(form.read(reader))
        except SchemaError as error:
            raise within(error, f"[{len(out)}]") from None
        return tuple(out)

    return Form(pack, read)


def record(cls: type, **fields: Form) -> Form:
    """A frozen dataclass as the array of its fields; ``fields`` must name them all, in order."""
    names = tuple(fields)
    assert names == tuple(f.name for f in dataclasses.fields(cls)), cls
    forms = tuple(fields.values())

    def pack(value: Any) -> list[Any]:
        if type(value) is not cls:
            fault(cls.__name__, type(value).__name__)
        return [_packed(form, getattr(value, field), field) for field, form in fields.items()]

    def read(reader: Reader) -> Any:
        reader.header(len(forms), len(forms))
        out: list[Any] = []
        try:
            for form in forms:
                out.append(form.read(reader))
        except SchemaError as error:
            raise within(error, names[len(out)]) from None
        return cls(*out)

    return Form(pack, read)


def union(cases: dict[str, tuple[type, Form]]) -> Form:
    """One of several classes, as [tag, data]."""
    tags = {cls: tag for tag, (cls, _) in cases.items()}

    def pack(value: Any) -> list[Any]:
        tag = tags.get(type(value))
        if tag is None:
            fault(" | ".join(cases), type(value).__name__)
        return [tag, _packed(cases[tag][1], value, tag)]

    def read(reader: Reader) -> Any:
        reader.header(2, 2)
        tag = reader.scalar()
        if type(tag) is not str or tag not in cases:
            fault(" | ".join(cases), _brief(tag))
        try:
            return cases[tag][1].read(reader)
        except SchemaError as error:
            raise within(error, tag) from None

    return Form(pack, read)


def maybe(item: Form) -> Form:
    """None or a value of ``item``, as an array of none or one."""

    def read(reader: Reader) -> Any:
        return item.read(reader) if reader.header(0, 1) else None

    return Form(lambda value: [] if value is None else [item.pack(value)], read)


def nested(form: Callable[[], Form], most: int) -> Form:
    """A form that holds itself, ``most`` levels deep at the utmost."""

    def read(reader: Reader) -> Any:
        if reader.depth >= most:
            fault(f"at most {most} levels", "more")
        reader.depth += 1
        value = form().read(reader)
        reader.depth -= 1
        return value

    return Form(lambda value: form().pack(value), read)


# -- expressions


def _pack_expr(value: Any) -> int | str:
    if not isinstance(value, Expr):
        fault("Expr", type(value).__name__)
    if value.is_const and value.value in INT64:
        return value.value
    if len(value.text) > MAX_EXPR_CHARS:
        fault(
            f"an expression of at most {MAX_EXPR_CHARS} characters", f"{len(value.text)} characters"
        )
    return value.text


def _read_expr(reader: Reader) -> Expr:
    return _expr_of(reader.scalar(), reader.exprs)


def _expr_of(data: object, known: dict[str, Expr]) -> Expr:
    if type(data) is int:
        if data not in INT64:
            fault("an int64", data)
        return const(data)
    if type(data) is not str or len(data) > MAX_EXPR_CHARS:
        fault(f"an expression of at most {MAX_EXPR_CHARS} characters", _brief(data))
    found = known.get(data)
    if found is None:
        found = known[data] = parse_canonical(data)
    return found


expr = Form(_pack_expr, _read_expr)
_OPTIONAL_EXPR = Form(
    lambda value: None if value is None else _pack_expr(value),
    lambda reader: None if (data := reader.scalar()) is None else _expr_of(data, reader.exprs),
)


def optional_expr() -> Form:
    """An expression or None."""
    return _OPTIONAL_EXPR


def parse_canonical(source: str) -> Expr:
    """The expression whose text is ``source``. Unlike :func:`stax.ir.expr.parse` it multiplies nothing out, so the work
    is bounded by the length; text that no Expr prints is refused."""
    try:
        found = _sum(ast.parse(source, mode="eval").body, 1)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        fault("an integer expression", source)
    if found.text != source:
        fault("an expression in canonical form", source)
    return found


def _sum(node: ast.expr, sign: int) -> Expr:
    terms: dict[Monomial, int] = {}
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        _add_term(node.right, sign if isinstance(node.op, ast.Add) else -sign, terms)
        node = node.left
    _add_term(node, sign, terms)
    return Expr(terms)


def _add_term(node: ast.expr, coef: int, terms: dict[Monomial, int]) -> None:
    factors: list[Atom] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(_atom(node.right))
        node = node.left
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        coef, node = -coef, node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        coef *= node.value
    else:
        factors.append(_atom(node))
    powers: dict[Atom, int] = {}
    for atom in factors:
        powers[atom] = powers.get(atom, 0) + 1
    monomial = tuple(sorted(powers.items(), key=lambda item: item[0].text))
    terms[monomial] = terms.get(monomial, 0) + coef


def _atom(node: ast.expr) -> Atom:
    if (
        isinstance(node, ast.Name)
        and node.id.isascii()
        and len(node.id) <= 64
        and node.id not in _CALLS
    ):
        return sym(node.id).atoms[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
        op = "floordiv" if isinstance(node.op, ast.FloorDiv) else "mod"
        return Atom(op, args=(_sum(node.left, 1), _sum(node.right, 1)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        if node.func.id in _CALLS and not node.keywords:
            return Atom(node.func.id, args=(_sum(node.args[0], 1), _sum(node.args[1], 1)))
    raise ValueError("no atom")


# -- Python constants


def _pack_literal(value: Any) -> list[Any]:
    if value is None:
        return ["none", 0]
    if type(value) is bool:
        return ["bool", value]
    if type(value) is int:
        return ["int", value if value in INT64 else _digits(value)]
    if type(value) is float:
        return ["float", math.nan if math.isnan(value) else value]
    if type(value) is complex:
        return ["complex", [_pack_literal(value.real)[1], _pack_literal(value.imag)[1]]]
    if type(value) is str:
        return ["str", _LONG_TEXT.pack(value)]
    if isinstance(value, tuple):
        kind, name = (*cast(tuple[Any, ...], value), None, None)[:2]
        if kind in KINDS:
            return [kind, _NAME.pack(name)]
    fault("None, bool, int, float, complex, str or (kind, name)", type(value).__name__)


KINDS = ("dtype", "device", "layout", "memory_format")
_LONG_TEXT = text(1 << 16)
_NAME = text(64)


def _digits(value: int) -> str:
    if abs(value).bit_length() > 4 * MAX_INT_DIGITS:
        fault(f"an integer of at most {MAX_INT_DIGITS} hexadecimal digits", "more")
    return hex(value)


def _read_literal(reader: Reader) -> Any:
    reader.header(2, 2)
    tag = reader.scalar()
    if tag == "complex":
        reader.header(2, 2)
        return complex(_float(reader.scalar()), _float(reader.scalar()))
    value = reader.scalar()
    if tag == "none" and value == 0:
        return None
    if tag == "bool":
        return _check_flag(value)
    if tag == "int":
        return _int(value)
    if tag == "float":
        return _float(value)
    if tag == "str":
        return _LONG_TEXT.pack(value)
    if type(tag) is str and tag in KINDS:
        return tag, _NAME.pack(value)
    fault("a tagged constant", _brief(tag))


def _float(value: object) -> float:
    if type(value) is not float:
        fault("a float", _brief(value))
    return value


def _int(value: object) -> int:
    if type(value) is int:
        return value
    if type(value) is str and len(value) <= MAX_INT_DIGITS + 3:
        try:
            big = int(value, 16)
        except ValueError:
            fault("hexadecimal digits", value)
        if hex(big) == value and big not in INT64:
            return big
    fault("an integer", _brief(value))


literal = Form(_pack_literal, _read_literal)
