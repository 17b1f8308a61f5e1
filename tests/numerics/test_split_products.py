"""Products of f32 in parts: as near to the exact product as one computed in f32, over the whole range of numbers, where
the host has an instruction for the parts; elsewhere the same tests see the usual product."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes
from tilewright.cost.tiles import MatmulTile
from tilewright.targets.cpu.atoms.split_kernel import snake
from tilewright.targets.cpu.host import host_machine

Tensor = np.ndarray[Any, Any]

TILES = (MatmulTile(32, 32, 32), MatmulTile(64, 96, 64), MatmulTile(32, 160, 128))
SCHEDULED_TILE = MatmulTile(64, 64, 64)
# What parts leave out of a product, and one rounding in 32 steps of sums that begin with 16 steps: of the sum of the
# products' magnitudes, in the steps of f32 at 1.
PRODUCT_ULPS, STEP_ULPS = 1.0, 1 / 16
ULP = 2.0**-23
SMALLEST = 2.0**-149


def by_parts(tile: MatmulTile) -> tw.schedules.SplitMatmul:
    return tw.schedules.SplitMatmul(tile=(tile.rows, tile.columns, tile.depth))


def has_parts() -> bool:
    """Whether the host has an instruction for the parts."""
    return host_machine().split_atom(dtypes.f32, dtypes.f32, dtypes.f32) is not None


def in_parts(function: Callable[..., Any], *arrays: Tensor, tile: MatmulTile, threads: int = 2) -> Tensor:
    with tw.options(threads=threads):
        lowered = tw.jit(function, target="cpu").lower(*arrays)
        schedules = lowered.compile().schedules if has_parts() else {}
        splits = {name: by_parts(tile) for name in schedules if name.startswith("contract")}
        return np.asarray(lowered.compile(schedule=splits or None)(*arrays))


def product(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b


def check(got: Tensor, a: Tensor, b: Tensor) -> None:
    """Against the product in f64, where that is in the range of f32."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    depth = a.shape[-1]
    bound = magnitude * (PRODUCT_ULPS + 16 * ULP + depth * STEP_ULPS) * ULP + 2 * SMALLEST
    assert np.all(np.abs(got - exact) <= bound)


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [
        (2, 2, 2),
        (32, 32, 32),
        (33, 31, 65),
        (100, 170, 130),
        (65, 257, 1000),
        (64, 96, 128),
        (161, 90, 384),
        (50, 300, 256),
    ],
)
def test_products_of_every_size_are_as_near_as_in_f32(rows: int, columns: int, depth: int, tile: MatmulTile) -> None:
    a, b = numbers((rows, depth), 1), numbers((depth, columns), 2)
    check(in_parts(product, a, b, tile=tile), a, b)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(257, 70), (300, 130), (600, 64)])
def test_columns_that_all_threads_take_apart(columns: int, depth: int, batch: tuple[int, ...]) -> None:
    """Many tiles read the same columns, whose panels are no whole groups."""
    a, b = numbers((*batch, 900, depth), 1), numbers((*batch, depth, columns), 2)
    check(in_parts(product, a, b, tile=MatmulTile(32, 160, 64)), a, b)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_transposed_and_batched_whole_numbers_are_exact(turned: tuple[bool, bool], batch: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-900, 900, (*batch, *shape)).astype(np.float32) for shape in ((70, 45), (45, 99)))
    operands = [np.ascontiguousarray(x.swapaxes(-1, -2)) if turn else x for x, turn in zip((a, b), turned, strict=True)]

    def function(x: tw.Array, y: tw.Array) -> tw.Array:
        x = tw.matrix_transpose(x) if turned[0] else x
        y = tw.matrix_transpose(y) if turned[1] else y
        return x @ y

    np.testing.assert_array_equal(in_parts(function, *operands, tile=TILES[1]), (a.astype("f8") @ b).astype("f4"))


def test_what_follows_a_product_follows_one_in_parts() -> None:
    a, b, c = numbers((70, 100), 4), numbers((100, 90), 5), numbers((70, 90), 6)

    def function(x: tw.Array, y: tw.Array, z: tw.Array) -> tw.Array:
        return tw.maximum(x @ y + z, 0) * 2

    expected = 2 * np.maximum(a.astype("f8") @ b + c, 0)
    np.testing.assert_allclose(in_parts(function, a, b, c, tile=TILES[0]), expected, rtol=1e-4, atol=1e-4)


# ---- the range of numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(-149, -100), (-126, 0), (-40, 40), (0, 60), (20, 31), (-149, 62)])
def test_numbers_of_every_size_count_with_all_their_bits(low: int, high: int) -> None:
    generator = np.random.default_rng(7)

    def spread(shape: tuple[int, int]) -> Tensor:
        return np.ldexp(generator.standard_normal(shape), generator.integers(low, high, shape)).astype(np.float32)

    a, b = spread((40, 33)), spread((33, 50))
    check(in_parts(product, a, b, tile=TILES[0]), a, b)


def test_a_small_number_times_a_large_one_keeps_its_bits() -> None:
    generator = np.random.default_rng(8)
    exponents = generator.integers(30, 100, (32,))
    a = np.ldexp(generator.uniform(1, 2, (40, 32)), -exponents).astype(np.float32)
    b = np.ldexp(generator.uniform(1, 2, (32, 40)), exponents[:, None]).astype(np.float32)
    check(in_parts(product, a, b, tile=TILES[0]), a, b)


SPECIAL = [np.inf, -np.inf, np.nan, 3.4028235e38, -3e38, 1e30, 3e9, 0.0, -0.0, 1e-45]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", SPECIAL, ids=str)
def test_numbers_beyond_the_range_of_parts_give_what_f32_gives(value: float, side: int, turned: bool) -> None:
    a, b = numbers((70, 40), 9), numbers((40, 70), 10)
    (a, b)[side][(3, 5)] = value
    a[8, 5] = 0.0
    a[9, :] = value
    right = np.ascontiguousarray(b.T) if turned else b
    got = in_parts((lambda x, y: x @ y.T) if turned else product, a, right, tile=TILES[0])
    with np.errstate(all="ignore"):
        exact = np.einsum("mk,kn->mn", a.astype(np.float64), b.astype(np.float64))
        magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        finite = magnitude < np.finfo(np.float32).max
    odd = ~np.isfinite(exact)
    np.testing.assert_array_equal(got[odd], exact[odd])
    assert np.all(np.abs(got[finite] - exact[finite]) <= magnitude[finite] * 50 * ULP + 40 * SMALLEST)


# ---- threads and tiles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [1.0, np.inf, 1e20])
def test_bits_do_not_depend_on_threads_or_tiles(special: float) -> None:
    a, b = numbers((130, 100), 11), numbers((100, 200), 12)
    a[77, 9] = special
    found = {
        in_parts(product, a, b, tile=MatmulTile(rows, columns, 64), threads=threads).tobytes()
        for threads, rows, columns in ((1, 64, 128), (2, 64, 128), (5, 32, 64), (2, 130, 200))
    }
    assert len(found) == 1


def test_a_product_stored_by_itself_is_computed_again_where_it_is_not_finite() -> None:
    a, b = numbers((128, 64), 15), numbers((64, 128), 16)
    a[3, 7], b[9, 100] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = a.astype("f8") @ b.astype("f8")
    for threads in (1, 2):
        got = in_parts(product, a, b, tile=SCHEDULED_TILE, threads=threads)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_a_product_does_not_take_the_memory_of_an_operand() -> None:
    a, b = numbers((64, 64), 17), numbers((64, 64), 18)
    expected = (a.astype("f8") @ b.astype("f8")) @ b.astype("f8")
    got = in_parts(lambda x, y: (x @ y) @ y, a, b, tile=SCHEDULED_TILE)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    schedule = by_parts(SCHEDULED_TILE) if has_parts() else None
    donated = np.asarray(tw.jit(product, target="cpu", donate=("a",), schedule=schedule)(a.copy(), b))
    check(donated, a, b)


def test_only_panels_that_do_not_stay_near_are_asked_for() -> None:
    """By tiles of one block of rows, which do not take the next one apart meanwhile: the 96 lines of a step. What the
    usual product asks for, where a result is not finite, is less."""

    def asks(columns: int) -> bool:
        a, b = np.zeros((64, 512), np.float32), np.zeros((512, columns), np.float32)
        schedule = by_parts(MatmulTile(32, columns, 512))
        code = tw.jit(product, target="cpu:x86-64-amx").lower(a, b).compile(schedule=schedule).asm()
        assert "tdpbf16ps" in code
        return code.count("prefetcht1") >= 96

    assert asks(1024)
    assert not asks(128)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_pairs_of_parts_share_one_with_the_pair_before(parts: int) -> None:
    pairs = list(snake(parts))
    assert sorted(pairs) == [(p, q) for p in range(parts) for q in range(parts) if p + q < parts]
    assert all((a[0] == b[0]) != (a[1] == b[1]) for a, b in pairwise(pairs))
