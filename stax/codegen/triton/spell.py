"""How Triton spells scalar operators, casts, constants and reductions, by dtype. Text in, text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stax.base.errors import VerifyError
from stax.ir.dtypes import DTYPES
from stax.ir.expr import Atom, Expr, Monomial
from stax.ir.float8 import FLOAT8, codes
from stax.ir.ranges import Ranges, nonneg

# The types of values in the text; an 8-bit float is its code, which the functions of the prelude convert.
TYPES = {name: f"tl.{name}" for name in DTYPES if DTYPES[name].kind in ("int", "uint", "float")} | {
    "bool": "tl.int1",
    "float8_e4m3fn": "tl.uint8",
    "float8_e5m2": "tl.uint8",
}

# {0} and {1} are the arguments, {type} the result's type, {bits} the width of the dtype, {ones} a number of that width
# with every bit set.
_EVERY = {
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})",
    "le": "({0} <= {1})", "gt": "({0} > {1})", "ge": "({0} >= {1})",
}  # fmt: skip
_NUMBER = _EVERY | {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})",
    "sign": "(({0} > 0).to({type}) - ({0} < 0).to({type}))",
}  # fmt: skip
_LIBDEVICE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "trunc", "rsqrt",
)  # fmt: skip
# Eager rounds division and square roots to nearest; Triton's own operators do not for float32. -x is -1.0*x because
# Triton writes 0 - x, which loses the sign of zero.
_FLOAT = _NUMBER | {name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE} | {
    "truediv": "({0} / {1})", "sqrt": "tl.sqrt({0})",
    "floordiv": "float_floor_div({0}, {1})", "remainder": "float_mod({0}, {1})", "fmod": "libdevice.fmod({0}, {1})",
    "pow": "libdevice.pow({0}, {1})", "atan2": "libdevice.atan2({0}, {1})",
    "neg": "({0} * -1.0)", "abs": "tl.abs({0})",
    "maximum": "tl.maximum({0}, {1}, tl.PropagateNan.ALL)", "minimum": "tl.minimum({0}, {1}, tl.PropagateNan.ALL)",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "round": "libdevice.rint({0})",
    "isnan": "({0} != {0})", "isinf": '(tl.abs({0}) == float("inf"))',
}  # fmt: skip
_FLOAT32 = _FLOAT | {"truediv": "tl.div_rn({0}, {1})", "sqrt": "tl.sqrt_rn({0})"}
_BITS = {"and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})"}
_INT = _NUMBER | _BITS | {
    "floordiv": "floor_div({0}, {1})", "remainder": "floor_mod({0}, {1})", "fmod": "({0} % {1})",
    "pow": "int_pow({0}, {1}, {bits})",
    "neg": "(-{0})", "abs": "tl.abs({0})", "not": "(~{0})",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "lshift": "shift_left({0}, {1}, {bits})", "rshift": "shift_right({0}, {1}, {bits})",
    "random32": "random32({0}, {1})", "random64": "random64({0}, {1})",
}  # fmt: skip
_UINT = _INT | {
    "floordiv": "({0} // {1})", "remainder": "({0} % {1})", "pow": "uint_pow({0}, {1}, {bits})",
    "neg": "({0} * 0 - {0})", "sign": "({0} != 0).to({type})", "abs": "{0}", "not": "({0} ^ {ones})",
    "rshift": "uint_shift_right({0}, {1}, {bits})",
}  # fmt: skip
_BOOL = _EVERY | _BITS | {
    "add": "({0} | {1})", "mul": "({0} & {1})", "sub": "({0} ^ {1})", "maximum": "({0} | {1})", "minimum": "({0} & {1})",
    "not": "({0} == 0)", "abs": "{0}", "sign": "{0}",
}  # fmt: skip
_TABLES: Mapping[str, Mapping[str, str]] = {
    "float": _FLOAT,
    "int": _INT,
    "uint": _UINT,
    "bool": _BOOL,
}


def scalar_text(op: str, dtype: str, args: Sequence[str]) -> str:
    """One scalar operator on arguments of ``dtype``. Raises VerifyError for an operator that the dtype does not have."""
    table = _FLOAT32 if dtype == "float32" else _TABLES.get(DTYPES[dtype].kind, {})
    spelling = table.get(op)
    if spelling is None:
        raise VerifyError(
            f"Triton has no spelling of {op} for {dtype}", hint="cast before the operator"
        )
    bits = 8 * DTYPES[dtype].itemsize
    return spelling.format(*args, type=TYPES[dtype], bits=bits, ones=2**bits - 1)


def cast_text(source: str, to: str, arg: str) -> str:
    """A cast as torch does it: half types and 8-bit floats pass through float32, narrow and unsigned integers of a float through a wide
    signed one (a plain conversion of a negative float would give 0)."""
    kinds = DTYPES[source].kind, DTYPES[to].kind
    if source == to:
        return arg
    if source in FLOAT8:
        return cast_text("float32", to, f"{source}_value({arg})")
    if to in FLOAT8:
        return f"{to}_code({cast_text(source, 'float32', arg)})"
    if to == "bool":
        arg = cast_text(source, "float32", arg) if _is_half(source) else arg
        return f"({arg} != 0)"
    if _is_half(source) and to != "float32":
        return cast_text("float32", to, f"{arg}.to(tl.float32)")
    if _is_half(to) and source != "float32":
        return f"{cast_text(source, 'float32', arg)}.to({TYPES[to]})"
    if kinds[0] == "float" and DTYPES[to].is_integral and to not in ("int32", "int64"):
        wide = "tl.int32" if DTYPES[to].itemsize < 4 else "tl.int64"
        return f"{arg}.to({wide}).to({TYPES[to]})"
    return f"{arg}.to({TYPES[to]})"


def _is_half(dtype: str) -> bool:
    return DTYPES[dtype].is_float and DTYPES[dtype].itemsize < 4


def number_text(number: object, dtype: str) -> str:
    """A Python literal of ``dtype``; what Triton can not write as a literal is float("…")."""
    if DTYPES[dtype].kind == "bool":
        return repr(bool(number))
    if not DTYPES[dtype].is_float:
        return repr(int(number))  # type: ignore[call-overload]
    value = float(number)  # type: ignore[arg-type]
    if dtype in FLOAT8:
        return repr(int(codes(value, dtype)))
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def constant_text(number: object, dtype: str, shape: str) -> str:
    """A block of one value."""
    if _is_half(dtype) and dtype not in FLOAT8:
        return f"tl.full({shape}, {number_text(number, dtype)}, tl.float32).to({TYPES[dtype]})"
    return f"tl.full({shape}, {number_text(number, dtype)}, {TYPES[dtype]})"


# -- reductions


@dataclass(frozen=True)
class Combine:
    """``identity`` by kind of dtype: lowest, highest or a number. ``step`` joins accumulator {0} and value {1};
    ``finish`` reduces block {0} along dimension 1."""

    identity: str
    step: str
    finish: str


COMBINES: Mapping[str, Combine] = {
    "sum": Combine("0", "({0} + {1})", "tl.sum({0}, 1)"),
    "prod": Combine("1", "({0} * {1})", "prod2({0}, 1)"),
    "max": Combine("lowest", "tl.maximum({0}, {1}, tl.PropagateNan.ALL)", "max2({0}, 1)"),
    "min": Combine("highest", "tl.minimum({0}, {1}, tl.PropagateNan.ALL)", "min2({0}, 1)"),
    "any": Combine("False", "({0} | {1})", "any2({0}, 1)"),
    "all": Combine("True", "({0} & {1})", "all2({0}, 1)"),
    "argmax": Combine("lowest", "greater", "argmax2({0}, {1}, 1)"),
    "argmin": Combine("highest", "less", "argmin2({0}, {1}, 1)"),
}
# Over integers the plain functions; bool reduces as any and all.
_INT_COMBINES: Mapping[str, Combine] = {
    **COMBINES,
    "max": Combine("lowest", "tl.maximum({0}, {1})", "tl.max({0}, 1)"),
    "min": Combine("highest", "tl.minimum({0}, {1})", "tl.min({0}, 1)"),
}
_BOOL_COMBINES = {"sum": "any", "max": "any", "prod": "all", "min": "all"}


def combine_of(combine: str, dtype: str) -> Combine:
    """The row for a reduction over values of ``dtype`` (as accumulated)."""
    if dtype == "bool":
        return COMBINES[_BOOL_COMBINES.get(combine, combine)]
    return COMBINES[combine] if DTYPES[dtype].is_float else _INT_COMBINES[combine]


def identity_text(identity: str, dtype: str) -> str:
    """The literal of a Combine's identity in ``dtype``."""
    if identity not in ("lowest", "highest"):
        return identity
    low = identity == "lowest"
    kind, bits = DTYPES[dtype].kind, 8 * DTYPES[dtype].itemsize
    if kind == "float":
        return 'float("-inf")' if low else 'float("inf")'
    if kind == "uint":
        return "0" if low else str(2**bits - 1)
    return str(-(2 ** (bits - 1)) if low else 2 ** (bits - 1) - 1)


# -- index expressions


def index_text(e: Expr, names: Mapping[str, str], ranges: Ranges) -> str:
    """An Expr over renamed symbols. Triton's // and % truncate, so a dividend that may be negative calls the functions
    that round down."""
    if not e.terms:
        return "0"
    out = ""
    pairs = [(_monomial_text(m, names, ranges), c) for m, c in e.terms]
    for body, coef in sorted(pairs, key=lambda t: (not t[0], t[0])):
        size = abs(coef)
        piece = str(size) if not body else body if size == 1 else f"{size}*{body}"
        if out:
            out += f" {'-' if coef < 0 else '+'} {piece}"
        else:
            out = f"-{piece}" if coef < 0 else piece
    return out


def _monomial_text(monomial: Monomial, names: Mapping[str, str], ranges: Ranges) -> str:
    return "*".join(_atom_text(a, names, ranges) for a, power in monomial for _ in range(power))


def _atom_text(atom: Atom, names: Mapping[str, str], ranges: Ranges) -> str:
    if atom.op == "sym":
        return names.get(atom.name, atom.name)
    a, b = (index_text(arg, names, ranges) for arg in atom.args)
    if atom.op in ("min", "max"):
        return f"tl.{atom.op}imum({a}, {b})"
    plain = nonneg(atom.args[0], ranges) and nonneg(atom.args[1], ranges)
    if atom.op == "floordiv":
        return f"(({a}) // ({b}))" if plain else f"floor_div({a}, {b})"
    return f"(({a}) % ({b}))" if plain else f"floor_mod({a}, {b})"
