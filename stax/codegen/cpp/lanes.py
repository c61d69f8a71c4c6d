"""C++ text of the helpers for reductions in lanes. The number of lanes is a power of two, so that folding is a tree."""

from __future__ import annotations


def _fold(name: str, combine: str) -> str:
    """``combine`` of an element x of the first half and y of the second."""
    return f"""
template <int N, class T> static inline T stax_fold_{name}(const T* a) {{
    if constexpr (N == 1) return a[0];
    else {{
        T z[N / 2];
        #pragma omp simd
        for (int l = 0; l < N / 2; ++l) {{
            const T x = a[l], y = a[l + N / 2];
            z[l] = {combine};
        }}
        return stax_fold_{name}<N / 2>(z);
    }}
}}
"""


def _fold_arg(extreme: str) -> str:
    return f"""
template <int N, class T> static inline int64_t stax_fold_arg{extreme}(T* a, int64_t* at) {{
    for (int w = N / 2; w > 0; w /= 2)
        for (int l = 0; l < w; ++l) {{
            const T x = a[l + w], y = a[l];
            const bool same = x == y || (x != x && y != y);
            if (stax_beats_{extreme}<T>(x, y) || (same && at[l + w] < at[l])) a[l] = x, at[l] = at[l + w];
        }}
    return stax_position(at[0]);
}}
"""


LANES = {
    "stax_fill": """
template <int N, class T, class U> static inline void stax_fill(T* a, U value) {
    for (int l = 0; l < N; ++l) a[l] = (T)value;
}
""",
    "stax_flush": """
template <int N, class T, class U> static inline void stax_flush(T* a, U* sum) {
    for (int l = 0; l < N; ++l) sum[l] += a[l], a[l] = 0;
}
""",
    "stax_fold_sum": _fold("sum", "x + y"),
    "stax_fold_prod": _fold("prod", "x * y"),
    "stax_fold_any": _fold("any", "x | y"),
    "stax_fold_all": _fold("all", "x & y"),
    "stax_fold_max": _fold("max", "x != x ? x : x > y ? x : y"),
    "stax_fold_min": _fold("min", "x != x ? x : x < y ? x : y"),
    # Whether x replaces the extreme found before it: a NaN does, and nothing replaces a NaN.
    "stax_beats_max": """
template <class T> static inline bool stax_beats_max(T x, T best) { return x > best || (x != x && best == best); }
""",
    "stax_beats_min": """
template <class T> static inline bool stax_beats_min(T x, T best) { return x < best || (x != x && best == best); }
""",
    # No value beat the identity when all of them equal it: then the first is the extreme.
    "stax_position": """
static inline int64_t stax_position(int64_t at) { return at == INT64_MAX ? 0 : at; }
""",
    "stax_fold_argmax": _fold_arg("max"),
    "stax_fold_argmin": _fold_arg("min"),
}
