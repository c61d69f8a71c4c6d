"""How the element types are held in C++: in memory, and as values of a loop body.

A float type narrower than 32 bits lives in a body as a float whose value is already rounded to the type.
"""

from __future__ import annotations

import math
import struct

from stax.base.errors import VerifyError
from stax.ir.dtypes import DTYPES

_MEMORY = {
    "bool": "bool",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "float64": "double",
}

# Short names of the narrow float types in helper functions.
NARROW = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


def memory_type(dtype: str) -> str:
    """The C++ type of an element in memory. Raises VerifyError for a type without one (complex)."""
    found = _MEMORY.get(dtype)
    if found is None:
        raise VerifyError("no C++ type", expected=", ".join(_MEMORY), found=dtype)
    return found


def value_type(dtype: str) -> str:
    """The C++ type of a value in a loop body."""
    return "float" if dtype in NARROW else memory_type(dtype)


def wrapping_type(dtype: str) -> str:
    """The unsigned C++ type in which integers of ``dtype`` are added and multiplied without overflow."""
    return "uint64_t" if DTYPES[dtype].itemsize == 8 else "uint32_t"


def literal(number: object, dtype: str) -> str:
    """A constant of ``dtype`` as a C++ expression that needs no parentheses."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return "true" if number else "false"
    assert isinstance(number, (int, float))
    if kind == "float":
        return _float(float(number), dtype)
    whole = int(number)
    if dtype == "int64":
        text = f"INT64_C({whole})" if whole != -(2**63) else "INT64_MIN"
        return text if abs(whole) > 2**31 - 1 else f"(int64_t){whole}"
    if dtype == "uint64":
        return f"UINT64_C({whole})"
    return f"({memory_type(dtype)}){whole}" if whole >= 0 else f"({memory_type(dtype)})({whole})"


def is_exact(number: object, dtype: str) -> bool:
    """Whether a narrow float type holds a small whole number, zero or infinity as it is."""
    assert isinstance(number, (int, float))
    whole = number == number and abs(number) in (0, 1, 2, 4, 8, math.inf)
    return whole and (dtype != "float8_e4m3fn" or abs(number) != math.inf)


def _float(number: float, dtype: str) -> str:
    tail = "" if dtype == "float64" else "f"
    if tail:
        number = _single(number)
    if math.isnan(number):
        return f'__builtin_nan{tail}("")'
    if math.isinf(number):
        return f"__builtin_inf{tail}()" if number > 0 else f"(-__builtin_inf{tail}())"
    text = _shortest(number) if tail else repr(number)
    if "." not in text and "e" not in text:
        text += ".0"
    return f"({text}{tail})" if text.startswith("-") else text + tail


def _single(number: float) -> float:
    """Rounded to float32; beyond its range, infinite."""
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _shortest(number: float) -> str:
    """The shortest decimal text that reads back as the same float32."""
    for digits in range(1, 9):
        text = f"{number:.{digits}g}"
        if _single(float(text)) == number:
            return text
    return f"{number:.9g}"
