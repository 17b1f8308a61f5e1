"""What is known about where windows start, against brute force over all values of the indices; and that a start of an
unlucky divisor means narrower accesses, with the same results."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import gcd

import numpy as np
import pytest
from xdsl.ir.affine import AffineExpr

import tilewright as tw
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.layout import Dim, Size, known_multiple, row_major, substitute
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.catalogue import wgmma_operand
from tilewright.machines import machine as machines
from tilewright.passes.layouts.layout_costs import TransferCost
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_spaces import dealt
from tilewright.passes.layouts.layout_windows import misaligned, start_of, window_of
from tilewright.passes.spaces import space_of

GPU = machines.load("sm_90a")


def random_expression(generator: random.Random, symbols: int, depth: int) -> AffineExpr:
    if depth == 0 or generator.random() < 0.2:
        leaf = generator.randrange(symbols + 1)
        return AffineExpr.constant(generator.choice((0, 1, 3, 8, 24))) if leaf == symbols else AffineExpr.symbol(leaf)
    left = random_expression(generator, symbols, depth - 1)
    match generator.randrange(4):
        case 0:
            return left + random_expression(generator, symbols, depth - 1)
        case 1:
            return left * generator.choice((1, 2, 4, 6, 8, 12, 64))
        case 2:
            return left // generator.choice((2, 4, 8, 3))
        case _:
            return left % generator.choice((2, 4, 16, 24))


def values_of(expression: AffineExpr, trips: list[int]) -> set[int]:
    return {int(expression.eval([], list(point))) for point in product(*map(range, trips))}


@pytest.mark.parametrize("block", range(8))
def test_the_known_divisor_divides_every_start(block: int) -> None:
    known = 0
    for seed in range(100 * block, 100 * block + 100):
        generator = random.Random(seed)
        trips = [generator.randrange(1, 7) for _ in range(2)]
        expression = random_expression(generator, len(trips), 4)
        start = start_of(expression, [Dim(0, n - 1, 1, f"s{k}") + 0 for k, n in enumerate(trips)])
        divisor, starts = known_multiple(start), values_of(expression, trips)
        assert all(value % divisor == 0 if divisor else value == 0 for value in starts), str(expression)
        known += divisor == gcd(*starts)
    assert known > 60


@pytest.mark.parametrize("seed", range(50))
def test_the_divisor_of_a_sum_is_exact(seed: int) -> None:
    """Sums of multiples of counters have the greatest common divisor of all their values."""
    generator = random.Random(seed)
    trips = [generator.randrange(2, 5) for _ in range(3)]
    factors = [generator.choice((0, 2, 4, 6, 8, 12, 32, 48)) for _ in trips]
    constant = generator.choice((0, 4, 8, 16, 6))
    expression = AffineExpr.constant(constant)
    for position, factor in enumerate(factors):
        expression = expression + AffineExpr.symbol(position) * factor
    start = start_of(expression, [Dim(0, n - 1, 1, f"s{k}") for k, n in enumerate(trips)])
    assert known_multiple(start) == gcd(*values_of(expression, trips))


def test_lanes_of_gathers_are_not_taken_for_each_other() -> None:
    unknown = window_of(accesses(gathered, (64,), (16,))[1]).offset
    assert known_multiple(dict(unknown)["mem"]) == 1
    difference = AffineExpr.symbol(0) - AffineExpr.symbol(1)
    lanes: list[Size] = [Dim(-100, 100, 1, "a"), Dim(-100, 100, 1, "b")]
    assert known_multiple(start_of(difference, lanes)) == 1


# ---- windows of kernels ---------------------------------------------------------------------------------------------


@tw.kernel
def by_tiles(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (16, 32)):
        y[i, j] = x[i, j]


@tw.kernel
def by_elements(x: tw.In["N"], y: tw.Out["N"], *, step: int = 64, first: int = 0):
    for i in tw.grid((4,), 1):
        y[i.start * 64 : i.start * 64 + 64] = x[i.start * step + first : i.start * step + first + 64]


@tw.kernel
def gathered(x: tw.In["N"], index: tw.In["K", tw.i32], y: tw.Out["K"]):
    for k in tw.grid(y, 16):
        y[k] = x[index[k]]


@tw.kernel
def stepped(x: tw.In["M N"], y: tw.Out["M"]):
    for i in tw.grid(y, 8):
        total = tw.zeros((8,))
        for k in tw.steps(x, axis=1, size=20):
            total = total + tw.sum(x[i, k], axis=1)
        y[i] = total


def accesses(kernel: tw.Kernel, *shapes: tuple[int, ...], **static: int) -> list[tile.LoadOp | tile.StoreOp]:
    inputs = kernel.kernel_signature.inputs
    types = [tw.ShapeDtype(s, p.annotation.dtype or tw.f32) for s, p in zip(shapes, inputs, strict=True)]
    ir = kernel.lower(*types, **static).specialisation.build()
    return [op for op in ir.walk() if isinstance(op, tile.LoadOp | tile.StoreOp)]


def starts(op: tile.LoadOp | tile.StoreOp, trips: list[int]) -> Iterator[int]:
    """Addresses of the first lane, from the map itself."""
    ref = op.source if isinstance(op, tile.LoadOp) else op.destination
    extents = tile.ref_type(ref).shape
    pitches = [int(np.prod(extents[n + 1 :])) for n in range(len(extents))]
    for point in product(*map(range, trips)):
        place = op.map.eval([0] * op.map.num_dims, list(point))
        yield sum(int(at) * pitch for at, pitch in zip(place, pitches, strict=True))


@pytest.mark.parametrize(
    ("kernel", "shapes", "static", "trips"),
    [
        (by_tiles, ((64, 96),), {}, [4, 3]),
        (by_tiles, ((64, 90),), {}, [4, 3]),
        (by_elements, ((400,),), {"step": 64}, [4]),
        (by_elements, ((400,),), {"step": 12}, [4]),
        (by_elements, ((400,),), {"step": 64, "first": 3}, [4]),
        (by_elements, ((400,),), {"step": 48, "first": 32}, [4]),
        (stepped, ((64, 100),), {}, [8, 5]),
    ],
)
def test_windows_of_kernels_have_the_divisor_of_their_starts(
    kernel: tw.Kernel, shapes: tuple[tuple[int, ...], ...], static: dict[str, int], trips: list[int]
) -> None:
    load = accesses(kernel, *shapes, **static)[0]
    start = dict(window_of(load).offset).get("mem", 0)
    assert known_multiple(start) == gcd(*starts(load, trips))
    values = {substitute(start, dict(zip(sorted_symbols(start), point, strict=False))) for point in points(start)}
    assert values == set(starts(load, trips))


def sorted_symbols(start: Size) -> list[Dim]:
    return sorted(row_major((start,)).symbols, key=lambda dim: dim.name) if not isinstance(start, int) else []


def points(start: Size) -> Iterator[tuple[int, ...]]:
    return product(*(range(dim.min, dim.max + 1) for dim in sorted_symbols(start)))


# ---- what it means --------------------------------------------------------------------------------------------------


def misaligned_at(window: tw.layouts.Layout, start: int) -> tw.layouts.Layout:
    return misaligned(type(window)(window.shape, window.shard, offset=(("mem", start),)), GPU, tw.f32)


@pytest.mark.parametrize(
    ("start", "vector"), [(0, 4), (1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (32, 4), (34, 2), (64, 4)]
)
def test_a_known_start_bounds_the_vector(start: int, vector: int) -> None:
    registers = dealt((128,), [0], (("lane", 32),), 4)
    found = register_access(registers, misaligned_at(row_major((128,)), start), 4, MemoryPorts())
    assert found is not None
    assert found.vector == vector


@pytest.mark.parametrize(("step", "vector"), [(64, 4), (66, 2), (65, 1), (32, 4), (4, 4), (6, 2)])
def test_the_divisor_of_an_unknown_start_bounds_the_vector(step: int, vector: int) -> None:
    load = accesses(by_elements, (400,), step=step)[0]
    registers = dealt((64,), [0], (("lane", 16),), 4)
    found = register_access(registers, misaligned(window_of(load), GPU, tw.f32), 4, MemoryPorts())
    assert found is not None
    assert found.vector == vector


def test_an_unknown_start_is_as_bad_as_its_divisor_allows() -> None:
    """Vectors are as narrow as at the worst of the starts, and the time is that of one of them."""
    registers = wgmma_operand((64, 64), 16)
    costs: dict[int, float] = {}
    for step in (1, 2, 4, 8, 64):
        window = misaligned(with_start(Dim(0, 640, step, "o")), GPU, dtypes.f16)
        costs[step] = cost(window, registers)
        each = [misaligned(with_start(value), GPU, dtypes.f16) for value in range(0, 64, step)]
        assert costs[step] in {cost(one, registers) for one in each}
        assert vector(window, registers) == min(vector(one, registers) for one in each)
    ordered = [costs[step] for step in sorted(costs)]
    assert ordered == sorted(ordered, reverse=True)
    assert ordered[0] > ordered[-1]


def vector(window: tw.layouts.Layout, registers: tw.layouts.Layout) -> int:
    found = register_access(registers, window, 2, MemoryPorts())
    assert found is not None
    return found.vector


def with_start(start: Size) -> tw.layouts.Layout:
    window = row_major((64, 64))
    return type(window)(window.shape, window.shard, offset=(("mem", start),))


def cost(window: tw.layouts.Layout, registers: tw.layouts.Layout) -> float:
    seconds = TransferCost(window, dtypes.f16, GPU, 1, False)(registers)
    assert seconds is not None
    return seconds


@pytest.mark.parametrize("step", [64, 66, 33])
def test_starts_that_are_no_multiples_of_a_tile_are_right_and_only_dearer(step: int) -> None:
    """Results do not depend on how windows lie; the predicted time does."""
    x = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    expected = np.concatenate([x[n * step : n * step + 64] for n in range(4)])
    y = np.zeros(400, np.float32)
    for target in ("interp", "cpu"):
        with tw.options(target=target, cache=False):
            by_elements(x, y, step=step)
        np.testing.assert_array_equal(y[:256], expected)
    kernels = [by_elements.lower(x, y, step=n).specialisation.build() for n in (64, step)]
    aligned, given = (infer_layouts(kernel, space_of(GPU)).solution.cost for kernel in kernels)
    assert given == aligned if step % 64 == 0 else given > aligned
