"""pow, cbrt, hypot and rsqrt."""

from __future__ import annotations

import math

import msgspec

from tilewright.targets.llvm.values import Lanes, exact_product, exact_sum, intrinsic, polynomial, through_double
from tilewright.targets.llvm.vector_math_exp import FORMATS, reduce
from tilewright.targets.llvm.vector_math_log import NATURAL
from tilewright.targets.llvm.vector_math_log import reduce as reduce_logarithm
from tilewright.targets.llvm.vector_math_looked_up_power import clamped_to_finite, looked_up_power
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, TABLES

# Beyond these, x^2 overflows or loses bits; scaling by 2^600 either way brings both sides of a triangle back.
SAFE_LARGE, SAFE_SMALL, RESCALE = 2.0**500, 2.0**-400, 2.0**600


class CubeRootFormat(msgspec.Struct, frozen=True):
    """Constants of the first guess at 1 / cbrt(x): `inverse_bits` less a third of x's bit pattern is 3 % off at most.

    `dropped_bits` are left out of the patterns so that the rest is an exact float. The scales keep clear of subnormals.
    """

    dropped_bits: int
    unit_exponent: int
    inverse_bits: int
    smallest_normal: float
    scale_up: float
    scale_down: float


CUBE_ROOT = {
    "f32": CubeRootFormat(9, 23, 0x54A2FA8C, 2.0**-126, 2.0**24, 2.0**-8),
    "f64": CubeRootFormat(12, 52, 0x553EF0FF289DD796, 2.0**-1022, 2.0**54, 2.0**-18),
}


def rsqrt(x: Lanes) -> Lanes:
    """A root and a division, or a guess y, sharpened by the series of (1 - e)^(-1/2) for e = 1 - x y^2."""
    if not x.can_scale():
        return 1.0 / x.square_root()
    y = guess = x.inverse_square_root_guess()
    e = excess = (-(x * y)).times_plus(y, 1.0)
    y = (y * e).times_plus(polynomial(e, (1 / 2, 3 / 8)), y)
    if x.precision == "f64":
        e = (-(x * y)).times_plus(y, 1.0)
        y = (y * e).times_plus(0.5, y)
    # 0 times inf is NaN: the guess is the result then.
    return excess.is_nan().choose(guess, y)


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """sqrt(x^2 + y^2) without overflow; inf where either is, even with a NaN."""
    if x.element == "f32":
        return through_double(hypot, x, y)
    a, b = x.absolute(), y.absolute()
    swap = b > a
    large, small = swap.choose(b, a), swap.choose(a, b)
    one = x.constant(1.0)
    down, up = large > SAFE_LARGE, large < SAFE_SMALL
    scale = down.choose(one * (1.0 / RESCALE), up.choose(one * RESCALE, one))
    back = down.choose(one * RESCALE, up.choose(one * (1.0 / RESCALE), one))
    large, small = large * scale, small * scale
    root = large.times_plus(large, small * small).square_root() * back
    infinite = a.equals(math.inf) | b.equals(math.inf)
    return infinite.choose(x.constant(math.inf), root)


def cbrt(x: Lanes) -> Lanes:
    """x y^2 for y = 1 / cbrt(x): a guess from the bit pattern, sharpened by the series of (1 - e)^(-1/3)."""
    layout, a = CUBE_ROOT[x.element], x.absolute()
    subnormal = a < layout.smallest_normal
    normal = subnormal.choose(a * layout.scale_up, a)
    y = _inverse_cube_root_guess(normal)
    for terms in (4, 2) if x.element == "f64" else (4,):
        e = (-(y * normal)).times_plus(y * y, 1.0)
        y = (y * e).times_plus(polynomial(e, (1 / 3, 2 / 9, 14 / 81, 35 / 243)[:terms]), y)
    square = y * y
    root = normal * square
    # One step of Newton with the cube to twice the precision.
    root_square, lost = exact_product(root, root)
    excess = lost.times_plus(root, root_square.times_plus(root, -normal))
    root = (-excess).times_plus(square * (1 / 3), root)
    result = subnormal.choose(root * layout.scale_down, root).with_sign_of(x)
    ordinary = (a > 0.0) & (a < math.inf)
    return ordinary.choose(result, x)


def _inverse_cube_root_guess(x: Lanes) -> Lanes:
    layout = CUBE_ROOT[x.element]
    unit = 2.0**layout.unit_exponent
    bias = FORMATS[x.element].largest_exponent
    unit_bits = (bias + layout.unit_exponent) << FORMATS[x.element].significand_bits
    kept = (x.bits().logical_shift_right(layout.dropped_bits) | unit_bits).as_float() - unit
    guess = kept.times_plus(-1 / 3, float(layout.inverse_bits >> layout.dropped_bits)) + unit
    return (guess.bits() << layout.dropped_bits).as_float()


def power(x: Lanes, y: Lanes) -> Lanes:
    """x to the power y, with the special cases of C99."""
    a = x.absolute()
    if not x.can_scale():
        result = _power_of_absolute(a, y)
    else:
        result = looked_up_power(a, y) if x.most_looked_up() == 32 else _positive_power(a, clamped_to_finite(y))
    integral = _truncated(y).equals(y)
    half = y * 0.5
    odd = integral & half.wrap(half.builder.fcmp_ordered("!=", _truncated(half).value, half.value))
    result = ((x.bits() < 0) & odd).choose(-result, result)
    # A negative base has no power but for integers; infinite exponents count as even.
    undefined = (x < 0.0) & (a < math.inf) & (integral ^ integral.constant(1))
    result = undefined.choose(x.constant(math.nan), result)
    return (x.equals(1.0) | y.equals(0.0)).choose(x.constant(1.0), result)


def _power_of_absolute(a: Lanes, y: Lanes) -> Lanes:
    """The power of a number that is not below 0, infinity and NaN among them; of 0 and 1 for a `y` other than 0."""
    result = through_double(_positive_power, a, y) if a.element == "f32" else _positive_power(a, y)
    zero, one, infinity = a.constant(0.0), a.constant(1.0), a.constant(math.inf)
    vanishes = (a < 1.0) ^ (y < 0.0)
    result = (a.equals(0.0) | a.equals(math.inf)).choose(vanishes.choose(zero, infinity), result)
    result = a.equals(1.0).choose(one, result)
    return (a.is_nan() | y.is_nan()).choose(a.constant(math.nan), result)


def _truncated(x: Lanes) -> Lanes:
    return x.wrap(intrinsic(x.builder, "trunc", [x.value]))


def _positive_power(a: Lanes, y: Lanes) -> Lanes:
    """exp(y log a) for finite a above 0, for any where the processor scales by powers of two. A result in `f32` needs
    no more of the logarithm than a double holds."""
    layout = FORMATS["f64"]
    if a.for_single:
        inside = (y * reduce_logarithm(a).logarithm(NATURAL)).at_most(layout.overflow).at_least(layout.underflow)
        reduced = reduce(inside)
        return reduced.scaled(1.0 + reduced.expm1())
    high, low = _precise_logarithm(a)
    product, product_low = exact_product(y, high)
    product_low = y.times_plus(low, product_low)
    # Far outside the range the low part may be inf - inf.
    product_low = (product.absolute() < 1000.0).choose(product_low, 0.0)
    reduced = reduce(product.at_most(layout.overflow).at_least(layout.underflow))
    rounded, lost = reduced.exponential(product_low)
    if a.can_scale():
        return (rounded + lost).scaled_by(reduced.n, product.unordered_or(">=", layout.underflow))
    return reduced.scaled(rounded + lost)


def _precise_logarithm(a: Lanes) -> tuple[Lanes, Lanes]:
    """log(a) as the sum of two doubles, good to about 2^-65: k log(2) + 2 (s + s^3 (1/3 + s^2 T(s^2)))."""
    parts = reduce_logarithm(a)
    k, f = parts.k, parts.f
    # s = f / (2 + f)
    denominator, denominator_low = exact_sum(f.constant(2.0), f)
    reciprocal = 1.0 / denominator
    s = f * reciprocal
    s_low = (-s).times_plus(denominator_low, (-s).times_plus(denominator, f)) * reciprocal
    u, u_low = exact_product(s, s)
    u_low = (s * 2.0).times_plus(s_low, u_low)
    third, third_low = CONSTANTS["THIRD"]["f64"]
    w_tail = u.times_plus(polynomial(u, TABLES["ATANH"]["f64"]), third_low)
    w = w_tail + third
    w_low = (third - w) + w_tail
    z, z_low = exact_product(u, w)
    z_low = u.times_plus(w_low, u_low.times_plus(w, z_low))
    v, v_low = exact_product(s, z)
    v_low = s.times_plus(z_low, s_low.times_plus(z, v_low))
    fraction = s + v
    fraction_low = ((s - fraction) + v) + (s_low + v_low)

    log2_high, log2_low = CONSTANTS["LOG_2"]["f64"]
    whole, whole_low = exact_product(k, k.constant(log2_high))
    whole_low = k.times_plus(log2_low, whole_low)
    total = fraction.times_plus(2.0, whole)
    lost = fraction.times_plus(2.0, whole - total) + fraction_low.times_plus(2.0, whole_low)
    return total, lost
