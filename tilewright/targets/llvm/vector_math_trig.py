"""sin, cos and tan of every finite number.

Small arguments lose a multiple of pi given in three parts (Cody and Waite); with fused steps the first subtraction is
exact. If any lane is too large for that, a loop over the lanes takes its fraction of pi from the bits of 1 / pi (Payne
and Hanek, "Radian reduction for trigonometric functions").
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from llvmlite import ir

from tilewright.targets.llvm.values import (
    DOUBLE,
    Builder,
    Lanes,
    Value,
    element_of,
    intrinsic,
    lanes_of,
    polynomial,
    with_element,
)
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, INVERSE_PI_BITS, TABLES

WORD, DOUBLE_WORD = ir.IntType(64), ir.IntType(128)
ROUND_CONSTANT = {"f32": 1.5 * 2.0**23, "f64": 1.5 * 2.0**52}
# Beyond these the multiple of pi is too inexact for the polynomials' interval.
LARGEST_DIRECT = {"f32": 2.0**17, "f64": 2.0**40}
SIGN_SHIFT = {"f32": 31, "f64": 63}


class Angle(msgspec.Struct, frozen=True):
    """x = n pi / 2 + r + r_low; the lowest two bits of the integer `n` are right, the others are not."""

    r: Lanes
    r_low: Lanes
    n: Lanes


def _reduce(magnitude: Lanes) -> Angle:
    """Reduce |x|; a NaN or an infinity gives a NaN."""
    too_large = (magnitude > LARGEST_DIRECT[magnitude.element]) & (magnitude < math.inf)
    return _where_any(too_large, _reduce_directly(magnitude), lambda: _reduce_by_bits(magnitude))


def _reduce_directly(magnitude: Lanes) -> Angle:
    element = magnitude.element
    high, middle, low = CONSTANTS["HALF_PI"][element]
    (inverse,) = CONSTANTS["INVERSE_HALF_PI"][element]
    shifted = magnitude.times_plus(inverse, ROUND_CONSTANT[element])
    multiple = shifted - ROUND_CONSTANT[element]
    first = multiple.times_plus(-high, magnitude)
    r = multiple.times_plus(-low, multiple.times_plus(-middle, first))
    # What r lost, from the exact product and difference: first may be smaller than what is taken from it.
    product = multiple * middle
    product_low = multiple.times_plus(middle, -product)
    difference = first - product
    moved = difference - first
    difference_low = (first - (difference - moved)) - (product + moved)
    r_low = multiple.times_plus(-low, (difference - r) + (difference_low - product_low))
    return Angle(r, r_low, shifted.bits())


def _where_any(condition: Lanes, otherwise: Angle, rare: Callable[[], Angle]) -> Angle:
    """`rare()` in the lanes where `condition` holds, after a branch that is not taken when it holds in none."""
    builder = condition.builder
    needed = condition.value
    if isinstance(condition.type, ir.VectorType):
        needed = intrinsic(builder, "vector.reduce.or", [needed], ir.IntType(1))
    before = builder.block
    slow, after = builder.append_basic_block("large_angle"), builder.append_basic_block("angle")
    builder.cbranch(needed, slow, after).set_weights([1, 1000])
    builder.position_at_end(slow)
    found = rare()
    merged = (
        condition.choose(found.r, otherwise.r),
        condition.choose(found.r_low, otherwise.r_low),
        condition.choose(found.n, otherwise.n),
    )
    end = builder.block
    builder.branch(after)
    builder.position_at_end(after)
    joined: list[Lanes] = []
    for usual, changed in zip((otherwise.r, otherwise.r_low, otherwise.n), merged, strict=True):
        phi = builder.phi(usual.type)
        phi.add_incoming(usual.value, before)
        phi.add_incoming(changed.value, end)
        joined.append(condition.wrap(phi))
    return Angle(*joined)


def _reduce_by_bits(magnitude: Lanes) -> Angle:
    """The reduction in 192 bits, lane after lane."""
    if not isinstance(magnitude.type, ir.VectorType):
        return _reduce_lane(magnitude)
    builder, shape, index_type = magnitude.builder, magnitude.type, ir.IntType(32)
    word = with_element(shape, _word_of(magnitude))
    # Through memory: indexing a register by a variable stores and reloads all of it each time.
    with builder.goto_entry_block():
        arrays = [builder.alloca(kind) for kind in (shape, shape, word)]
    for array in arrays:
        array.type = ir.PointerType()  # llvmlite would still type it by its contents; here a vector is also an array
    builder.store(magnitude.value, arrays[0])
    before, loop = builder.block, builder.append_basic_block("lane")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(index_type)
    index.add_incoming(index_type(0), before)
    places = [
        builder.gep(array, [index], source_etype=element_of(kind))
        for array, kind in zip(arrays, (shape, shape, word), strict=True)
    ]
    lane = _reduce_lane(magnitude.wrap(builder.load(places[0], typ=element_of(shape))))
    for place, value in zip(places, (lane.r, lane.r_low, lane.n), strict=True):
        builder.store(value.value, place)
    following = builder.add(index, index_type(1))
    index.add_incoming(following, builder.block)
    after = builder.append_basic_block("lanes_done")
    builder.cbranch(builder.icmp_unsigned("<", following, index_type(lanes_of(shape))), loop, after)
    builder.position_at_end(after)
    kinds = (shape, shape, word)
    return Angle(*(magnitude.wrap(builder.load(a, typ=kind)) for a, kind in zip(arrays, kinds, strict=True)))


def _word_of(x: Lanes) -> ir.IntType:
    """The integer as wide as an element of x."""
    return ir.IntType(SIGN_SHIFT[x.element] + 1)


def _reduce_lane(scalar: Lanes) -> Angle:
    """Payne and Hanek's reduction of one positive finite number; any other gives some number."""
    builder = scalar.builder
    single = scalar.element == "f32"
    x = scalar.wrap(builder.fpext(scalar.value, DOUBLE)) if single else scalar
    turns = _fraction_of_pi(x.bits())
    # The two highest bits count quarter turns; the rest, moved up by two, is the nearest fraction as a signed number.
    nearest = turns + (1 << 125)
    n = scalar.wrap(builder.trunc(nearest.logical_shift_right(126).value, _word_of(scalar)))
    fraction = turns << 2
    negative = fraction < 0
    size = negative.choose(0 - fraction, fraction)
    r, r_low = _times_half_pi(size)
    r, r_low = negative.choose(-r, r), negative.choose(-r_low, r_low)
    if not single:
        return Angle(r, r_low, n)
    narrow = scalar.wrap(builder.fptrunc(r.value, scalar.type))
    rest = r - r.wrap(builder.fpext(narrow.value, DOUBLE))
    return Angle(narrow, scalar.wrap(builder.fptrunc(rest.value, scalar.type)), n)


def _fraction_of_pi(bits: Lanes) -> Lanes:
    """x / pi modulo 2 as a 128-bit integer in units of 2^-127, for the bits of a double x."""
    builder = bits.builder
    exponent = bits.logical_shift_right(52)
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    # x = significand 2^(exponent - 1075): bits of 1 / pi that weigh 2 or more against it drop out.
    offset = (exponent - (1075 - 63)).at_least(0).at_most(64 * len(INVERSE_PI_BITS) - 193)
    position, shift = offset.logical_shift_right(6), offset & 63
    table = _inverse_pi_table(builder)
    words: list[Value] = []
    for k in range(4):
        address = builder.gep(table, [WORD(0), (position + k).value], source_etype=table.value_type)
        words.append(builder.load(address, typ=WORD))
    window = [intrinsic(builder, "fshl", [words[k], words[k + 1], shift.value]) for k in range(3)]
    high, middle, low = (bits.wrap(builder.zext(part, DOUBLE_WORD)) for part in window)
    factor = bits.wrap(builder.zext(significand.value, DOUBLE_WORD))
    middle_sum = factor * middle + (factor * low).logical_shift_right(64)
    return ((factor * high) << 64) + middle_sum


def _inverse_pi_table(builder: Builder) -> Value:
    name = "tilewright.inverse_pi"
    if existing := builder.module.globals.get(name):
        return existing
    kind = ir.ArrayType(WORD, len(INVERSE_PI_BITS))
    table: Value = ir.GlobalVariable(builder.module, kind, name)
    table.linkage = "internal"
    table.global_constant = True
    table.initializer = ir.Constant(kind, list(INVERSE_PI_BITS))
    return table


def _times_half_pi(fraction: Lanes) -> tuple[Lanes, Lanes]:
    """An unsigned 128-bit fraction times pi / 2, as the sum of two doubles."""
    builder = fraction.builder
    zeros = fraction.wrap(intrinsic(builder, "ctlz", [fraction.value, ir.IntType(1)(0)]))
    normal = fraction << zeros
    high = fraction.wrap(builder.sitofp(builder.trunc(normal.logical_shift_right(75).value, WORD), DOUBLE))
    next_bits = normal.logical_shift_right(22) & ((1 << 53) - 1)
    low = fraction.wrap(builder.sitofp(builder.trunc(next_bits.value, WORD), DOUBLE)) * 2.0**-53
    exponent = 1023 - 53 - fraction.wrap(builder.trunc(zeros.value, WORD))
    scale = (exponent << 52).as_float()
    half_pi_high, half_pi_low, _ = CONSTANTS["HALF_PI"]["f64"]
    product = high * half_pi_high
    error = low.times_plus(half_pi_high, high.times_plus(half_pi_low, high.times_plus(half_pi_high, -product)))
    total = product + error
    return total * scale, ((product - total) + error) * scale


def _sine_after(angle: Angle, quarters: int) -> Lanes:
    """The bits of sin(x + quarters pi / 2)."""
    r, square, element = angle.r, angle.r * angle.r, angle.r.element
    sine = (square * polynomial(square, TABLES["SIN"][element])).times_plus(r, r)
    cosine = (square * square).times_plus(polynomial(square, TABLES["COS"][element]), square.times_plus(-0.5, 1.0))
    n = angle.n + quarters if quarters else angle.n
    shift = SIGN_SHIFT[element]
    sign = (n << (shift - 1)) & (1 << shift)
    return (n & 1).equals(0).choose(sine, cosine).bits() ^ sign


def sin(x: Lanes) -> Lanes:
    sign = x.bits() & (1 << SIGN_SHIFT[x.element])
    return (_sine_after(_reduce(x.absolute()), 0) ^ sign).as_float()


def cos(x: Lanes) -> Lanes:
    return _sine_after(_reduce(x.absolute()), 1).as_float()


def tan(x: Lanes) -> Lanes:
    """tan(r), or -1 / tan(r) an odd number of quarter turns away, tan(r) being a sum of two parts."""
    angle = _reduce(x.absolute())
    r, r_low, square = angle.r, angle.r_low, angle.r * angle.r
    tail = (square * r).times_plus(polynomial(square, TABLES["TAN"][x.element]), square.times_plus(r_low, r_low))
    tangent = r + tail
    inverse = -1.0 / tangent
    inverse = (inverse * inverse).times_plus((r - tangent) + tail, inverse)
    result = (angle.n & 1).equals(0).choose(tangent, inverse)
    return (result.bits() ^ (x.bits() & (1 << SIGN_SHIFT[x.element]))).as_float()
