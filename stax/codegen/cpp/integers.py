"""C++ text of the integer helpers: Python's rounding of division, defined shifts, powers. By name, callees first."""

INTEGERS = {
    "stax_imin": """
template <class T> static inline T stax_imin(T a, T b) { return b < a ? b : a; }
""",
    "stax_imax": """
template <class T> static inline T stax_imax(T a, T b) { return a < b ? b : a; }
""",
    "stax_iabs": """
template <class T> static inline T stax_iabs(T a) { return a < 0 ? (T)(0 - (uint64_t)a) : a; }
""",
    # Division by zero gives 0 and the least value by -1 itself: the machine's instruction would end the process.
    "stax_floordiv": """
static inline float stax_floordiv(float a, float b) {
    const float m = __builtin_fmodf(a, b), d = (a - m) / b;
    const float e = m != 0 && (b < 0) != (m < 0) ? d - 1 : d, f = __builtin_floorf(e);
    const float g = e != 0 ? (e - f > 0.5f ? f + 1 : f) : __builtin_copysignf(0.0f, a / b);
    return b == 0 ? a / b : g;
}
static inline double stax_floordiv(double a, double b) {
    const double m = __builtin_fmod(a, b), d = (a - m) / b;
    const double e = m != 0 && (b < 0) != (m < 0) ? d - 1 : d, f = __builtin_floor(e);
    const double g = e != 0 ? (e - f > 0.5 ? f + 1 : f) : __builtin_copysign(0.0, a / b);
    return b == 0 ? a / b : g;
}
""",
    "stax_ifloordiv": """
template <class T> static inline T stax_ifloordiv(T a, T b) {
    if (b == 0) return 0;
    if ((T)-1 < 0 && b == (T)-1) return (T)(0 - (uint64_t)a);
    const T q = a / b, r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q;
}
""",
    "stax_remainder": """
static inline float stax_remainder(float a, float b) {
    const float m = __builtin_fmodf(a, b);
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
static inline double stax_remainder(double a, double b) {
    const double m = __builtin_fmod(a, b);
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
""",
    "stax_iremainder": """
template <class T> static inline T stax_iremainder(T a, T b) {
    if (b == 0 || ((T)-1 < 0 && b == (T)-1)) return 0;
    const T r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
""",
    "stax_ifmod": """
template <class T> static inline T stax_ifmod(T a, T b) {
    return b == 0 || ((T)-1 < 0 && b == (T)-1) ? 0 : a % b;
}
""",
    "stax_ipow": """
template <class T> static inline T stax_ipow(T a, T b) {
    if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b % 2 ? (T)-1 : 1) : 0;
    uint64_t base = (uint64_t)a, out = 1;
    for (uint64_t n = (uint64_t)b; n; n >>= 1, base *= base) out *= n & 1 ? base : 1;
    return (T)out;
}
""",
    "stax_lshift": """
template <class T> static inline T stax_lshift(T a, T b) {
    return (uint64_t)b < 8 * sizeof(T) ? (T)((uint64_t)a << b) : 0;
}
""",
    "stax_rshift": """
template <class T> static inline T stax_rshift(T a, T b) {
    return (T)(a >> ((uint64_t)b < 8 * sizeof(T) - 1 ? b : (T)(8 * sizeof(T) - 1)));
}
""",
}
