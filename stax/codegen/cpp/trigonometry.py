"""C++ text of sine and cosine of float32, exact to 2 units in the last place for every argument.

A float is m * 2**k with a 24-bit integer m. The table holds 2**k * (2/pi) modulo 4 in three doubles, two of them of 29 bits, so
that their product with m is exact: no argument is too large to be reduced.
"""

from __future__ import annotations

from fractions import Fraction

# 2**k for the exponents of floats from 2**23 on, and one for infinity; smaller floats use entry 0 as they are.
_ENTRIES = 106
_BITS = 320


def _pi() -> Fraction:
    """pi to _BITS bits, by Machin's formula."""
    one = 1 << (_BITS + 16)

    def arctan_of_inverse(n: int) -> int:
        total = term = one // n
        k = 1
        while term:
            term //= n * n
            k += 2
            total += (-term if k % 4 == 3 else term) // k
        return total

    return Fraction(4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)), one)


def _table() -> tuple[str, str, str]:
    """The rows of 2**k * (2/pi) modulo 4, cut into parts of 29, 29 and 53 bits."""
    rows: tuple[list[str], list[str], list[str]] = ([], [], [])
    turn = 2 / _pi()
    for k in range(_ENTRIES):
        rest = (turn * 2**k) % 4
        for row, bits in zip(rows, (27, 56, _BITS)):
            part = Fraction(int(rest * 2**bits), 2**bits)
            row.append(repr(float(part)))
            rest -= part
    return ", ".join(rows[0]), ", ".join(rows[1]), ", ".join(rows[2])


_HIGH, _MIDDLE, _LOW = _table()

TRIGONOMETRY = {
    "stax_quarters": f"""
static const struct {{ double high[{_ENTRIES}], middle[{_ENTRIES}], low[{_ENTRIES}]; }} stax_quarters = {{
    {{{_HIGH}}},
    {{{_MIDDLE}}},
    {{{_LOW}}},
}};
""",
    # |x| = q quarter turns + r.
    "stax_angle": """
struct stax_angle { float r; uint32_t q; };
""",
    "stax_reduce": """
static inline stax_angle stax_reduce(float x) {
    const float a = __builtin_fabsf(x);
    const uint32_t u = stax_bits(a), e = u >> 23;
    const int64_t k = (int64_t)(e < 150u ? 150u : e) - 150;
    const double m = e < 150u ? a : (float)(int32_t)((u & 0x7fffffu) | 0x800000u);
    const double y = m * stax_quarters.high[k], z = m * stax_quarters.middle[k];
    const double shifted = (y + z) + 6755399441055744.0, n = shifted - 6755399441055744.0;
    const double f = ((y - n) + z) + m * stax_quarters.low[k];
    const float r = (float)(f * 1.5707963267948966);
    return {e > 254u ? __builtin_nanf("") : r, (uint32_t)__builtin_bit_cast(uint64_t, shifted)};
}
""",
    "stax_quarter": """
static inline float stax_quarter(float r, uint32_t q) {
    const float z = r * r;
    float s = stax_fma(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = stax_fma(s, z, -1.6666654611e-1f);
    s = stax_fma(s * z, r, r);
    float c = stax_fma(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = stax_fma(c, z, 4.166664568298827e-2f);
    c = stax_fma(c * z, z, stax_fma(-0.5f, z, 1.0f));
    return stax_as_float(stax_bits(q & 1u ? c : s) ^ (q & 2u) << 30);
}
""",
    "stax_sinf": """
static inline float stax_sinf(float x) {
    const stax_angle a = stax_reduce(x);
    return stax_as_float(stax_bits(stax_quarter(a.r, a.q)) ^ (stax_bits(x) & 0x80000000u));
}
""",
    "stax_cosf": """
static inline float stax_cosf(float x) {
    const stax_angle a = stax_reduce(x);
    return stax_quarter(a.r, a.q + 1u);
}
""",
}
