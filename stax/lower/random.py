"""Rules of random numbers that kernels draw themselves (Options.random "philox"): pure functions of a key and of the
element's logical row-major position, so that neither the layout nor what is recomputed where changes them.

A graph asks torch's generator for one seed a device, in the order of its other draws; each operator that draws has a key
of its own, the seed plus its number in program order. Floats take the bits torch's own do: 53, 24, 11 (float16) or 8
(bfloat16) for [0, 1). Probabilities are exact to 2**-32. A whole number below n is the high half of 64 bits times n: its
bias is below n / 2**64, that of torch's remainder.
"""

from __future__ import annotations

import math

from stax.capture.captured import Meta
from stax.ir.dtypes import DTYPES, accumulator
from stax.ir.expr import Expr, const
from stax.ir.program import Extern, Listed, Literal, contiguous
from stax.ir.ranges import positive
from stax.ir.value import Value, cast, constant, index, scalar, where
from stax.lower.build import Call, Declined, Result, Rule, Table
from stax.lower.pointwise import num
from stax.lower.scalars import Operand, add, div, mul, number, read, rounded, sub
from stax.lower.views import View, axis, whole

Int = int | Expr
# Significant bits of a float: what torch draws, and up to where it counts in whole numbers.
DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
_WORD = float(2**32)


def drawn(rule: Rule) -> Rule:
    """``rule`` where kernels draw; torch otherwise."""

    def chosen(c: Call, *args: object, **kwargs: object) -> Result:
        if c.builder.options.random != "philox":
            return Declined("random numbers are torch's unless Options.random is philox")
        return rule(c, *args, **kwargs)

    return chosen


# -- bits


def _seed(c: Call) -> View:
    """64 random bits from torch's generator of the device, drawn once a call of the program."""
    device = c.out.device
    found = c.builder.seeds.get(device)
    if found is None:
        buffer = c.builder.temp((const(1),), (const(1),), "int64", device)
        limits = Literal(-(2**63)), Literal(2**63 - 1)
        named = ("device", Literal(("device", device))), ("dtype", Literal(("dtype", "int64")))
        size = Listed((Literal(1),))
        c.builder.nodes.append(
            Extern((buffer.name,), "aten.randint.low", (*limits, size), named, c.origin)
        )
        found = c.builder.seeds[device] = whole(buffer)
    return found


def _key(c: Call) -> Value:
    """A key that no other operator of the program has."""
    number_here = c.builder.streams
    c.builder.streams += 1
    return add(read(_seed(c), [const(0)]), constant(number_here, "int64"))


def _position(c: Call) -> Expr:
    shape = c.out.shape
    steps = contiguous(shape)
    return sum((axis(k) * s for k, (s, e) in enumerate(zip(steps, shape)) if e != 1), const(0))


def _word(c: Call) -> Value:
    """32 random bits, as an int64 that is not negative."""
    return scalar("random32", _key(c), index(_position(c)))


def _pair(c: Call) -> Value:
    """64 random bits."""
    return scalar("random64", _key(c), index(_position(c)))


def _shift(value: Value, count: int) -> Value:
    return scalar("rshift", value, constant(count, "int64")) if count else value


def _bits(value: Value, shift: int, count: int) -> Value:
    """``count`` bits from bit ``shift`` on."""
    return scalar("and", _shift(value, shift), constant((1 << count) - 1, "int64"))


# -- floats


def _unit(c: Call, dtype: str) -> Value:
    """Uniform in [0, 1), as the widened form of ``dtype``; never rounds to 1."""
    digits = DIGITS[dtype]
    if dtype == "float64":
        return mul(cast(_bits(_pair(c), 64 - digits, digits), dtype), constant(2.0**-53, dtype))
    return mul(
        cast(cast(_shift(_word(c), 32 - digits), "int32"), "float32"),
        constant(2.0**-digits, "float32"),
    )


def _fraction(word: Value) -> Value:
    """32 bits as a float32 in (0, 1]."""
    single = cast(cast(word, "uint32"), "float32")
    return add(mul(single, constant(1 / _WORD, "float32")), constant(0.5 / _WORD, "float32"))


def _fraction53(bits: Value) -> Value:
    """64 bits as a float64 in (0, 1]."""
    whole_ = add(_bits(bits, 11, 53), constant(1, "int64"))
    return mul(cast(whole_, "float64"), constant(2.0**-53, "float64"))


def _above_zero(c: Call, dtype: str) -> Value:
    """Uniform in (0, 1], for logarithms."""
    return _fraction53(_pair(c)) if dtype == "float64" else _fraction(_word(c))


def _standard_normal(c: Call, dtype: str) -> Value:
    """Box-Muller: a radius and an angle. Two neighbours are the cosine and the sine of one draw, so that an emitter computes
    what they share once."""
    key, place = _key(c), index(_position(c))
    if dtype == "float64":
        return _wide_normal(key, place)
    bits = scalar("random64", key, _shift(place, 1))
    first = _fraction(_bits(bits, 0, 32))
    radius = scalar("sqrt", mul(num(-2, first), scalar("log", first)))
    cosine, sine = _direction(_bits(bits, 32, 32))
    return mul(radius, where(_is_odd(place), sine, cosine))


def _wide_normal(key: Value, place: Value) -> Value:
    twice = scalar("lshift", place, constant(1, "int64"))
    first, second = (
        _fraction53(scalar("random64", key, add(twice, constant(k, "int64")))) for k in (0, 1)
    )
    radius = scalar("sqrt", mul(num(-2, first), scalar("log", first)))
    return mul(radius, scalar("cos", mul(num(2 * math.pi, second), second)))


def _direction(word: Value) -> tuple[Value, Value]:
    """Cosine and sine of an even angle: two bits for the quarter turn, 30 for the place in -pi/4 .. pi/4 around it."""
    within = cast(sub(_bits(word, 0, 30), constant(1 << 29, "int64")), "int32")
    angle = mul(cast(within, "float32"), constant(2 * math.pi / _WORD, "float32"))
    square = mul(angle, angle)
    near = add(num(1, square), mul(square, _polynomial(square, _COSINE)))
    side = add(angle, mul(angle, mul(square, _polynomial(square, _SINE))))
    odd = _is_odd(_shift(word, 30))
    cosine, sine = where(odd, side, near), where(odd, near, side)
    left = _is_odd(add(_shift(word, 30), _shift(word, 31)))
    return _signed(cosine, left), _signed(sine, _is_odd(_shift(word, 31)))


# cos(x) = 1 + x**2 * p(x**2) and sin(x) = x + x**3 * q(x**2) for |x| <= pi/4, within an unit in the last place.
_COSINE = (2.44331571e-5, -1.38873162e-3, 4.16666457e-2, -0.5)
_SINE = (-1.95152959e-4, 8.33216087e-3, -1.66666546e-1)


def _polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    total = num(coefficients[0], x)
    for coefficient in coefficients[1:]:
        total = add(mul(total, x), num(coefficient, x))
    return total


def _signed(value: Value, negative: Value) -> Value:
    return where(negative, scalar("neg", value), value)


def _is_odd(value: Value) -> Value:
    return scalar("ne", scalar("and", value, constant(1, "int64")), constant(0, "int64"))


def _shaped(c: Call, value: Value) -> View:
    return c.fill(cast(value, c.out.dtype))


def rand(c: Call, *args: object, **unused: object) -> View | Declined:
    if not DTYPES[c.out.dtype].is_float:
        return Declined("fractions as whole numbers")
    return _shaped(c, _unit(c, c.out.dtype))


def uniform(
    c: Call, x: View, low: float = 0.0, high: float = 1.0, **unused: object
) -> View | Declined:
    """Where rounding reaches ``high`` the value is ``low``, as torch has it on CUDA."""
    if not DTYPES[c.out.dtype].is_float or not low <= high:
        return Declined("a range that torch refuses")
    dtype = accumulator(c.out.dtype)
    start, span = number(low, dtype), number(high - low, dtype)
    value = cast(add(mul(_unit(c, c.out.dtype), span), start), c.out.dtype)
    end = number(rounded(high, c.out.dtype), dtype)
    beyond = scalar("ge", cast(value, dtype), end)
    return c.fill(where(beyond, number(rounded(low, c.out.dtype), c.out.dtype), value))


def randn(c: Call, *args: object, **unused: object) -> View | Declined:
    return _normal(c, 0.0, 1.0)


def _normal(c: Call, mean: Operand, std: Operand) -> View | Declined:
    if not DTYPES[c.out.dtype].is_float or (isinstance(std, (int, float)) and not std >= 0):
        return Declined("a normal distribution that torch refuses")
    dtype = accumulator(c.out.dtype)
    value = _standard_normal(c, dtype)
    value = value if std == 1 else mul(value, c.operand(std, dtype))
    return _shaped(c, value if mean == 0 else add(value, c.operand(mean, dtype)))


def normal_like(
    c: Call, x: View, mean: float = 0.0, std: float = 1.0, **unused: object
) -> View | Declined:
    return _normal(c, mean, std)


def normal(
    c: Call, mean: Operand = 0.0, std: Operand = 1.0, *args: object, **unused: object
) -> View | Declined:
    return _normal(c, mean, std)


def log_normal(
    c: Call, x: View, mean: float = 1.0, std: float = 2.0, **unused: object
) -> View | Declined:
    if not DTYPES[c.out.dtype].is_float or not std > 0:
        return Declined("a normal distribution that torch refuses")
    dtype = accumulator(c.out.dtype)
    value = _standard_normal(c, dtype)
    return _shaped(c, scalar("exp", add(mul(value, num(std, value)), num(mean, value))))


def exponential(c: Call, x: View, rate: float = 1.0, **unused: object) -> View | Declined:
    """Never 0, so that its logarithm is finite: at least half a unit in the last place below 1."""
    if not DTYPES[c.out.dtype].is_float or not rate > 0:
        return Declined("an exponential distribution that torch refuses")
    dtype = accumulator(c.out.dtype)
    value = scalar("neg", scalar("log", _above_zero(c, dtype)))
    least = num(2.0 ** -DIGITS[dtype], value)
    return _shaped(c, mul(scalar("maximum", value, least), num(1 / rate, value)))


def cauchy(
    c: Call, x: View, median: float = 0.0, sigma: float = 1.0, **unused: object
) -> View | Declined:
    if not DTYPES[c.out.dtype].is_float or not sigma > 0:
        return Declined("a Cauchy distribution that torch refuses")
    value = _unit(c, accumulator(c.out.dtype))
    angle = mul(num(math.pi, value), sub(value, num(0.5, value)))
    return _shaped(c, add(mul(scalar("tan", angle), num(sigma, value)), num(median, value)))


def geometric(c: Call, x: View, p: float, **unused: object) -> View | Declined:
    """Trials until the first success, from 1 on."""
    if c.out.dtype == "bool" or not 0 < p < 1:
        return Declined("a geometric distribution that torch refuses")
    dtype = accumulator(c.out.dtype) if DTYPES[c.out.dtype].is_float else "float32"
    value = scalar("log", _above_zero(c, dtype))
    trials = scalar("ceil", div(value, num(math.log1p(-p), value)))
    return _shaped(c, scalar("maximum", trials, num(1, trials)))


# -- truth


def _chance(c: Call, p: float) -> Value:
    """True with probability ``p``: always for 1, never for 0."""
    return scalar("lt", _word(c), constant(round(p * _WORD), "int64"))


def bernoulli_p(c: Call, x: View, p: float = 0.5, **unused: object) -> View | Declined:
    if not 0 <= p <= 1:
        return Declined("a probability that torch refuses")
    return _shaped(c, _chance(c, p))


def bernoulli(c: Call, p: View, **unused: object) -> View | Declined:
    """Each element's own probability."""
    if not DTYPES[p.dtype].is_float:
        return Declined("probabilities that are whole numbers")
    chance = c.operand(p, accumulator(p.dtype))
    limit = cast(mul(chance, num(_WORD, chance)), "int64")
    return _shaped(c, scalar("lt", _word(c), limit))


def bernoulli_like(c: Call, x: View, p: View, **unused: object) -> View | Declined:
    return bernoulli(c, p)


def native_dropout(c: Call, x: View, p: float, train: bool | None) -> Result:
    """(x times mask times 1/(1-p), mask)."""
    if train is False or not 0 <= p <= 1:
        return Declined("a dropout that drops nothing, or that torch refuses")
    out, kept = c.meta if isinstance(c.meta, tuple) else (None, None)
    assert isinstance(out, Meta) and isinstance(kept, Meta)
    mask = c.fill(_chance(c, 1 - p), kept)
    dtype = accumulator(out.dtype)
    value = mul(c.operand(x, dtype), c.operand(mask, dtype))
    scale = num(0.0 if p == 1 else 1 / (1 - p), value)
    return [c.fill(cast(mul(value, scale), out.dtype), out), mask]


# -- whole numbers


def _below(bits: Value, count: int | Value) -> Value:
    """A whole number in 0 .. count-1 (uint64): the high half of the unsigned product of 64 bits and ``count``."""
    high, low = _unsigned(_bits(bits, 32, 32)), _unsigned(_bits(bits, 0, 32))
    over, under = _halves(count)
    middle = add(mul(high, under), _upper(mul(low, under)))
    if over is None:
        return _upper(middle)
    second = add(mul(low, over), scalar("and", middle, _number(2**32 - 1)))
    return add(mul(high, over), add(_upper(middle), _upper(second)))


def _halves(count: int | Value) -> tuple[Value | None, Value]:
    """The high and low half of a uint64; a high half that is 0 is None."""
    if isinstance(count, int):
        over, under = divmod(count, 2**32)
        return _number(over) if over else None, _number(under)
    return _upper(count), scalar("and", count, _number(2**32 - 1))


def _unsigned(value: Value) -> Value:
    return cast(value, "uint64")


def _number(value: int) -> Value:
    return constant(value, "uint64")


def _upper(value: Value) -> Value:
    return scalar("rshift", value, _number(32))


def _whole(c: Call, low: Int, high: Int) -> View | Declined:
    """Whole numbers in low .. high-1."""
    count = const(high) - const(low)
    if not positive(count, c.ranges) or not _holds(c.out.dtype, low, high):
        return Declined("a range that torch refuses or changes")
    bits = _pair(c)
    if count.is_const and count.value == 2**64:
        return _shaped(c, bits)
    below = _below(bits, count.value if count.is_const else _unsigned(index(count)))
    return _shaped(c, add(cast(below, "int64"), number(low, "int64")))


def _holds(dtype: str, low: Int, high: Int) -> bool:
    """Whether the dtype has every number of the range; sizes fit 64 bits and are left to torch for narrower ones."""
    least, most = _limits(dtype)
    if isinstance(low, Expr) or isinstance(high, Expr):
        return dtype == "int64"
    return least <= low and high - 1 <= most


def _limits(dtype: str) -> tuple[int, int]:
    """Least and largest whole number such that the dtype holds all between."""
    found = DTYPES[dtype]
    if found.is_float:
        return -(2 ** DIGITS[dtype]), 2 ** DIGITS[dtype]
    if found.kind == "bool":
        return 0, 1
    bits = 8 * found.itemsize
    return (0, 2**bits - 1) if found.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def randint(c: Call, high: Int, *args: object, **unused: object) -> View | Declined:
    return _whole(c, 0, high)


def randint_low(c: Call, low: Int, high: Int, *args: object, **unused: object) -> View | Declined:
    return _whole(c, low, high)


def randint_like(c: Call, x: View, high: Int, **unused: object) -> View | Declined:
    return _whole(c, 0, high)


def randint_like_low(c: Call, x: View, low: Int, high: Int, **unused: object) -> View | Declined:
    return _whole(c, low, high)


def random(c: Call, x: View, **unused: object) -> View | Declined:
    return _whole(c, 0, _limits(c.out.dtype)[1] + 1)


def random_from(c: Call, x: View, low: int, high: int | None, **unused: object) -> View | Declined:
    return _whole(c, low, _limits(c.out.dtype)[1] + 1 if high is None else high)


_DRAWN: Table = {
    "aten.rand.default": rand,
    "aten.rand_like.default": rand,
    "aten.uniform.default": uniform,
    "aten.randn.default": randn,
    "aten.randn_like.default": randn,
    "aten.normal.float_float": normal,
    "aten.normal.Tensor_float": normal,
    "aten.normal.float_Tensor": normal,
    "aten.normal.Tensor_Tensor": normal,
    "aten.normal_functional.default": normal_like,
    "aten.log_normal.default": log_normal,
    "aten.exponential.default": exponential,
    "aten.cauchy.default": cauchy,
    "aten.geometric.default": geometric,
    "aten.bernoulli.default": bernoulli,
    "aten.bernoulli.p": bernoulli_p,
    "aten.bernoulli.Tensor": bernoulli_like,
    "aten.native_dropout.default": native_dropout,
    "aten.randint.default": randint,
    "aten.randint.low": randint_low,
    "aten.randint_like.default": randint_like,
    "aten.randint_like.low_dtype": randint_like_low,
    "aten.random.default": random,
    "aten.random.to": randint_like,
    "aten.random.from": random_from,
}

RULES: Table = {name: drawn(rule) for name, rule in _DRAWN.items()}
