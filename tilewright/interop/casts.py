"""Casts between element types as eager torch and ONNX Runtime do them on x86-64, where C++ leaves many results open.

Floats beyond an integer type wrap: they are truncated to 32 or 64 bits, of which the lowest are kept, and what does not
fit those (NaN and infinities too) becomes the smallest signed integer, as the instructions of the CPU have it. Numbers
reach floats of 16 and 8 bits through f32 in torch, and `float8_e4m3fn` saturates there, infinities too.
"""

from __future__ import annotations

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.dtypes import DType

LARGEST_E4M3FN = 448.0


def convert(x: Array, dtype: DType) -> Array:
    """The array in another element type, as torch casts it."""
    if x.dtype.is_complex and not (dtype.is_complex or dtype.is_bool):
        x = tw.real(x)
    if x.dtype == dtype or dtype.is_bool or x.dtype.is_bool:
        return tw.astype(x, dtype)
    if x.dtype.is_float and dtype.is_integer:
        return to_integer(x, dtype)
    if dtype.is_narrow_float:
        return _to_narrow_float(x, dtype)
    return tw.astype(x, dtype)


def _to_narrow_float(x: Array, dtype: DType) -> Array:
    wide = tw.astype(x, tw.f32)
    if dtype == tw.f8e4m3fn:
        wide = tw.clip(wide, -LARGEST_E4M3FN, LARGEST_E4M3FN)
    return tw.astype(wide, dtype)


def to_integer(x: Array, dtype: DType) -> Array:
    """Floats cut off to integers, of which those beyond the type wrap."""
    if dtype == tw.u64:
        return _to_u64(x)
    # Doubles reach u8 through 64 bits and the other narrow types through 32; so do all floats u32.
    through_64 = dtype.bits == 64 or dtype == tw.u32 or (dtype == tw.u8 and x.dtype == tw.f64)
    return tw.astype(_truncated(x, dtypes.i64 if through_64 else dtypes.i32), dtype)


def _truncated(x: Array, dtype: DType) -> Array:
    """The integer part; the smallest integer where it does not fit, and for NaN."""
    wide = tw.astype(x, x.dtype.compute)
    fits = tw.less(wide, -float(dtype.lowest))  # of NaN too; what lies below the range saturates to the same
    return tw.where(fits, tw.astype(wide, dtype), int(dtype.lowest))


def _to_u64(x: Array) -> Array:
    wide = tw.astype(x, x.dtype.compute)
    high = tw.where(tw.less(wide, 2.0**64), tw.astype(wide, tw.u64), 0)
    return tw.where(tw.greater_equal(wide, 2.0**63), high, tw.astype(_truncated(wide, dtypes.i64), tw.u64))
