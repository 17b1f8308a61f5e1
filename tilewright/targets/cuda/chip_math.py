"""Functions of f32 by the chip's own instructions, without a branch, on scalars or vectors.

MUFU, the unit for such functions, gives 2^x within 2^-22 of the result, 1/x within 1 ULP and 1/sqrt(x) within 2^-22.9
of the result (PTX ISA, "ex2", "rcp" and "rsqrt"). This module reduces arguments so that MUFU is exact enough, and
reconstructs results from its output.
"""

from __future__ import annotations

import math

from tilewright.targets.llvm.values import FLOAT, Lanes, horner, polynomial
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, TABLES
from tilewright.targets.simt.lane_groups import in_each_lane

LOG2_E, LOG2_E_LOW = CONSTANTS["LOG2_E"]["f32"]
# Powers of two from 2^-126 to 2^126 are normal numbers. What an argument is beyond them stays in the fraction.
_LAST_POWER = 126
# Where the last bit of an f32 counts ones; in the low bits stands then the exponent field of the power.
_ROUNDING, _BIAS, _FIELD = 1.5 * 2.0**23, 127, 23
# Operands and quotients between these are divided exactly: nothing on the way overflows or loses bits.
LEAST, MOST = 2.0**-100, 2.0**125
# Below, tanh is a polynomial: less than a power of two beside 1 would lose bits.
_TANH_IS_NEAR = 0.55
_ERF_IS_ONE = 4.0


def chip(x: Lanes, name: str, *others: Lanes | float) -> Lanes:
    """An instruction by its intrinsic, lane by lane."""
    arguments = [x.value, *(x.of(other) for other in others)]
    return x.wrap(in_each_lane(x.builder, f"llvm.nvvm.{name}", FLOAT, arguments))


def maximum(x: Lanes, y: Lanes) -> Lanes:
    """NaN where either operand is."""
    return chip(x, "fmax.nan.f", y)


def minimum(x: Lanes, y: Lanes) -> Lanes:
    """NaN where either operand is."""
    return chip(x, "fmin.nan.f", y)


def power_of_two(x: Lanes) -> Lanes:
    """2^x; 0 where that is not a normal number."""
    return chip(x, "ex2.approx.ftz.f")


def _inverse(x: Lanes) -> Lanes:
    """1/x; 0 where that is not a normal number."""
    return chip(x, "rcp.approx.ftz.f")


def exp(x: Lanes) -> Lanes:
    """2^n 2^f with x = (n + f) log(2): n nearest to it, from -126 to 126, and f the rest, by log2(e) in two parts."""
    position = chip(x, "fma.rn.sat.f", LOG2_E / (2 * _LAST_POWER), 0.5)
    shifted = position.times_plus(2.0 * _LAST_POWER, _ROUNDING + _BIAS - _LAST_POWER)
    n = shifted - (_ROUNDING + _BIAS)
    fraction = x.times_plus(LOG2_E_LOW, x.times_plus(LOG2_E, -n))
    return power_of_two(fraction) * (shifted.bits() << _FIELD).as_float()


def exp2(x: Lanes) -> Lanes:
    return chip(x, "ex2.approx.f")


def sigmoid(x: Lanes) -> Lanes:
    """1 / (1 + e) from 0 up and e / (1 + e) below, for e = exp(-|x|)."""
    e = exp(-x.absolute())
    whole = _inverse(e + 1.0)
    return (x < 0.0).choose(e * whole, whole)


def tanh(x: Lanes) -> Lanes:
    """1 - 2 / (exp(2|x|) + 1), and x + x^3 P(x^2) where that would lose bits."""
    a, square = x.absolute(), x * x
    e = power_of_two(a * (2.0 * math.log2(math.e)))
    far = _inverse(e + 1.0).times_plus(-2.0, 1.0)
    near = (square * polynomial(square, TABLES["TANH_NEAR"]["f32"])).times_plus(a, a)
    return (a < _TANH_IS_NEAR).choose(near, far).with_sign_of(x)


def erf(x: Lanes) -> Lanes:
    """x + x P(x^2) up to 1, and beyond 1 - erfc(x) by the logarithm of that."""
    a, square = x.absolute(), x * x
    near = x.times_plus(polynomial(square, TABLES["ERF"]["f32"]), x)
    logarithm = horner(a.at_most(_ERF_IS_ONE) - 1.0, TABLES["ERFC_LOG2"]["f32"])
    return (a < 1.0).choose(near, (1.0 - power_of_two(logarithm)).with_sign_of(x))


def _within(x: Lanes, low: float, high: float) -> Lanes:
    size = x.absolute()
    return (size > low) & (size < high)


def divide(x: Lanes, y: Lanes) -> Lanes:
    """Correctly rounded, by steps without a branch, where operands and result are normal numbers some way from the ends
    of the range (P. Markstein, "IA-64 and Elementary Functions", section 8), and within 2 ULP elsewhere."""
    inverse, opposite = _inverse(y), -y
    inverse = opposite.times_plus(inverse, 1.0).times_plus(inverse, inverse)
    quotient = x * inverse
    for _ in range(2):
        quotient = opposite.times_plus(quotient, x).times_plus(inverse, quotient)
    plain = _within(x, LEAST, MOST) & _within(y, LEAST, MOST) & _within(quotient, LEAST, MOST)
    return plain.choose(quotient, divide_roughly(x, y))


def divide_roughly(x: Lanes, y: Lanes) -> Lanes:
    """Within 2 ULP. The instruction takes no divisors from 2^126 on: both operands are made smaller for them."""
    scale = (y.absolute() >= 2.0**126).choose(y.constant(0.25), 1.0)
    return chip(x * scale, "div.full", y * scale)


def reciprocal(x: Lanes) -> Lanes:
    """As `divide`."""
    return divide(x.constant(1.0), x)


def square_root(x: Lanes) -> Lanes:
    """Correctly rounded within the same limits, and within 2 ULP elsewhere."""
    root, inverse = chip(x, "sqrt.approx.f"), chip(x, "rsqrt.approx.f")
    refined = (-root).times_plus(root, x).times_plus(inverse * 0.5, root)
    return _within(x, LEAST, MOST).choose(refined, root)


def inverse_square_root(x: Lanes) -> Lanes:
    return chip(x, "rsqrt.approx.f")
