"""LLVM for the scalar functions of `ops.py`, on scalars or vectors in register form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.targets.llvm import integer_division
from tilewright.targets.llvm.conversions import round_to
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat, with_element
from tilewright.targets.llvm.vector_math import emit_math

Emission = Callable[[Builder, DType, Sequence[Value]], Value]


def emit_function(builder: Builder, name: str, dtype: DType, arguments: Sequence[Value]) -> Value:
    """Apply function `name` to operands of type `dtype` (of a select: the type of its values)."""
    known = _EMISSIONS.get(name)
    narrow = dtype.is_narrow_float
    result = (
        emit_math(builder, name, arguments, is_narrow=narrow) if known is None else known(builder, dtype, arguments)
    )
    exact = name in _EXACT or not narrow
    if exact or result.type != arguments[-1].type:
        return result
    return round_to(builder, result, dtype, of_own_type=True)


def _i1(value: Value) -> ir.Type:
    return with_element(value.type, ir.IntType(1))


def _arithmetic(float_name: str, integer_name: str) -> Emission:
    def emit(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
        return getattr(b, float_name if dtype.is_float else integer_name)(a[0], a[1])

    return emit


def _comparison(symbol: str) -> Emission:
    def emit(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
        if dtype.is_float:
            compare = b.fcmp_unordered if symbol == "!=" else b.fcmp_ordered
            return compare(symbol, a[0], a[1])
        if dtype.kind == "i":
            return b.icmp_signed(symbol, a[0], a[1])
        return b.icmp_unsigned(symbol, a[0], a[1])

    return emit


def _extreme(symbol: str) -> Emission:
    """Maximum or minimum; a NaN in either operand wins."""

    def emit(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
        x, y = a
        if dtype.is_bool:
            return b.or_(x, y) if symbol == ">" else b.and_(x, y)
        if not dtype.is_float:
            compare = b.icmp_signed if dtype.kind == "i" else b.icmp_unsigned
            return b.select(compare(symbol, x, y), x, y)
        # The machine's max and min give the second operand when either is NaN: only a NaN in `x` needs care.
        chosen = b.select(b.fcmp_ordered(symbol, x, y), x, y)
        return b.select(b.fcmp_unordered("uno", x, x), x, chosen)

    return emit


def _floor_divide(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    x, y = a
    return _float_floor_divide(b, x, y) if dtype.is_float else integer_division.floor_divide(b, dtype, x, y)


def _remainder(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    x, y = a
    return _float_remainder(b, x, y) if dtype.is_float else integer_division.remainder(b, dtype, x, y)


def _float_remainder(b: Builder, x: Value, y: Value) -> Value:
    """Remainder with the divisor's sign, as NumPy's `remainder`: fmod, moved by one divisor where signs differ."""
    remainder = b.frem(x, y)
    zero = splat(x.type, 0.0)
    nonzero = b.fcmp_unordered("!=", remainder, zero)
    opposite = b.xor(b.fcmp_ordered("<", remainder, zero), b.fcmp_ordered("<", y, zero))
    moved = b.select(b.and_(nonzero, opposite), b.fadd(remainder, y), remainder)
    return b.select(nonzero, moved, intrinsic(b, "copysign", [zero, y]))


def _float_floor_divide(b: Builder, x: Value, y: Value) -> Value:
    """NumPy's `floor_divide`: from the exact remainder, so that the quotient cannot round to the next integer."""
    zero, half, one = (splat(x.type, v) for v in (0.0, 0.5, 1.0))
    remainder = b.frem(x, y)
    quotient = b.fdiv(b.fsub(x, remainder), y)
    opposite = b.xor(b.fcmp_ordered("<", remainder, zero), b.fcmp_ordered("<", y, zero))
    lowered = b.and_(b.fcmp_unordered("!=", remainder, zero), opposite)
    quotient = b.select(lowered, b.fsub(quotient, one), quotient)
    floored = intrinsic(b, "floor", [quotient])
    floored = b.select(b.fcmp_ordered(">", b.fsub(quotient, floored), half), b.fadd(floored, one), floored)
    signed_zero = intrinsic(b, "copysign", [zero, b.fdiv(x, y)])
    result = b.select(b.fcmp_unordered("!=", quotient, zero), floored, signed_zero)
    return b.select(b.fcmp_ordered("==", y, zero), b.fdiv(x, y), result)


def _power(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    """Integer power by squaring, branch-free: one step per exponent bit that the type can use."""
    if dtype.is_float:
        return emit_math(b, "power", a)
    base, exponent = a
    zero, one = splat(base.type, 0), splat(base.type, 1)
    result = one
    square = base
    remaining = exponent
    for _ in range(dtype.bits):
        odd = b.trunc(remaining, _i1(remaining))
        result = b.select(odd, b.mul(result, square), result)
        square = b.mul(square, square)
        remaining = b.lshr(remaining, one)
    if dtype.kind == "u":
        return result
    minus_one = splat(base.type, -1)
    odd = b.trunc(exponent, _i1(exponent))
    inverse = b.select(
        b.icmp_unsigned("==", base, one),
        one,
        b.select(b.icmp_unsigned("==", base, minus_one), b.select(odd, minus_one, one), zero),
    )
    return b.select(b.icmp_signed("<", exponent, zero), inverse, result)


def _negative(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    return b.fneg(a[0]) if dtype.is_float else b.sub(splat(a[0].type, 0), a[0])


def _absolute(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    (x,) = a
    if dtype.is_float:
        return intrinsic(b, "fabs", [x])
    if dtype.kind == "u":
        return x
    zero = splat(x.type, 0)
    return b.select(b.icmp_signed("<", x, zero), b.sub(zero, x), x)


def _sign(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    (x,) = a
    zero, one, minus_one = (splat(x.type, v) for v in (0, 1, -1))
    if dtype.is_float:
        nonzero = b.select(b.fcmp_ordered(">", x, zero), one, minus_one)
        # Zeros and NaN are their own sign.
        return b.select(b.fcmp_unordered("ueq", x, zero), b.fadd(x, zero), nonzero)
    nonzero = b.icmp_unsigned("!=", x, zero)
    if dtype.kind == "u":
        return b.select(nonzero, one, zero)
    return b.select(b.icmp_signed("<", x, zero), minus_one, b.select(nonzero, one, zero))


def _square(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    return b.fmul(a[0], a[0]) if dtype.is_float else b.mul(a[0], a[0])


def _shift(left: bool) -> Emission:
    def emit(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
        x, amount = a
        inside = b.icmp_unsigned("<", amount, splat(amount.type, dtype.bits))
        safe = b.select(inside, amount, splat(amount.type, 0))
        zero = splat(x.type, 0)
        if left:
            return b.select(inside, b.shl(x, safe), zero)
        if dtype.kind == "u":
            return b.select(inside, b.lshr(x, safe), zero)
        return b.select(inside, b.ashr(x, safe), b.ashr(x, splat(x.type, dtype.bits - 1)))

    return emit


def _call(name: str) -> Emission:
    return lambda b, dtype, a: intrinsic(b, name, list(a))


def _sign_bit(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    bits = b.bitcast(a[0], with_element(a[0].type, ir.IntType(dtype.compute.bits)))
    return b.icmp_signed("<", bits, splat(bits.type, 0))


def _infinite(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    return b.fcmp_ordered("==", intrinsic(b, "fabs", [a[0]]), splat(a[0].type, float("inf")))


def _finite(b: Builder, dtype: DType, a: Sequence[Value]) -> Value:
    return b.fcmp_ordered("<", intrinsic(b, "fabs", [a[0]]), splat(a[0].type, float("inf")))


_EMISSIONS: dict[str, Emission] = {
    "add": _arithmetic("fadd", "add"),
    "subtract": _arithmetic("fsub", "sub"),
    "multiply": _arithmetic("fmul", "mul"),
    "divide": _arithmetic("fdiv", "sdiv"),
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "negative": _negative,
    "absolute": _absolute,
    "sign": _sign,
    "square": _square,
    "reciprocal": lambda b, dtype, a: b.fdiv(splat(a[0].type, 1.0), a[0]),
    "copysign": _call("copysign"),
    "floor": _call("floor"),
    "ceil": _call("ceil"),
    "trunc": _call("trunc"),
    "round": _call("rint"),
    "sqrt": _call("sqrt"),
    "bitwise_and": lambda b, dtype, a: b.and_(a[0], a[1]),
    "bitwise_or": lambda b, dtype, a: b.or_(a[0], a[1]),
    "bitwise_xor": lambda b, dtype, a: b.xor(a[0], a[1]),
    "bitwise_not": lambda b, dtype, a: b.xor(a[0], splat(a[0].type, -1 if not dtype.is_bool else 1)),
    "shift_left": _shift(True),
    "shift_right": _shift(False),
    "equal": _comparison("=="),
    "not_equal": _comparison("!="),
    "less": _comparison("<"),
    "less_equal": _comparison("<="),
    "greater": _comparison(">"),
    "greater_equal": _comparison(">="),
    "isnan": lambda b, dtype, a: b.fcmp_unordered("uno", a[0], a[0]),
    "isinf": _infinite,
    "isfinite": _finite,
    "signbit": _sign_bit,
    "select": lambda b, dtype, a: b.select(a[0], a[1], a[2]),
}

# Results that are already values of a narrow type: choices and sign changes need no rounding.
_EXACT = frozenset(
    {"maximum", "minimum", "negative", "absolute", "sign", "copysign", "floor", "ceil", "trunc", "round", "select"}
)
