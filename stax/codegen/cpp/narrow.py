"""C++ text of the float types of 8 and 16 bits: memory to float, float rounded to the type, float rounded to memory.

Rounding is to nearest even. Beyond the largest value float16 and float8_e5m2 become infinite; float8_e4m3fn, which has no
infinity, stays at its largest, as in torch.
Integer arithmetic alone, so it vectorises everywhere and gives the same bits on every machine.
"""

from __future__ import annotations


def _format(
    name: str, memory: str, mantissa: int, least: int, most: str, limit: str, beyond: str, nan: str
) -> dict[str, str]:
    """``mantissa`` bits, ``least`` the exponent of the smallest normal value, ``most`` the largest value; what is at least
    ``limit`` gets the code ``beyond``."""
    width = {"uint8_t": 8, "uint16_t": 16}[memory]
    sign, shift, lift = f"{1 << (width - 1):#x}u", 23 - mantissa, 32 - width
    bias = (127 + least - 1) << mantissa
    magic = _magic(mantissa, least)
    saturates = limit == most
    special = f"low == {nan}u" if saturates else f"low >= {beyond}u"
    over = most if saturates else "__builtin_inff()"
    return {
        f"stax_from_{name}": f"""
static inline float stax_from_{name}({memory} code) {{
    const uint32_t low = (uint32_t)code & ~{sign}, wide = low << {shift};
    const float finite = stax_as_float(wide) * {2.0 ** (126 + least)!r}f;
    const uint32_t bits = {special} ? wide | 0x7f800000u : stax_bits(finite);
    return stax_as_float(bits | ((uint32_t)code & {sign}) << {lift});
}}
""",
        f"stax_round_{name}": f"""
static inline float stax_round_{name}(float x) {{
    const float a = stax_round_narrow<{mantissa}, {least}>(__builtin_fabsf(x));
    return __builtin_copysignf(a > {most} ? {over} : a, x);
}}
""",
        f"stax_to_{name}": f"""
static inline {memory} stax_to_{name}(float x) {{
    const float a = __builtin_fabsf(x);
    const uint32_t u = stax_bits(a);
    const uint32_t normal = ((u + {(1 << (shift - 1)) - 1:#x}u + (u >> {shift} & 1u)) >> {shift}) - {bias}u;
    const uint32_t tiny = stax_bits(a + {magic}) - stax_bits({magic});
    const uint32_t finite = a < {2.0**least!r}f ? tiny : normal;
    const uint32_t code = a != a ? {nan}u : a >= {limit} ? {beyond}u : finite;
    return ({memory})(code | (stax_bits(x) >> {lift} & {sign}));
}}
""",
    }


def _magic(mantissa: int, least: int) -> str:
    """A power of two whose unit in the last place is the type's smallest positive value."""
    return f"{2.0 ** (least - mantissa + 23)!r}f"


NARROW_FLOATS = {
    "stax_round_narrow": """
template <int MANTISSA, int LEAST> static inline float stax_round_narrow(float a) {
    const uint32_t u = stax_bits(a), half = (1u << (22 - MANTISSA)) - 1;
    const uint32_t even = (u + half + (u >> (23 - MANTISSA) & 1)) & ~(2 * half + 1);
    const float magic = stax_as_float((uint32_t)(127 + LEAST - MANTISSA + 23) << 23);
    const float tiny = (a + magic) - magic;
    return a < stax_as_float((uint32_t)(127 + LEAST) << 23) ? tiny : a < __builtin_inff() ? stax_as_float(even) : a;
}
""",
    "stax_from_bf16": """
static inline float stax_from_bf16(uint16_t code) { return stax_as_float((uint32_t)code << 16); }
""",
    "stax_round_bf16": """
static inline float stax_round_bf16(float x) {
    const uint32_t u = stax_bits(x), even = u + 0x7fffu + (u >> 16 & 1);
    return stax_as_float((x != x ? u | 0x400000u : even) & 0xffff0000u);
}
""",
    "stax_to_bf16": """
static inline uint16_t stax_to_bf16(float x) {
    const uint32_t u = stax_bits(x), even = u + 0x7fffu + (u >> 16 & 1);
    return (uint16_t)((x != x ? u | 0x400000u : even) >> 16);
}
""",
    **_format("f16", "uint16_t", 10, -14, "65504.0f", "65520.0f", "0x7c00", "0x7e00"),
    **_format("e5m2", "uint8_t", 2, -14, "57344.0f", "61440.0f", "0x7c", "0x7f"),
    **_format("e4m3", "uint8_t", 3, -6, "448.0f", "448.0f", "0x7e", "0x7f"),
}
