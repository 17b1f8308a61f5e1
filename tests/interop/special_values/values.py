"""Special values of each element type: NaN, infinities, zeros of both signs, extremes, subnormals, halves, and for
integers of 8 bits every value."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

_COMMON = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 0.1, 1.0 / 3, 126.5, 127.0, 127.5, 128.0, 200.7, 255.0, 255.5, 256.0)
_LARGE = (300.2, 448.0, 464.0, 465.0, 32767.5, 32768.0, 57344.0, 61440.0, 65504.0, 65520.0, 65536.5, 2.0**31 - 1)
_LARGER = (2.0**31, 2.0**32 - 1, 2.0**32, 5e9, 2.0**53, 2.0**63 - 1024, 2.0**63, 2.0**64 - 2048, 2.0**64, 1e20, 1e30)
_INTEGERS = (0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floats, those of `ml_dtypes` included."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


@functools.cache
def special(dtype: np.dtype[Any]) -> Array:
    """The special values of a type, each once."""
    if dtype == np.bool_:
        return np.array([False, True])
    if is_float(dtype):
        return _floats(dtype)
    info = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)
    if info.max - info.min < 256:
        return np.arange(info.min, info.max + 1).astype(dtype)
    low, high = int(info.min), int(info.max)
    found = {n for n in (*_INTEGERS, *(-n for n in _INTEGERS), 127, 128, 255, 256, 65535, 65536) if low <= n <= high}
    found |= {low, low + 1, low // 2, high, high - 1, high // 2, high // 2 + 1}
    return np.array(sorted(found), dtype)


def _floats(dtype: np.dtype[Any]) -> Array:
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    info = ml_dtypes.finfo(dtype)
    edges = [float(info.max), float(info.tiny), float(info.smallest_subnormal), 3 * float(info.smallest_subnormal)]
    edges += [float(info.tiny) * (1 - float(info.eps)), 1 + float(info.eps), 1 - float(info.eps) / 2]
    numbers = [*_COMMON, *_LARGE, *_LARGER, *edges, np.inf, np.nan]
    with np.errstate(all="ignore"):
        found = np.array([*numbers, *(-n for n in numbers)], np.float64).astype(dtype)
    bits = found.view(f"u{dtype.itemsize}")
    return found[np.sort(np.unique(bits, return_index=True)[1])]


def pairs(left: np.dtype[Any], right: np.dtype[Any] | None = None) -> tuple[Array, Array]:
    """All pairs of special values: every pair of integers of 8 bits."""
    a, b = special(left), special(right or left)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def rows(dtype: np.dtype[Any], width: int) -> Array:
    """Rows that hold special values in each place, and rows of one value; numbers whose sums are exact else."""
    values = special(dtype)
    values = values[:: max(1, len(values) // 48)] if dtype.itemsize == 1 else values
    if width <= 3:
        few = values[:: max(1, len(values) // 14)]
        listed = [few[np.array(at)] for at in itertools.product(range(len(few)), repeat=width)]
        return np.stack(listed)
    rng = np.random.default_rng(0)
    plain = rng.integers(0, 2, (3 * len(values), width)).astype(dtype)
    for n, value in enumerate(values):
        plain[3 * n, rng.integers(width)] = value
        plain[3 * n + 1, rng.integers(width, size=2)] = value
        plain[3 * n + 2] = value
    return plain
