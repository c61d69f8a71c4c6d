"""Expressions and Python constants on the wire.

A constant expression is an integer, any other its canonical text; a Python constant is [tag, value].
"""

from __future__ import annotations

import ast
import math
from typing import Any, cast

from stax.artifact.forms import Form, as_tuple, boolean, brief, text
from stax.artifact.reader import Reader, fault
from stax.ir.expr import Atom, Expr, Monomial, const, sym

MAX_EXPR_CHARS = 4096
MAX_EXPR_DEPTH = 32
MAX_INT_DIGITS = 1024
INT64 = range(-(1 << 63), 1 << 63)
KINDS = ("dtype", "device", "layout", "memory_format")
_CALLS = ("min", "max")
_LONG_TEXT = text(1 << 16)
_NAME = text(64)


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


def _expr_of(data: object, known: dict[int | str, Expr]) -> Expr:
    if type(data) is not int and type(data) is not str:
        fault("an expression", brief(data))
    found = known.get(data)
    if found is None:
        found = known[data] = _new_expr(data)
    return found


def _new_expr(data: int | str) -> Expr:
    if isinstance(data, int):
        if data not in INT64:
            fault("an int64", data)
        return const(data)
    if len(data) > MAX_EXPR_CHARS:
        fault(f"an expression of at most {MAX_EXPR_CHARS} characters", brief(data))
    return parse_canonical(data)


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
        found = _sum(ast.parse(source, mode="eval").body, MAX_EXPR_DEPTH)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        fault("an integer expression", source)
    if found.text != source:
        fault("an expression in canonical form", source)
    return found


def _sum(node: ast.expr, levels: int) -> Expr:
    if levels == 0:
        raise ValueError("too deep")
    terms: dict[Monomial, int] = {}
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        _add_term(node.right, 1 if isinstance(node.op, ast.Add) else -1, terms, levels)
        node = node.left
    _add_term(node, 1, terms, levels)
    return Expr(terms)


def _add_term(node: ast.expr, coef: int, terms: dict[Monomial, int], levels: int) -> None:
    factors: list[Atom] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(_atom(node.right, levels))
        node = node.left
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        coef, node = -coef, node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        coef *= node.value
    else:
        factors.append(_atom(node, levels))
    powers: dict[Atom, int] = {}
    for atom in factors:
        powers[atom] = powers.get(atom, 0) + 1
    monomial = tuple(sorted(powers.items(), key=lambda item: item[0].text))
    terms[monomial] = terms.get(monomial, 0) + coef


def _atom(node: ast.expr, levels: int) -> Atom:
    if isinstance(node, ast.Name) and node.id.isascii() and len(node.id) <= 64:
        if node.id not in _CALLS:
            return sym(node.id).atoms[0]
        raise ValueError("a function's name")
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
        op, left, right = type(node.op).__name__.lower(), node.left, node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        op, (left, right) = node.func.id, node.args
    else:
        raise ValueError("no atom")
    return Atom(op, args=(_sum(left, levels - 1), _sum(right, levels - 1)))


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
    if not isinstance(value, tuple):
        fault("None, bool, int, float, complex, str or (kind, name)", value.__class__.__name__)
    pair = as_tuple(cast(object, value))
    if len(pair) != 2 or pair[0] not in KINDS:
        fault(" | ".join(KINDS) + " and a name", len(pair))
    return [pair[0], _NAME.pack(pair[1])]


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
        return boolean.pack(value)
    if tag == "int":
        return _int(value)
    if tag == "float":
        return _float(value)
    if tag == "str":
        return _LONG_TEXT.pack(value)
    if type(tag) is str and tag in KINDS:
        return tag, _NAME.pack(value)
    fault("a tagged constant", brief(tag))


def _float(value: object) -> float:
    if type(value) is not float:
        fault("a float", brief(value))
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
    fault("an integer", brief(value))


literal = Form(_pack_literal, _read_literal)
