"""Reductions over several dimensions whose terms several warps hold: combined in one trip through memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.emulated_chip import emulated_chip

CASES = [
    ("sm_120a", (3, 5, 5), (2, 2)),
    ("sm_120a", (5, 2, 5), (4, 1, 2)),
    ("sm_120a", (2, 6, 6), (2, 3)),
    ("sm_80", (3, 5, 5), (2, 2)),
    ("sm_90a", (4, 9, 7), (2, 3, 2)),
]


@pytest.mark.parametrize(("chip", "shape", "window"), CASES)
def test_windows_reduced_by_warps(chip: str, shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)
    whole = (1,) * (len(shape) - len(window)) + window
    views = np.lib.stride_tricks.sliding_window_view(x, whole)
    axes = tuple(range(x.ndim, views.ndim))

    def pooled(x: Any) -> Any:
        return tw.nn.max_pool(x, window, stride=1), tw.nn.avg_pool(x, window, stride=1)

    with emulated_chip(chip):
        largest, mean = tw.jit(pooled, target=f"cuda:{chip}")(x)
    np.testing.assert_array_equal(largest, views.max(axes))
    np.testing.assert_allclose(mean, views.mean(axes), rtol=1e-5, atol=1e-5)
