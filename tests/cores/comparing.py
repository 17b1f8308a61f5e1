"""How results of a grid of cores are compared with what they should be: three measures together, with bounds that come
from the types that were computed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import DType

Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bounds:
    """`relative`: of the difference's Frobenius norm to the result's; `steps`: the largest difference in steps of the
    type at the size of the largest numbers; `correlation`: Pearson's coefficient is at least this."""

    relative: float
    steps: float
    correlation: float


EXACT = Bounds(0.0, 0.0, 1.0 - 1e-12)


def bounds_of(dtype: DType, rounded_operations: int = 1, products_of_f32: int = 0) -> Bounds:
    """For results of some operations that each round to a type, and of so many products of f32 one behind another,
    whose two operands are cut to 11 bits: on average they lose half of the last one, always towards zero."""
    if not dtype.is_float:
        return EXACT
    step = dtype.epsilon * rounded_operations
    if products_of_f32:
        step = max(step, products_of_f32 * 2 * 2.0**-11)
    return Bounds(step, 4 * step / dtype.epsilon, 1 - 4 * step)


def check(got: Tensor, expected: Tensor, dtype: DType, bounds: Bounds) -> None:
    """Compare a result with float64.

    Raises:
        AssertionError: the type differs, infinities or NaNs are elsewhere, or one of the measures is out of bounds.
    """
    assert got.shape == expected.shape
    assert got.dtype == dtype.numpy, (got.dtype, dtype)
    wide, wanted = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(wanted))
    np.testing.assert_array_equal(wide[~finite & ~np.isnan(wanted)], wanted[~finite & ~np.isnan(wanted)])
    wide, wanted = wide[finite], wanted[finite]
    difference = np.abs(wide - wanted)
    if bounds == EXACT:
        assert not difference.any(), f"{int((difference > 0).sum())} of {difference.size} differ"
        return
    norm = float(np.linalg.norm(wanted)) or 1.0
    relative = float(np.linalg.norm(difference)) / norm
    assert relative <= bounds.relative, f"relative difference {relative:.2e}, of {bounds.relative:.2e}"
    largest = float(np.abs(wanted).max(initial=0.0)) or 1.0
    steps = float(difference.max(initial=0.0)) / (largest * dtype.epsilon)
    assert steps <= bounds.steps, f"{steps:.1f} steps at the largest number, of {bounds.steps:.1f}"
    if wanted.size > 2 and wanted.std() > 0 and wide.std() > 0:
        correlation = float(np.corrcoef(wide, wanted)[0, 1])
        assert correlation >= bounds.correlation, f"correlation {correlation:.6f}, of {bounds.correlation:.6f}"
