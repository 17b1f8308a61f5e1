"""`tw.random`: random numbers as functions of a key.

A key is two u32 words. Numbers come from Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as
1, 2, 3; SC 2011), counted by position, so that one key always gives the same numbers. Use each key once; `split` makes
more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.functions_elementwise import (
    add,
    bitwise_left_shift,
    bitwise_right_shift,
    bitwise_xor,
    maximum,
    multiply,
    where,
)
from tilewright.api.functions_manipulation import stack, unstack
from tilewright.api.functions_math import cos, log, sqrt
from tilewright.api.functions_searching import argmax
from tilewright.api.lifting import (
    ArrayLike,
    as_float,
    axis_of,
    broadcast_shapes,
    cast,
    element_type,
    emit,
    integer,
    is_scalar,
    lift,
    reshape,
    shape_of,
)
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import ArgumentError, DTypeError
from tilewright.frontend.tracing import is_tracing

# Told apart from draws, so that a key that was split does not give its children as numbers.
_SPLIT_WORD = 0x73706C74
# `Any`: what `isinstance` leaves of NumPy's scalar types would have an unknown width.
_INTEGERS: tuple[type[Any], ...] = (int, np.integer)
_SIGNIFICAND_BITS = {"f8e4m3fn": 4, "f8e5m2": 3, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def key(seed: Any) -> Any:
    """The key of an integer seed, of which 64 bits count. Outside a traced function it is a NumPy array of u32[2].

    Raises:
        DTypeError: the seed is no integer scalar.
    """
    if isinstance(seed, _INTEGERS) and not isinstance(seed, bool):
        words = np.array([int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF], np.uint32)
        return lifting.constant(words) if is_tracing() else words
    number = lift(seed)
    if number.shape or not number.dtype.is_integer:
        message = f"a seed is {number.dtype} of shape {number.shape}, not one integer"
        raise located(DTypeError(message, help="pass an integer"))
    wide = cast(number, dtypes.u64)
    return cast(stack([wide, bitwise_right_shift(wide, 32)]), dtypes.u32)


def split(key: ArrayLike, num: int = 2) -> tuple[Array, ...]:
    """`num` new keys, independent of each other and of the numbers that `key` gives."""
    tag = lifting.constant(np.array([_SPLIT_WORD, 0], np.uint32))
    words = emit("random_bits", bitwise_xor(_checked(key), tag), shape=(integer(num, "the number of keys"), 2))
    return unstack(words)


def _checked(key: ArrayLike) -> Array:
    words = lift(key)
    if words.dtype != dtypes.u32 or words.shape != (2,):
        message = f"a key is {words.dtype} of shape {words.shape}, not u32 of shape (2,)"
        raise located(DTypeError(message, help="make keys with `tw.random.key` and `tw.random.split`"))
    return words


def bits(key: ArrayLike, shape: int | Sequence[int] = (), dtype: DTypeLike = dtypes.u32) -> Array:
    """Uniform random bits of an unsigned type.

    Raises:
        DTypeError: the type is not unsigned.
    """
    kind, sizes = element_type(dtype), shape_of(shape)
    if kind.kind != "u":
        raise located(DTypeError(f"`bits` of {kind}", help="use an unsigned type, or another function of tw.random"))
    if kind.bits < 64:
        return cast(emit("random_bits", _checked(key), shape=sizes), kind)
    high, low = _draws(key, 2, sizes)
    return bitwise_left_shift(cast(high, dtypes.u64), 32) | cast(low, dtypes.u64)


def _draws(key: ArrayLike, count: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """`count` independent arrays of u32."""
    return unstack(emit("random_bits", _checked(key), shape=(count, *shape)))


def uniform(
    key: ArrayLike,
    shape: int | Sequence[int] = (),
    dtype: DTypeLike = dtypes.f32,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
) -> Array:
    """Uniform floats: `low` <= x < `high`, where rounding may give `high` unless the bounds are 0 and 1.

    Raises:
        DTypeError: the type is no float.
    """
    kind = _float_type("uniform", dtype)
    unit = _unit(key, shape_of(shape), kind)
    if is_scalar(low) and is_scalar(high) and (low, high) == (0, 1):
        return unit
    floor, ceiling = (cast(lift(bound), kind) for bound in (low, high))
    return add(multiply(unit, ceiling - floor), floor)


def _unit(key: ArrayLike, shape: tuple[int, ...], dtype: DType) -> Array:
    """Multiples of one unit in the last place below 1: as many bits as the type holds, so that nothing rounds to 1."""
    significand = _SIGNIFICAND_BITS[dtype.name]
    word = dtypes.u64 if dtype.bits == 64 else dtypes.u32
    kept = bitwise_right_shift(bits(key, shape, word), word.bits - significand)
    return multiply(cast(kept, dtype), 2.0**-significand)


def _float_type(name: str, dtype: DTypeLike) -> DType:
    kind = element_type(dtype)
    if not kind.is_float:
        raise located(DTypeError(f"`{name}` of {kind}", help="use a float type, or `tw.random.randint`"))
    return kind


def normal(key: ArrayLike, shape: int | Sequence[int] = (), dtype: DTypeLike = dtypes.f32) -> Array:
    """Normal floats of mean 0 and variance 1, by the Box-Muller transform; at most 5.8 (f32) or 8.6 (f64) from 0.

    Raises:
        DTypeError: the type is no float.
    """
    kind = _float_type("normal", dtype)
    angle_key, radius_key = split(key)
    compute, sizes = kind.compute, shape_of(shape)
    # 1 - x is never 0, so its logarithm is finite.
    radius = sqrt(log(1.0 - _unit(radius_key, sizes, compute)) * -2.0)
    return cast(radius * cos(_unit(angle_key, sizes, compute) * (2.0 * math.pi)), kind)


def randint(
    key: ArrayLike, shape: int | Sequence[int], low: ArrayLike, high: ArrayLike, dtype: DTypeLike = dtypes.i64
) -> Array:
    """Uniform integers: `low` <= x < `high`. The bias is at most (`high` - `low`) / 2**64.

    Raises:
        DTypeError: the type is no integer type, or a bound does not fit it.
        ArgumentError: the bounds are known and hold no integer.
    """
    kind = element_type(dtype)
    if not kind.is_integer:
        raise located(DTypeError(f"`randint` of {kind}", help="use an integer type, or `tw.random.uniform`"))
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        raise located(ArgumentError(f"no integer is at least {low} and below {high}", help="give a larger `high`"))
    floor = lifting.fitting(low, kind)
    # The highest value that may come out fits the type even where the bound above it does not.
    last = lifting.fitting(high - 1, kind) if is_scalar(high) else lifting.fitting(high, kind) - 1
    span = cast(last, dtypes.u64) - cast(floor, dtypes.u64) + lifting.full((), 1, dtypes.u64)
    drawn = bits(key, shape, dtypes.u64)
    # A span of 2**64 wraps to 0: every word counts as it is.
    offset = where(span == 0, drawn, drawn % maximum(span, 1))
    return cast(offset + cast(floor, dtypes.u64), kind)


def bernoulli(key: ArrayLike, p: ArrayLike = 0.5, shape: object = None) -> Array:
    """Bools that are true with probability `p`, in the shape of `p` unless another is given."""
    chance = as_float(p)
    sizes = chance.shape if shape is None else shape_of(shape)
    return _unit(key, sizes, chance.dtype.compute) < cast(chance, chance.dtype.compute)


def categorical(key: ArrayLike, logits: ArrayLike, *, axis: int = -1, shape: object = None) -> Array:
    """Indices (i64) along `axis`, drawn with the probabilities `softmax(logits)`; the result lacks that axis.

    `shape` is that of the result; the other axes of `logits` broadcast to it. Uses the maximum of Gumbel noise.

    Raises:
        ShapeError: the logits do not broadcast to the shape.
    """
    scores = as_float(logits)
    at = axis_of(axis, scores.ndim)
    order = (*(d for d in range(scores.ndim) if d != at), at)
    scores = cast(lifting.transpose(scores, order), scores.dtype.compute)
    sizes = scores.shape[:-1] if shape is None else broadcast_shapes(scores.shape[:-1], shape_of(shape))
    drawn = bits(key, (*sizes, scores.shape[-1]), dtypes.u32)
    # The middle of each of 2^23 cells: never 0 or 1, and exact in f32.
    unit = (cast(bitwise_right_shift(drawn, 9), scores.dtype) + 0.5) * 2.0**-23
    noise = -log(-log(unit))
    return argmax(noise + reshape(scores, scores.shape), axis=-1)
