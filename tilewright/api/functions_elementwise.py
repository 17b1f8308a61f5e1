"""Arithmetic, rounding, comparison, bits, logic and choice, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.lifting import (
    ArrayLike,
    apply,
    as_float,
    as_operand,
    broadcast_shapes,
    cast,
    emit,
    full,
    is_scalar,
    is_weak,
    lift,
    promoted,
    result_dtype,
    typed,
    with_weakness,
)
from tilewright.errors import ArgumentError, DTypeError

_BITS_OF = {8: dtypes.i8, 16: dtypes.i16, 32: dtypes.i32, 64: dtypes.i64}


def add(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 + x2`."""
    return apply("add", x1, x2)


def subtract(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 - x2`."""
    return apply("subtract", x1, x2)


def multiply(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 * x2`."""
    return apply("multiply", x1, x2)


def divide(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 / x2`; integers divide as f32."""
    return apply("divide", x1, x2)


def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 // x2`, towards minus infinity; integers by 0 give 0."""
    return apply("floor_divide", x1, x2)


def remainder(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 % x2`, with the sign of `x2`; integers by 0 give 0."""
    return apply("remainder", x1, x2)


def maximum(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The larger of both; NaN if either is."""
    return apply("maximum", x1, x2)


def minimum(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The smaller of both; NaN if either is."""
    return apply("minimum", x1, x2)


def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1` with the sign of `x2`."""
    return apply("copysign", x1, x2)


def pow(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 ** x2`. Exponents that are small Python numbers become multiplications and roots."""
    exponent = x2 if is_scalar(x2) and not isinstance(x2, complex) else None
    if isinstance(x1, Array) and exponent is not None and (power := _SMALL_POWERS.get(exponent)) is not None:
        whole = isinstance(x2, int) and x2 > 0
        if x1.dtype.is_float or x1.dtype.is_complex or (x1.dtype.is_integer and whole):
            return power(x1)
    return apply("power", x1, x2)


_SMALL_POWERS: dict[float, Callable[[Array], Array]] = {
    0.5: lambda x: apply("sqrt", x),
    -0.5: lambda x: apply("rsqrt", x),
    -1: lambda x: apply("reciprocal", x),
    1: lambda x: x,
    2: lambda x: apply("square", x),
    3: lambda x: apply("multiply", apply("square", x), x),
    4: lambda x: apply("square", apply("square", x)),
}


def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`log(exp(x1) + exp(x2))`, without overflow."""
    a, b = (as_float(x) for x in promoted(x1, x2))
    larger = maximum(a, b)
    # Equal infinities have no difference.
    distance = where(equal(a, b), 0.0, abs(subtract(a, b)))
    return add(larger, apply("log1p", apply("exp", negative(distance))))


def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The float next to `x1` in the direction of `x2`."""
    operands = [as_float(x) for x in promoted(x1, x2)]
    shape = broadcast_shapes(*(x.shape for x in operands))
    a, b = (typed(x, operands[0].dtype, shape) for x in operands)
    kind = _BITS_OF[a.dtype.bits]
    bits = emit("bitcast", a, dtype=kind.name)
    away_from_zero = equal(less(a, b), greater(a, 0.0))
    stepped = emit("bitcast", add(bits, where(away_from_zero, 1, -1).astype(kind)), dtype=a.dtype.name)
    smallest = emit("bitcast", full(shape, 1, kind), dtype=a.dtype.name)
    moved = where(equal(a, 0.0), copysign(smallest, b), stepped)
    unordered = logical_or(isnan(a), isnan(b))
    return where(unordered, add(a, b), where(equal(a, b), b, moved))


def negative(x: ArrayLike, /) -> Array:
    """`-x`."""
    return apply("negative", x)


def abs(x: ArrayLike, /) -> Array:
    """Magnitude."""
    return apply("absolute", x)


def sign(x: ArrayLike, /) -> Array:
    """-1, 0 or 1 by the sign of `x`; NaN stays."""
    return apply("sign", x)


def square(x: ArrayLike, /) -> Array:
    """`x * x`."""
    return apply("square", x)


def reciprocal(x: ArrayLike, /) -> Array:
    """`1 / x`."""
    return apply("reciprocal", x)


def signbit(x: ArrayLike, /) -> Array:
    """Whether the sign bit is set, also of -0.0."""
    return apply("signbit", x)


def positive(x: ArrayLike, /) -> Array:
    """`+x`: the array itself."""
    return lift(x)


def floor(x: ArrayLike, /) -> Array:
    """The largest integer that is not above `x`, in the type of `x`."""
    return _rounded("floor", x)


def ceil(x: ArrayLike, /) -> Array:
    """The smallest integer that is not below `x`, in the type of `x`."""
    return _rounded("ceil", x)


def trunc(x: ArrayLike, /) -> Array:
    """The nearest integer towards 0, in the type of `x`."""
    return _rounded("trunc", x)


def round(x: ArrayLike, /) -> Array:
    """The nearest integer, halves to even, in the type of `x`."""
    return _rounded("round", x)


def _rounded(fn: str, x: ArrayLike) -> Array:
    lifted = lift(x)
    return lifted if lifted.dtype.is_integer else apply(fn, lifted)


def isnan(x: ArrayLike, /) -> Array:
    """Whether each element is NaN."""
    return _classified("isnan", x, False)


def isinf(x: ArrayLike, /) -> Array:
    """Whether each element is infinite."""
    return _classified("isinf", x, False)


def isfinite(x: ArrayLike, /) -> Array:
    """Whether each element is neither infinite nor NaN."""
    return _classified("isfinite", x, True)


def _classified(fn: str, x: ArrayLike, of_integers: bool) -> Array:
    lifted = lift(x)
    is_inexact = lifted.dtype.is_float or lifted.dtype.is_complex
    return apply(fn, lifted) if is_inexact else full(lifted.shape, of_integers, dtypes.bool_)


def equal(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 == x2`."""
    return apply("equal", x1, x2)


def not_equal(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 != x2`."""
    return apply("not_equal", x1, x2)


def less(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 < x2`."""
    return apply("less", x1, x2)


def less_equal(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 <= x2`."""
    return apply("less_equal", x1, x2)


def greater(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 > x2`."""
    return apply("greater", x1, x2)


def greater_equal(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 >= x2`."""
    return apply("greater_equal", x1, x2)


def bitwise_and(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 & x2`."""
    return apply("bitwise_and", x1, x2)


def bitwise_or(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 | x2`."""
    return apply("bitwise_or", x1, x2)


def bitwise_xor(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 ^ x2`."""
    return apply("bitwise_xor", x1, x2)


def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 << x2`; 0 when the shift is beyond the width."""
    return apply("shift_left", x1, x2)


def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1 >> x2`, keeping the sign; all sign bits when the shift is beyond the width."""
    return apply("shift_right", x1, x2)


def bitwise_invert(x: ArrayLike, /) -> Array:
    """`~x`."""
    return apply("bitwise_not", x)


def logical_and(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Whether both are non-zero."""
    return apply("bitwise_and", truth(x1), truth(x2))


def logical_or(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Whether either is non-zero."""
    return apply("bitwise_or", truth(x1), truth(x2))


def logical_xor(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Whether just one is non-zero."""
    return apply("bitwise_xor", truth(x1), truth(x2))


def logical_not(x: ArrayLike, /) -> Array:
    """Whether each element is zero."""
    return apply("bitwise_not", truth(x))


def truth(x: ArrayLike) -> Array:
    """Whether each element is non-zero, as bools."""
    return cast(lift(x), dtypes.bool_)


def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`x1` where the condition holds, `x2` elsewhere; all three broadcast.

    Raises:
        DTypeError: the condition is not of bools.
    """
    chosen = lift(condition)
    if not chosen.dtype.is_bool:
        raise located(DTypeError(f"the condition of `where` is of {chosen.dtype}, not bool", help="compare: `x != 0`"))
    values = [as_operand(x) for x in (x1, x2)]
    dtype = result_dtype(values)
    shape = broadcast_shapes(chosen.shape, *(x.shape for x in values if isinstance(x, Array)))
    operands = [typed(chosen, dtypes.bool_, shape), *(typed(x, dtype, shape) for x in values)]
    result = emit("map", *operands, fn="select")
    return with_weakness(result, all(map(is_weak, values)))


def select(conditions: Sequence[ArrayLike], choices: Sequence[ArrayLike], default: ArrayLike = 0) -> Array:
    """The choice of the first condition that holds, `default` where none does.

    Raises:
        ArgumentError: there are not as many choices as conditions, or none.
    """
    if len(conditions) != len(choices) or not conditions:
        message = (
            f"`select` takes one choice per condition, got {len(conditions)} conditions and {len(choices)} choices"
        )
        raise located(ArgumentError(message, help="give two lists of the same length"))
    result = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return lift(result)


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """`x` kept between `min` and `max`, either of which may be absent; NaN stays."""
    result = lift(x)
    if min is not None:
        result = maximum(result, min)
    return result if max is None else minimum(result, max)
