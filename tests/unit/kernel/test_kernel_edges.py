"""Lanes beyond the end of an array never count: every reduction, product, scan and store, for sizes that divide the
blocks and sizes that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import check, numbers, run

import tilewright as tw

REDUCTIONS = {
    "sum": (tw.sum, np.sum),
    "prod": (tw.prod, np.prod),
    "max": (tw.max, np.max),
    "min": (tw.min, np.min),
    "mean": (tw.mean, np.mean),
    "var": (tw.var, np.var),
}


@pytest.mark.parametrize("name", list(REDUCTIONS))
def test_reductions_over_masked_blocks(name: str) -> None:
    ours, numpys = REDUCTIONS[name]

    @tw.kernel
    def columns(x: tw.In["M N"], y: tw.Out["N"], *, bm: int, bn: int):
        for j in tw.grid(y, bn):
            window = x[0:bm, j]
            y[j] = ours(tw.exp(window), axis=0)

    def reference(x: np.ndarray) -> np.ndarray:
        return numpys(np.exp(x.astype(np.float64)), axis=0)

    for rows in (6, 8):
        check(columns, reference, numbers(rows, 10), bm=8, bn=4, tolerance=2e-6)


def test_argument_reductions_scans_and_sorts() -> None:
    @tw.kernel
    def order(
        x: tw.In["M N"],
        largest: tw.Out["M", tw.i64],
        smallest: tw.Out["M", tw.i64],
        running: tw.Out["M N"],
        backwards: tw.Out["M N"],
        up: tw.Out["M N"],
        down: tw.Out["M N"],
        *,
        bm: int,
        bn: int,
    ):
        for i in tw.grid(x, bm):
            tile = x[i, 0:bn]
            largest[i] = tw.argmax(tile, axis=1)
            smallest[i] = tw.argmin(tile, axis=1)
            running[i, 0:bn] = tw.cumsum(tile, axis=1)
            backwards[i, 0:bn] = tw.cumsum(tile, axis=1, reverse=True)
            up[i, 0:bn] = tw.sort(tile, axis=1)
            down[i, 0:bn] = tw.sort(tile, axis=1, descending=True)

    def reference(x: np.ndarray) -> tuple[np.ndarray, ...]:
        ends = np.where(np.isnan(x), np.inf, x)
        totals = np.cumsum(x, axis=1), np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
        return (
            np.argmax(x, axis=1),
            np.argmin(x, axis=1),
            *totals,
            np.sort(ends, axis=1),
            -np.sort(-ends, axis=1),
        )

    for rows, columns in ((4, 8), (5, 6), (1, 1)):
        x = np.round(numbers(rows, columns) * 4) / 4
        check(order, reference, -np.abs(x) - 1, bm=2, bn=8)
        check(order, reference, np.abs(x) + 1, bm=2, bn=8)


def test_sorted_nan_stays_before_the_lanes_beyond() -> None:
    @tw.kernel
    def ascending(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, 8):
            y[i] = tw.sort(x[i])

    x = np.array([3, np.nan, 1, np.inf, 2], np.float32)
    for target in ("interp", "cpu"):
        np.testing.assert_array_equal(run(ascending, x, target=target), [1, 2, 3, np.inf, np.nan])


@settings(max_examples=6, deadline=None)
@given(m=st.integers(1, 20), k=st.integers(1, 20), n=st.integers(1, 20), seed=st.integers(0, 9))
def test_products_of_any_size(m: int, k: int, n: int, seed: int) -> None:
    # Both operands are computed, so that what their masked lanes hold would show.
    @tw.kernel
    def product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
        for i, j in tw.grid(c, (8, 16)):
            acc = tw.zeros((8, 16), tw.f32)
            for s in tw.steps(a, axis=1, size=8):
                acc = tw.dot(tw.exp(a[i, s]), tw.exp(b[s, j]), acc)
            c[i, j] = acc

    a, b = numbers(m, k, seed=seed), numbers(k, n, seed=seed + 1)
    check(product, lambda a, b: np.exp(a.astype(np.float64)) @ np.exp(b.astype(np.float64)), a, b, tolerance=1e-5)


@pytest.mark.parametrize("k", [8, 11])
def test_a_product_masks_the_operand_that_does_not_know_its_end(k: int) -> None:
    @tw.kernel
    def column_sums(b: tw.In["K N"], c: tw.Out["1 N"]):
        for j in tw.grid(b.shape[1], 16):
            acc = tw.zeros((4, 16), tw.f32)
            for s in tw.steps(b, axis=0, size=4):
                acc = tw.dot(tw.ones((4, 4)), tw.exp(b[s, j]), acc)
            c[0, j] = acc[0]

    b = numbers(k, 20)
    for target in ("interp", "cpu"):
        result = run(column_sums, b, target=target)
        np.testing.assert_allclose(result[0], np.exp(b.astype(np.float64)).sum(0), rtol=1e-5)


@pytest.mark.parametrize("n", [8, 13])
def test_windows_before_the_start_and_with_steps(n: int) -> None:
    @tw.kernel
    def smallest_around(x: tw.In["N"], y: tw.Out["N"], *, reach: int):
        for i in tw.grid(y, None):
            y[i] = tw.min(tw.exp(x[i - reach : i + reach + 1]))

    @tw.kernel
    def every_second(x: tw.In["N"], y: tw.Out["1"]):
        for i in tw.grid(y, None):
            y[i] = tw.sum(tw.exp(x[1:17:2]))

    def around(x: np.ndarray) -> np.ndarray:
        wide = np.exp(x.astype(np.float64))
        return np.array([wide[max(0, i - 2) : i + 3].min() for i in range(len(x))])

    check(smallest_around, around, numbers(n), reach=2, tolerance=1e-6)
    check(every_second, lambda x: np.exp(x.astype(np.float64))[1::2].sum(keepdims=True), numbers(n), tolerance=1e-6)


@pytest.mark.parametrize("shape", [(8, 16), (5, 13)])
def test_what_a_loop_carries_keeps_its_masked_rows_only(shape: tuple[int, int]) -> None:
    # Rows are masked by the grid, columns by the loop: the carried tile's columns are all real.
    @tw.kernel
    def column_maxima(x: tw.In["M N"], y: tw.Out["1"]):
        for _ in tw.grid((1,), (1,)):
            total = tw.zeros((8, 8), tw.f32)
            for j in tw.steps(x, axis=1, size=8):
                total = total + tw.exp(x[0:8, j]) * tw.where(j.start + tw.arange(8) < x.shape[1], 1.0, 0.0)
            y[0:1] = tw.sum(total)[None]

    check(
        column_maxima,
        lambda x: np.exp(x.astype(np.float64)).sum(keepdims=True).reshape(1),
        numbers(*shape),
        tolerance=1e-6,
    )


def test_transposed_and_sliced_tiles_keep_their_edges() -> None:
    @tw.kernel
    def moved(x: tw.In["M N"], y: tw.Out["4"], z: tw.Out["1"]):
        for i in tw.grid((1,), (1,)):
            tile = tw.exp(x[0:8, 0:16])
            y[0:4] = tw.max(-tile.T, axis=1)[2:10:2]
            z[i] = tw.max(-tile[1:8:2, 3:]).reshape(1)

    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = -np.exp(x.astype(np.float64))
        return wide.max(0)[2:10:2], wide[1::2, 3:].max(keepdims=True).reshape(1)

    for shape in ((5, 13), (8, 16)):
        check(moved, reference, numbers(*shape), tolerance=1e-6)


def test_any_all_and_integers() -> None:
    @tw.kernel
    def truths(x: tw.In["N"], y: tw.Out["3", tw.bool], z: tw.Out["2", tw.i64]):
        for _ in tw.grid((1,), (1,)):
            tile = x[0:16]
            y[0] = tw.all(tile > 0)
            y[1] = tw.any(tile == 0)
            y[2] = tw.any(tile > 3)
            z[0] = tw.max(-tile)
            z[1] = tw.sum(tile + 1)

    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array([(x > 0).all(), (x == 0).any(), (x > 3).any()]), np.array([(-x).max(), (x + 1).sum()])

    check(truths, reference, np.arange(1, 12, dtype=np.int32))


def test_stores_never_write_beyond() -> None:
    @tw.kernel
    def fill(y: tw.Out["M N"], *, bm: int, bn: int):
        for i, j in tw.grid(y, (bm, bn)):
            y[i, j] = tw.ones((bm, bn))

    for target in ("interp", "cpu"):
        memory = np.zeros(200, np.float32)
        y = memory[20:55].reshape(5, 7)
        run(fill, y, bm=4, bn=4, target=target)
        assert y.sum() == 35
        assert memory.sum() == 35


def test_no_mask_where_blocks_divide() -> None:
    @tw.kernel
    def copy(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(y, 8):
            y[i] = tw.sum(x[i]) + x[i]

    whole = tw.ShapeDtype((16,), tw.f32)
    part = tw.ShapeDtype((15,), tw.f32)
    assert "fill" not in copy.lower(whole, whole).ir()
    assert copy.lower(part, part).ir().count("fill_padding") == 1


def test_products_of_strided_and_shifted_windows() -> None:
    @tw.kernel
    def strided(a: tw.In["M L"], b: tw.In["K N"], c: tw.Out["M N"]):
        for i, j in tw.grid(c, (8, 16)):
            acc = tw.zeros((8, 16), tw.f32)
            for s in tw.steps(b, axis=0, size=8):
                acc = tw.dot(a[i, s.start * 2 : s.start * 2 + 16 : 2], b[s, j], acc)
            c[i, j] = acc

    @tw.kernel
    def shifted(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
        for i, j in tw.grid(c, (8, 16)):
            acc = tw.zeros((8, 16), tw.f32)
            for s in tw.steps(b, axis=0, size=16):
                acc = tw.dot(a[i, s], b[s.start - 16 : s.start, j], acc)
            c[i, j] = acc

    def delayed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a[:, 16:].astype(np.float64) @ b[: len(b) - 16]

    for k in (8, 13):
        a, b = numbers(10, 2 * k), numbers(k, 20)
        check(strided, lambda a, b: a[:, ::2].astype(np.float64) @ b, a, b, tolerance=1e-5)
    for k in (32, 40):
        check(shifted, delayed, numbers(10, k), numbers(k, 20), tolerance=1e-5)


def test_a_product_reads_nothing_beyond_an_operand_without_edges() -> None:
    @tw.kernel
    def sums(b: tw.In["K N"], c: tw.Out["8 N"]):
        for j in tw.grid(b.shape[1], 16):
            acc = tw.zeros((8, 16), tw.f32)
            for s in tw.steps(b, axis=0, size=16):
                acc = tw.dot(tw.ones((8, 16)), tw.load(b, (s, j), fill=0), acc)
            c[:, j] = acc

    for k in (16, 40):
        check(sums, lambda b: b.astype(np.float64).sum(0, keepdims=True).repeat(8, 0), numbers(k, 20), tolerance=1e-5)


# ---- dropped axes ---------------------------------------------------------------------------------------------------

WAYS = ("index", "reshape", "squeeze", "transposed", "moved", "mixed", "repeated", "scanned", "there and back")


def dropped(t: Any, way: str) -> Any:
    """A row from a window of one row."""
    if way == "index":
        return t[0]
    if way == "reshape":
        return t.reshape((9,))
    if way == "squeeze":
        return t.squeeze(0)
    if way == "transposed":
        return t.T[:, 0]
    if way == "moved":
        return t.reshape((9, 1)).reshape((9,))
    if way == "mixed":
        return t.reshape((3, 3))
    if way == "repeated":
        return tw.broadcast_to(t, (1, 9))[0] + tw.broadcast_to(t, (4, 9))[2] * 0
    if way == "scanned":
        return tw.cumsum(t[0] * 0, axis=0) + t[0]
    return t[0][None].T.reshape((9, 1))[:, 0]


@pytest.mark.parametrize("way", WAYS)
def test_dropped_axes_keep_their_edges(way: str) -> None:
    @tw.kernel
    def below(
        x: tw.In["M N"], total: tw.Out["M"], most: tw.Out["M"], mean: tw.Out["M"], product: tw.Out["M"], *, way: str
    ):
        for i in tw.grid(x, None):
            row = dropped(x[i + 1 : i + 2], way)
            total[i] = tw.sum(tw.exp(row))
            most[i] = tw.max(row)
            mean[i] = tw.mean(row)
            product[i] = tw.dot(tw.exp(row.reshape((1, 9))), tw.ones((9, 1)))[0, 0]

    def reference(x: np.ndarray) -> tuple[np.ndarray, ...]:
        wide = x.astype(np.float64)
        sums = np.append(np.exp(wide[1:]).sum(1), 0)
        return sums, np.append(wide[1:].max(1), -np.inf), np.append(wide[1:].mean(1), np.nan), sums

    check(below, reference, -np.abs(numbers(3, 9)) - 1, tolerance=1e-6, way=way)


def test_copies_of_a_lane_outside_lie_outside() -> None:
    @tw.kernel
    def repeated(x: tw.In["N"], y: tw.Out["N"], z: tw.Out["N"], w: tw.Out["N"]):
        for i in tw.grid(x, None):
            after = tw.exp(x[i + 1 : i + 2])
            y[i] = tw.sum(after + tw.zeros((4,)))
            z[i] = tw.sum(tw.broadcast_to(after[0], (2, 3)))
            w[i] = tw.max(x[i + 1] + tw.zeros((5,)))

    def reference(x: np.ndarray) -> tuple[np.ndarray, ...]:
        sums = np.append(np.exp(x[1:].astype(np.float64)), 0)
        return 4 * sums, 6 * sums, np.append(x[1:], -np.inf)

    check(repeated, reference, numbers(6), tolerance=1e-6)


def test_what_a_reduction_gives_counts() -> None:
    @tw.kernel
    def around(x: tw.In["M N"], y: tw.Out["M"]):
        for p in tw.grid(y, None):
            most = tw.full((), -9.0, tw.f32)
            for r in range(3):
                most = tw.maximum(most, tw.max(x[p + r - 1]))
            y[p] = tw.sum(most * tw.ones((4,)))

    def reference(x: np.ndarray) -> np.ndarray:
        return np.array([4 * x[max(0, p - 1) : p + 2].max() for p in range(len(x))])

    check(around, reference, -np.abs(numbers(5, 3)) - 1, tolerance=1e-6)


def test_one_position_outside_is_as_a_window_of_one() -> None:
    @tw.kernel
    def positions(x: tw.In["N M"], y: tw.Out["N M"], z: tw.Out["N M"], w: tw.Out["N M"], e: tw.Out["N"]):
        for p in tw.grid(x, None):
            y[p] = x[p - 1] + 1.0
            z[p] = (x[p - 1 : p] + 1.0)[0]
            w[p] = x[(p - 1) + tw.arange(1)][0] + 1.0
            e[p] = tw.max(x[p - 1])

    @tw.kernel
    def stores(x: tw.In["N M"], y: tw.InOut["N M"]):
        for p in tw.grid(x, None):
            y[p - 1] = x[p] + 1.0

    def shifted(x: np.ndarray) -> tuple[np.ndarray, ...]:
        before = np.concatenate([np.zeros_like(x[:1]), x[:-1]]) + 1
        return before, before, before, np.append([-np.inf], x[:-1].max(1))

    x = numbers(3, 2)
    check(positions, shifted, x)
    for target in ("interp", "cpu"):
        y = np.full_like(x, 9)
        run(stores, x, y, target=target)
        np.testing.assert_array_equal(y, np.concatenate([x[1:] + 1, np.full_like(x[:1], 9)]))


def test_concatenated_tiles_lie_outside_in_the_same_lanes() -> None:
    @tw.kernel
    def joined(x: tw.In["M N"], y: tw.Out["M"]):
        for i in tw.grid(x, 4):
            y[i] = tw.sum(tw.exp(tw.concat([x[i], x[i] * 2], axis=1)), axis=1)

    def reference(x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        return (np.exp(wide) + np.exp(2 * wide)).sum(1)

    check(joined, reference, numbers(6, 8), tolerance=1e-6)

    @tw.kernel
    def different(x: tw.In["M N"], y: tw.Out["P"]):
        for i in tw.grid((x.shape[0],), 4):
            y[i.index] = tw.sum(tw.concat([x[i], tw.ones((4, 8))], axis=1))

    with pytest.raises(tw.errors.ShapeError, match="do not reach beyond their arrays in the same lanes"):
        different.lower(numbers(6, 8), np.empty(2, np.float32)).ir()


@pytest.mark.parametrize("block", [1 << 32, 1 << 33, 1 << 40])
def test_blocks_far_larger_than_their_arrays(block: int) -> None:
    @tw.kernel
    def doubled(x: tw.In["N"], y: tw.Out["N"], *, block: int):
        for i in tw.grid(y, block):
            y[i] = x[i] * 2.0

    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(run(doubled, x, block=block, target="cpu"), x * 2)
