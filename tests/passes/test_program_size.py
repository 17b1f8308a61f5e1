"""Programs that are longer than Python's stack is deep compile, and give what NumPy gives. The sizes that users may
bring are those of `python -m tests.program_size`."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tilewright as tw
from tests.program_size import SHAPES, compiled, error_of
from tilewright.dialects.walks import producers_first


@pytest.mark.parametrize(
    ("shape", "size", "target"),
    [("chain", 1100, "interp"), ("concat", 530, "cpu"), ("concat", 300, "grid:wormhole"), ("writes", 1100, "interp")],
)
def test_long_programs(shape: str, size: int, target: str) -> None:
    program = SHAPES[shape](size)
    found, _ = compiled(program, target)
    assert error_of(found, program) < 1e-5


@tw.kernel
def products(x: tw.In["N M"], y: tw.Out["N"], *, n: int) -> None:
    for i in tw.grid(y, 16):
        total = tw.zeros((16,), tw.f32)
        for _ in range(n):
            for b in range(n):
                total = total + x[i, b] * x[i, b]
        y[i] = total


def test_long_chains_in_a_tile_kernel() -> None:
    x, y = np.full((16, 20), 0.5, np.float32), np.empty(16, np.float32)
    products.lower(x, y, n=20).compile("cpu")(x, y)
    np.testing.assert_array_equal(y, 100)


def test_walks_are_deeper_than_the_stack() -> None:
    depth = 2 * sys.getrecursionlimit()
    order = list(producers_first([depth], lambda n: [n - 1, n // 2] if n else []))
    assert order == list(range(depth + 1))


def test_walks_find_results_of_what_a_node_needs() -> None:
    results = {0: 0, 1: 1}
    for n in producers_first([90], lambda n: [n - 1, n - 2], results):
        results[n] = results[n - 1] + results[n - 2]
    assert results[90] == 2880067194370816120


def test_windows_of_a_region_are_combined_by_halves() -> None:
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).standard_normal((2, 90), np.float32)
    lowered = tw.from_jax(lambda x: jax.lax.cumlogsumexp(x, 1), x).lower(x)
    assert lowered.ir().count("log1p") < 20
    np.testing.assert_allclose(lowered.compile("cpu")(x), np.logaddexp.accumulate(x.astype(np.float64), 1), 1e-5, 1e-5)
