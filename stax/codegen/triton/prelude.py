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
