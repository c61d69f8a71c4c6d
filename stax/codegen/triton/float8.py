"""Triton functions between float32 and the codes of the 8-bit floats, equal to torch's casts.

From sm_89 on the hardware converts. It rounds as torch does, but float8_e5m2 stays at its largest value where torch makes
it infinite. Before, Triton knows neither type well, and integers convert.
"""

from __future__ import annotations

import struct

FIRST_WITH_FLOAT8 = 89


def has_float8(arch: str) -> bool:
    """Whether the architecture, "sm_90", converts these types itself."""
    return int(arch.removeprefix("sm_")) >= FIRST_WITH_FLOAT8


FLOAT8_NATIVE = {
    "float8_e4m3fn_value": """
def float8_e4m3fn_value(code):
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
""",
    "float8_e4m3fn_code": """
def float8_e4m3fn_code(x):
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
""",
    "float8_e5m2_value": """
def float8_e5m2_value(code):
    return code.to(tl.float8e5, bitcast=True).to(tl.float32)
""",
    "float8_e5m2_code": """
def float8_e5m2_code(x):
    code = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) >= 61440.0, (code & 0x80) | 0x7C, code)
""",
}


def _whole(dtype: str, mantissa: int, least: int, limit: str, beyond: str) -> dict[str, str]:
    """``mantissa`` bits, ``least`` the exponent of the smallest normal value; from ``limit`` on the code is ``beyond``.

    Normal values round by carrying into the bits that stay; tiny ones by adding a power of two whose unit in the last
    place is the type's least value."""
    shift, bias = 23 - mantissa, (127 + least - 1) << mantissa
    magic = 2.0 ** (least - mantissa + 23)
    special = "low == 0x7F" if dtype == "float8_e4m3fn" else "low >= 0x7C"
    return {
        f"{dtype}_value": f"""
def {dtype}_value(code):
    wide = code.to(tl.uint32)
    low = wide & 0x7F
    shifted = low << {shift}
    finite = shifted.to(tl.float32, bitcast=True) * {2.0 ** (126 + least)!r}
    bits = tl.where({special}, shifted | 0x7F800000, finite.to(tl.uint32, bitcast=True))
    return (bits | ((wide >> 7) << 31)).to(tl.float32, bitcast=True)
""",
        f"{dtype}_code": f"""
def {dtype}_code(x):
    size = tl.abs(x)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + {(1 << (shift - 1)) - 1:#x} + ((bits >> {shift}) & 1)) >> {shift}) - {bias}
    tiny = (size + {magic!r}).to(tl.uint32, bitcast=True) - {_bits(magic):#x}
    code = tl.where(size < {2.0**least!r}, tiny, normal)
    code = tl.where(size >= {limit}, {beyond}, code)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((x.to(tl.uint32, bitcast=True) >> 31) << 7)).to(tl.uint8)
""",
    }


def _bits(power: float) -> int:
    """The float32 bits of a power of two."""
    return int.from_bytes(struct.pack(">f", power))


FLOAT8_WHOLE = {
    **_whole("float8_e4m3fn", 3, -6, "448.0", "0x7E"),
    **_whole("float8_e5m2", 2, -14, "61440.0", "0x7C"),
}
