"""exp, exp2, expm1, sigmoid and the hyperbolic functions.

All reduce x to n log(2) + r with |r| <= log(2) / 2 (Cody and Waite, "Software Manual for the Elementary Functions":
log(2) in two parts; with fused steps x less n times the first is exact) and scale a polynomial in r by 2^n.
"""

from __future__ import annotations

import math

import msgspec

from tilewright.targets.llvm.values import Lanes, exact_sum, horner, polynomial
from tilewright.targets.llvm.vector_math_pieces import by_pieces
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, PIECES, TABLES

LOG2_E = math.log2(math.e)
# Where the polynomial for tanh near 0 ends.
_NEAR = 0.55


class ExponentialFormat(msgspec.Struct, frozen=True):
    """Constants of the reduction for a float type.

    Adding `round_constant` (1.5 times 2 to the last bit of the significand) leaves the nearest integer in the low bits.
    `overflow` and `underflow` are just beyond the logarithms of the largest and the smallest number. Below `tiny`,
    sinh(x) and expm1(x) round to x. Beyond `saturated`, exp(-x) is negligible next to 1.
    """

    significand_bits: int
    round_constant: float
    largest_exponent: int
    overflow: float
    underflow: float
    saturated: float
    tiny: float

    @property
    def vanishing(self) -> int:
        """The n for which the factors of 2^-n in `Reduced.scaled` are 0. Multiplying by them is as quick as by others;
        a result that has to be rounded to a subnormal number, or from there to 0, takes x86 processors up to a hundred
        times as long."""
        return 2 * self.largest_exponent

    def bits_of(self, exponent: int) -> int:
        """The bit pattern of 2^exponent."""
        return (self.largest_exponent + exponent) << self.significand_bits


FORMATS = {
    "f32": ExponentialFormat(
        significand_bits=23,
        round_constant=1.5 * 2.0**23,
        largest_exponent=127,
        overflow=88.8,
        underflow=-104.0,
        saturated=18.0,
        tiny=2.0**-25,
    ),
    "f64": ExponentialFormat(
        significand_bits=52,
        round_constant=1.5 * 2.0**52,
        largest_exponent=1023,
        overflow=709.9,
        underflow=-746.0,
        saturated=40.0,
        tiny=2.0**-54,
    ),
}


class Reduced(msgspec.Struct, frozen=True):
    """x = n log(2) + r + r_error: `exponent` is n as it stands in a float's exponent field, `r_error` what r lost.

    LLVM leaves no code of what is not used.
    """

    n: Lanes
    exponent: Lanes
    r: Lanes
    r_error: Lanes

    @property
    def layout(self) -> ExponentialFormat:
        return FORMATS[self.r.element]

    def scale(self, power: int = 0) -> Lanes:
        """2^(n + power), which must be a normal number."""
        return (self.exponent + self.layout.bits_of(power)).as_float()

    def inverse_scale(self, power: int) -> Lanes:
        """2^(power - n), 0 where that is not a normal number."""
        return (self.layout.bits_of(power) - self.exponent).at_least(0).as_float()

    def scaled(self, value: Lanes) -> Lanes:
        """`value` times 2^n in two factors, so that n may lead to a subnormal number or past the largest one."""
        half = (self.exponent >> 1) & (-1 << self.layout.significand_bits)
        one = self.layout.bits_of(0)
        return value * (half + one).as_float() * (self.exponent - half + one).as_float()

    def expm1_tail(self) -> Lanes:
        """exp(r) - 1 - r, with what rounding r lost."""
        return (self.r * self.r).times_plus(polynomial(self.r, TABLES["EXPM1"][self.r.precision]), self.r_error)

    def expm1(self) -> Lanes:
        """exp(r) - 1."""
        return self.expm1_tail() + self.r

    def exponential(self, low: Lanes) -> tuple[Lanes, Lanes]:
        """exp(r + low) in two parts, for a `low` whose square does not count."""
        tail = self.expm1_tail()
        less_one = self.r + tail
        rounded, lost = exact_sum(self.r.constant(1.0), less_one)
        return rounded, rounded.times_plus(low, lost + ((self.r - less_one) + tail))


def reduce(x: Lanes) -> Reduced:
    layout = FORMATS[x.element]
    shifted = x.times_plus(LOG2_E, layout.round_constant)
    n = shifted - layout.round_constant
    log2_high, log2_low = CONSTANTS["LOG_2"][x.element]
    high = n.times_plus(-log2_high, x)
    r = n.times_plus(-log2_low, high)
    r_error = n.times_plus(-log2_low, high - r)
    return Reduced(n, shifted.bits() << layout.significand_bits, r, r_error)


def exp(x: Lanes) -> Lanes:
    return _exp_up_to(x, FORMATS[x.element].overflow)


def _exp_up_to(x: Lanes, most: float) -> Lanes:
    """exp of the lesser of x and `most`."""
    layout = FORMATS[x.element]
    below = x.at_most(most)
    reduced = reduce(below if x.can_scale() else below.at_least(-layout.vanishing * math.log(2.0)))
    r = reduced.r
    # In one chain: an operation less than in two, which other vectors overlap.
    value = horner(r, (1.0, 1.0, *TABLES["EXP"][x.element]))
    if x.can_scale():
        return value.scaled_by(reduced.n, x.unordered_or(">=", layout.underflow))
    return reduced.scaled(value)


def exp2(x: Lanes) -> Lanes:
    layout = FORMATS[x.element]
    inside = x.at_most(layout.largest_exponent + 1.0).at_least(-layout.vanishing)
    shifted = inside + layout.round_constant
    n = shifted - layout.round_constant
    r = inside - n
    reduced = Reduced(n, shifted.bits() << layout.significand_bits, r, r.constant(0.0))
    return reduced.scaled(r.times_plus(polynomial(r, TABLES["EXP2"][x.element]), 1.0))


def expm1(x: Lanes) -> Lanes:
    layout = FORMATS[x.element]
    reduced = reduce(x.at_most(layout.overflow).at_least(-layout.saturated))
    # Half of 2^n, since n may be one more than the largest exponent.
    half = reduced.scale(-1)
    result = half.times_plus(reduced.expm1(), half - 0.5) * 2.0
    return (x.absolute() < layout.tiny).choose(x, result)


def sigmoid(x: Lanes) -> Lanes:
    """With e = exp(-|x|) and t = e / (1 + e): 1 - t from 0 up, t from -1 up, e - e t below, where e rounds worse; where
    the processor scales in one step as (m - m t) 2^n with m = e / 2^n."""
    layout = FORMATS[x.element]
    negative = x < 0.0
    # From where on the rest of the scale, below, is 0.
    least = -layout.largest_exponent // 2
    vanishing = (least - layout.largest_exponent) * math.log(2.0)
    lowest = negative.choose(x.constant(layout.underflow if x.can_scale() else vanishing), -layout.saturated)
    reduced = reduce((-x.absolute()).at_least(lowest))
    # What rounding r lost is less than a sixth of the last place here.
    r = reduced.r
    less_one = (r * r).times_plus(polynomial(r, TABLES["EXPM1"][r.precision]), r)
    if x.can_scale():
        m = less_one + 1.0
        t = _of_one_more(m.scaled_by(reduced.n))
        correction = negative.choose((-m).times_plus(t, less_one), -t)
        result = (correction + 1.0).scaled_by(negative.choose(reduced.n, 0.0))
    else:
        # e may be subnormal: keep it within the normal numbers, and what is left of its scale for the end.
        exponent = reduced.exponent.at_least(least << layout.significand_bits)
        scale = (exponent + layout.bits_of(0)).as_float()
        rest = (reduced.exponent - exponent + layout.bits_of(0)).as_float()
        e = scale.times_plus(less_one, scale)
        t = _of_one_more(e)
        correction = negative.choose((-e).times_plus(t, scale * less_one), -t)
        result = (negative.choose(scale, 1.0) + correction) * rest
    return (negative & (x > -1.0)).choose(t, result)


def sigmoid_in_f32(x: Lanes) -> Lanes:
    """For results that are rounded to fewer bits: e / (1 + e) with e = exp(x), within 2.5 ULP of f32."""
    return _of_one_more(_exp_up_to(x, FORMATS[x.element].saturated))


def _of_one_more(e: Lanes) -> Lanes:
    """e / (1 + e)."""
    return e / (e + 1.0)


def tanh(x: Lanes) -> Lanes:
    """m / (m + 2) for m = expm1(2|x|), as m/2 - m/2 m/(m + 2) where m is small, which rounds better."""
    if x.most_looked_up() in PIECES["TANH"]:
        return by_pieces(x, "TANH")
    if x.element in TABLES["TANH_NEAR"]:
        return _tanh_near_and_far(x)
    layout = FORMATS[x.element]
    reduced = reduce((x.absolute() * 2.0).at_most(layout.saturated))
    scale = reduced.scale()
    m = scale.times_plus(reduced.expm1(), scale - 1.0)
    quotient, half = m / (m + 2.0), m * 0.5
    small = (-half).times_plus(quotient, half)
    return (m < 1.0).choose(small, quotient).with_sign_of(x)


def _tanh_near_and_far(x: Lanes) -> Lanes:
    """An odd polynomial near 0, and 1 - 2 / (exp(2|x|) + 1) beyond. Against 1, it does not count what the quotient
    lost, nor that log(2) is in one part."""
    layout, element = FORMATS[x.element], x.element
    magnitude = x.absolute()
    # With 2^n in the field of the exponent.
    round_constant = layout.round_constant + layout.largest_exponent
    inside = magnitude.at_most(layout.saturated / 2)
    shifted = inside.times_plus(2 * LOG2_E, round_constant)
    r = (shifted - round_constant).times_plus(-math.log(2.0), inside + inside)
    less_one = (r * r).times_plus(polynomial(r, TABLES["EXP"][element]), r)
    scale = (shifted.bits() << layout.significand_bits).as_float()
    far = 1.0 - 2.0 / scale.times_plus(less_one, scale + 1.0)
    square = magnitude * magnitude
    near = (square * horner(square, TABLES["TANH_NEAR"][element])).times_plus(magnitude, magnitude)
    return (magnitude < _NEAR).choose(near, far).with_sign_of(x)


def sinh(x: Lanes) -> Lanes:
    """sinh(n log 2) cosh(r) + cosh(n log 2) sinh(r)."""
    layout = FORMATS[x.element]
    magnitude = x.absolute()
    growing, falling, sinh_r, cosh_r_less_one = _hyperbolic_parts(magnitude)
    half_sinh_n, half_cosh_n = growing - falling, growing + falling
    half = half_sinh_n + half_sinh_n.times_plus(cosh_r_less_one, half_cosh_n * sinh_r)
    return (magnitude < layout.tiny).choose(x, (half * 2.0).with_sign_of(x))


def cosh(x: Lanes) -> Lanes:
    """(2^n exp(r) + 2^-n exp(-r)) / 2."""
    growing, falling, sinh_r, cosh_r_less_one = _hyperbolic_parts(x.absolute())
    inverse = falling.times_plus(cosh_r_less_one - sinh_r, falling)
    return (growing + growing.times_plus(cosh_r_less_one + sinh_r, inverse)) * 2.0


def _hyperbolic_parts(magnitude: Lanes) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """2^n / 4, 2^-n / 4, sinh(r) and cosh(r) - 1."""
    reduced = reduce(magnitude.at_most(FORMATS[magnitude.element].overflow + math.log(2.0)))
    r, square = reduced.r, reduced.r * reduced.r
    sinh_tail = (square * r).times_plus(polynomial(square, TABLES["SINH"][r.element]), reduced.r_error)
    cosh_tail = square * polynomial(square, TABLES["COSH"][r.element])
    return reduced.scale(-2), reduced.inverse_scale(-2), r + sinh_tail, cosh_tail
