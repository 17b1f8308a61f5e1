"""Arithmetic, comparison, logic, bits, rounding and activations, element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike
from tilewright.dtypes import DType
from tilewright.interop.casts import to_integer
from tilewright.interop.narrow import STORAGES, Coded, decoded, encoded, is_integer
from tilewright.interop.onnx.registry import Node, operator
from tilewright.interop.onnx.tensors import storage_of

# Of arrays, or what `Coded` values hold.
ElementType = DType | np.dtype[Any]

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": tw.abs,
    "Acos": tw.acos,
    "Acosh": tw.acosh,
    "Asin": tw.asin,
    "Asinh": tw.asinh,
    "Atan": tw.atan,
    "Atanh": tw.atanh,
    "BitwiseNot": tw.bitwise_invert,
    "Ceil": tw.ceil,
    "Cos": tw.cos,
    "Cosh": tw.cosh,
    "Erf": tw.erf,
    "Exp": tw.exp,
    "Floor": tw.floor,
    "Identity": lambda x: x,
    "IsNaN": tw.isnan,
    "Log": tw.log,
    "Neg": tw.negative,
    "Not": tw.logical_not,
    "Reciprocal": tw.reciprocal,
    "Relu": tw.nn.relu,
    "Round": tw.round,
    "Sigmoid": tw.sigmoid,
    "Sign": tw.sign,
    "Sin": tw.sin,
    "Sinh": tw.sinh,
    "Softplus": tw.nn.softplus,
    "Sqrt": tw.sqrt,
    "Tan": tw.tan,
    "Tanh": tw.tanh,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": tw.add,
    "And": tw.logical_and,
    "BitwiseAnd": tw.bitwise_and,
    "BitwiseOr": tw.bitwise_or,
    "BitwiseXor": tw.bitwise_xor,
    "Equal": tw.equal,
    "Greater": tw.greater,
    "GreaterOrEqual": tw.greater_equal,
    "Less": tw.less,
    "LessOrEqual": tw.less_equal,
    "Mul": tw.multiply,
    "Or": tw.logical_or,
    "Sub": tw.subtract,
    "Xor": tw.logical_xor,
}
_VARIADIC: dict[str, Callable[[Array, Array], Array]] = {"Max": tw.maximum, "Min": tw.minimum, "Sum": tw.add}


def _register_unary(name: str, function: Callable[[Array], Array]) -> None:
    @operator(name)
    def _(node: Node, x: Array) -> Array:
        return function(x)


def _register_binary(name: str, function: Callable[[Array, Array], Array]) -> None:
    @operator(name)
    def _(node: Node, a: Array, b: Array) -> Array:
        return function(a, aligned(node, a, b))


def _register_variadic(name: str, function: Callable[[Array, Array], Array]) -> None:
    @operator(name)
    def _(node: Node, *arrays: Array) -> Array:
        return functools.reduce(function, arrays)


for _name, _function in _UNARY.items():
    _register_unary(_name, _function)
for _name, _function in _BINARY.items():
    _register_binary(_name, _function)
for _name, _function in _VARIADIC.items():
    _register_variadic(_name, _function)


def aligned(node: Node, a: Array, b: Array) -> Array:
    """The second operand as operators before version 7 place it: its axes from `axis` of the first on."""
    axis = node.get("axis")
    node.ignore("broadcast")
    if node.version >= 7 or axis is None or not node.get("broadcast", 0):
        return b
    return tw.reshape(b, (*b.shape, *(1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim)))


def wide(x: Array) -> Array:
    """An array in the type that it computes in: narrow floats as f32."""
    return tw.astype(x, x.dtype.compute)


@operator("Div")
def divide(node: Node, a: Array, b: Array) -> Array:
    """Integers round towards 0."""
    b = aligned(node, a, b)
    if a.dtype.is_float:
        return tw.divide(a, b)
    quotient = tw.floor_divide(a, b)
    if not a.dtype.is_signed:
        return quotient
    inexact = tw.not_equal(tw.multiply(quotient, b), a)
    negative = tw.not_equal(tw.less(a, 0), tw.less(b, 0))
    return tw.where(tw.logical_and(inexact, negative), tw.add(quotient, 1), quotient)


@operator("Mod")
def modulo(node: Node, a: Array, b: Array) -> Array:
    """With the sign of the divisor, or with `fmod` of the dividend."""
    if not node.get("fmod", 0):
        if a.dtype.is_float and node.version < 28:
            raise node.unsupported("`Mod` of floats is defined with fmod=1 only")
        return tw.remainder(a, b)
    if not a.dtype.is_signed:
        return tw.remainder(a, b)
    if a.dtype.is_float:
        # fmod(a, b) is that of the magnitudes, which is exact, with the sign of a.
        return tw.copysign(tw.remainder(tw.abs(a), tw.abs(b)), a)
    rest = tw.remainder(a, b)
    other_sign = tw.logical_and(tw.not_equal(rest, 0), tw.not_equal(tw.less(a, 0), tw.less(b, 0)))
    return tw.where(other_sign, tw.subtract(rest, b), rest)


@operator("Pow")
def power(node: Node, base: Array, exponent: Array) -> Array:
    """In the type of the base; integers of the base with floats above compute as floats."""
    exponent = aligned(node, base, exponent)
    if base.dtype.is_integer and exponent.dtype.is_integer:
        return tw.astype(tw.pow(base, tw.astype(exponent, base.dtype)), base.dtype)
    if base.dtype.is_float:
        return tw.pow(base, tw.astype(exponent, base.dtype))
    return tw.astype(tw.pow(tw.astype(base, exponent.dtype), exponent), base.dtype)


@operator("Mean")
def mean(node: Node, *arrays: Array) -> Array:
    """The mean of arrays that broadcast."""
    return tw.divide(functools.reduce(tw.add, arrays), float(len(arrays)))


@operator("BitShift")
def bit_shift(node: Node, x: Array, by: Array) -> Array:
    """To the `direction` LEFT or RIGHT."""
    direction = node.required("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise node.unsupported(f"the direction of `BitShift` is {direction!r}")
    return tw.bitwise_left_shift(x, by) if direction == "LEFT" else tw.bitwise_right_shift(x, by)


@operator("IsInf")
def is_infinite(node: Node, x: Array) -> Array:
    """Infinities of both signs, or of those that the attributes name."""
    found = tw.isinf(x)
    if not node.get("detect_negative", 1):
        found = tw.logical_and(found, tw.greater(x, 0))
    return found if node.get("detect_positive", 1) else tw.logical_and(found, tw.less(x, 0))


@operator("Where")
def where(node: Node, condition: Array, a: Array, b: Array) -> Array:
    """The first value where the condition holds."""
    return tw.where(condition, a, b)


@operator("Clip", since=11)
def clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Between two scalars, either of which may be absent."""
    return _clipped(x, low, high)


def _clipped(x: Array, low: ArrayLike | None, high: ArrayLike | None) -> Array:
    """Clip an array; elements equal to a bound are unchanged, so that zeros keep their sign."""
    above = x if low is None else tw.where(_passes(tw.less, x, low), low, x)
    return above if high is None else tw.where(_passes(tw.greater, above, high), high, above)


def _passes(is_beyond: Callable[[ArrayLike, ArrayLike], Array], x: Array, bound: ArrayLike) -> Array:
    beyond = is_beyond(x, bound)
    if not x.dtype.is_float or not isinstance(bound, Array):
        return beyond
    return tw.logical_and(tw.logical_or(beyond, tw.isnan(bound)), tw.logical_not(tw.isnan(x)))


@operator("Clip")
def clip_by_attributes(node: Node, x: Array) -> Array:
    """Between two attributes."""
    return _clipped(x, node.get("min"), node.get("max"))


# ---- activations ----------------------------------------------------------------------------------------------------


def _from_wide(x: Array, result: Array) -> Array:
    return tw.astype(result, x.dtype)


@operator("Elu")
def elu(node: Node, x: Array) -> Array:
    """`alpha * (exp(x) - 1)` below 0."""
    return tw.nn.elu(x, node.get("alpha", 1.0))


@operator("Celu")
def celu(node: Node, x: Array) -> Array:
    """`alpha * (exp(x / alpha) - 1)` below 0."""
    alpha = node.get("alpha", 1.0)
    y = wide(x)
    return _from_wide(x, tw.maximum(y, 0.0) + tw.minimum(0.0, tw.expm1(tw.minimum(y, 0.0) / alpha) * alpha))


@operator("Selu")
def selu(node: Node, x: Array) -> Array:
    """A scaled `Elu`."""
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    y = wide(x)
    return _from_wide(x, tw.where(y < 0, tw.expm1(tw.minimum(y, 0.0)) * alpha, y) * gamma)


@operator("LeakyRelu")
def leaky_relu(node: Node, x: Array) -> Array:
    """`alpha * x` below 0."""
    return tw.nn.leaky_relu(x, node.get("alpha", 0.01))


@operator("PRelu")
def prelu(node: Node, x: Array, slope: Array) -> Array:
    """`slope * x` below 0; before version 7 a vector of slopes belongs to the channels."""
    if node.version < 7 and slope.ndim == 1 and x.ndim > 2 and slope.shape[0] != 1:
        slope = tw.reshape(slope, (*slope.shape, *(1,) * (x.ndim - 2)))
    return tw.where(tw.less(x, 0), tw.multiply(x, slope), x)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Array) -> Array:
    """`x` above `alpha`, 0 elsewhere."""
    return tw.where(tw.greater(x, node.get("alpha", 1.0)), x, tw.zeros_like(x))


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Array) -> Array:
    """`alpha * x + beta` between 0 and 1."""
    y = wide(x) * node.get("alpha", 0.2) + node.get("beta", 0.5)
    return _from_wide(x, tw.clip(y, 0.0, 1.0))


@operator("HardSwish")
def hard_swish(node: Node, x: Array) -> Array:
    """`x` times a `HardSigmoid` of slope 1 / 6."""
    y = wide(x)
    return _from_wide(x, y * tw.clip(y * (1.0 / 6.0) + 0.5, 0.0, 1.0))


@operator("Swish")
def swish(node: Node, x: Array) -> Array:
    """`x * sigmoid(alpha * x)`."""
    y = wide(x)
    return _from_wide(x, y * tw.sigmoid(y * node.get("alpha", 1.0)))


@operator("Mish")
def mish(node: Node, x: Array) -> Array:
    """`x * tanh(softplus(x))`."""
    y = wide(x)
    return _from_wide(x, y * tw.tanh(tw.nn.softplus(y)))


@operator("Gelu")
def gelu(node: Node, x: Array) -> Array:
    """`x` times the normal distribution function, or its approximation."""
    return tw.nn.gelu(x, node.get("approximate", "none"))


@operator("Softsign")
def softsign(node: Node, x: Array) -> Array:
    """`x / (1 + abs(x))`."""
    y = wide(x)
    return _from_wide(x, y / (tw.abs(y) + 1.0))


@operator("Shrink")
def shrink(node: Node, x: Array) -> Array:
    """Towards 0 by `bias`, and 0 between `-lambd` and `lambd`."""
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    y = wide(x) if x.dtype.is_float else tw.astype(x, tw.f32)
    moved = tw.where(y < -limit, y + bias, tw.where(y > limit, y - bias, 0.0))
    return to_integer(moved, x.dtype) if x.dtype.is_integer else _from_wide(x, moved)


@operator("Hardmax")
def hardmax(node: Node, x: Array) -> Array:
    """1 at the first largest element along `axis`, 0 elsewhere."""
    if node.version < 13:
        return _over_flattened(node, x, lambda y: _first_largest(y, 1))
    return _first_largest(x, node.get("axis", -1))


def _first_largest(x: Array, axis: int) -> Array:
    places = tw.iota(x.shape, axis % max(x.ndim, 1))
    return tw.astype(tw.equal(places, tw.argmax(x, axis, keepdims=True)), x.dtype)


def _over_flattened(node: Node, x: Array, function: Callable[[Array], Array]) -> Array:
    """As operators before version 13: over all axes from `axis` on at once."""
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    matrix = tw.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return tw.reshape(function(matrix), x.shape)


@operator("Softmax")
def softmax(node: Node, x: Array) -> Array:
    """Exponentials that sum to 1 along `axis`."""
    if node.version < 13:
        return _over_flattened(node, x, lambda y: tw.nn.softmax(y, 1))
    axis = node.get("axis", -1)
    if not x.dtype.is_narrow_float or x.size == 0:
        return tw.nn.softmax(x, axis)
    # ONNX defines it by operators that round to the type of `x` one after the other.
    weights = tw.exp(x - tw.max(x, axis, keepdims=True))
    return weights / tw.sum(weights, axis, keepdims=True)


@operator("LogSoftmax")
def log_softmax(node: Node, x: Array) -> Array:
    """The logarithm of `Softmax`."""
    if node.version < 13:
        return _over_flattened(node, x, lambda y: tw.nn.log_softmax(y, 1))
    return tw.nn.log_softmax(x, node.get("axis", -1))


# ---- element types --------------------------------------------------------------------------------------------------


def convert(node: Node, x: Array | Coded, to: ElementType) -> Array | Coded:
    """A cast; floats of 8 bits saturate unless the node states otherwise, and integers wrap, as in ONNX Runtime."""
    if isinstance(x, Coded):
        if x.storage == to:
            return x
        x = decoded(x)
    saturate = bool(node.get("saturate", 1))
    if not isinstance(to, DType):
        return _narrowed(node, x, to, saturate)
    if x.dtype.is_float and to.is_integer:
        # Doubles reach bytes through 32 bits, not through 64 as in torch.
        return tw.astype(to_integer(x, dtypes.i32), to) if to.bits == 8 else to_integer(x, to)
    if not (to.is_float and to.bits == 8 and saturate):
        return tw.astype(x, to)
    limit = 448.0 if to == tw.f8e4m3fn else 57344.0
    return tw.astype(tw.clip(wide(x) if x.dtype.is_float else tw.astype(x, tw.f32), -limit, limit), to)


def _narrowed(node: Node, x: Array, storage: np.dtype, saturate: bool) -> Coded:
    rounding = node.get("round_mode", "up")
    if rounding not in ("up", "down"):
        raise node.unsupported(f"`{node.op}` with rounding {rounding!r}")
    if x.dtype.is_float and is_integer(storage):
        x = to_integer(x, dtypes.i32)
    return encoded(x, storage, saturate=saturate, up=rounding == "up")


def element_type_of(node: Node, code: int) -> ElementType:
    """The element type of a number of `TensorProto.DataType`, of arrays or of `Coded` values."""
    storage = storage_of(code, f"the result of `{node.op}`")
    return storage if storage in STORAGES else dtypes.from_numpy(storage)


def dtype_of(node: Node, code: int) -> DType:
    """The element type of a number of `TensorProto.DataType`.

    Raises:
        UnsupportedOperatorError: no array has it.
    """
    found = element_type_of(node, code)
    if not isinstance(found, DType):
        raise node.unsupported(f"`{node.op}` to {found.name}")
    return found


def type_of(x: Array | Coded) -> ElementType:
    """The element type of a value."""
    return x.storage if isinstance(x, Coded) else x.dtype


@operator("Cast", narrow=True)
def cast(node: Node, x: Array | Coded) -> Array | Coded:
    """To the element type `to`."""
    return convert(node, x, element_type_of(node, node.required("to")))


@operator("CastLike", narrow=True)
def cast_like(node: Node, x: Array | Coded, like: Array | Coded) -> Array | Coded:
    """To the element type of another array."""
    return convert(node, x, type_of(like))


@operator("BitCast")
def bit_cast(node: Node, x: Array) -> Array:
    """Reinterpret the bits as another element type of equal width."""
    to = dtype_of(node, node.required("to"))
    if x.dtype.is_bool and to.is_integer and to.bits == 8:
        return tw.astype(x, to)
    return tw.bitcast(x, to)


@operator("Dropout")
def dropout(node: Node, x: Array, ratio: object = None, training: object = None) -> Any:
    """As it is when a model is used: the identity, and a mask of trues."""
    node.ignore("ratio")
    if node.version < 7 and not node.get("is_test", 0):
        raise node.unsupported("`Dropout` in training, of a version before 7")
    in_training = training is not None and bool(node.known(training, "training_mode").reshape(-1)[0])
    dropped = 0.5 if ratio is None else None
    if in_training and (dropped is not None or float(node.known(ratio, "ratio").reshape(-1)[0]) != 0.0):
        raise node.unsupported("`Dropout` in training mode draws random numbers that ONNX leaves open")
    mask = tw.full(x.shape, True, dtype=tw.bool) if node.version >= 10 else tw.ones_like(x)
    return (x, mask) if len(node.wanted) > 1 else x
