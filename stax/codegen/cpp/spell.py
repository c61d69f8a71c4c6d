"""How each scalar operator, cast and comparison is written in C++: one row an operator, one column a class of types.

In a row {0}, {1} are the operands (names or literals), {T} the value's C++ type and {W} the unsigned type in which
integers wrap. Names that start with stax_ are helpers that the prelude defines when a kernel's text holds them.
"""

from __future__ import annotations

from stax.base.errors import VerifyError
from stax.codegen.cpp.types import NARROW, memory_type, value_type, wrapping_type
from stax.ir.dtypes import DTYPES

CLASSES = ("float32", "float64", "int", "uint", "bool")


def _same(text: str) -> tuple[str, ...]:
    return (text,) * 5


def _floats(single: str, double: str) -> tuple[str, ...]:
    return (single, double, "", "", "")


def _libm(name: str) -> tuple[str, ...]:
    return _floats(f"__builtin_{name}f({{0}})", f"__builtin_{name}({{0}})")


def _own(name: str) -> tuple[str, ...]:
    return _floats(f"stax_{name}f({{0}})", f"__builtin_{name}({{0}})")


def _numbers(real: str, whole: str, truth: str = "") -> tuple[str, ...]:
    return (real, real, whole, whole, truth)


def _wrapped(sign: str, truth: str) -> tuple[str, ...]:
    return _numbers(f"{{0}} {sign} {{1}}", f"({{T}})(({{W}}){{0}} {sign} ({{W}}){{1}})", truth)


def _call2(name: str) -> tuple[str, ...]:
    return _numbers(f"stax_{name}({{0}}, {{1}})", f"stax_i{name}<{{T}}>({{0}}, {{1}})")


def _bits(sign: str) -> tuple[str, ...]:
    whole = f"({{T}})({{0}} {sign} {{1}})"
    return ("", "", whole, whole, f"{{0}} {sign} {{1}}")


# NOTE: sign(NaN) is 0 as torch on the CPU gives; numpy gives NaN.
_SIGN = "({T})(({T}){0} > 0) - ({T})({0} < 0)"

SPELLINGS: dict[str, tuple[str, ...]] = {
    "add": _wrapped("+", "{0} | {1}"),
    "sub": _wrapped("-", ""),
    "mul": _wrapped("*", "{0} & {1}"),
    "truediv": _floats("{0} / {1}", "{0} / {1}"),
    "floordiv": _call2("floordiv"),
    "remainder": _call2("remainder"),
    "fmod": ("__builtin_fmodf({0}, {1})", "__builtin_fmod({0}, {1})", *("stax_ifmod<{T}>({0}, {1})",) * 2, ""),
    "neg": _numbers("-{0}", "({T})(0 - ({W}){0})"),
    "abs": ("__builtin_fabsf({0})", "__builtin_fabs({0})", "stax_iabs<{T}>({0})", "{0}", "{0}"),
    "sign": (_SIGN, _SIGN, "({T})(({0} > 0) - ({0} < 0))", "({T})({0} > 0)", "{0}"),
    "maximum": ("stax_maximum({0}, {1})",) * 2 + ("stax_imax<{T}>({0}, {1})",) * 2 + ("{0} | {1}",),
    "minimum": ("stax_minimum({0}, {1})",) * 2 + ("stax_imin<{T}>({0}, {1})",) * 2 + ("{0} & {1}",),
    "pow": ("__builtin_powf({0}, {1})", "__builtin_pow({0}, {1})", *("stax_ipow<{T}>({0}, {1})",) * 2, ""),
    "sqrt": _libm("sqrt"),
    "rsqrt": _floats("1.0f / __builtin_sqrtf({0})", "1.0 / __builtin_sqrt({0})"),
    "exp": _own("exp"),
    "exp2": _own("exp2"),
    "expm1": _own("expm1"),
    "log": _own("log"),
    "log2": _own("log2"),
    "log10": _own("log10"),
    "log1p": _own("log1p"),
    "erf": _own("erf"),
    "erfc": _libm("erfc"),
    "sin": _own("sin"),
    "cos": _own("cos"),
    "tan": _libm("tan"),
    "asin": _libm("asin"),
    "acos": _libm("acos"),
    "atan": _libm("atan"),
    "atan2": _floats("__builtin_atan2f({0}, {1})", "__builtin_atan2({0}, {1})"),
    "sinh": _libm("sinh"),
    "cosh": _libm("cosh"),
    "tanh": _own("tanh"),
    "floor": _libm("floor"),
    "ceil": _libm("ceil"),
    "trunc": _libm("trunc"),
    "round": _libm("rint"),
    "eq": _same("{0} == {1}"),
    "ne": _same("{0} != {1}"),
    "lt": _same("{0} < {1}"),
    "le": _same("{0} <= {1}"),
    "gt": _same("{0} > {1}"),
    "ge": _same("{0} >= {1}"),
    "isnan": _floats("{0} != {0}", "{0} != {0}"),
    "isinf": _floats("__builtin_fabsf({0}) == __builtin_inff()", "__builtin_fabs({0}) == __builtin_inf()"),
    "and": _bits("&"),
    "or": _bits("|"),
    "xor": _bits("^"),
    "not": ("", "", "({T})~{0}", "({T})~{0}", "!{0}"),
    "lshift": ("", "", *("stax_lshift<{T}>({0}, {1})",) * 2, ""),
    "rshift": ("", "", *("stax_rshift<{T}>({0}, {1})",) * 2, ""),
    "random32": ("", "", "stax_random32({0}, {1})", "", ""),
    "random64": ("", "", "stax_random64({0}, {1})", "", ""),
}  # fmt: skip


def class_of(dtype: str) -> str:
    """The column of ``dtype`` in SPELLINGS."""
    kind = DTYPES[dtype].kind
    if kind == "float":
        return "float64" if dtype == "float64" else "float32"
    if kind == "complex":
        raise VerifyError("complex values have no C++ spelling", found=dtype)
    return kind


def spell_op(op: str, dtype: str, args: tuple[str, ...]) -> str:
    """``op`` on operands of ``dtype``. Raises VerifyError when the operator is not defined for the type."""
    row = SPELLINGS.get(op)
    text = "" if row is None else row[CLASSES.index(class_of(dtype))]
    if not text:
        raise VerifyError(f"no C++ spelling of {op} for {dtype}")
    wrap = wrapping_type(dtype) if DTYPES[dtype].kind in ("int", "uint") else ""
    return text.format(*args, T=value_type(dtype), W=wrap)


def spell_cast(text: str, source: str, to: str) -> str:
    """``text`` of dtype ``source`` converted as torch does."""
    a, b = DTYPES[source], DTYPES[to]
    if to in NARROW:
        single = text if source in NARROW or source == "float32" else f"(float){text}"
        return f"stax_round_{NARROW[to]}({single})"
    if b.kind == "bool":
        return f"{text} != 0"
    if a.is_float and b.is_integral and (b.itemsize < 4 or b.name == "uint32"):
        # A float out of the narrow type's range is undefined in C++; through a wider integer it wraps as in torch.
        return f"({memory_type(to)})({'int32_t' if b.itemsize < 4 else 'int64_t'}){text}"
    return text if value_type(source) == value_type(to) else f"({value_type(to)}){text}"


def spell_load(text: str, dtype: str) -> str:
    """The body value of the memory element ``text``."""
    return f"stax_from_{NARROW[dtype]}({text})" if dtype in NARROW else text


def spell_store(text: str, dtype: str) -> str:
    """The memory element of the body value ``text``."""
    return f"stax_to_{NARROW[dtype]}({text})" if dtype in NARROW else text
