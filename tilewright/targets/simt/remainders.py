"""Exact remainders of floats: the chip has no instruction for them, and x - y trunc(x / y) is not exact.

The mantissas are divided as integers, as many bits of the quotient at a time as a word has room for next to a mantissa.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.llvm.values import FLOAT, Builder, Value, element_of, lanes_of, undefined

_I32 = ir.IntType(32)
# Bits of a word, of the stored mantissa.
_FORMS = {"float": (32, 23), "double": (64, 52)}


def fmod(builder: Builder, x: Value, y: Value) -> Value:
    """x - y trunc(x / y), with the sign of x: NaN where y is 0 or x is infinite, x where y is. In each lane."""
    if not isinstance(x.type, ir.VectorType):
        return _scalar_fmod(builder, x, y)
    result: Value = undefined(x.type)
    for n in range(lanes_of(x.type)):
        lane = ir.Constant(_I32, n)
        found = _scalar_fmod(builder, builder.extract_element(x, lane), builder.extract_element(y, lane))
        result = builder.insert_element(result, found, lane)
    return result


def _scalar_fmod(builder: Builder, x: Value, y: Value) -> Value:
    bits, mantissa = _FORMS["float" if element_of(x.type) == FLOAT else "double"]
    word = ir.IntType(bits)

    def number(value: int) -> ir.Constant:
        return ir.Constant(word, value)

    sign = number(1 << (bits - 1))
    infinity = number(((1 << (bits - 1 - mantissa)) - 1) << mantissa)
    x_bits = builder.bitcast(x, word)
    dividend, divisor = (builder.and_(builder.bitcast(v, word), number((1 << (bits - 1)) - 1)) for v in (x, y))
    is_number = builder.and_(
        builder.icmp_unsigned("<", dividend, infinity),
        builder.and_(builder.icmp_unsigned("<=", divisor, infinity), builder.icmp_unsigned("!=", divisor, number(0))),
    )
    is_divided = builder.and_(is_number, builder.icmp_unsigned(">=", dividend, divisor))
    x_exponent, x_mantissa = _parts(builder, dividend, mantissa)
    y_exponent, y_mantissa = _parts(builder, divisor, mantissa)
    # Where nothing is divided, by 1 and not at all.
    y_mantissa = builder.select(is_divided, y_mantissa, number(1))
    steps = builder.select(is_divided, builder.sub(x_exponent, y_exponent), number(0))
    rest = _rest(builder, builder.urem(x_mantissa, y_mantissa), y_mantissa, steps, bits - 1 - mantissa)
    found = builder.or_(_joined(builder, rest, y_exponent, mantissa), builder.and_(x_bits, sign))
    result = builder.select(is_divided, builder.bitcast(found, x.type), x)
    return builder.select(is_number, result, ir.Constant(x.type, float("nan")))


def _parts(builder: Builder, value: Value, mantissa: int) -> tuple[Value, Value]:
    """Exponent and mantissa of a number without its sign. Subnormals have the least exponent, and no leading one."""
    word = value.type
    exponent = builder.lshr(value, ir.Constant(word, mantissa))
    fraction = builder.and_(value, ir.Constant(word, (1 << mantissa) - 1))
    is_subnormal = builder.icmp_unsigned("==", exponent, ir.Constant(word, 0))
    whole = builder.or_(fraction, ir.Constant(word, 1 << mantissa))
    return builder.select(is_subnormal, ir.Constant(word, 1), exponent), builder.select(is_subnormal, fraction, whole)


def _rest(builder: Builder, first: Value, divisor: Value, steps: Value, at_once: int) -> Value:
    """The remainder of `first` 2^steps by a divisor, a few bits at a time."""
    word = first.type
    before = builder.block
    test, body, after = (builder.append_basic_block(f"remainder.{name}") for name in ("test", "body", "end"))
    builder.branch(test)
    builder.position_at_end(test)
    rest, left = builder.phi(word, "rest"), builder.phi(word, "left")
    rest.add_incoming(first, before)
    left.add_incoming(steps, before)
    builder.cbranch(builder.icmp_unsigned("!=", left, ir.Constant(word, 0)), body, after)
    builder.position_at_end(body)
    most = ir.Constant(word, at_once)
    some = builder.select(builder.icmp_unsigned("<", left, most), left, most)
    following = builder.urem(builder.shl(rest, some), divisor)
    rest.add_incoming(following, body)
    left.add_incoming(builder.sub(left, some), body)
    builder.branch(test)
    builder.position_at_end(after)
    return rest


def _joined(builder: Builder, rest: Value, exponent: Value, mantissa: int) -> Value:
    """The bits of rest 2^(exponent - 1) times the least subnormal."""
    word = rest.type
    zero, one = ir.Constant(word, 0), ir.Constant(word, 1)
    leading = builder.ctlz(rest, ir.Constant(ir.IntType(1), 0))
    shift = builder.sub(leading, ir.Constant(word, word.width - 1 - mantissa))
    # No further than to the least exponent: the number is subnormal then.
    room = builder.sub(exponent, one)
    is_normal = builder.icmp_unsigned("<=", shift, room)
    shifted = builder.shl(rest, builder.select(is_normal, shift, room))
    field = builder.shl(builder.sub(room, shift), ir.Constant(word, mantissa))
    normal = builder.add(shifted, field)
    found = builder.select(is_normal, normal, shifted)
    return builder.select(builder.icmp_unsigned("==", rest, zero), zero, found)
