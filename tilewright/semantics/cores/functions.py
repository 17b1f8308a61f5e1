"""Scalar functions as the vector unit computes them, on whole registers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.dtypes import DType
from tilewright.semantics.cores.tile_formats import Array

# Nodes of the table for `erf`, up to where it is 1 in f32.
_ERF_LIMIT, _ERF_NODES = 4.0, 2048


@cache
def function_of(name: str, dtype: DType) -> Callable[..., Array]:
    """A function of registers and numbers that are f32, i32 or u32, to the same type; what is true is 1, what is false
    0."""
    if name == "fill":
        return np.asarray
    if name == "select":
        return _select
    own: dict[str, Callable[..., Any]] = {"erf": _erf, "sigmoid": _sigmoid, "rsqrt": _rsqrt}
    function = own[name] if name in own else ops.FUNCTIONS[name].reference
    compute = np.dtype(dtype.numpy)

    def evaluate(*given: Array) -> Array:
        result = function(*given)
        return result if result.dtype == compute else np.asarray(result).astype(compute)

    return evaluate


def _select(condition: Array, chosen: Array, other: Array) -> Array:
    return np.where(condition != 0, chosen, other)


def _sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a.astype(np.float64)))


def _rsqrt(a: Array) -> Array:
    return 1 / np.sqrt(a.astype(np.float64))


@cache
def _erf_table() -> Array:
    nodes = np.linspace(0.0, _ERF_LIMIT, _ERF_NODES + 1)
    return np.array([[math.erf(x), 2 / math.sqrt(math.pi) * math.exp(-x * x)] for x in nodes.tolist()]).T


def _erf(a: Array) -> Array:
    """By the cubic between nodes, whose values and slopes are exact: within 1e-13."""
    values, slopes = _erf_table()
    step = _ERF_LIMIT / _ERF_NODES
    size = np.minimum(np.abs(a.astype(np.float64)), _ERF_LIMIT)
    index = np.minimum((np.nan_to_num(size) / step).astype(np.int64), _ERF_NODES - 1)
    t = size / step - index
    low, high = values[index], values[index + 1]
    rise, fall = slopes[index] * step, slopes[index + 1] * step
    difference = high - low
    curve = rise + t * ((3 * difference - 2 * rise - fall) + t * (rise + fall - 2 * difference))
    return np.copysign(low + t * curve, a)
