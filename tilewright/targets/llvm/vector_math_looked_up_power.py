"""pow of f32 without doubles, by logarithms and powers of 2 on 32 intervals that are looked up in registers.

log2(a) is a sum of two floats with a relative error of about 2^-34, so that the error of y log2(a) is about 2^-27 at
most where 2 to this power is a number.
"""

from __future__ import annotations

import sys

from tilewright.targets.llvm.values import Lanes, exact_product, horner
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, LOOKUPS, TABLES

LARGEST = {"f32": (2.0 - 2.0**-23) * 2.0**127, "f64": sys.float_info.max}
# Beyond these, 2^p is inf or 0.
OVERFLOW, UNDERFLOW = 200.0, -150.0
# Adding it leaves the nearest multiple of 1/32 in the last bits of an `f32`.
ROUND = 1.5 * 2.0**18
# The first five bits of a significand after the leading one are those that this shifts to the end.
INTERVAL_SHIFT = 18


def looked_up_power(a: Lanes, y: Lanes) -> Lanes:
    """The power of a number that is not below 0, infinity and NaN among them; of 0 and infinity for a `y` other than 0.

    The logarithm of 0 is -inf, that of infinity inf, and NaN stays NaN. An infinite `y` acts as the largest number, of
    which the power of 1 is 1.
    """
    high, low = _logarithm(a)
    y = clamped_to_finite(y)
    product = y * high
    product_low = y.times_plus(low, y.times_plus(high, -product))
    # Far outside the range the low part may be inf - inf.
    product_low = (product.absolute() < OVERFLOW).choose(product_low, 0.0)
    product = product.at_most(OVERFLOW).at_least(-OVERFLOW)
    shifted = (product + product_low) + ROUND
    n = shifted - ROUND
    r = (product - n) + product_low
    less_one = r * horner(r, TABLES["NEAR_EXP2"]["f32"])
    power, power_low = (shifted.looked_up(LOOKUPS[name]) for name in ("EXP2_HIGH", "EXP2_LOW"))
    value = power + power.times_plus(less_one, power_low)
    return value.scaled_by(n, product.unordered_or(">=", UNDERFLOW))


def clamped_to_finite(y: Lanes) -> Lanes:
    """The largest number in place of infinity; NaN stays."""
    return y.at_most(LARGEST[y.element]).at_least(-LARGEST[y.element])


def _logarithm(a: Lanes) -> tuple[Lanes, Lanes]:
    """log2(a) in two parts: k + log2(1/c) + (r - r^2 / 2) / log(2) + r^3 q(r) for a = 2^k m and r = m c - 1."""
    m = a.significand()
    interval = m.bits().logical_shift_right(INTERVAL_SHIFT).as_float()
    c, known, known_low = (interval.looked_up(LOOKUPS[name]) for name in ("NEAR", "LOG2_HIGH", "LOG2_LOW"))
    r = m.times_plus(c, -1.0)
    slope, slope_low = CONSTANTS["LOG2_E"]["f32"]
    first = r * slope
    first_low = r.times_plus(slope_low, r.times_plus(slope, -first))
    square, square_low = exact_product(r, r)
    second = square * (-slope / 2)
    second_low = square.times_plus(-slope / 2, -second)
    second_low = square.times_plus(-slope_low / 2, square_low.times_plus(-slope / 2, second_low))
    tail = (r * square).times_plus(horner(r, TABLES["NEAR_LOG2"]["f32"]), known_low)
    whole = a.exponent() + known
    total = whole + first
    total_low = first - (total - whole)
    high = total + second
    high_low = second - (high - total)
    return high, (total_low + high_low) + ((first_low + second_low) + tail)
