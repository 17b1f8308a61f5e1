"""Strided loads read nothing beyond the last element, with arrays that end where a page that cannot be read begins."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.guarded_memory import guarded_copy


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 2, 4), (2, 3, 2), (3, 2, 4)])
def test_fewer_lanes_than_the_stride(dtype: str, sizes: tuple[int, ...]) -> None:
    shape = (16, *sizes)
    x = (np.arange(np.prod(shape)).reshape(shape) % 50 + 1).astype(dtype)
    y = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    a, b = guarded_copy(x, True), guarded_copy(y, True)

    def program(a: tw.Array, b: tw.Array) -> tuple[tw.Array, tw.Array]:
        root = 1 / tw.sqrt(a)
        return tw.abs(root), root + tw.permute_dims(b, (0, 2, 3, 1))

    roots, sums = tw.jit(program).lower(a, b).compile(target="cpu")(a, b)
    expected = 1 / np.sqrt(x.astype(np.float64))
    np.testing.assert_allclose(roots, expected, rtol=2e-3)
    np.testing.assert_allclose(sums, expected + y.transpose(0, 2, 3, 1), rtol=2e-3)
