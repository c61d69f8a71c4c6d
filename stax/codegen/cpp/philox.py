"""C++ text of Philox 4x32-10: random words as a pure function of key and position (see stax.ir.philox). No branches, so
that loops over it vectorise."""

from __future__ import annotations

from stax.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

PHILOX = {
    "stax_words": """
struct stax_words { uint32_t a, b, c, d; };
""",
    "stax_philox": f"""
static inline stax_words stax_philox(uint64_t key, uint64_t block) {{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = 0, d = 0;
    uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    #pragma GCC unroll {ROUNDS}
    for (int round = 0; round < {ROUNDS}; ++round, low += {KEY_STEPS[0]:#x}u, high += {KEY_STEPS[1]:#x}u) {{
        const uint64_t x = (uint64_t)a * {MULTIPLIERS[0]:#x}u, y = (uint64_t)c * {MULTIPLIERS[1]:#x}u;
        a = (uint32_t)(y >> 32) ^ b ^ low, b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ high, d = (uint32_t)x;
    }}
    return {{a, b, c, d}};
}}
""",
    "stax_random32": """
static inline int64_t stax_random32(int64_t key, int64_t position) {
    const stax_words w = stax_philox((uint64_t)key, (uint64_t)position >> 2);
    const uint32_t even = position & 2 ? w.c : w.a, odd = position & 2 ? w.d : w.b;
    return (int64_t)(position & 1 ? odd : even);
}
""",
    "stax_random64": """
static inline int64_t stax_random64(int64_t key, int64_t position) {
    const stax_words w = stax_philox((uint64_t)key, (uint64_t)position >> 1);
    const uint32_t low = position & 1 ? w.c : w.a, high = position & 1 ? w.d : w.b;
    return (int64_t)((uint64_t)high << 32 | low);
}
""",
}
