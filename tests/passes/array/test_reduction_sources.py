"""Sources of reductions in parts: what is computed again, what is stored, and results against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import Make, run_through
from tests.programs import Program
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass

SIZE = 1 << 18


def largest_stored(make: Make) -> list[int]:
    """The sizes of the results of each group, the last one's left out."""
    unit = run_through(make, ArrayFuseLoopsPass)
    groups = [op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp)]
    return [max(array_type(result).size for result in op.results) for op in groups[:-1]]


def normalised(p: Program, x: Value) -> list[Value]:
    """(x - mean) divided by the sum of squares of that."""
    wide = x.type.shape
    mean = p.add("reduce", [x], fn="add", axes=(0,))[0]
    rest = p.add("map", [x, p.add("broadcast", [mean], axes=(), shape=wide)[0]], fn="subtract")[0]
    square = p.add("map", [rest, rest], fn="multiply")[0]
    sums = [p.add("reduce", [each], fn="add", axes=(0,))[0] for each in (rest, square)]
    total = p.add("map", sums, fn="maximum")[0]
    return [p.add("map", [rest, p.add("broadcast", [total], axes=(), shape=wide)[0]], fn="divide")[0]]


def test_differences_from_a_mean_are_computed_again_rather_than_stored() -> None:
    assert max(largest_stored(lambda p: normalised(p, p.array(SIZE)))) <= 16


def test_views_of_sources_are_copied_with_them() -> None:
    def make(p: Program) -> list[Value]:
        rows = p.add("slice", [p.array(4, 2 * SIZE)], starts=(1, 0), limits=(2, 2 * SIZE), strides=(1, 2))[0]
        bias = p.add("slice", [p.array(2 * SIZE)], starts=(0,), limits=(2 * SIZE,), strides=(2,))[0]
        x = p.map("subtract", rows, p.broadcast(bias, (1, SIZE), (1,)))
        total = p.broadcast(p.reduce(x, "add", (1,)), (1, SIZE), (0,))
        return [p.map("multiply", x, total)]

    assert max(largest_stored(make)) <= 16


def test_exponentials_are_stored() -> None:
    def make(p: Program) -> list[Value]:
        y = p.add("map", [p.array(SIZE)], fn="exp")[0]
        total = p.add("reduce", [y], fn="add", axes=(0,))[0]
        return [p.add("map", [y, p.add("broadcast", [total], axes=(), shape=(SIZE,))[0]], fn="divide")[0]]

    assert max(largest_stored(make)) == SIZE


def test_what_the_program_returns_is_stored_once() -> None:
    def make(p: Program) -> list[Value]:
        x = p.array(SIZE)
        y = p.add("map", [x, x], fn="multiply")[0]
        return [y, p.add("reduce", [y], fn="add", axes=(0,))[0]]

    unit = run_through(make, ArrayFuseLoopsPass)
    maps = [op for group in unit.main.body.block.ops for op in group.walk() if isinstance(op, array.MapOp)]
    assert len(maps) == 1


@pytest.mark.parametrize("dtype", [tw.f32, tw.bf16, tw.f16], ids=str)
@pytest.mark.parametrize("size", [SIZE, 300_007])
def test_norms_of_long_rows(dtype: tw.DType, size: int) -> None:
    rng = np.random.default_rng(5)
    x, w, b = (rng.standard_normal(size).astype(dtype.numpy) for _ in range(3))

    @tw.jit
    def norm(x: tw.Array, w: tw.Array, b: tw.Array) -> tw.Array:
        return tw.nn.layer_norm(x, w, b)

    wide = [each.astype(np.float64) for each in (x, w, b)]
    exact = (wide[0] - wide[0].mean()) / np.sqrt(wide[0].var() + 1e-5) * wide[1] + wide[2]
    bound = {"f32": 2e-5, "f16": 2e-2, "bf16": 1e-1}[dtype.name]
    np.testing.assert_allclose(np.asarray(norm(x, w, b)).astype(np.float64), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("count", [2, 5])
def test_reductions_that_follow_one_another(count: int) -> None:
    """Each mean needs the one before: none of them shares a loop."""
    x = np.random.default_rng(6).standard_normal(SIZE).astype(np.float32)

    @tw.jit
    def centred(x: tw.Array) -> tw.Array:
        for _ in range(count):
            x = x * 1.5 - tw.mean(x * x)
        return x

    exact = x.astype(np.float64)
    for _ in range(count):
        exact = exact * 1.5 - np.mean(exact * exact)
    np.testing.assert_allclose(centred(x), exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
