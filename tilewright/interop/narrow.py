"""Element types that arrays here do not have: integers of 2 and 4 bits, and floats of 4 and 8 bits next to OCP's.

Such an array is its bit patterns, as u8, and the type that gives them meaning. Operators convert from and to it; what
moves elements moves the patterns. Every number of these types is an f32.
"""

from __future__ import annotations

import functools
from dataclasses import field
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import constant
from tilewright.records import dataclass

Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Coded:
    """Bit patterns (u8, one per element) of a type that is narrower than those of arrays."""

    codes: Any
    storage: np.dtype[Any] = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.codes.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.codes.size


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a sequence, which holds others."""
    return isinstance(value, list | tuple)


_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
_EIGHT_BITS = ("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
STORAGES = frozenset(np.dtype(getattr(ml_dtypes, name)) for name in (*_BITS, *_EIGHT_BITS))


def bits_of(storage: np.dtype) -> int:
    """The width of a pattern."""
    return _BITS.get(storage.name, 8)


def is_integer(storage: np.dtype) -> bool:
    """Whether it is a type of integers."""
    return "int" in storage.name


def limits(storage: np.dtype) -> tuple[int, int]:
    """The lowest and highest integer of a type."""
    info = ml_dtypes.iinfo(storage)
    return int(info.min), int(info.max)


def to_codes(array: Tensor) -> Coded:
    """A NumPy array of such a type as patterns."""
    mask = (1 << bits_of(array.dtype)) - 1
    return Coded(np.ascontiguousarray(array).view(np.uint8).reshape(array.shape) & np.uint8(mask), array.dtype)


def from_codes(coded: Coded) -> Tensor:
    """Patterns as a NumPy array of their type."""
    return _all_numbers(coded.storage)[np.asarray(coded.codes)]


@functools.cache
def _all_numbers(storage: np.dtype) -> Tensor:
    """The value of each bit pattern."""
    count = 1 << bits_of(storage)
    patterns = np.arange(count)
    if not is_integer(storage):
        return patterns.astype(np.uint8).view(storage)
    _, highest = limits(storage)
    return np.where(patterns > highest, patterns - count, patterns).astype(storage)


def decoded(coded: Coded) -> Array:
    """The numbers of patterns as f32."""
    if not is_integer(coded.storage):
        return tw.take(constant(_all_numbers(coded.storage).astype(np.float32)), coded.codes)
    lowest, highest = limits(coded.storage)
    codes = tw.astype(coded.codes, tw.i32)
    signed = codes if lowest == 0 else tw.where(codes > highest, codes - (1 << bits_of(coded.storage)), codes)
    return tw.astype(signed, tw.f32)


def encoded(x: Array, storage: np.dtype, *, saturate: bool, up: bool = True) -> Coded:
    """Numbers as patterns. Floats round to the nearest, ties to even; those of powers of two `up` or down. Integers
    keep their lowest bits."""
    if is_integer(storage):
        whole = tw.astype(x, tw.i64) if x.dtype.is_float else x
        mask = (1 << bits_of(storage)) - 1
        return Coded(tw.astype(tw.bitwise_and(tw.astype(whole, tw.i64), mask), tw.uint8), storage)
    wide = x if x.dtype == tw.f64 else tw.astype(x, tw.f32)
    if storage.name == "float8_e8m0fnu":
        return Coded(_power_codes(wide, up=up, saturate=saturate), storage)
    return Coded(_float_codes(wide, storage, saturate=saturate), storage)


def _float_codes(x: Array, storage: np.dtype, *, saturate: bool) -> Array:
    numbers = _all_numbers(storage).astype(np.float64)
    positive = numbers[: len(numbers) // 2]
    positive = positive[np.isfinite(positive)]
    sign = len(numbers) // 2
    largest = len(positive) - 1
    # Between neighbours, and half a step beyond the largest. A tie goes to the even pattern of both: where that is the
    # upper one, the border lies just below the tie.
    ends = np.append(positive, 2 * positive[-1] - positive[-2])
    middles = ((ends[1:] + ends[:-1]) / 2).astype(x.dtype.numpy)
    borders = np.where(np.arange(len(middles)) % 2 == 1, np.nextafter(middles, x.dtype.numpy.type(0)), middles)
    place = tw.searchsorted(constant(borders), tw.abs(x))
    has_nan = bool(np.isnan(numbers).any())
    if saturate or not has_nan:
        place = tw.minimum(place, largest)
    negative = tw.signbit(x)
    if has_nan:
        # The pattern of a negative zero is the one NaN.
        negative = tw.logical_and(negative, place > 0)
        beyond = tw.logical_or(tw.isnan(x), place > largest)
        codes = tw.where(beyond, sign, place + tw.where(negative, sign, 0))
    else:
        codes = tw.where(tw.isnan(x), sign, place + tw.where(negative, sign, 0))
    return tw.astype(codes, tw.uint8)


def _power_codes(x: Array, *, up: bool, saturate: bool) -> Array:
    """The exponent of the next power of two above or below; NaN for what is no finite number."""
    powers = 2.0 ** np.arange(-127, 128, dtype=np.float64)
    wide = tw.abs(tw.astype(x, tw.f64))
    at = tw.searchsorted(constant(powers), wide, side="left" if up else "right")
    code = at if up else tw.maximum(at - 1, 0)
    if saturate:
        code = tw.minimum(code, 254)
    return tw.astype(tw.where(tw.isfinite(x), code, 255), tw.uint8)
