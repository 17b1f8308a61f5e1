"""Kernels on arrays without elements: no layout is impossible because of them, and nothing is packed."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def normalised(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (4, 8)):
        v = tw.exp(x[i, j])
        y[i, j] = v / tw.sum(v, axis=1, keepdims=True)


@tw.kernel
def product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (4, 8)):
        acc = tw.zeros((4, 8), tw.f32)
        for k in tw.steps(a, axis=1, size=4):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("shape", [(4, 0), (0, 0), (0, 8), (3, 0)])
def test_rows_without_elements(shape: tuple[int, int], target: str) -> None:
    with tw.options(target=target, cache=False):
        assert normalised(np.ones(shape, np.float32)).shape == shape


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 4, 0), (0, 4, 4), (4, 0, 4), (0, 0, 0), (4, 0, 0)])
def test_products_without_elements(rows: int, depth: int, columns: int, target: str) -> None:
    a, b = np.ones((rows, depth), np.float32), np.ones((depth, columns), np.float32)
    with tw.options(target=target, cache=False):
        np.testing.assert_array_equal(product(a, b), a @ b)
