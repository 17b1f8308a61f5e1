"""Conversions between element types on scalars and vectors, each rounded once.

A value has two forms. In memory a bool is a byte, `f16` a `half` and any other narrow float its bits; in registers a
bool is an `i1` and narrow floats are held as `f32`, the type that they compute in. `widen` and `narrow` go between the
two, `emit_cast` between register forms of different types. The rules are those of `ops.cast`: floats to integers
saturate with NaN to 0, integers wrap, anything to bool is `!= 0`, a NaN stays a (quiet) NaN.

`f16` and the floats of 8 bits, all of which are numbers of `f16`, need the processor's own conversions (F16C on x86-64,
always there on AArch64): without them LLVM calls a library.
"""

from __future__ import annotations

import msgspec
from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.llvm.values import DOUBLE, FLOAT, HALF, Builder, Value, splat, with_element

_FLOAT_FORMS = {8: FLOAT, 16: FLOAT, 32: FLOAT, 64: DOUBLE}
_BF16_QUIET_BIT = 0x00400000
# Bits of precision.
_SINGLE_PRECISION, _DOUBLE_PRECISION = 24, 53
_MAGNITUDE = 0x7FFFFFFF


class _EightBits(msgspec.Struct, frozen=True):
    """A float of 8 bits: how many bits of the significand it stores, its least positive number, and the code of what is
    too large for it and of NaN, without sign."""

    significand_bits: int
    least: float
    overflow: int
    nan: int

    @property
    def bias(self) -> int:
        """Of the exponent."""
        return (1 << (6 - self.significand_bits)) - 1


_EIGHT_BITS = {
    dtypes.f8e4m3fn: _EightBits(3, 2.0**-9, 0x7F, 0x7F),
    dtypes.f8e5m2: _EightBits(2, 2.0**-16, 0x7C, 0x7E),
}


def register_form(dtype: DType, lanes: int = 1) -> ir.Type:
    """The LLVM type that a value of `dtype` has in registers; a scalar when `lanes` is 1."""
    if dtype.is_float:
        return _of_lanes(_FLOAT_FORMS[dtype.bits], lanes)
    return _of_lanes(ir.IntType(1 if dtype.is_bool else dtype.bits), lanes)


def load_form(dtype: DType, lanes: int = 1) -> ir.Type:
    """The LLVM type in which `dtype` is loaded and stored; a scalar when `lanes` is 1."""
    if dtype == dtypes.f16:
        return _of_lanes(HALF, lanes)
    if dtype.is_bool or dtype.is_narrow_float:
        return _of_lanes(ir.IntType(dtype.bits), lanes)
    return register_form(dtype, lanes)


def _of_lanes(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def widen(builder: Builder, value: Value, dtype: DType) -> Value:
    """Memory form to register form; exact."""
    if dtype.is_bool:
        return builder.icmp_unsigned("!=", value, splat(value.type, 0))
    if dtype == dtypes.f16:
        return builder.fpext(value, with_element(value.type, FLOAT))
    if dtype == dtypes.bf16:
        bits = builder.zext(value, with_element(value.type, ir.IntType(32)))
        return builder.bitcast(builder.shl(bits, splat(bits.type, 16)), with_element(value.type, FLOAT))
    if dtype in _EIGHT_BITS:
        return _from_eight_bits(builder, value, _EIGHT_BITS[dtype])
    return value


def narrow(builder: Builder, value: Value, dtype: DType) -> Value:
    """Register form to memory form; exact, since a value in register form is a number of its type."""
    if dtype.is_bool:
        return builder.zext(value, with_element(value.type, ir.IntType(8)))
    if dtype == dtypes.f16:
        return builder.fptrunc(value, with_element(value.type, HALF))
    if dtype == dtypes.bf16:
        bits = builder.bitcast(value, with_element(value.type, ir.IntType(32)))
        return builder.trunc(builder.lshr(bits, splat(bits.type, 16)), with_element(value.type, ir.IntType(16)))
    if dtype in _EIGHT_BITS:
        return _to_eight_bits(builder, value, _EIGHT_BITS[dtype])
    return value


def round_to(builder: Builder, value: Value, dtype: DType, *, of_own_type: bool = False) -> Value:
    """Round a result computed in `dtype.compute` to a value of `dtype`, still in register form: to nearest even, a NaN
    stays a quiet one. `of_own_type`: it was computed of values of `dtype`, so that the bits of a NaN are, too."""
    if dtype == dtypes.f16 or dtype in _EIGHT_BITS:
        return widen(builder, narrow(builder, value, dtype), dtype)
    if dtype == dtypes.bf16:
        bits = _rounded_to_bf16(builder, value, keeps_nan=of_own_type)
        return builder.bitcast(builder.and_(bits, splat(bits.type, 0xFFFF0000)), value.type)
    return value


def emit_cast(builder: Builder, value: Value, source: DType, destination: DType) -> Value:
    """Convert `value`, a scalar or vector in `source`'s register form, to `destination`'s register form."""
    if source == destination:
        return value
    if destination.is_bool:
        return _to_bool(builder, value, source)
    result = with_element(value.type, register_form(destination))
    if source.is_bool:
        if destination.is_integer:
            return builder.zext(value, result)
        return builder.select(value, splat(result, 1.0), splat(result, 0.0))
    if source.is_integer and destination.is_integer:
        return _resize(builder, value, source, destination, result)
    if source.is_integer:
        return _integer_to_float(builder, value, source, destination)
    if destination.is_integer:
        return _float_to_integer(builder, value, destination)
    return _float_to_float(builder, value, source, destination)


def _to_bool(builder: Builder, value: Value, source: DType) -> Value:
    zero = splat(value.type, 0)
    if source.is_float:
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp_unsigned("!=", value, zero)


def _resize(builder: Builder, value: Value, source: DType, destination: DType, result: ir.Type) -> Value:
    if source.bits == destination.bits:
        return value
    if source.bits > destination.bits:
        return builder.trunc(value, result)
    return builder.sext(value, result) if source.is_signed else builder.zext(value, result)


def _float_to_float(builder: Builder, value: Value, source: DType, destination: DType) -> Value:
    if destination == dtypes.tf32:
        return _rounded_to_tf32(builder, value)
    if destination.bits == 64:
        return builder.fpext(value, with_element(value.type, DOUBLE))
    if source.bits < 64:
        return round_to(builder, value, destination)
    if destination.bits == 32:
        return builder.fptrunc(value, with_element(value.type, FLOAT))
    return round_to(builder, _round_to_odd(builder, value), destination)


def _float_to_integer(builder: Builder, value: Value, destination: DType) -> Value:
    """Saturate, NaN to 0. LLVM's own saturating conversion goes lane by lane on x86-64."""
    low = 0.0 if not destination.is_signed else -(2.0 ** (destination.bits - 1))
    limit = -low if destination.is_signed else 2.0**destination.bits
    if destination.bits <= 16 or (destination == dtypes.i32 and value.type == with_element(value.type, DOUBLE)):
        return _clamped(builder, value, destination, low, limit - 1)
    result = with_element(value.type, ir.IntType(destination.bits))
    inside = builder.select(builder.fcmp_ordered(">", value, splat(value.type, low)), value, splat(value.type, low))
    below = builder.fcmp_ordered("<", value, splat(value.type, limit))
    inside = builder.select(below, inside, splat(value.type, low))
    converted = builder.fptosi(inside, result) if destination.is_signed else builder.fptoui(inside, result)
    converted = builder.select(below, converted, splat(result, int(limit) - 1))
    return builder.select(builder.fcmp_ordered("ord", value, value), converted, splat(result, 0))


def _clamped(builder: Builder, value: Value, destination: DType, low: float, high: float) -> Value:
    """Convert to an integer whose limits are numbers of the float: NaN to 0, clamp, convert, drop the upper bits."""
    zero, least, most = (splat(value.type, each) for each in (0.0, low, high))
    value = builder.select(builder.fcmp_ordered("ord", value, value), value, zero)
    value = builder.select(builder.fcmp_ordered(">", value, least), value, least)
    value = builder.select(builder.fcmp_ordered("<", value, most), value, most)
    word = builder.fptosi(value, with_element(value.type, ir.IntType(32)))
    return (
        word if destination.bits == 32 else builder.trunc(word, with_element(word.type, ir.IntType(destination.bits)))
    )


def _integer_to_float(builder: Builder, value: Value, source: DType, destination: DType) -> Value:
    convert = builder.sitofp if source.is_signed else builder.uitofp
    single, double = with_element(value.type, FLOAT), with_element(value.type, DOUBLE)
    if destination.bits == 64:
        return convert(value, double)
    if source.bits <= 16:
        return round_to(builder, convert(value, single), destination)
    if source.bits == 32 and destination.bits == 32:
        return convert(value, single)
    if source.bits == 32:
        # No NaN, so that none has to be kept.
        exact = convert(_sticky(builder, value, source, _SINGLE_PRECISION), single)
        return round_to(builder, exact, destination, of_own_type=True)
    exact = convert(_sticky(builder, value, source, _DOUBLE_PRECISION), double)
    return _float_to_float(builder, exact, dtypes.f64, destination)


def _sticky(builder: Builder, value: Value, source: DType, precision: int) -> Value:
    """An integer that fits a float of `precision` bits and that rounds to a narrower float as `value` does, to one of
    fewer than 2 * precision - source.bits bits: from 2^precision on, low bits are sticky. Some targets convert 64-bit
    integers to `f32` in two rounded steps, which this makes exact."""
    exact = 1 << precision
    if source.is_signed:
        offset = builder.add(value, splat(value.type, exact))
        large = builder.icmp_unsigned(">", offset, splat(value.type, 2 * exact))
    else:
        large = builder.icmp_unsigned(">", value, splat(value.type, exact))
    return builder.select(large, _with_sticky_bits(builder, value, source.bits - precision), value)


def _round_to_odd(builder: Builder, value: Value) -> Value:
    """f64 to f32 with 13 bits after the leading one, the last of which is sticky: a later rounding to at most 11 bits
    of precision sees what was lost. Such an f32 is exact from 2^-136 on, which is less than half of the least bf16.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    bits = builder.bitcast(value, with_element(value.type, ir.IntType(64)))
    odd = builder.bitcast(_with_sticky_bits(builder, bits, 52 - 13), value.type)
    return builder.fptrunc(odd, with_element(value.type, FLOAT))


def _with_sticky_bits(builder: Builder, value: Value, count: int) -> Value:
    """An integer with 0 in its low bits, and 1 in the bit above them if any of them was set."""
    low = (1 << count) - 1
    # Adding all ones carries into the bit above exactly when a low bit is set.
    lost = builder.add(builder.and_(value, splat(value.type, low)), splat(value.type, low))
    return builder.and_(builder.or_(value, lost), splat(value.type, ~low))


def _rounded_to_bf16(builder: Builder, value: Value, *, keeps_nan: bool) -> Value:
    """Bits of an f32 whose upper 16 are `value` rounded to nearest even; the lower 16 are undefined. `keeps_nan`: a NaN
    has none of these, and stays itself."""
    bits = builder.bitcast(value, with_element(value.type, ir.IntType(32)))
    last_kept = builder.and_(builder.lshr(bits, splat(bits.type, 16)), splat(bits.type, 1))
    rounded = builder.add(bits, builder.add(last_kept, splat(bits.type, 0x7FFF)))
    if keeps_nan:
        return rounded
    # A rounding carry could turn a NaN into an infinity or a zero.
    quiet = builder.or_(bits, splat(bits.type, _BF16_QUIET_BIT))
    return builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)


def _from_eight_bits(builder: Builder, value: Value, form: _EightBits) -> Value:
    """Through the `half` whose exponent and significand are those of the code: it is the number but for a power of two,
    subnormal ones included."""
    half_bits = with_element(value.type, ir.IntType(16))
    wide = builder.zext(value, half_bits)
    magnitude = builder.and_(wide, splat(half_bits, 0x7F))
    sign = builder.shl(builder.xor(wide, magnitude), splat(half_bits, 8))
    shifted = builder.shl(magnitude, splat(half_bits, 10 - form.significand_bits))
    half = builder.bitcast(builder.or_(shifted, sign), with_element(value.type, HALF))
    result = builder.fpext(half, with_element(value.type, FLOAT))
    if form.bias == 15:
        return result
    result = builder.fmul(result, splat(result.type, 2.0 ** (15 - form.bias)))
    # The code of NaN reads as a number, being none of `half`.
    word = with_element(value.type, ir.IntType(32))
    is_nan = builder.sext(builder.icmp_unsigned("==", magnitude, splat(half_bits, form.nan)), word)
    quiet = builder.and_(is_nan, splat(word, 0x7FC00000))
    return builder.bitcast(builder.or_(builder.bitcast(result, word), quiet), result.type)


def _to_eight_bits(builder: Builder, value: Value, form: _EightBits) -> Value:
    """Round to nearest even: numbers by adding half of the last bit kept, subnormal ones by adding an f32 whose last
    bit is the least number."""
    word = with_element(value.type, ir.IntType(32))
    bits = builder.bitcast(value, word)
    magnitude = builder.and_(bits, splat(word, _MAGNITUDE))
    dropped = 23 - form.significand_bits
    last_kept = builder.and_(builder.lshr(magnitude, splat(word, dropped)), splat(word, 1))
    half = splat(word, (1 << (dropped - 1)) - 1 - ((127 - form.bias) << 23))
    normal = builder.lshr(builder.add(builder.add(magnitude, half), last_kept), splat(word, dropped))
    base = splat(value.type, form.least * 2.0**23)
    sum_bits = builder.bitcast(builder.fadd(builder.bitcast(magnitude, value.type), base), word)
    subnormal = builder.sub(sum_bits, builder.bitcast(base, word))
    is_small = builder.icmp_unsigned("<", magnitude, splat(word, (128 - form.bias) << 23))
    limit = splat(word, form.overflow)
    normal = builder.select(builder.icmp_unsigned("<", normal, limit), normal, limit)
    result = builder.select(is_small, subnormal, normal)
    if form.nan != form.overflow:
        result = builder.select(builder.fcmp_unordered("uno", value, value), splat(word, form.nan), result)
    sign = builder.and_(builder.lshr(bits, splat(word, 24)), splat(word, 0x80))
    return builder.trunc(builder.or_(result, sign), with_element(value.type, ir.IntType(8)))


def _rounded_to_tf32(builder: Builder, value: Value) -> Value:
    """An f32 without its last 13 bits, rounded to nearest, ties away from zero."""
    word = with_element(value.type, ir.IntType(32))
    bits = builder.bitcast(value, word)
    rounded = builder.and_(builder.add(bits, splat(word, 0x1000)), splat(word, 0xFFFFE000))
    is_finite = builder.icmp_unsigned("<", builder.and_(bits, splat(word, _MAGNITUDE)), splat(word, 0x7F800000))
    return builder.bitcast(builder.select(is_finite, rounded, bits), value.type)
