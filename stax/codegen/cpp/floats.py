"""C++ text of the float helpers. The float32 functions are polynomials without branches, so that loops over them
vectorise without a vector library; each is within 2 units in the last place of the exact value for all float32."""

from __future__ import annotations

FLOATS = {
    "stax_bits": """
static inline uint32_t stax_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
""",
    "stax_as_float": """
static inline float stax_as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
""",
    "stax_maximum": """
static inline float stax_maximum(float a, float b) { const float m = a > b ? a : b; return a != a ? a : m; }
static inline double stax_maximum(double a, double b) { const double m = a > b ? a : b; return a != a ? a : m; }
""",
    "stax_minimum": """
static inline float stax_minimum(float a, float b) { const float m = a < b ? a : b; return a != a ? a : m; }
static inline double stax_minimum(double a, double b) { const double m = a < b ? a : b; return a != a ? a : m; }
""",
    # One rounding where the machine has the instruction; a call to the library would be far slower than two roundings.
    "stax_fma": """
#ifdef __FMA__
static inline float stax_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
static inline float stax_fma(float a, float b, float c) { return a * b + c; }
#endif
""",
    # 2**n for -126 <= n <= 127.
    "stax_power_of_two": """
static inline float stax_power_of_two(int32_t n) { return stax_as_float((uint32_t)(n + 127) << 23); }
""",
    # exp(r) - 1 - r for |r| <= ln(2)/2.
    "stax_exp_tail": """
static inline float stax_exp_tail(float r) {
    float p = stax_fma(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = stax_fma(p, r, 8.3334519073e-3f);
    p = stax_fma(p, r, 4.1665795894e-2f);
    p = stax_fma(p, r, 1.6666665459e-1f);
    p = stax_fma(p, r, 5.0000001201e-1f);
    return p * (r * r);
}
""",
    # x = n ln(2) + r. NOTE: adding 1.5 * 2**23 rounds to an integer and leaves it in the low bits, also for a NaN.
    "stax_expf": """
static inline float stax_expf(float x) {
    const float low = x < -104.0f ? -104.0f : x, a = low > 89.0f ? 89.0f : low;
    const float shifted = stax_fma(a, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
    const float r = stax_fma(n, 2.12194440e-4f, stax_fma(n, -0.693359375f, a));
    const int32_t i = (int32_t)(stax_bits(shifted) - 0x4b400000u), j = i >> 1;
    const float p = 1.0f + (r + stax_exp_tail(r));
    return p * stax_power_of_two(j) * stax_power_of_two(i - j);
}
""",
    "stax_exp2f": """
static inline float stax_exp2f(float x) {
    const float low = x < -151.0f ? -151.0f : x, a = low > 129.0f ? 129.0f : low;
    const float shifted = a + 12582912.0f, f = a - (shifted - 12582912.0f);
    const float r = f * 0.693147182f;
    const float e = stax_fma(f, -1.90465421e-9f, stax_exp_tail(r));
    const int32_t i = (int32_t)(stax_bits(shifted) - 0x4b400000u), j = i >> 1;
    return (1.0f + (r + e)) * stax_power_of_two(j) * stax_power_of_two(i - j);
}
""",
    "stax_expm1f": """
static inline float stax_expm1f(float x) {
    const float low = x < -20.0f ? -20.0f : x, a = low > 89.0f ? 89.0f : low;
    const float shifted = stax_fma(a, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
    const float r = stax_fma(n, 2.12194440e-4f, stax_fma(n, -0.693359375f, a));
    const float half = stax_power_of_two((int32_t)(stax_bits(shifted) - 0x4b400000u) - 1);
    const float p = r + stax_exp_tail(r), y = 2.0f * stax_fma(half, p, half - 0.5f);
    return __builtin_fabsf(x) < 0.3f ? p : y;
}
""",
    # x = (1 + m) * 2**e with sqrt(0.5) <= 1 + m < sqrt(2).
    "stax_log_parts": """
struct stax_log_parts { float m, e; };
""",
    "stax_split": """
static inline stax_log_parts stax_split(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const uint32_t u = stax_bits(tiny ? x * 8388608.0f : x), above = u - 0x3f3504f3u;
    const int32_t e = (int32_t)above >> 23;
    return {stax_as_float(u - ((uint32_t)e << 23)) - 1.0f, (float)e - (tiny ? 23.0f : 0.0f)};
}
""",
    # ln(1 + f) - f + f*f/2.
    "stax_log_tail": """
static inline float stax_log_tail(float f) {
    float p = stax_fma(7.0376836292e-2f, f, -1.1514610310e-1f);
    p = stax_fma(p, f, 1.1676998740e-1f);
    p = stax_fma(p, f, -1.2420140846e-1f);
    p = stax_fma(p, f, 1.4249322787e-1f);
    p = stax_fma(p, f, -1.6668057665e-1f);
    p = stax_fma(p, f, 2.0000714765e-1f);
    p = stax_fma(p, f, -2.4999993993e-1f);
    p = stax_fma(p, f, 3.3333331174e-1f);
    return p * f * (f * f);
}
""",
    # y, but as ln does at zero, below it, at infinity and for a NaN.
    "stax_log_ends": """
static inline float stax_log_ends(float x, float y) {
    const float high = x < __builtin_inff() ? y : x;
    return x > 0 ? high : x == 0 ? -__builtin_inff() : __builtin_nanf("");
}
""",
    "stax_logf": """
static inline float stax_logf(float x) {
    const stax_log_parts s = stax_split(x);
    const float t = stax_fma(s.e, -2.12194440e-4f, stax_log_tail(s.m));
    const float y = s.m + stax_fma(-0.5f * s.m, s.m, t);
    return stax_log_ends(x, stax_fma(s.e, 0.693359375f, y));
}
""",
    "stax_log2f": """
static inline float stax_log2f(float x) {
    const stax_log_parts s = stax_split(x);
    const float t = stax_fma(-0.5f * s.m, s.m, stax_log_tail(s.m)), y = s.m + t;
    const float low = (s.m - y) + t;
    const float z = stax_fma(y, 0.44269504f, low * 1.44269504f);
    return stax_log_ends(x, (z + y) + s.e);
}
""",
    "stax_log10f": """
static inline float stax_log10f(float x) {
    const stax_log_parts s = stax_split(x);
    const float t = stax_fma(-0.5f * s.m, s.m, stax_log_tail(s.m)), y = s.m + t;
    const float low = (s.m - y) + t;
    const float z = stax_fma(y, 0.434294482f, stax_fma(low, 0.434294482f, s.e * 4.60503907e-6f));
    return stax_log_ends(x, stax_fma(s.e, 0.301025391f, z));
}
""",
    # ln(1 + x) = ln(u) + (x - (u - 1)) / u with u = 1 + x rounded.
    "stax_log1pf": """
static inline float stax_log1pf(float x) {
    const float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    const stax_log_parts s = stax_split(u);
    const float t = stax_fma(s.e, -2.12194440e-4f, stax_log_tail(s.m) + lost / u);
    const float y = s.m + stax_fma(-0.5f * s.m, s.m, t);
    return stax_log_ends(u, stax_fma(s.e, 0.693359375f, y));
}
""",
    "stax_tanhf": """
static inline float stax_tanhf(float x) {
    const float z = x * x, a = __builtin_fabsf(x);
    float p = stax_fma(-5.70498872745e-3f, z, 2.06390887954e-2f);
    p = stax_fma(p, z, -5.37397155531e-2f);
    p = stax_fma(p, z, 1.33314422036e-1f);
    p = stax_fma(p, z, -3.33332819422e-1f);
    const float small = stax_fma(p * z, x, x);
    const float large = 1.0f - 2.0f / (stax_expf(2.0f * a) + 1.0f);
    return a < 0.625f ? small : __builtin_copysignf(large, x);
}
""",
    # Near zero a polynomial; else 1 - exp(-p(|x|)), which is 1 in float32 from 4 on.
    "stax_erff": """
static inline float stax_erff(float x) {
    const float z = x * x, w = __builtin_fabsf(x), a = w > 4.0f ? 4.0f : w;
    float p = stax_fma(7.99664922e-05f, z, -0.000804976968f);
    p = stax_fma(p, z, 0.00519240508f);
    p = stax_fma(p, z, -0.0268557314f);
    p = stax_fma(p, z, 0.112836257f);
    p = stax_fma(p, z, -0.376126289f);
    p = stax_fma(p, z, 0.128379166f);
    float q = stax_fma(1.1230014e-05f, a, -0.000322794018f);
    q = stax_fma(q, a, 0.0036424296f);
    q = stax_fma(q, a, -0.0237620194f);
    q = stax_fma(q, a, 0.106236845f);
    q = stax_fma(q, a, 0.635151327f);
    q = stax_fma(q, a, 0.12864849f);
    const float large = __builtin_copysignf(1.0f - stax_expf(-stax_fma(q, a, a)), x);
    return w < 0.93f ? stax_fma(p, x, x) : large;
}
""",
}
