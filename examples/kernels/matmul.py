"""Matrix product, plain and with a bias and GELU fused behind it."""

from __future__ import annotations

import math

import numpy as np

import tilewright as tw


@tw.kernel
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 128, bn: int = 128, bk: int = 32):
    for i, j in tw.grid(c, (bm, bn)):
        acc = tw.zeros((bm, bn), tw.f32)
        for k in tw.steps(a, axis=1, size=bk):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


def gelu(x):
    return 0.5 * x * (1 + tw.erf(x / math.sqrt(2)))


@tw.kernel
def matmul_bias_gelu(
    a: tw.In["M K"],
    b: tw.In["K N"],
    bias: tw.In["N"],
    c: tw.Out["M N"],
    *,
    bm: int = 64,
    bn: int = 128,
    bk: int = 64,
):
    for i, j in tw.grid(c, (bm, bn)):
        acc = tw.zeros((bm, bn), tw.f32)
        for k in tw.steps(a, axis=1, size=bk):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = gelu(acc + bias[j])


_A, _B, _C = (tw.ShapeDtype(shape, tw.f32) for shape in ((512, 384), (384, 640), (512, 640)))
EXAMPLE_ARGUMENTS = {
    "matmul": (_A, _B, _C),
    "matmul_bias_gelu": (_A, _B, tw.ShapeDtype((640,), tw.f32), _C),
}


def reference(a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    product = a.astype(np.float64) @ b.astype(np.float64)
    if bias is None:
        return product
    x = product + bias
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def main() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((500, 300), (300, 400)))
    bias = generator.standard_normal(400).astype(np.float32)
    c = np.empty((500, 400), np.float32)
    matmul(a, b, c)
    print(f"matmul: largest difference from NumPy {np.abs(c - reference(a, b)).max():.2e}")
    matmul_bias_gelu(a, b, bias, c)
    print(f"matmul_bias_gelu: largest difference from NumPy {np.abs(c - reference(a, b, bias)).max():.2e}")


if __name__ == "__main__":
    main()
