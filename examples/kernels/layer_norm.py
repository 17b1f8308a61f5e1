"""Layer normalisation of each row, with a scale and a shift per column."""

from __future__ import annotations

import numpy as np

import tilewright as tw


@tw.kernel
def layer_norm(
    x: tw.In["M N"],
    scale: tw.In["N"],
    shift: tw.In["N"],
    y: tw.Out["M N"],
    *,
    rows: int = 4,
    epsilon: float = 1e-5,
):
    for i in tw.grid(x, rows):
        row = x[i]
        centred = row - tw.mean(row, axis=1, keepdims=True)
        variance = tw.mean(tw.square(centred), axis=1, keepdims=True)
        y[i] = centred * tw.rsqrt(variance + epsilon) * scale[:] + shift[:]


EXAMPLE_ARGUMENTS = {
    "layer_norm": (
        tw.ShapeDtype((512, 768), tw.f32),
        tw.ShapeDtype((768,), tw.f32),
        tw.ShapeDtype((768,), tw.f32),
        tw.ShapeDtype((512, 768), tw.f32),
    )
}


def reference(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) * scale + shift


def main() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((512, 768)).astype(np.float32)
    scale, shift = (generator.standard_normal(768).astype(np.float32) for _ in range(2))
    y = np.empty_like(x)
    layer_norm(x, scale, shift, y)
    print(f"layer_norm: largest difference from NumPy {np.abs(y - reference(x, scale, shift)).max():.2e}")


if __name__ == "__main__":
    main()
