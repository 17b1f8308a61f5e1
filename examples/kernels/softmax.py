"""Softmax of each row: a tile holds whole rows, so one pass over memory does."""

from __future__ import annotations

import numpy as np

import tilewright as tw


@tw.kernel
def softmax(x: tw.In["M N"], y: tw.Out["M N"], *, rows: int = 4):
    for i in tw.grid(x, rows):
        row = x[i]
        exponential = tw.exp(row - tw.max(row, axis=1, keepdims=True))
        y[i] = exponential / tw.sum(exponential, axis=1, keepdims=True)


@tw.kernel
def softmax_in_blocks(x: tw.In["M N"], y: tw.Out["M N"], *, rows: int = 4, columns: int = 256):
    """For rows too long for a tile: the maximum and the sum are corrected block by block."""
    for i in tw.grid(x, rows):
        largest = tw.full((rows, 1), -float("inf"), tw.f32)
        total = tw.zeros((rows, 1), tw.f32)
        for j in tw.steps(x, axis=1, size=columns):
            block = x[i, j]
            new = tw.maximum(largest, tw.max(block, axis=1, keepdims=True))
            total = total * tw.exp(largest - new) + tw.sum(tw.exp(block - new), axis=1, keepdims=True)
            largest = new
        for j in tw.steps(x, axis=1, size=columns):
            y[i, j] = tw.exp(x[i, j] - largest) / total


EXAMPLE_ARGUMENTS = {
    "softmax": (tw.ShapeDtype((512, 1000), tw.f32),) * 2,
    "softmax_in_blocks": (tw.ShapeDtype((512, 1000), tw.f32),) * 2,
}


def reference(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    exponential = np.exp(wide - wide.max(axis=1, keepdims=True))
    return exponential / exponential.sum(axis=1, keepdims=True)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((512, 1000)).astype(np.float32)
    for kernel in (softmax, softmax_in_blocks):
        y = np.empty_like(x)
        kernel(x, y)
        print(f"{kernel.name}: largest difference from NumPy {np.abs(y - reference(x)).max():.2e}")


if __name__ == "__main__":
    main()
