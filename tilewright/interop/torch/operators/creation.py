"""Arrays from nothing and from numbers. Elements that torch leaves undefined are zeros here: programs are functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike, constant, scalar_type
from tilewright.dtypes import DType
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import default_float, dtype_of, filled

# Numbers of a range that are tabulated while tracing, because they are not whole.
_MAX_TABLE = 1 << 20


def _type_of(number: object, dtype: object) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    return default_float() if isinstance(number, float) else scalar_type(number)


@operator("full", "new_full")
def full(
    *args: Any, dtype: object = None, layout: object = None, device: object = None, pin_memory: object = None
) -> Array:
    """An array of one number; an array in front of the shape gives its type."""
    *like, shape, value = args
    kind = like[0].dtype if like and dtype is None else _type_of(value, dtype)
    return filled(shape, value, kind)


@operator("full_like")
def full_like(x: Array, value: ArrayLike, *, dtype: object = None, **where: object) -> Array:
    """An array of one number in the shape of another one."""
    return filled(x.shape, value, x.dtype if dtype is None else dtype_of(dtype))


@operator("zeros_like", "empty_like")
def zeros_like(x: Array, *, dtype: object = None, **where: object) -> Array:
    """Zeros in the shape of another array."""
    return full_like(x, 0, dtype=dtype)


@operator("ones_like")
def ones_like(x: Array, *, dtype: object = None, **where: object) -> Array:
    """Ones in the shape of another array."""
    return full_like(x, 1, dtype=dtype)


@operator("zeros", "empty.memory_format", "new_zeros", "new_empty")
def zeros(*args: object, dtype: object = None, **where: object) -> Array:
    """An array of zeros; an array in front of the shape gives its type."""
    *like, shape = args
    return full(*like, shape, 0.0 if not like else 0, dtype=dtype)


@operator("ones", "new_ones")
def ones(*args: object, dtype: object = None, **where: object) -> Array:
    """An array of ones; an array in front of the shape gives its type."""
    *like, shape = args
    return full(*like, shape, 1.0 if not like else 1, dtype=dtype)


@operator("empty_strided", "new_empty_strided")
def empty_strided(*args: object, dtype: object = None, **where: object) -> Array:
    """An array of zeros; strides are not kept."""
    *like, shape, _ = args
    return zeros(*like, shape, dtype=dtype)


@operator("empty_permuted")
def empty_permuted(shape: Sequence[int], order: Sequence[int], *, dtype: object = None, **where: object) -> Array:
    """An array of zeros; the order in memory is not kept."""
    return zeros(shape, dtype=dtype)


@operator("scalar_tensor")
def scalar_tensor(value: ArrayLike, *, dtype: object = None, **where: object) -> Array:
    """A number as an array without axes."""
    return filled((), value, default_float() if dtype is None else dtype_of(dtype))


@operator("arange.start_step", "arange.start", "arange")
def arange(*bounds: float, dtype: object = None, **where: object) -> Array:
    """Numbers from a start below an end, a step apart."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    if dtype is not None:
        kind = dtype_of(dtype)
    else:
        kind = default_float() if any(isinstance(n, float) for n in bounds) else tw.i64
    if kind.is_integer:
        # torch cuts the start and the step off, but counts with what was given, unless elements are i64.
        end = int(end) if kind == tw.i64 else end
        count = max(0, math.ceil((end - (int(start) if kind == tw.i64 else start)) / step))
        start, step = int(start), int(step)
    else:
        count = max(0, math.ceil((end - start) / step))
    whole = all(float(n).is_integer() for n in (start, step))
    if not whole and count <= _MAX_TABLE:
        return constant((start + np.arange(count) * step).astype(kind.numpy))
    wide = tw.i64 if whole else tw.f64
    ramp = tw.iota((count,), dtype=wide)
    number = int if whole else float
    return tw.astype(ramp * number(step) + number(start), kind)


@operator("linspace")
def linspace(start: float, end: float, steps: int, *, dtype: object = None, **where: object) -> Array:
    """Numbers from a start to an end, both included, counted from the nearer of the two. torch's own decomposition
    takes the ends of integers as they are given; its kernels cut them off first."""
    kind = default_float() if dtype is None else dtype_of(dtype)
    if not kind.is_float:
        start, end = int(start), int(end)
    step = (end - start) / max(1, steps - 1)
    if not kind.is_float and steps <= _MAX_TABLE:
        # Where a product and a sum are rounded together, a number may fall short of a whole one.
        at = np.arange(steps)
        found = np.where(at < steps // 2, start + at * step, end - (steps - 1 - at) * step)
        return constant((found if steps != 1 else np.full(1, start)).astype(kind.numpy))
    ramp = tw.iota((steps,), dtype=tw.f64)
    below, above = ramp * step + float(start), float(end) - (float(steps - 1) - ramp) * step
    return tw.astype(tw.where(ramp < steps // 2, below, above) if steps != 1 else tw.full((1,), float(start)), kind)


@operator("eye", "eye.m")
def eye(rows: int, columns: int | None = None, *, dtype: object = None, **where: object) -> Array:
    """Ones on the diagonal."""
    return tw.eye(rows, columns, dtype=default_float() if dtype is None else dtype_of(dtype))
