"""Arguments of cases: fixed for each run of the whole table."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

_RANDOM = np.random.default_rng(7)
F32 = np.float32
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (5,), (2, 3), (3, 1, 4), (2, 0, 3))


def normal(*shape: int, dtype: Any = F32, scale: float = 1.0) -> Any:
    """Normal numbers."""
    return (_RANDOM.standard_normal(shape) * scale).astype(dtype)


def whole(*shape: int, low: int = -9, high: int = 10, dtype: Any = np.int32) -> Any:
    """Integers."""
    return _RANDOM.integers(low, high, shape).astype(dtype)


def special(dtype: Any = F32) -> Any:
    """Floats at which functions have their edges."""
    tiny = float(ml_dtypes.finfo(np.dtype(dtype)).smallest_normal)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.5, 1e3, -1e3, math.inf, -math.inf, math.nan, tiny]
    return np.array([*edges, *_RANDOM.standard_normal(16) * 4]).astype(dtype)
