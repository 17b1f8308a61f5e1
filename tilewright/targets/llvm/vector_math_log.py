"""log, log2, log10, log1p and the inverse hyperbolic functions.

x = 2^k (1 + f) with 1 + f between the square roots of 1/2 and 2, then log(1 + f) = f + f^2 q(f) with one polynomial q:
a longer polynomial costs less here than the division of the usual series in f / (2 + f).
"""

from __future__ import annotations

import math

import msgspec

from tilewright.targets.llvm.values import Lanes, polynomial
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, TABLES

INFINITY, NAN = math.inf, math.nan


class LogarithmFormat(msgspec.Struct, frozen=True):
    """Constants of the reduction for a float type. `large` is where x + 1 and sqrt(x^2 + 1) round to x."""

    significand_bits: int
    bias: int
    sqrt_half_bits: int
    smallest_normal: float
    subnormal_shift: int
    tiny: float
    large: float

    @property
    def one_bits(self) -> int:
        return self.bias << self.significand_bits


FORMATS = {
    "f32": LogarithmFormat(23, 127, 0x3F3504F3, 2.0**-126, 24, 2.0**-25, 2.0**28),
    "f64": LogarithmFormat(52, 1023, 0x3FE6A09E667F3BCD, 2.0**-1022, 54, 2.0**-54, 2.0**56),
}


class Base(msgspec.Struct, frozen=True):
    """A base by its tables: a polynomial, and 1 / log(base) and log(2) / log(base) in two parts; None stands for 1."""

    polynomial: str
    slope: str | None
    log2: str | None


NATURAL = Base("LOG", None, "LOG_2")
BINARY = Base("LOG2", "LOG2_E", None)
DECIMAL = Base("LOG10", "LOG10_E", "LOG10_2")


class Reduced(msgspec.Struct, frozen=True):
    """log(x) = k log(2) + log(1 + f + f_low), f_low being what rounding f lost, if it did."""

    k: Lanes
    f: Lanes
    f_low: Lanes | None = None

    def logarithm(self, base: Base) -> Lanes:
        f, k, element = self.f, self.k, self.f.element
        tail = (f * f) * polynomial(f, TABLES[base.polynomial][f.precision])
        if self.f_low is not None:
            # f_low / (1 + f), to first order
            tail = tail + (-f).times_plus(self.f_low, self.f_low)
        if base.log2 is not None:
            tail = k.times_plus(CONSTANTS[base.log2][element][1], tail)
        if base.slope is None:
            fraction = f + tail
        else:
            high, low = CONSTANTS[base.slope][element]
            fraction = f.times_plus(high, f.times_plus(low, tail))
        if base.log2 is None:
            return k + fraction
        return k.times_plus(CONSTANTS[base.log2][element][0], fraction)


def _exponent_and_fraction(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """The biased exponent as an integer, as a float less the bias, and the significand in [sqrt(1/2), sqrt(2))."""
    layout = FORMATS[x.element]
    adjusted = x.bits() + (layout.one_bits - layout.sqrt_half_bits)
    biased = adjusted.logical_shift_right(layout.significand_bits)
    # An integer placed in the low bits of 2^significand_bits becomes a float by one subtraction.
    unit = 2.0**layout.significand_bits
    unit_bits = (layout.bias + layout.significand_bits) << layout.significand_bits
    k = (biased | unit_bits).as_float() - (unit + layout.bias)
    significand = ((adjusted & ((1 << layout.significand_bits) - 1)) + layout.sqrt_half_bits).as_float()
    return biased, k, significand


def reduce(x: Lanes) -> Reduced:
    layout = FORMATS[x.element]
    if x.can_scale():
        exponent, significand = x.exponent(), x.significand()
        large = significand.bits() >= layout.sqrt_half_bits + (1 << layout.significand_bits)
        k = large.choose(exponent + 1.0, exponent)
        return Reduced(k, large.choose(significand * 0.5, significand) - 1.0)
    subnormal = x < layout.smallest_normal
    normal = subnormal.choose(x * 2.0**layout.subnormal_shift, x)
    _, k, significand = _exponent_and_fraction(normal)
    shift = subnormal.choose(x.constant(-layout.subnormal_shift), 0.0)
    return Reduced(k + shift, significand - 1.0)


def reduce_one_plus(x: Lanes, x_low: Lanes | None = None) -> Reduced:
    """The reduction of 1 + x + x_low for x above -1."""
    layout = FORMATS[x.element]
    biased, k, _ = _exponent_and_fraction(x + 1.0)
    # 2^-k is subnormal for the largest x, 2^(2 - k) never.
    scale = (((2 * layout.bias + 2) << layout.significand_bits) - (biased << layout.significand_bits)).as_float()
    quarter, scale_less_one = x * 0.25, scale.times_plus(0.25, -1.0)
    f = quarter.times_plus(scale, scale_less_one)
    f_low = quarter.times_plus(scale, scale_less_one - f)
    if x_low is not None:
        f_low = (x_low * 0.25).times_plus(scale, f_low)
    return Reduced(k, f, f_low)


def _finish(x: Lanes, result: Lanes, pole: float) -> Lanes:
    """-inf at the pole, NaN below it, x itself for inf and NaN."""
    above = x.unordered_or(">", pole)
    outside = x.equals(pole).choose(x.constant(-INFINITY), NAN)
    return above.choose((x < INFINITY).choose(result, x), outside)


def log(x: Lanes) -> Lanes:
    return _finish(x, reduce(x).logarithm(NATURAL), 0.0)


def log2(x: Lanes) -> Lanes:
    return _finish(x, reduce(x).logarithm(BINARY), 0.0)


def log10(x: Lanes) -> Lanes:
    return _finish(x, reduce(x).logarithm(DECIMAL), 0.0)


def log1p(x: Lanes) -> Lanes:
    result = reduce_one_plus(x).logarithm(NATURAL)
    return (x.absolute() < FORMATS[x.element].tiny).choose(x, _finish(x, result, -1.0))


def asinh(x: Lanes) -> Lanes:
    """log1p(a + a^2 / (1 + sqrt(a^2 + 1))) for a = |x|."""
    layout = FORMATS[x.element]
    a = x.absolute()
    large = a > layout.large
    square = a * a
    part = square / (1.0 + (square + 1.0).square_root())
    total = a + part
    low = (a - total) + part
    result = _large_or(large, a, total, low)
    result = (a < INFINITY).choose(result, a)
    return (a < layout.tiny).choose(x, result.with_sign_of(x))


def acosh(x: Lanes) -> Lanes:
    """log1p(t + sqrt(2 t + t^2)) for t = x - 1."""
    layout = FORMATS[x.element]
    large = x > layout.large
    t = x - 1.0
    square = t.times_plus(t, t * 2.0)
    square_low = t.times_plus(t, t * 2.0 - square)
    root = square.square_root()
    root_low = ((-root).times_plus(root, square) + square_low) / (root * 2.0)
    total = root + t
    low = ((root - total) + t) + (t > 0.0).choose(root_low, 0.0)
    result = _large_or(large, x, total, low)
    return (x < INFINITY).choose((x >= 1.0).choose(result, NAN), x)


def _large_or(large: Lanes, x: Lanes, total: Lanes, low: Lanes) -> Lanes:
    """log(2 x) where x is large, otherwise log1p(total + low)."""
    reduced = reduce_one_plus(large.choose(x, total), large.choose(x.constant(0.0), low))
    doubled = Reduced(reduced.k + large.choose(x.constant(1.0), 0.0), reduced.f, reduced.f_low)
    return doubled.logarithm(NATURAL)


def atanh(x: Lanes) -> Lanes:
    """log1p(2 a / (1 - a)) / 2 for a = |x|, the quotient corrected for what its roundings lost."""
    layout = FORMATS[x.element]
    a = x.absolute()
    twice, denominator = a * 2.0, 1.0 - a
    denominator_low = (1.0 - denominator) - a
    reciprocal = 1.0 / denominator
    quotient = twice * reciprocal
    left = (-quotient).times_plus(denominator_low, (-quotient).times_plus(denominator, twice))
    result = reduce_one_plus(quotient, left * reciprocal).logarithm(NATURAL) * 0.5
    outside = a.equals(1.0).choose(x.constant(INFINITY), NAN)
    result = (a < 1.0).choose(result, outside).with_sign_of(x)
    return (a < layout.tiny).choose(x, result)
