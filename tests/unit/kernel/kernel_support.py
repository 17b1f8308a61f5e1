"""What the tests of tile kernels share: running on the interpreter and the CPU, comparing with references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw

TARGETS = ("interp", "cpu")


def run(kernel: tw.Kernel, *arrays: Any, target: str, **static: Any) -> Any:
    """Run on a target; results are returned."""
    with tw.options(target=target, cache=False):
        return kernel(*arrays, **static)


def check(
    kernel: tw.Kernel,
    reference: Callable[..., Any],
    *arrays: np.ndarray,
    tolerance: float = 0.0,
    targets: tuple[str, ...] = TARGETS,
    **static: Any,
) -> None:
    """Results on every target equal the reference's, which gets the same arrays; `tolerance` is relative to the largest
    element."""
    expected = reference(*arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for target in targets:
        actual = run(kernel, *arrays, target=target, **static)
        actual = actual if isinstance(actual, tuple) else (actual,)
        assert len(actual) == len(expected)
        for got, wanted in zip(actual, expected, strict=True):
            same(got, np.asarray(wanted), tolerance, target)


def same(actual: np.ndarray, expected: np.ndarray, tolerance: float, note: str) -> None:
    assert actual.shape == expected.shape, note
    wide, reference = actual.astype(np.float64), expected.astype(np.float64)
    if tolerance == 0:
        np.testing.assert_array_equal(wide, reference, err_msg=note)
        return
    scale = np.abs(reference[np.isfinite(reference)]).max(initial=1.0)
    np.testing.assert_allclose(wide, reference, rtol=tolerance, atol=tolerance * scale, err_msg=note)


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Random floats in -2..2, or small integers, of a NumPy type."""
    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        low = 0 if np.dtype(dtype).kind == "u" else -9
        return generator.integers(low, 10, shape).astype(dtype)
    return generator.uniform(-2, 2, shape).astype(dtype)
