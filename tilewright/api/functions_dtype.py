"""Element types: conversion, limits, promotion."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.lifting import (
    ArrayLike,
    as_operand,
    cast,
    element_or_complex_type,
    element_type,
    emit,
    lift,
    result_dtype,
)
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import ArgumentError, DTypeError

_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (dtypes.bool_,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": dtypes.INTEGERS,
    "real floating": dtypes.FLOATS,
    "complex floating": dtypes.COMPLEX,
    "numeric": dtypes.INTEGERS + dtypes.FLOATS + dtypes.COMPLEX,
}


class FloatLimits(msgspec.Struct, frozen=True):
    """Limits of a float type. `smallest_normal` and `eps` are positive."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerLimits(msgspec.Struct, frozen=True):
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: None = None) -> Array:
    """`x` in another element type. Floats become integers by truncation, saturate, and NaN becomes 0.

    Real numbers become complex ones; complex ones become bools, but no real numbers: take `tw.real(x)`. `copy` and
    `device` are taken for the Array API: the compiler decides about copies.
    """
    return cast(lift(x), element_or_complex_type(dtype))


def bitcast(x: ArrayLike, dtype: DTypeLike, /) -> Array:
    """The bits of `x` read as another element type of the same width."""
    lifted, to = lift(x), element_type(dtype)
    return lifted if lifted.dtype == to else emit("bitcast", lifted, dtype=to.name)


def result_type(*arrays_and_dtypes: ArrayLike | DType) -> DType:
    """The type that arrays, element types and Python numbers promote to.

    Raises:
        ArgumentError: nothing was given, or only Python numbers.
    """
    types = [a if isinstance(a, DType) else as_operand(a) for a in arrays_and_dtypes]
    if not any(isinstance(t, DType | Array) for t in types):
        raise located(ArgumentError("`result_type` needs an array or an element type", help="pass at least one"))
    return result_dtype(types)


def can_cast(from_: object, to: object, /) -> bool:
    """Whether promotion may take `from_` (a type or an array) to `to`."""
    source = from_.dtype if isinstance(from_, Array) else element_or_complex_type(from_)
    destination = element_or_complex_type(to)
    if destination.is_complex and source.is_float:
        return dtypes.promote(source, destination) == destination
    same_kind = source.kind == destination.kind or source.is_bool or {source.kind, destination.kind} == {"u", "i"}
    return same_kind and dtypes.promote(source, destination) == destination


def isdtype(dtype: DTypeLike, kind: object) -> bool:
    """Whether a type is another one, or of a kind such as "integral", or of one of several.

    Raises:
        ArgumentError: there is no such kind.
    """
    if isinstance(kind, tuple):
        kinds: list[Any] = [*kind]
        return any(isdtype(dtype, k) for k in kinds)
    if not isinstance(kind, str):
        return element_or_complex_type(dtype) == element_or_complex_type(kind)
    if kind not in _KINDS:
        raise located(ArgumentError(f"there is no kind `{kind}`", help=f"the kinds are {', '.join(_KINDS)}"))
    return element_or_complex_type(dtype) in _KINDS[kind]


def finfo(type: object, /) -> FloatLimits:
    """Limits of a float type or of an array's; of a complex type, those of its parts.

    Raises:
        DTypeError: it is no float type.
    """
    dtype = (type.dtype if isinstance(type, Array) else element_or_complex_type(type)).part
    if not dtype.is_float:
        raise located(DTypeError(f"{dtype} is not a float type", help="use `tw.iinfo`"))
    largest = _LARGEST[dtype.name]
    return FloatLimits(dtype.bits, dtype.epsilon, largest, -largest, _SMALLEST_NORMAL[dtype.name], dtype)


_LARGEST = {
    "f8e4m3fn": 448.0,
    "f8e5m2": 57344.0,
    "f16": 65504.0,
    "bf16": (2.0 - 2.0**-7) * 2.0**127,
    "f32": float(np.finfo(np.float32).max),
    "f64": float(np.finfo(np.float64).max),
}
_SMALLEST_NORMAL = {
    "f8e4m3fn": 2.0**-6,
    "f8e5m2": 2.0**-14,
    "f16": 2.0**-14,
    "bf16": 2.0**-126,
    "f32": 2.0**-126,
    "f64": 2.0**-1022,
}


def iinfo(type: object, /) -> IntegerLimits:
    """Limits of an integer type or of an array's.

    Raises:
        DTypeError: it is no integer type.
    """
    dtype = type.dtype if isinstance(type, Array) else element_type(type)
    if not dtype.is_integer:
        raise located(DTypeError(f"{dtype} is not an integer type", help="use `tw.finfo`"))
    return IntegerLimits(dtype.bits, int(dtype.highest), int(dtype.lowest), dtype)
