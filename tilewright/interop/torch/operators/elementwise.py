"""Arithmetic, comparison, logic, bits, rounding and activations, element by element, with torch's type promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import is_scalar
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.casts import convert
from tilewright.interop.torch.registry import add_rule, operator
from tilewright.interop.torch.tensors import as_floats, dtype_of, filled, result_type, unified, widened

Operand = Any  # an array, or a Python number


def sign(x: Array) -> Array:
    """-1, 0 or 1; 0 for NaN, and bools as they are."""
    if x.dtype.is_bool:
        return x
    return tw.where(tw.isnan(x), 0, tw.sign(x)) if x.dtype.is_float else tw.sign(x)


def _square(x: Array) -> Array:
    """`x * x`; of bools, as 64-bit integers."""
    return tw.square(tw.astype(x, tw.i64) if x.dtype.is_bool else x)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": tw.abs,
    "alias": lambda x: x,
    "bitwise_not": tw.bitwise_invert,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "detach": lambda x: x,
    "isinf": tw.isinf,
    "isnan": tw.isnan,
    "lift": lambda x: x,
    "lift_fresh": lambda x: x,
    "lift_fresh_copy": lambda x: x,
    "logical_not": tw.logical_not,
    "neg": tw.negative,
    "sign": sign,
    "signbit": tw.signbit,
    "sgn": sign,
    "square": _square,
}
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "ceil": tw.ceil,
    "floor": tw.floor,
    "round": tw.round,
    "trunc": tw.trunc,
}
_OF_FLOATS: dict[str, Callable[[Array], Array]] = {
    "acos": tw.acos,
    "acosh": tw.acosh,
    "asin": tw.asin,
    "asinh": tw.asinh,
    "atan": tw.atan,
    "atanh": tw.atanh,
    "cos": tw.cos,
    "cosh": tw.cosh,
    "erf": tw.erf,
    "erfc": tw.erfc,
    "exp": tw.exp,
    "exp2": tw.exp2,
    "expm1": tw.expm1,
    "log": tw.log,
    "log10": tw.log10,
    "log1p": tw.log1p,
    "log2": tw.log2,
    "reciprocal": tw.reciprocal,
    "rsqrt": tw.rsqrt,
    "sigmoid": tw.sigmoid,
    "silu": tw.nn.silu,
    "sin": tw.sin,
    "sinh": tw.sinh,
    "sqrt": tw.sqrt,
    "tan": tw.tan,
    "tanh": tw.tanh,
}
_COMPARISONS: dict[str, Callable[[Operand, Operand], Array]] = {
    "eq": tw.equal,
    "ge": tw.greater_equal,
    "gt": tw.greater,
    "le": tw.less_equal,
    "lt": tw.less,
    "ne": tw.not_equal,
}
_BITS: dict[str, Callable[[Operand, Operand], Array]] = {
    "bitwise_and": tw.bitwise_and,
    "bitwise_or": tw.bitwise_or,
    "bitwise_xor": tw.bitwise_xor,
}
_LOGIC: dict[str, Callable[[Operand, Operand], Array]] = {
    "logical_and": tw.logical_and,
    "logical_or": tw.logical_or,
    "logical_xor": tw.logical_xor,
}


def _register_unary(name: str, fn: Callable[[Array], Array], of_floats: bool) -> None:
    @operator(name)
    def rule(x: Array, *, memory_format: object = None) -> Array:
        return fn(as_floats(x) if of_floats else x)

    del rule


def _register_rounding(name: str, fn: Callable[[Array], Array]) -> None:
    @operator(name)
    def rule(x: Array) -> Array:
        return fn(x) if x.dtype.is_float else x

    del rule


def _register_binary(name: str, fn: Callable[[Operand, Operand], Array], *overloads: str) -> None:
    @operator(*(f"{name}.{overload}" for overload in overloads))
    def rule(x: Operand, y: Operand) -> Array:
        return fn(*unified(x, y))

    del rule


def _register_logic(name: str, fn: Callable[[Operand, Operand], Array]) -> None:
    @operator(name)
    def rule(x: Array, y: Array) -> Array:
        return fn(x, y)

    del rule


def _register_all() -> None:
    for name, fn in _UNARY.items():
        _register_unary(name, fn, False)
    for name, fn in _OF_FLOATS.items():
        _register_unary(name, fn, True)
    for name, fn in _ROUNDING.items():
        _register_rounding(name, fn)
    for name, fn in _COMPARISONS.items():
        _register_binary(name, fn, "Tensor", "Scalar")
    for name, fn in _BITS.items():
        _register_binary(name, fn, "Tensor", "Scalar", "Scalar_Tensor")
    for name, fn in _LOGIC.items():
        _register_logic(name, fn)


_register_all()
_register_binary("maximum", tw.maximum, "default")
_register_binary("minimum", tw.minimum, "default")


# ---- arithmetic -----------------------------------------------------------------------------------------------------


@operator("add.Tensor", "add.Scalar")
def add(x: Operand, y: Operand, alpha: float = 1) -> Array:
    """`x + alpha * y`; of bools, whether either holds."""
    a, b = unified(x, y)
    if result_type([x, y]).is_bool:
        return tw.logical_or(a, b if alpha else False)
    return tw.add(a, b if alpha == 1 else tw.multiply(b, alpha))


@operator("sub.Tensor", "sub.Scalar")
def subtract(x: Operand, y: Operand, alpha: float = 1) -> Array:
    """`x - alpha * y`."""
    a, b = unified(x, y)
    return tw.subtract(a, b if alpha == 1 else tw.multiply(b, alpha))


@operator("rsub.Tensor", "rsub.Scalar")
def reversed_subtract(x: Operand, y: Operand, alpha: float = 1) -> Array:
    """`y - alpha * x`."""
    return subtract(y, x, alpha)


@operator("mul.Tensor", "mul.Scalar")
def multiply(x: Operand, y: Operand) -> Array:
    """`x * y`; of bools, whether both hold."""
    if (wide := _by_wide_number(x, y)) is not None:
        return tw.astype(tw.multiply(*wide), x.dtype)
    a, b = unified(x, y)
    dtype = result_type([x, y])
    if dtype == tw.f8e4m3fn:
        # Products beyond its range saturate, as casts to it do.
        return convert(tw.multiply(*(n if is_scalar(n) else widened(n) for n in (a, b))), dtype)
    return tw.logical_and(a, b) if dtype.is_bool else tw.multiply(a, b)


def fma(x: Operand, y: Operand, z: Operand) -> Array:
    """`x * y + z`, as torch's own compiler writes the steps of optimisers."""
    return add(multiply(x, y), z)


add_rule("prims.fma.default", fma)


def _by_wide_number(x: Operand, y: Operand) -> list[Any] | None:
    """Both in f32, where `x` has floats of 16 bits, and `y` is a number or has a wider type and no dimensions: torch
    multiplies and divides by it as it is, not rounded to the type of `x`."""
    if not isinstance(x, Array) or not x.ndim or not x.dtype.is_narrow_float or x.dtype.bits != 16:
        return None
    if isinstance(y, Array) and (y.ndim or not y.dtype.is_float or y.dtype.is_narrow_float):
        return None
    if isinstance(y, complex):
        return None
    return [tw.astype(x, tw.f32), tw.astype(y, tw.f32) if isinstance(y, Array) else float(y)]


@operator("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(x: Operand, y: Operand) -> Array:
    """`x / y`; integers divide as floats."""
    if (wide := _by_wide_number(x, y)) is not None:
        return tw.astype(tw.divide(*wide), x.dtype)
    return tw.divide(*unified(x, y, floats=True))


@operator("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(x: Operand, y: Operand, *, rounding_mode: str | None) -> Array:
    """`x / y`, rounded towards minus infinity by "floor" and towards 0 by "trunc"."""
    if rounding_mode is None:
        return divide(x, y)
    a, b = unified(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if (wide := _by_wide_number(x, y)) is not None:
        return tw.astype(tw.trunc(tw.divide(*wide)), x.dtype)
    if a.dtype.is_float if isinstance(a, Array) else b.dtype.is_float:
        return tw.trunc(tw.divide(a, b))
    quotient = tw.floor_divide(a, b)
    # Where it was rounded down from a negative number.
    is_below = tw.logical_and(tw.remainder(a, b) != 0, tw.not_equal(tw.less(a, 0), tw.less(b, 0)))
    return quotient + tw.astype(is_below, quotient.dtype)


@operator("floor_divide", "floor_divide.Scalar")
def floor_divide(x: Operand, y: Operand) -> Array:
    """`x // y`. Each step on floats of 16 bits is rounded, as torch does them."""
    if (wide := _by_wide_number(x, y)) is not None:
        return tw.astype(floor_divide(*wide), x.dtype)
    a, b = unified(x, y)
    if not (a if isinstance(a, Array) else b).dtype.is_narrow_float:
        return tw.floor_divide(a, b)
    a, b = (tw.full((), n, dtype=result_type([x, y])) if is_scalar(n) else n for n in (a, b))
    rest = fmod(a, b)
    quotient = (a - rest) / b
    is_above = tw.logical_and(tw.not_equal(rest, 0), tw.not_equal(tw.less(b, 0), tw.less(rest, 0)))
    quotient = tw.where(is_above, quotient - 1.0, quotient)
    below = tw.floor(quotient)
    rounded = tw.where(quotient - below > 0.5, below + 1.0, below)
    rounded = tw.where(tw.equal(quotient, 0), tw.copysign(tw.zeros_like(rounded), a / b), rounded)
    return tw.where(tw.equal(b, 0), a / b, rounded)


@operator("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(x: Operand, y: Operand) -> Array:
    """`x % y`, with the sign of `y`; zeros have that of `x`."""
    a, b = unified(x, y)
    rest = tw.remainder(a, b)
    return tw.where(tw.equal(rest, 0), tw.copysign(rest, a), rest) if rest.dtype.is_float else rest


@operator("fmod.Tensor", "fmod.Scalar")
def fmod(x: Operand, y: Operand) -> Array:
    """The remainder of `x / y` rounded towards 0, with the sign of `x`."""
    a, b = unified(x, y)
    rest = tw.remainder(a, b)
    if rest.dtype.is_float:
        # Exact for magnitudes, of which rounding down is rounding towards 0.
        return tw.copysign(tw.remainder(_magnitude(a), _magnitude(b)), a)
    # Magnitudes of the smallest integers wrap: the remainder of the division rounded down is corrected instead.
    is_above = tw.logical_and(tw.not_equal(rest, 0), tw.not_equal(tw.less(a, 0), tw.less(b, 0)))
    return tw.where(is_above, rest - b, rest)


def _magnitude(x: Operand) -> Operand:
    """The magnitude, of a number as a number: an array of it would have a type of its own."""
    return abs(x) if is_scalar(x) else tw.abs(x)


@operator("round.decimals")
def round_decimals(x: Array, *, decimals: int) -> Array:
    """The nearest number of so many decimals; powers of ten for those below 0."""
    if not x.dtype.is_float:
        return x
    power = 10.0 ** abs(decimals)
    wide = widened(x)
    found = tw.round(wide * power) / power if decimals >= 0 else tw.round(wide / power) * power
    return tw.astype(found, x.dtype)


@operator("native_dropout")
def dropout(x: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    """`x` and a mask of trues, as it is outside of training; what is dropped there follows torch's random numbers."""
    if train is not False:
        raise UnsupportedOperatorError("dropout in training", help="export the module after `.eval()`")
    return x, tw.full(x.shape, True, dtype=tw.bool)


@operator("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(x: Operand, y: Operand) -> Array:
    """`x ** y`; of bools, whether `x` holds or `y` does not."""
    dtype = result_type([x, y])
    if dtype.is_bool:
        return tw.logical_or(x, tw.logical_not(y))
    if dtype.is_integer and isinstance(y, int | float) and y < 0:
        raise UnsupportedOperatorError("an integer to a negative power", help="cast to floats first")
    a, b = unified(x, y)
    if is_scalar(b):
        is_whole = not isinstance(b, complex) or b.imag == 0
        number = b.real if isinstance(b, complex) and is_whole else b
        return tw.pow(a, int(number.real) if is_whole and float(number.real).is_integer() else number)
    return tw.pow(a, b)


@operator("fmax")
def fmax(x: Array, y: Array) -> Array:
    """The larger of both, or the one that is a number; the first of equal ones."""
    a, b = unified(x, y)
    return tw.where(_first_wins(a, b, tw.greater_equal), a, b)


def _first_wins(a: Array, b: Array, is_better: Callable[[Operand, Operand], Array]) -> Array:
    better = is_better(a, b)
    return tw.logical_or(better, tw.isnan(b)) if a.dtype.is_float else better


@operator("fmin")
def fmin(x: Array, y: Array) -> Array:
    """The smaller of both, or the one that is a number; the first of equal ones."""
    a, b = unified(x, y)
    return tw.where(_first_wins(a, b, tw.less_equal), a, b)


@operator("atan2")
def atan2(x: Operand, y: Operand) -> Array:
    """The angle of the point (`y`, `x`)."""
    return tw.atan2(*unified(x, y, floats=True))


@operator("copysign.Tensor", "copysign.Scalar")
def copysign(x: Operand, y: Operand) -> Array:
    """`x` with the sign of `y`."""
    return tw.copysign(*unified(x, y, floats=True))


@operator("nextafter")
def nextafter(x: Array, y: Array) -> Array:
    """The float next to `x` in the direction of `y`."""
    return tw.nextafter(*unified(x, y))


@operator("hypot")
def hypot(x: Array, y: Array) -> Array:
    """The length of the hypotenuse."""
    return tw.hypot(*unified(x, y))


@operator("logaddexp")
def logaddexp(x: Array, y: Array) -> Array:
    """`log(exp(x) + exp(y))`."""
    return tw.logaddexp(*unified(x, y, floats=True))


@operator("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "bitwise_left_shift.Scalar_Tensor")
@operator("__lshift__.Tensor", "__lshift__.Scalar")
def shift_left(x: Operand, y: Operand) -> Array:
    """`x << y`."""
    return tw.bitwise_left_shift(*unified(x, y))


@operator("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "bitwise_right_shift.Scalar_Tensor")
@operator("__rshift__.Tensor", "__rshift__.Scalar")
def shift_right(x: Operand, y: Operand) -> Array:
    """`x >> y`."""
    return tw.bitwise_right_shift(*unified(x, y))


# ---- choice ---------------------------------------------------------------------------------------------------------


@operator("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(condition: Array, x: Operand, y: Operand) -> Array:
    """`x` where the condition holds, `y` elsewhere."""
    return tw.where(tw.astype(condition, tw.bool), *unified(x, y))


@operator("clamp", "clamp.Tensor")
def clamp(x: Array, min: Operand = None, max: Operand = None) -> Array:
    """`x` kept between bounds, either of which may be absent. Elements equal to a bound are unchanged: zeros keep their
    sign."""
    bounds = [bound for bound in (min, max) if bound is not None]
    result, *limits = unified(x, *bounds)
    if min is not None:
        result = _bounded(tw.less, result, limits.pop(0))
    return _bounded(tw.greater, result, limits.pop(0)) if limits else result


def _bounded(is_beyond: Callable[[Operand, Operand], Array], x: Array, bound: Operand) -> Array:
    """The bound where `x` is beyond it, or where it is NaN itself."""
    if is_scalar(bound):
        return tw.full(x.shape, bound, dtype=x.dtype) if bound != bound else tw.where(is_beyond(x, bound), bound, x)
    chosen = is_beyond(x, bound)
    if x.dtype.is_float:
        chosen = tw.logical_and(tw.logical_or(chosen, tw.isnan(bound)), tw.logical_not(tw.isnan(x)))
    return tw.where(chosen, bound, x)


@operator("relu")
def relu(x: Array) -> Array:
    """`x`, but at least 0; a negative zero stays."""
    return _bounded(tw.less, x, 0)


@operator("clamp_min", "clamp_min.Tensor")
def clamp_min(x: Array, min: Operand) -> Array:
    """`x`, but at least `min`."""
    return clamp(x, min, None)


@operator("clamp_max", "clamp_max.Tensor")
def clamp_max(x: Array, max: Operand) -> Array:
    """`x`, but at most `max`."""
    return clamp(x, None, max)


@operator("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Array, mask: Array, value: Operand) -> Array:
    """`value` where the mask holds, `x` elsewhere."""
    return tw.where(mask, value if is_scalar(value) and not x.dtype.is_integer else tw.astype(value, x.dtype), x)


@operator("fill.Scalar", "fill.Tensor")
def fill(x: Array, value: Operand) -> Array:
    """An array like `x` that holds `value` everywhere."""
    return filled(x.shape, value, x.dtype)


@operator("copy")
def copy(x: Array, source: Array, non_blocking: bool = False) -> Array:
    """`source` in the shape and type of `x`."""
    return tw.broadcast_to(convert(source, x.dtype), x.shape)


@operator("_to_copy")
def to_copy(
    x: Array,
    dtype: object = None,
    layout: object = None,
    device: object = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: object = None,
) -> Array:
    """`x` in another element type."""
    return x if dtype is None else convert(x, dtype_of(dtype))


# ---- activations ----------------------------------------------------------------------------------------------------


@operator("gelu")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """`x * Phi(x)`, or its approximation by "tanh"."""
    return tw.nn.gelu(x, approximate)


@operator("elu")
def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    """`scale * x` where it is positive, `scale * alpha * (exp(input_scale * x) - 1)` elsewhere."""
    wide = widened(x)
    negative = tw.expm1(tw.minimum(wide, 0.0) * input_scale) * (alpha * scale)
    return tw.astype(tw.where(wide < 0, negative, wide * scale), x.dtype)


@operator("leaky_relu")
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """`x` where it is positive, `negative_slope * x` elsewhere."""
    return tw.where(x > 0, x, x * float(negative_slope))


@operator("hardtanh")
def hardtanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """`x` kept between two numbers."""
    return clamp(x, min_val, max_val)


@operator("softplus")
def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """`log(1 + exp(beta * x)) / beta`, or `x` where `beta * x` is above the threshold."""
    wide = widened(x)
    scaled = wide * float(beta)
    return tw.astype(tw.where(scaled > threshold, wide, tw.nn.softplus(scaled) / float(beta)), x.dtype)


@operator("_softmax")
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """`exp(x) / sum(exp(x))` along an axis."""
    return _along(tw.nn.softmax, tw.astype(x, tw.f32) if half_to_float else x, dim)


@operator("_log_softmax")
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """The logarithm of `_softmax`."""
    return _along(tw.nn.log_softmax, tw.astype(x, tw.f32) if half_to_float else x, dim)


def _along(fn: Callable[..., Array], x: Array, dim: int) -> Array:
    # torch takes a scalar for a vector of one element.
    return fn(x, axis=dim) if x.ndim else tw.reshape(fn(tw.reshape(x, (1,)), axis=0), ())


@operator("logit")
def logit(x: Array, eps: float | None = None) -> Array:
    """`log(x / (1 - x))`, with `x` at least `eps` from 0 and 1 where that is given."""
    y = as_floats(x)
    wide = widened(y)
    kept = wide if eps is None else tw.clip(wide, eps, 1.0 - eps)
    return tw.astype(tw.log(kept / (1.0 - kept)), y.dtype)


@operator("log_sigmoid_forward")
def log_sigmoid(x: Array) -> tuple[Array, Array]:
    """`log(sigmoid(x))`, and what its gradient reads."""
    wide = widened(x)
    small = tw.exp(-tw.abs(wide))
    return tw.astype(tw.minimum(wide, 0.0) - tw.log1p(small), x.dtype), tw.astype(small, x.dtype)
