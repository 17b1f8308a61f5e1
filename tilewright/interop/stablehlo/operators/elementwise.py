"""Operations on each element by itself: arithmetic, bits, comparisons, choices, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, cast, emit, full
from tilewright.dtypes import DType
from tilewright.interop.narrow import Coded, decoded, encoded, is_integer, limits
from tilewright.interop.stablehlo.ir import TensorType
from tilewright.interop.stablehlo.registry import Node, operation

# Operations that are a scalar function of the same meaning.
_SAME = {
    "subtract": "subtract",
    "power": "power",
    "atan2": "atan2",
    "xor": "bitwise_xor",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "not": "bitwise_not",
    "negate": "negative",
    "floor": "floor",
    "ceil": "ceil",
    "round_nearest_even": "round",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "cbrt": "cbrt",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log": "log",
    "log_plus_one": "log1p",
    "sine": "sin",
    "cosine": "cos",
    "tan": "tan",
    "tanh": "tanh",
    "logistic": "sigmoid",
    "is_finite": "isfinite",
}
# Those that mean a bit operation on bools.
_ON_BOOLS = {"add": "bitwise_or", "multiply": "bitwise_and"}
UNSIGNED = {8: dtypes.u8, 16: dtypes.u16, 32: dtypes.u32, 64: dtypes.u64}
SIGNED = {8: dtypes.i8, 16: dtypes.i16, 32: dtypes.i32, 64: dtypes.i64}


def mapped(fn: str, *operands: Array) -> Array:
    """A scalar function of operands of one type."""
    return emit("map", *operands, fn=fn)


def like(x: Array, value: float | int | bool) -> Array:
    """An array of one number, as `x` is."""
    return full(x.shape, value, x.dtype)


def bits(x: Array, dtype: DType) -> Array:
    """The bits of `x` as another type of the same width."""
    return x if x.dtype == dtype else emit("bitcast", x, dtype=dtype.name)


def _register_same(name: str, fn: str) -> None:
    def rule(node: Node, *operands: Array) -> Array:
        return mapped(fn, *operands)

    rule.__doc__ = f"`{fn}` of each element."
    operation(f"stablehlo.{name}", elementwise=True)(rule)


for _name, _fn in _SAME.items():
    _register_same(_name, _fn)


def _register_on_bools(name: str, fn: str) -> None:
    def rule(node: Node, a: Array, b: Array) -> Array:
        return mapped(fn if a.dtype.is_bool else name, a, b)

    rule.__doc__ = f"`{name}` of each element; of bools `{fn}`."
    operation(f"stablehlo.{name}", elementwise=True)(rule)


for _name, _fn in _ON_BOOLS.items():
    _register_on_bools(_name, _fn)


@operation("stablehlo.maximum", elementwise=True)
def maximum(node: Node, a: Array, b: Array) -> Array:
    """The larger, or NaN; 0 is above -0. Of bools, whether either holds."""
    return extreme("maximum", a, b)


@operation("stablehlo.minimum", elementwise=True)
def minimum(node: Node, a: Array, b: Array) -> Array:
    """The smaller, or NaN; -0 is below 0. Of bools, whether both hold."""
    return extreme("minimum", a, b)


def extreme(fn: str, a: Array, b: Array) -> Array:
    """`maximum` or `minimum` as IEEE 754-2019 has them: -0 is below 0."""
    if a.dtype.is_bool:
        return mapped("bitwise_or" if fn == "maximum" else "bitwise_and", a, b)
    if not a.dtype.is_float:
        return mapped(fn, a, b)
    for x, bound in ((a, known_number(b)), (b, known_number(a))):
        if bound is not None:
            return _bounded(fn, x, bound)
    first, second = (b, a) if fn == "maximum" else (a, b)
    return tw.where(tw.equal(a, b), tw.where(tw.signbit(a), first, second), mapped(fn, a, b))


def _bounded(fn: str, x: Array, bound: float) -> Array:
    """An extreme of an array and a number, which has zeros of two signs to choose from only where it is 0 itself."""
    if bound != 0.0:
        return mapped(fn, x, like(x, bound))
    # A zero that wins a tie replaces the other one, which is then compared too.
    wins_ties = (math.copysign(1.0, bound) > 0) == (fn == "maximum")
    below, above = (tw.less_equal, tw.greater_equal) if wins_ties else (tw.less, tw.greater)
    return tw.where((below if fn == "maximum" else above)(x, like(x, 0.0)), like(x, bound), x)


def known_number(x: Array) -> float | None:
    """The number that all elements of an array are equal to; None where that is not known."""
    producer = x.value.producer
    while producer is not None and producer.op in ("broadcast", "reshape"):
        producer = producer.operands[0].producer
    if producer is None or producer.op != "constant" or producer.attributes["resource"]:
        return None
    return producer.attributes["value"]


@operation("stablehlo.abs", elementwise=True)
def absolute(node: Node, x: Array) -> Array:
    """The magnitude."""
    return x if x.dtype.kind == "u" else mapped("absolute", x)


@operation("stablehlo.sign", elementwise=True)
def sign(node: Node, x: Array) -> Array:
    """-1, 0 or 1; zeros and NaN as they are."""
    if not x.dtype.is_float:
        return mapped("sign", x)
    is_plain = tw.logical_or(tw.isnan(x), tw.equal(x, like(x, 0)))
    return tw.where(is_plain, x, mapped("copysign", like(x, 1), x))


@operation("stablehlo.divide", elementwise=True)
def divide(node: Node, a: Array, b: Array) -> Array:
    """The quotient; of integers rounded to zero, and -1 (all bits) of a division by 0."""
    return mapped("divide", a, b) if a.dtype.is_float or a.dtype.is_complex else _quotient(a, b)


def _quotient(a: Array, b: Array) -> Array:
    zero = like(a, 0)
    low = mapped("floor_divide", a, b)
    if a.dtype.kind == "u":
        return tw.where(tw.equal(b, zero), like(a, int(a.dtype.highest)), low)
    rest = a - low * b
    is_below = tw.logical_and(tw.not_equal(rest, zero), tw.not_equal(tw.less(a, zero), tw.less(b, zero)))
    # The one quotient that overflows wraps, to the dividend.
    wrapped = tw.where(tw.equal(b, like(a, -1)), mapped("negative", a), low + cast(is_below, a.dtype))
    return tw.where(tw.equal(b, zero), like(a, -1), wrapped)


@operation("stablehlo.remainder", elementwise=True)
def remainder(node: Node, a: Array, b: Array) -> Array:
    """The remainder of division rounded to zero, with the dividend's sign; of integers divided by 0 the dividend."""
    if a.dtype.is_float:
        # Exact for positive operands, where rounding down is rounding to zero.
        return mapped("copysign", mapped("remainder", mapped("absolute", a), mapped("absolute", b)), a)
    if a.dtype.kind == "u":
        return tw.where(tw.equal(b, like(a, 0)), a, mapped("remainder", a, b))
    rest = a - _quotient(a, b) * b
    return tw.where(tw.equal(b, like(a, 0)), a, tw.where(tw.equal(b, like(a, -1)), like(a, 0), rest))


@operation("stablehlo.round_nearest_afz", elementwise=True)
def round_away(node: Node, x: Array) -> Array:
    """The nearest integer, ties away from zero."""
    whole = mapped("trunc", x)
    # The difference is exact, while `x + 0.5` would round.
    is_up = tw.greater_equal(mapped("absolute", x - whole), like(x, 0.5))
    return tw.where(is_up, whole + mapped("copysign", like(x, 1), x), whole)


@operation("stablehlo.shift_left", elementwise=True)
def shift_left(node: Node, x: Array, by: Array) -> Array:
    """`x << by`; 0 for shifts by the width and more."""
    return mapped("shift_left", x, by)


@operation("stablehlo.shift_right_arithmetic", elementwise=True)
def shift_right_arithmetic(node: Node, x: Array, by: Array) -> Array:
    """`x >> by` that repeats the sign."""
    signed = SIGNED[x.dtype.bits]
    return bits(mapped("shift_right", bits(x, signed), bits(by, signed)), x.dtype)


@operation("stablehlo.shift_right_logical", elementwise=True)
def shift_right_logical(node: Node, x: Array, by: Array) -> Array:
    """`x >> by` that fills with zeros."""
    unsigned = UNSIGNED[x.dtype.bits]
    return bits(mapped("shift_right", bits(x, unsigned), bits(by, unsigned)), x.dtype)


@operation("stablehlo.popcnt", elementwise=True)
def population_count(node: Node, x: Array) -> Array:
    """How many bits are set."""
    return bits(_set_bits(bits(x, UNSIGNED[x.dtype.bits])), x.dtype)


def _set_bits(x: Array) -> Array:
    width = x.dtype.bits
    everything = (1 << width) - 1

    def every(pattern: int) -> Array:
        return like(x, everything // 0xFF * pattern)

    def shifted(y: Array, by: int) -> Array:
        return mapped("shift_right", y, like(x, by))

    x = x - (shifted(x, 1) & every(0x55))
    x = (x & every(0x33)) + (shifted(x, 2) & every(0x33))
    x = (x + shifted(x, 4)) & every(0x0F)
    return shifted(x * every(0x01), width - 8)


@operation("stablehlo.count_leading_zeros", elementwise=True)
def leading_zeros(node: Node, x: Array) -> Array:
    """How many bits above the highest one that is set."""
    y = bits(x, UNSIGNED[x.dtype.bits])
    step = 1
    while step < x.dtype.bits:
        y = mapped("bitwise_or", y, mapped("shift_right", y, like(y, step)))
        step *= 2
    return bits(like(y, x.dtype.bits) - _set_bits(y), x.dtype)


# ---- comparisons and choices ----------------------------------------------------------------------------------------

_DIRECTIONS: dict[str, Callable[[Any, Any], Array]] = {
    "EQ": tw.equal,
    "NE": tw.not_equal,
    "LT": tw.less,
    "LE": tw.less_equal,
    "GT": tw.greater,
    "GE": tw.greater_equal,
}


@operation("stablehlo.compare", elementwise=True)
def compare(node: Node, a: Array, b: Array) -> Array:
    """A comparison; TOTALORDER puts -NaN first, NaN last and -0 before 0."""
    direction = node.get("comparison_direction")
    if direction not in _DIRECTIONS:
        raise node.malformed(f"`{direction}` is no direction of a comparison")
    if node.get("compare_type", "") == "TOTALORDER" and a.dtype.is_float:
        a, b = total_order(a), total_order(b)
    return _DIRECTIONS[direction](a, b)


def total_order(x: Array) -> Array:
    """Integers that are ordered as IEEE 754 orders all floats."""
    return _negatives_turned(bits(x, SIGNED[x.dtype.bits]))


def in_total_order(keys: Array, dtype: DType) -> Array:
    """The floats that `total_order` gives these integers for."""
    return bits(_negatives_turned(keys), dtype)


def _negatives_turned(pattern: Array) -> Array:
    flipped = mapped("bitwise_xor", pattern, like(pattern, int(pattern.dtype.highest)))
    return tw.where(tw.less(pattern, like(pattern, 0)), flipped, pattern)


@operation("stablehlo.select", elementwise=True, narrow=True)
def select(node: Node, condition: Array, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`."""
    if isinstance(a, Coded):
        return Coded(select(node, condition, a.codes, codes_like(node, b, a.storage)), a.storage)
    return emit("map", broadcast(condition, a.shape), a, b, fn="select")


def codes_like(node: Node, value: object, storage: np.dtype) -> Array:
    """The bit patterns of a value, which is of a type that no array has.

    Raises:
        ModelFileError: it is of another type.
    """
    if not isinstance(value, Coded) or value.storage != storage:
        raise node.malformed("operands have different types")
    return value.codes


@operation("stablehlo.clamp", elementwise=True)
def clamp(node: Node, low: Array, x: Array, high: Array) -> Array:
    """`x` between two bounds, which may be scalars."""
    above = extreme("maximum", x, broadcast(low, x.shape))
    return extreme("minimum", above, broadcast(high, x.shape))


# ---- conversions ----------------------------------------------------------------------------------------------------


@operation("stablehlo.convert", elementwise=True, narrow=True)
def convert(node: Node, x: Array | Coded) -> Array | Coded:
    """The elements in another type; of complex numbers as real ones, the real parts."""
    return converted(x, node.type)


def converted(x: Array | Coded, to: TensorType) -> Array | Coded:
    """An array, or bit patterns, with elements of another type."""
    if isinstance(x, Coded):
        if x.storage == to.storage:
            return x
        # Integers keep their lowest bits, floats saturate.
        x = cast(decoded(x), dtypes.i32) if is_integer(x.storage) else decoded(x)
    if x.dtype.is_complex and to.storage.kind != "c":
        x = tw.real(x)
    if not to.is_narrow:
        return cast(x, to.dtype)
    if x.dtype.is_bool:
        x = cast(x, dtypes.f32)
    if not x.dtype.is_float and not is_integer(to.storage):
        x = cast(x, dtypes.f32)
    if x.dtype.is_float and is_integer(to.storage):
        wide = cast(x, x.dtype.compute)  # in which the ends of the range are numbers
        x = tw.where(tw.isnan(wide), 0, tw.clip(wide, *limits(to.storage)))
    return encoded(x, to.storage, saturate=False)


@operation("stablehlo.bitcast_convert")
def bitcast_convert(node: Node, x: Array) -> Array:
    """The bits as another type: a narrower one adds an axis, a wider one takes the last axis away."""
    to = node.type.dtype
    if node.type.is_narrow or x.dtype.is_bool or to.is_bool:
        raise node.unsupported(f"the bits of {x.dtype} as {node.type}")
    if to.bits == x.dtype.bits:
        return bits(x, to)
    source, destination = UNSIGNED[x.dtype.bits], UNSIGNED[to.bits]
    patterns = bits(x, source)
    if to.bits > x.dtype.bits:
        parts = to.bits // x.dtype.bits
        if x.shape[-1:] != (parts,):
            raise node.malformed(f"{parts} elements make one, but the last axis has another size")
        joined = full(x.shape[:-1], 0, destination)
        for n in range(parts):
            part = cast(patterns[..., n], destination)
            joined = joined | mapped("shift_left", part, like(part, n * x.dtype.bits))
        return bits(joined, to)
    cuts = [mapped("shift_right", patterns, like(patterns, n * to.bits)) for n in range(x.dtype.bits // to.bits)]
    return bits(tw.stack([cast(cut, destination) for cut in cuts], axis=-1), to)


@operation("stablehlo.reduce_precision", elementwise=True)
def reduce_precision(node: Node, x: Array) -> Array:
    """The nearest numbers of a format with fewer bits, still in the same type; below its normal numbers are zeros."""
    exponent, mantissa = node.integer("exponent_bits"), node.integer("mantissa_bits")
    if exponent < 1 or mantissa < 0:
        raise node.malformed(f"a format of {exponent} exponent and {mantissa} mantissa bits")
    width = x.dtype.bits
    own_mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}.get(x.dtype.name)
    if own_mantissa is None:
        raise node.unsupported(f"`reduce_precision` of {x.dtype}")
    own_exponent = width - 1 - own_mantissa
    pattern = bits(x, UNSIGNED[width])
    sign_bit = pattern & like(pattern, 1 << (width - 1))
    magnitude = pattern & like(pattern, (1 << (width - 1)) - 1)
    if mantissa < own_mantissa:
        dropped = own_mantissa - mantissa
        odd = mapped("shift_right", magnitude, like(pattern, dropped)) & like(pattern, 1)
        rounded = magnitude + odd + like(pattern, (1 << (dropped - 1)) - 1)
        magnitude = rounded & like(pattern, ((1 << (width - 1)) - 1) & ~((1 << dropped) - 1))
    if exponent < own_exponent:
        bias = (1 << (exponent - 1)) - 1
        own_bias = (1 << (own_exponent - 1)) - 1
        infinity = like(pattern, ((1 << own_exponent) - 1) << own_mantissa)
        too_large = tw.greater_equal(magnitude, like(pattern, (own_bias + bias + 1) << own_mantissa))
        too_small = tw.less(magnitude, like(pattern, (own_bias - bias + 1) << own_mantissa))
        magnitude = tw.where(too_large, infinity, tw.where(too_small, like(pattern, 0), magnitude))
    return tw.where(tw.isnan(x), x, bits(sign_bit | magnitude, x.dtype))
