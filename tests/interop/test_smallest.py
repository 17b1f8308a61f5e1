"""The smallest elements along an axis, as torch and ONNX ask for them, against stable sorts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.interop.smallest import smallest

_CASES = [((20, 30), 5, -1), ((7, 1000), 3, 1), ((3, 17), 17, -1), ((50,), 1, 0), ((40, 6), 4, 0), ((5, 3), 0, 1)]


def _values(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(len(shape)).integers(-50 if np.dtype(dtype).kind != "u" else 0, 50, shape)
    found = x.astype(dtype)
    if np.dtype(dtype).kind not in "iub":
        found.reshape(-1)[3:12] = [np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan, np.inf, 1e-30, -1e-30]
    return found


@pytest.mark.parametrize("case", _CASES, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16, "i4", "i8", "u1", "i1", "?"], ids=str)
def test_they_are_the_first_of_a_stable_sort(case: tuple[tuple[int, ...], int, int], dtype: Any) -> None:
    """NaN of either sign is last, and zeros of both signs are equal."""
    shape, k, axis = case
    x = _values(shape, dtype)
    values, indices = tw.jit(lambda x: smallest(x, k, axis))(x)
    wide = x.astype(np.float64) if np.dtype(dtype).kind not in "iub" else x
    expected = np.take(np.argsort(wide, axis=axis, kind="stable"), np.arange(k), axis)
    np.testing.assert_array_equal(indices, expected)
    bits = f"u{x.dtype.itemsize}"
    np.testing.assert_array_equal(np.asarray(values).view(bits), np.take_along_axis(x, expected, axis).view(bits))
