"""What the tests of the array front end share: running on the interpreter, comparing with wide references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import dtypes

SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4)]
FLOAT_DTYPES = [d.name for d in dtypes.FLOATS]
INTEGER_DTYPES = [d.name for d in dtypes.INTEGERS]


def run(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Trace, and run on the interpreter."""
    return tw.jit(function, target="interp")(*arguments, **keywords)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    """Random numbers of one of our types; integers are small and bools mixed."""
    kind = dtypes.by_name(dtype)
    generator = np.random.default_rng(seed)
    if kind.is_bool:
        return generator.integers(0, 2, shape).astype(bool)
    if kind.is_float:
        return np.asarray(generator.uniform(low, high, shape)).astype(kind.numpy)
    least = 0 if kind.kind == "u" else int(low)
    return generator.integers(least, int(high) + 1, shape).astype(kind.numpy)


def same(actual: Any, expected: Any) -> None:
    """Equal in shape, type and every element."""
    assert isinstance(actual, np.ndarray)
    expected = np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    # NumPy does not know NaN in types that are not its own.
    widened = np.float64 if dtypes.from_numpy(actual.dtype).is_narrow_float else actual.dtype
    np.testing.assert_array_equal(actual.astype(widened), expected.astype(widened))


def close(actual: Any, expected: Any, dtype: str, units: float = 4.0) -> None:
    """Of the given type, and within `units` of its last place of a reference in f64."""
    kind = dtypes.by_name(dtype)
    expected = np.asarray(expected, np.float64)
    assert isinstance(actual, np.ndarray)
    assert (actual.shape, actual.dtype) == (expected.shape, kind.numpy)
    with np.errstate(over="ignore"):
        rounded = expected.astype(kind.numpy).astype(np.float64)
    smallest = {"f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-24, "bf16": 2.0**-133}.get(dtype)
    smallest = smallest or {"f32": 2.0**-149, "f64": 2.0**-1074}[dtype]
    tolerance = units * np.maximum(kind.epsilon * np.abs(rounded), smallest)
    wide = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        fits = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded)) | (np.abs(wide - rounded) <= tolerance)
    assert fits.all(), f"{wide[~fits][:4]} instead of {rounded[~fits][:4]}"
