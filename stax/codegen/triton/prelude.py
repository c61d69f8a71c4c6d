"""Device functions that a kernel's text brings along: what Triton has no operator for. Only those used are printed."""

from __future__ import annotations

import re

from stax.codegen.triton.float8 import FLOAT8_NATIVE, FLOAT8_WHOLE, has_float8

# Name → text. A function may call the ones above it.
FUNCTIONS: dict[str, str] = {
    **FLOAT8_WHOLE,
    "floor_div": '''
def floor_div(a, b):
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
''',
    "floor_mod": '''
def floor_mod(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "float_mod": '''
def float_mod(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "divide": '''
def divide(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b
''',
    "float_floor_div": '''
def float_floor_div(a, b):
    rest = libdevice.fmod(a, b)
    whole = divide(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    floor = tl.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1, floor)
    floor = tl.where(quotient == 0, whole * 0, floor)
    return tl.where(b == 0, whole, floor)
''',
    "int_pow": '''
def int_pow(base, exponent, BITS: tl.constexpr):
    result = base * 0 + 1
    square = base
    rest = exponent
    for _ in tl.static_range(BITS - 1):
        result = tl.where((rest & 1) != 0, result * square, result)
        square = square * square
        rest = rest >> 1
    odd = tl.where((exponent & 1) != 0, base, base * 0 + 1)
    inverse = tl.where(base == 1, base, tl.where(base == -1, odd, base * 0))
    return tl.where(exponent < 0, inverse, result)
''',
    "uint_pow": '''
def uint_pow(base, exponent, BITS: tl.constexpr):
    result = base * 0 + 1
    square = base
    rest = exponent
    for _ in tl.static_range(BITS):
        result = tl.where((rest & 1) != 0, result * square, result)
        square = square * square
        rest = rest >> 1
    return result
''',
    "shift_left": '''
def shift_left(value, count, BITS: tl.constexpr):
    return tl.where((count >= 0) & (count < BITS), value << count, 0)
''',
    "shift_right": '''
def shift_right(value, count, BITS: tl.constexpr):
    last = tl.where((count >= 0) & (count < BITS), count, BITS - 1)
    return value >> last
''',
    "uint_shift_right": '''
def uint_shift_right(value, count, BITS: tl.constexpr):
    return tl.where(count < BITS, value >> count, 0)
''',
    "philox": '''
def philox(key, block):
    low, high = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    return tl.philox(key, low, high, low * 0, low * 0)
''',
    "random32": '''
def random32(key, position):
    a, b, c, d = philox(key, position.to(tl.uint64) >> 2)
    even = tl.where((position & 2) == 0, a, c)
    odd = tl.where((position & 2) == 0, b, d)
    return tl.where((position & 1) == 0, even, odd).to(tl.int64)
''',
    "random64": '''
def random64(key, position):
    a, b, c, d = philox(key, position.to(tl.uint64) >> 1)
    low = tl.where((position & 1) == 0, a, c).to(tl.uint64)
    high = tl.where((position & 1) == 0, b, d).to(tl.uint64)
    return (low | (high << 32)).to(tl.int64)
''',
    "maximum": '''
def maximum(a, b):
    return tl.maximum(a, b, tl.PropagateNan.ALL)
''',
    "minimum": '''
def minimum(a, b):
    return tl.minimum(a, b, tl.PropagateNan.ALL)
''',
    "fast_exp": '''
def fast_exp(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    "fast_reciprocal": '''
def fast_reciprocal(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
''',
    "one_plus_erf": '''
def one_plus_erf(x):
    size = tl.abs(x)
    t = fast_reciprocal(tl.fma(size, 0.525, 1.0))
    rest = tl.fma(t, -0.1805271974294532, 0.4143038540273474)
    rest = tl.fma(rest, t, 0.1566337349013786)
    rest = tl.fma(rest, t, 0.31469809700874146)
    rest = tl.fma(rest, t, 0.2949194592615675)
    rest = rest * t * fast_exp(-x * x)
    return tl.where(x < 0, rest, 2.0 - rest)
''',
    "one_plus_tanh": '''
def one_plus_tanh(x):
    return 2.0 * fast_reciprocal(1.0 + fast_exp(-2.0 * x))
''',
    "multiply": '''
def multiply(a, b):
    return a * b
''',
    "max2": '''
def max2(value, dim):
    return tl.reduce(value, dim, maximum)
''',
    "min2": '''
def min2(value, dim):
    return tl.reduce(value, dim, minimum)
''',
    "prod2": '''
def prod2(value, dim):
    return tl.reduce(value, dim, multiply)
''',
    "any2": '''
def any2(value, dim):
    return tl.max(value.to(tl.int32), dim) != 0
''',
    "all2": '''
def all2(value, dim):
    return tl.min(value.to(tl.int32), dim) != 0
''',
    "greater": '''
def greater(a, i, b, j):
    a_nan, b_nan = a != a, b != b
    first = (a > b) | (a_nan & (b == b)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
''',
    "less": '''
def less(a, i, b, j):
    a_nan, b_nan = a != a, b != b
    first = (a < b) | (a_nan & (b == b)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
''',
    "argmax2": '''
def argmax2(value, index, dim):
    _, found = tl.reduce((value, index), dim, greater)
    return found
''',
    "argmin2": '''
def argmin2(value, index, dim):
    _, found = tl.reduce((value, index), dim, less)
    return found
''',
    "row_exp": '''
def row_exp(x, FAST: tl.constexpr):
    if FAST:
        return fast_exp(x)
    else:
        return libdevice.exp(x)
''',
    "online_step": '''
def online_step(top, total, y, FAST: tl.constexpr):
    new = tl.maximum(top, tl.reduce(y, 2, maximum), tl.PropagateNan.ALL)
    base = tl.where(new == float("-inf"), 0.0, new)
    total = total * row_exp(top - base, FAST) + tl.sum(row_exp(y - base[:, :, None], FAST), 2)
    return new, total
''',
    "online_finish": '''
def online_finish(top, total, FAST: tl.constexpr):
    new = tl.reduce(top, 1, maximum)
    base = tl.where(new == float("-inf"), 0.0, new)
    total = tl.sum(total * row_exp(top - base[:, None], FAST), 1)
    return new[:, None], tl.where(new == float("-inf"), float("nan"), total)[:, None]
''',
    "moments_step": '''
def moments_step(total, squares, y, inside, before, WHOLE: tl.constexpr, GROUP: tl.constexpr):
    part = tl.sum(y, 2)
    if WHOLE:
        count = before * 0 + GROUP
        mean = part * (1.0 / GROUP)
        gap = y - mean[:, :, None]
    else:
        count = tl.sum(inside.to(y.dtype), 2)
        mean = part / tl.maximum(count, 1.0)
        gap = tl.where(inside, y - mean[:, :, None], 0.0)
    off = mean - total * (1.0 / tl.maximum(before, 1.0))
    weight = before * count / tl.maximum(before + count, 1.0)
    return total + part, squares + tl.sum(gap * gap, 2) + off * off * weight
''',
    "moments_finish": '''
def moments_finish(total, squares, length, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    lane = tl.arange(0, BLOCK // GROUP)[None, :]
    rest = length % BLOCK - lane * GROUP
    count = (length // BLOCK * GROUP + tl.minimum(tl.maximum(rest, 0), GROUP)).to(total.dtype)
    whole = tl.sum(total, 1)[:, None]
    gap = total / tl.maximum(count, 1.0) - whole / length
    return whole, tl.sum(squares + gap * gap * count, 1)[:, None]
''',
}  # fmt: skip

_NAME = re.compile(r"(?<![\w.])(" + "|".join(FUNCTIONS) + r")\b")


def functions_for(body: str, arch: str) -> tuple[str, ...]:
    """Texts of the functions that ``body`` calls on an architecture, directly or not, in the order of the table."""
    texts = FUNCTIONS | FLOAT8_NATIVE if has_float8(arch) else FUNCTIONS
    needed: set[str] = set()
    todo = _NAME.findall(body)
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += [n for n in _NAME.findall(texts[name]) if n != name]
    return tuple(f"@triton.jit{texts[name]}" for name in FUNCTIONS if name in needed)
