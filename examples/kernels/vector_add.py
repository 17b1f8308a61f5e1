"""Vector addition: one block of elements per point of the grid, masked at the end."""

from __future__ import annotations

import numpy as np

import tilewright as tw


@tw.kernel
def vector_add(x: tw.In["N"], y: tw.In["N"], z: tw.Out["N"], *, block: int = 1024):
    for i in tw.grid(z, block):
        z[i] = x[i] + y[i]


EXAMPLE_ARGUMENTS = {"vector_add": (tw.ShapeDtype((100_000,), tw.f32),) * 3}


def main() -> None:
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(100_000).astype(np.float32) for _ in range(2))
    z = np.empty_like(x)
    vector_add(x, y, z)
    print(f"vector_add: largest difference from NumPy {np.abs(z - (x + y)).max():.2e}")


if __name__ == "__main__":
    main()
