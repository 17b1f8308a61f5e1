"""Values that are reached along exponentially many paths took as long to compile."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", [(), (1,), (37,)])
def test_chains_in_which_each_step_reads_two_before_it(shape: tuple[int, ...]) -> None:
    def mixed(a: tw.Array, b: tw.Array) -> tuple[tw.Array, tw.Array]:
        for n in range(48):
            a = a + b
            b = a ^ (b << (n % 7))
        return a, b

    x, y = (np.arange(n, n + int(np.prod(shape)), dtype=np.uint32).reshape(shape) for n in (3, 5))
    found = tw.jit(mixed, target="cpu")(x, y)
    expected = tw.jit(mixed, target="interp")(x, y)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
