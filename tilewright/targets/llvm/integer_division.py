"""Division of vectors of integers, rounded to minus infinity, without the division instruction, which takes scalars.

A known divisor becomes a multiplication: n // d = n * m >> k for all n up to a bound, where m is 2^k / d rounded up
(Granlund and Montgomery, "Division by Invariant Integers using Multiplication"). Other vectors are divided as floats.
Of 32 bits and less, x / y, correctly rounded, is an integer only where it is one exactly, because it is no closer than
1 / y to another; of 64 bits the quotient takes two digits.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.targets.llvm.values import (
    DOUBLE,
    FLOAT,
    Builder,
    Value,
    has_features,
    integer_constant,
    intrinsic,
    lanes_of,
    splat,
    with_element,
)


def floor_divide(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """NumPy's `floor_divide` of integers; 0 where `y` is 0."""
    divisor = _known_divisor(dtype, y)
    if divisor is not None and lanes_of(x.type) > 1:
        return _by_known(b, dtype, x, divisor)
    safe, is_zero = _guarded_divisor(b, dtype, x, y)
    quotient = (_through_float if _has_float_quotient(b, dtype, x) else _by_instruction)(b, dtype, x, safe)
    return b.select(is_zero, splat(x.type, 0), quotient)


def remainder(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """NumPy's `remainder` of integers, which has the sign of `y`; 0 where `y` is 0."""
    divisor = _known_divisor(dtype, y)
    if divisor is not None and lanes_of(x.type) > 1:
        if divisor > 0 and _is_power_of_two(divisor):
            return b.and_(x, splat(x.type, divisor - 1))
        if divisor == 0:
            return splat(x.type, 0)
        return b.sub(x, b.mul(_by_known(b, dtype, x, divisor), splat(x.type, divisor)))
    safe, is_zero = _guarded_divisor(b, dtype, x, y)
    if _has_float_quotient(b, dtype, x):
        rest = b.sub(x, b.mul(_through_float(b, dtype, x, safe), safe))
    else:
        rest = _rest_by_instruction(b, dtype, x, safe)
    return b.select(is_zero, splat(x.type, 0), rest)


def divide_unsigned(b: Builder, x: Value, divisor: int) -> Value:
    """Unsigned `x // divisor` for a positive divisor."""
    if lanes_of(x.type) == 1:
        return b.udiv(x, splat(x.type, divisor))
    return _unsigned_quotient(b, x, divisor, 2**x.type.element.width - 1)


def remainder_unsigned(b: Builder, x: Value, divisor: int) -> Value:
    """Unsigned `x % divisor` for a positive divisor."""
    if lanes_of(x.type) == 1:
        return b.urem(x, splat(x.type, divisor))
    if _is_power_of_two(divisor):
        return b.and_(x, splat(x.type, divisor - 1))
    return b.sub(x, b.mul(divide_unsigned(b, x, divisor), splat(x.type, divisor)))


def _known_divisor(dtype: DType, y: Value) -> int | None:
    """The value of a constant divisor of type `dtype`; None where it is known at run time only."""
    value = integer_constant(y)
    if value is None:
        return None
    value &= 2**dtype.bits - 1
    return value - 2**dtype.bits if dtype.kind == "i" and value >= 2 ** (dtype.bits - 1) else value


# ---- divisors known at run time -------------------------------------------------------------------------------------


def _guarded_divisor(b: Builder, dtype: DType, x: Value, y: Value) -> tuple[Value, Value]:
    """A divisor that cannot trap, and whether the real one was zero."""
    zero = splat(y.type, 0)
    is_zero = b.icmp_unsigned("==", y, zero)
    bad = is_zero
    if dtype.kind == "i":
        smallest = splat(x.type, -(2 ** (dtype.bits - 1)))
        minus_one = b.icmp_unsigned("==", y, splat(y.type, -1))
        bad = b.or_(bad, b.and_(minus_one, b.icmp_unsigned("==", x, smallest)))
    return b.select(bad, splat(y.type, 1), y), is_zero


def _by_instruction(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.kind == "u":
        return b.udiv(x, y)
    quotient = b.sdiv(x, y)
    rest = b.sub(x, b.mul(quotient, y))
    lowered = b.sub(quotient, splat(x.type, 1))
    return b.select(_needs_floor(b, rest, y), lowered, quotient)


def _rest_by_instruction(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    if dtype.kind == "u":
        return b.urem(x, y)
    rest = b.srem(x, y)
    return b.select(_needs_floor(b, rest, y), b.add(rest, y), rest)


def _needs_floor(b: Builder, rest: Value, y: Value) -> Value:
    """Whether the quotient that was rounded to 0, and left a rest, is above the one rounded to minus infinity."""
    inexact = b.icmp_unsigned("!=", rest, splat(rest.type, 0))
    opposite = b.icmp_signed("<", b.xor(rest, y), splat(rest.type, 0))
    return b.and_(inexact, opposite)


def _has_float_quotient(b: Builder, dtype: DType, x: Value) -> bool:
    """Whether vectors are divided as floats: those of 64 bits where the processor converts them."""
    return lanes_of(x.type) > 1 and (dtype.bits <= 32 or has_features(b, "avx512dq", "avx512vl"))


def _through_float(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """The quotient for a `y` other than 0 and, next to the least `x`, other than -1."""
    if dtype.bits == 64:
        return _through_doubles(b, dtype, x, y)
    shape = with_element(x.type, DOUBLE if dtype.bits == 32 else FLOAT)
    if dtype.kind == "u":
        return b.fptoui(b.fdiv(b.uitofp(x, shape), b.uitofp(y, shape)), x.type)
    quotient = b.fdiv(b.sitofp(x, shape), b.sitofp(y, shape))
    return b.fptosi(intrinsic(b, "floor", [quotient]), x.type)


def _through_doubles(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """Of 64 bits: signed numbers by their magnitudes, where x // y = ~((|x| - 1) // |y|) for a negative quotient."""
    if dtype.kind == "u":
        return _quotient_by_doubles(b, x, y)
    zero = splat(x.type, 0)
    magnitude, divisor = (b.select(b.icmp_signed("<", v, zero), b.sub(zero, v), v) for v in (x, y))
    negative = b.and_(b.icmp_signed("<", b.xor(x, y), zero), b.icmp_unsigned("!=", x, zero))
    distance = b.select(negative, b.sub(magnitude, splat(x.type, 1)), magnitude)
    return b.xor(_quotient_by_doubles(b, distance, divisor), b.sext(negative, x.type))


def _quotient_by_doubles(b: Builder, x: Value, y: Value) -> Value:
    """Unsigned, for a `y` other than 0: two digits of the quotient, each a little too small, and at most one more."""
    shape = with_element(x.type, DOUBLE)
    # The conversions, the division and the multiplication round up by 4 / 2^53 of the digit in all, at most.
    inverse = b.fdiv(splat(shape, 1.0 - 2.0**-50), b.uitofp(y, shape))
    quotient, rest = splat(x.type, 0), x
    for _ in range(2):
        digit = b.fptoui(b.fmul(b.uitofp(rest, shape), inverse), x.type)
        quotient, rest = b.add(quotient, digit), b.sub(rest, b.mul(digit, y))
    return b.add(quotient, b.zext(b.icmp_unsigned(">=", rest, y), x.type))


# ---- known divisors -------------------------------------------------------------------------------------------------


def _by_known(b: Builder, dtype: DType, x: Value, divisor: int) -> Value:
    if divisor == 0:
        return splat(x.type, 0)
    if dtype.kind == "u":
        return _unsigned_quotient(b, x, divisor, 2**dtype.bits - 1)
    half = 2 ** (dtype.bits - 1)
    if divisor == -1:
        return b.sub(splat(x.type, 0), x)
    if divisor > 0:
        if _is_power_of_two(divisor):
            return b.ashr(x, splat(x.type, divisor.bit_length() - 1))
        # Of negative numbers: x // d = ~(~x // d).
        sign = b.ashr(x, splat(x.type, dtype.bits - 1))
        return b.xor(_unsigned_quotient(b, b.xor(x, sign), divisor, half - 1), sign)
    # x // d = -x // -d; of positive x it is ~((x - 1) // -d).
    positive = b.icmp_signed(">", x, splat(x.type, 0))
    distance = b.select(positive, b.sub(x, splat(x.type, 1)), b.sub(splat(x.type, 0), x))
    return b.xor(_unsigned_quotient(b, distance, -divisor, half), b.sext(positive, x.type))


def _unsigned_quotient(b: Builder, x: Value, divisor: int, largest: int) -> Value:
    """`x // divisor` of unsigned lanes up to `largest`."""
    bits = x.type.element.width
    if _is_power_of_two(divisor):
        return _shifted(b, x, divisor.bit_length() - 1)
    if bits == 8:
        # 16 bits of a product are enough above each byte.
        return _high_products(b, x, -(-(2**16) // divisor))
    if (pair := _multiplier(divisor, largest, bits)) is not None:
        return _shifted(b, _high_products(b, x, pair[0]), pair[1])
    if divisor % 2 == 0:
        twos = (divisor & -divisor).bit_length() - 1
        return _unsigned_quotient(b, _shifted(b, x, twos), divisor >> twos, largest >> twos)
    # A multiplier of one bit more than a lane has: the product is what its lower bits give, and x once more.
    shift = divisor.bit_length()
    high = _high_products(b, x, -(-(2 ** (bits + shift)) // divisor) - 2**bits)
    return _shifted(b, b.add(_shifted(b, b.sub(x, high), 1), high), shift - 1)


def _multiplier(divisor: int, largest: int, bits: int) -> tuple[int, int] | None:
    """m below 2^bits and k so that n // divisor = n * m >> bits + k for n up to `largest`; None if there is none."""
    for shift in range(divisor.bit_length()):
        power = 2 ** (bits + shift)
        multiplier = -(-power // divisor)
        if multiplier < 2**bits and (multiplier * divisor - power) * largest < power:
            return multiplier, shift
    return None


def _high_products(b: Builder, x: Value, multiplier: int) -> Value:
    """The upper half of the bits of `x * multiplier`, unsigned; of bytes and a multiplier of 16 bits, the upper 8."""
    bits, lanes = x.type.element.width, lanes_of(x.type)
    if bits == 16:
        return _high_words(b, x, multiplier)
    if bits == 64:
        return _high_quads(b, x, multiplier)
    # Every second lane at a time, in twice the width.
    wide = ir.VectorType(ir.IntType(2 * bits), lanes // 2)
    pairs = b.bitcast(x, wide)
    low, high = b.and_(pairs, splat(wide, 2**bits - 1)), _shifted(b, pairs, bits)
    if bits == 8:
        low, high = (_high_words(b, half, multiplier) for half in (low, high))
        return b.bitcast(b.or_(low, b.shl(high, splat(wide, bits))), x.type)
    low, high = (b.mul(half, splat(wide, multiplier)) for half in (low, high))
    return b.bitcast(b.or_(_shifted(b, low, bits), b.and_(high, splat(wide, (2**bits - 1) << bits))), x.type)


def _high_words(b: Builder, x: Value, multiplier: int) -> Value:
    """Of lanes of 16 bits: the pattern that compilers make one instruction of."""
    wide = with_element(x.type, ir.IntType(32))
    product = b.mul(b.zext(x, wide), splat(wide, multiplier))
    return b.trunc(_shifted(b, product, 16), x.type)


def _high_quads(b: Builder, x: Value, multiplier: int) -> Value:
    """Of lanes of 64 bits, from multiplications of their halves."""
    low_bits = splat(x.type, 2**32 - 1)
    low, high = b.and_(x, low_bits), _shifted(b, x, 32)
    factor_low, factor_high = splat(x.type, multiplier & (2**32 - 1)), splat(x.type, multiplier >> 32)
    middle = b.add(b.mul(high, factor_low), _shifted(b, b.mul(low, factor_low), 32))
    other = b.add(b.mul(low, factor_high), b.and_(middle, low_bits))
    return b.add(b.mul(high, factor_high), b.add(_shifted(b, middle, 32), _shifted(b, other, 32)))


def _shifted(b: Builder, x: Value, bits: int) -> Value:
    return b.lshr(x, splat(x.type, bits)) if bits else x


def _is_power_of_two(value: int) -> bool:
    return value & (value - 1) == 0
