"""erf and erfc.

With tables in registers, erf is piecewise (`vector_math_pieces.py`), and erfc is exp(-x^2) times a piecewise function.
Without them, up to 1, erf(x) = x + x P(x^2). Beyond, `f32` needs one polynomial more; `f64` takes
erfc(x) = exp(-x^2) g(x), with g a polynomial in q = 1 / (x + 3) (after Schonfelder, "Chebyshev expansions for the error
and related functions").
"""

from __future__ import annotations

import math

from tilewright.targets.llvm.values import Lanes, exact_product, exact_sum, horner, polynomial, through_double
from tilewright.targets.llvm.vector_math_exp import FORMATS, Reduced, reduce
from tilewright.targets.llvm.vector_math_pieces import by_pieces
from tilewright.targets.llvm.vector_math_tables import OCTAVES, PIECES, TABLES

# Where erf rounds to 1, and where erfc rounds to 0.
ERF_IS_ONE = {"f32": 4.0, "f64": 6.0}
ERFC_IS_ZERO = {"f32": 10.1, "f64": 27.3}
ERFC_TAIL_START = 0.8
# Centres of the polynomials for the tails, as in the generator.
ERF_TAIL_CENTRE, ERFC_TAIL_CENTRE = 2.5, 0.140625


def erf(x: Lanes) -> Lanes:
    if x.most_looked_up() in PIECES["ERF"]:
        return by_pieces(x, "ERF")
    a = x.absolute()
    square = a * a
    near = a.times_plus(polynomial(square, TABLES["ERF"][x.element]), a)
    if x.element == "f32":
        # Exact, so that `1 - erf` vanishes there: times a large number its last bit is one too. What the polynomial is
        # beyond does not matter.
        far = horner(a - ERF_TAIL_CENTRE, TABLES["ERF_TAIL"]["f32"])
        far = (a >= ERF_IS_ONE["f32"]).choose(a.constant(1.0), far)
    else:
        tail, _, reduced = _tail(a.at_most(ERF_IS_ONE["f64"]))
        far = (-tail).times_plus(reduced.scale(), 1.0)
    return (a < 1.0).choose(near, far).with_sign_of(x)


def erfc(x: Lanes) -> Lanes:
    if x.most_looked_up() in OCTAVES:
        return _erfc_by_octaves(x)
    if x.element == "f32":
        return through_double(erfc, x)
    a = x.absolute()
    # 1 - (x + x P), the difference 1 - x in two parts.
    difference = 1.0 - x
    rest = (1.0 - difference) - x
    near = difference + (-x).times_plus(polynomial(a * a, TABLES["ERF"][a.precision]), rest)
    beyond = a.at_least(ERFC_TAIL_START).at_most(ERFC_IS_ZERO["f64"])
    far = _tail_for_single(beyond) if x.for_single else _tail_in_full(beyond)
    return (a < ERFC_TAIL_START).choose(near, (x < 0.0).choose(2.0 - far, far))


def _erfc_by_octaves(x: Lanes) -> Lanes:
    """exp(-a^2) g(a) with a = |x|, both factors in two parts. g is a polynomial on each of some intervals, which are
    numbered by the exponent and the first bits of the significand of a and an offset."""
    layout, intervals = FORMATS[x.element], x.most_looked_up()
    offset, in_two_parts, tables = OCTAVES[intervals]
    # Without the instruction that scales in one step, as far as its two factors are 0, not subnormal.
    most = ERFC_IS_ZERO[x.element] if x.can_scale() else math.sqrt(layout.vanishing * math.log(2.0))
    a = x.absolute().at_most(most)
    bits = (a + offset).bits()
    # An interval of an octave has as many bits of the significand as are left.
    inside = layout.significand_bits - (intervals // 4).bit_length() + 1
    number = (bits >> inside).as_float()
    middle = ((bits & (-1 << inside)) | (1 << (inside - 1))).as_float() - offset
    t = a - middle
    coefficients = [number.looked_up(table) for table in tables]
    constant, *others = coefficients[in_two_parts:]
    rest = t.times_plus(horner(t, others), horner(t, coefficients[:in_two_parts]))
    g = constant + rest
    g_low = (constant - g) + rest

    square = a * a
    reduced = reduce(-square)
    exponential, exponential_low = reduced.exponential(-a.times_plus(a, -square))
    product = exponential * g
    low = exponential.times_plus(g_low, exponential.times_plus(g, -product))
    value = product + exponential_low.times_plus(g, low)
    far = value.scaled_by(reduced.n, a.unordered_or("<", most)) if x.can_scale() else reduced.scaled(value)
    return (x < 0.0).choose(2.0 - far, far)


def _tail_for_single(x: Lanes) -> Lanes:
    """erfc(x) from 0.8 up for an x that came from `f32`, whose square is exact."""
    reduced = reduce(-(x * x))
    q = 1.0 / (x + 3.0)
    g = q * polynomial(q - ERFC_TAIL_CENTRE, TABLES["ERFC_TAIL"]["mixed"])
    return reduced.scaled((1.0 + reduced.expm1()) * g)


def _tail_in_full(x: Lanes) -> Lanes:
    """erfc(x) from 0.8 up."""
    tail, tail_low, reduced = _tail(x)
    return reduced.scaled(tail + tail_low)


def _tail(x: Lanes) -> tuple[Lanes, Lanes, Reduced]:
    """erfc(x) from 0.8 up as 2^n times the sum of two doubles; n stands in the third part."""
    square = x * x
    square_low = x.times_plus(x, -square)
    reduced = reduce(-square)
    exponential, exponential_low = reduced.exponential(-square_low)

    denominator, denominator_low = exact_sum(x, x.constant(3.0))
    q = 1.0 / denominator
    q_low = q * (-q).times_plus(denominator_low, (-q).times_plus(denominator, 1.0))
    centred = q - ERFC_TAIL_CENTRE
    constant, constant_low, slope, slope_low, *others = TABLES["ERFC_TAIL"]["f64"]
    line, line_low = exact_product(centred, x.constant(slope))
    line, sum_low = exact_sum(x.constant(constant), line)
    curve = (centred * centred) * polynomial(centred, others)
    factor = line + curve
    factor_low = ((line - factor) + curve) + (line_low + sum_low + centred.times_plus(slope_low, constant_low))
    g = q * factor
    # How g moves with q: its logarithmic derivative is close to 1 + 6 q.
    g_low = q.times_plus(factor_low, q.times_plus(factor, -g)) + q_low * factor * q.times_plus(6.0, 1.0)

    product = exponential * g
    low = exponential.times_plus(g_low, exponential.times_plus(g, -product))
    return product, exponential_low.times_plus(g, low), reduced
