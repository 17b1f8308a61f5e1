"""What the statements and subscripts of tile kernels mean, on the interpreter and the CPU, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_support import check, numbers, run

import tilewright as tw

SCALE = 3
TABLE = (1.0, 2.0, 4.0)


def test_windows_rows_and_single_elements() -> None:
    @tw.kernel
    def pick(x: tw.In["M N"], y: tw.Out["M 5"], *, bm: int):
        for i in tw.grid(x, bm):
            y[i, 0:1] = x[i, 3:4]
            y[i, 1] = x[i, -1]
            y[i, 2:4] = x[i, 1:4:2]
            y[i, 4] = tw.sum(x[i, :], axis=1)

    def reference(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 3], x[:, -1], x[:, 1], x[:, 3], x.sum(axis=1)], axis=1)

    for rows in (8, 7):
        check(pick, reference, numbers(rows, 6, dtype=np.int64), bm=4)


def test_arithmetic_on_indices_names_elements() -> None:
    @tw.kernel
    def evens(x: tw.In["M N"], y: tw.Out["M 4"], *, bm: int):
        for i, j in tw.grid((x.shape[0], 4), (bm, 1)):
            y[i, j] = x[i, j * 2 + 1][:, None]

    check(evens, lambda x: x[:, 1::2], numbers(5, 8), bm=2)


def test_windows_with_moving_starts() -> None:
    @tw.kernel
    def neighbours(x: tw.In["N"], y: tw.Out["N"], *, block: int):
        for i in tw.grid(y, block):
            left = x[i.start - 1 : i.start - 1 + block]
            right = x[i.start + 1 : i.start + 1 + block]
            y[i] = left + x[i] + right

    def reference(x: np.ndarray) -> np.ndarray:
        padded = np.pad(x, 1)
        return padded[:-2] + padded[1:-1] + padded[2:]

    for n in (16, 13, 3):
        check(neighbours, reference, numbers(n, dtype=np.int32), block=8)


def test_a_block_of_none_gives_positions() -> None:
    @tw.kernel
    def transpose_heads(x: tw.In["B H S D"], y: tw.Out["B S H D"], *, bs: int):
        for b, h, i in tw.grid(x, (None, None, bs)):
            y[b, i, h] = x[b, h, i]

    check(transpose_heads, lambda x: x.transpose(0, 2, 1, 3), numbers(2, 3, 5, 4), bs=2)


def test_none_in_place_of_several_block_sizes_gives_positions_along_each() -> None:
    @tw.kernel
    def transpose_heads(x: tw.In["B H S"], y: tw.Out["H B S"]):
        for b, h in tw.grid(x.shape[:2], None):
            y[h, b] = x[b, h]

    check(transpose_heads, lambda x: x.transpose(1, 0, 2), numbers(2, 3, 5))


def test_ranges_of_positions() -> None:
    @tw.kernel
    def middle(x: tw.In["N"], y: tw.Out["4"], z: tw.Out["4"]):
        for _ in tw.grid((1,), None):
            y[:] = x[tw.arange(3, 7)]
            z[:] = tw.arange(0, 4) + 10 * tw.arange(-2, 2, dtype=tw.f32)

    x = numbers(9)
    for target in ("interp", "cpu"):
        with tw.options(target=target):
            y, z = middle(x)
        np.testing.assert_array_equal(y, x[3:7])
        np.testing.assert_array_equal(z, np.arange(4) + 10 * np.arange(-2, 2))


def test_quotients_of_indices() -> None:
    @tw.kernel
    def grouped(x: tw.In["H N"], k: tw.In["G N"], y: tw.Out["H N"], *, block: int):
        for h, i in tw.grid(x, (None, block)):
            y[h, i] = x[h, i] * k[h // 2, i] + (h % 2)

    def reference(x: np.ndarray, k: np.ndarray) -> np.ndarray:
        return x * np.repeat(k, 2, axis=0) + np.arange(6)[:, None] % 2

    check(grouped, reference, numbers(6, 10), numbers(3, 10, seed=1), block=4, tolerance=1e-6)


def test_gather_and_scatter() -> None:
    @tw.kernel
    def lookup(table: tw.In["V D"], ids: tw.In["N"], y: tw.Out["N D"], *, block: int):
        for i in tw.grid(ids, block):
            y[i] = table[ids[i]]

    @tw.kernel
    def permute(x: tw.In["N"], order: tw.In["N"], y: tw.Out["N"], *, block: int):
        for i in tw.grid(x, block):
            y[order[i]] = x[i]

    @tw.kernel
    def pairs(x: tw.In["M N"], rows: tw.In["K"], columns: tw.In["K"], y: tw.Out["K"], *, block: int):
        for i in tw.grid(y, block):
            y[i] = x[rows[i], columns[i]]

    table, ids = numbers(20, 6), np.array([3, 19, 0, 3, 7, 11, 2], np.int32)
    check(lookup, lambda t, i: t[i], table, ids, block=4)
    order = np.random.default_rng(0).permutation(11)
    check(permute, lambda x, o: x[np.argsort(o)], numbers(11), order, block=4)
    rows, columns = np.array([0, 4, 2, 2, 1]), np.array([1, 0, 2, 1, 2])
    check(pairs, lambda x, r, c: x[r, c], numbers(5, 3), rows, columns, block=2)


def test_an_integer_from_an_array_names_a_row() -> None:
    @tw.kernel
    def row_of(x: tw.In["M N"], which: tw.In[""], y: tw.Out["N"], *, block: int):
        for i in tw.grid(y, block):
            y[i] = x[which[()], i]

    check(row_of, lambda x, w: x[w], numbers(4, 10), np.asarray(2, np.int32), block=4)


def test_arrays_without_axes_are_numbers() -> None:
    @tw.kernel
    def scaled(x: tw.In["N"], s: tw.In["", tw.f32], y: tw.Out["N"], *, block: int):
        for i in tw.grid(y, block):
            y[i] = x[i] * s + s

    check(scaled, lambda x, s: x * s + s, numbers(10), np.asarray(1.5, np.float32), block=4, tolerance=1e-6)


def test_inout_is_updated_in_place() -> None:
    @tw.kernel
    def accumulate(x: tw.In["N"], y: tw.InOut["N"], *, block: int):
        for i in tw.grid(y, block):
            y[i] += x[i]
            y[i] *= 2

    for target in ("interp", "cpu"):
        x, y = numbers(10, dtype=np.int32), numbers(10, seed=1, dtype=np.int32)
        expected = (x + y) * 2
        assert run(accumulate, x, y, block=4, target=target) is None
        np.testing.assert_array_equal(y, expected)


def test_loops_carry_tiles_and_numbers() -> None:
    @tw.kernel
    def running(x: tw.In["M N"], y: tw.Out["M"], counts: tw.Out["M", tw.i64], *, bm: int, bn: int):
        for i in tw.grid(x, bm):
            total = 0.0
            count = 0
            largest = tw.full((bm,), -math.inf)
            unused = tw.zeros((bm,))
            for j in tw.steps(x, axis=1, size=bn):
                block = x[i, j]
                total = total + tw.sum(block, axis=1)
                largest = tw.maximum(largest, tw.max(block, axis=1))
                unused = unused + 1
                count += 1
            y[i] = total + largest
            counts[i] = count

    def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = x.astype(np.float64)
        return wide.sum(1) + wide.max(1), np.full(len(x), -(-x.shape[1] // 4))

    for rows, columns in ((4, 8), (5, 9), (1, 4), (3, 1)):
        check(running, reference, numbers(rows, columns) - 3, bm=2, bn=4, tolerance=1e-6)


def test_range_loops_are_unrolled_or_run() -> None:
    @tw.kernel
    def powers(x: tw.In["N"], y: tw.Out["N"], *, block: int, trips: int):
        for i in tw.grid(x, block):
            total = x[i] * 0.0
            for t in range(1, trips, 2):
                total = total * 0.5 + x[i] * t
            y[i] = total

    def reference(trips: int):
        def apply(x: np.ndarray) -> np.ndarray:
            total = x.astype(np.float64) * 0
            for t in range(1, trips, 2):
                total = total * 0.5 + x * t
            return total

        return apply

    for trips in (1, 2, 7, 40):
        check(powers, reference(trips), numbers(10), block=4, trips=trips, tolerance=1e-6)
    text = powers.lower(tw.ShapeDtype((8,), tw.f32), tw.ShapeDtype((8,), tw.f32), block=4, trips=40).ir()
    assert "trips = 20" in text
    assert (
        "tile.for" not in powers.lower(tw.ShapeDtype((8,), tw.f32), tw.ShapeDtype((8,), tw.f32), block=4, trips=7).ir()
    )


def test_loops_nest() -> None:
    @tw.kernel
    def windowed(x: tw.In["N M"], y: tw.Out["N"], *, block: int):
        for i in tw.grid(y, block):
            total = tw.zeros((block,), tw.f32)
            for t in range(10):
                inner = tw.zeros((block,), tw.f32)
                for j in tw.steps(x, axis=1, size=4):
                    inner = inner + tw.sum(x[i, j], axis=1) * t
                total = total + inner
            y[i] = total

    check(windowed, lambda x: 45 * x.astype(np.float64).sum(1), numbers(6, 9), block=4, tolerance=1e-5)


def test_python_values_are_computed_at_compile_time() -> None:
    def offsets(n: int) -> list[int]:
        return [k * k for k in range(n) if k % 2]

    @tw.kernel
    def mixed(x: tw.In["N"], y: tw.Out["N"], *, block: int, mode: str = "plain", extra: tuple[float, ...] = ()):
        (n,) = x.shape
        shift = sum(offsets(4)) if n > 2 else 0
        scale: float = SCALE
        for i in tw.grid(y, block):
            value = x[i] * scale + shift
            for k, factor in enumerate(TABLE):
                value = value + factor * k
            if mode == "square" and value.ndim == 1:
                value = value**2
            elif extra:
                value = value + [e * 2 for e in extra][-1]
            y[i] = value if not extra else -value

    base = lambda x: x.astype(np.float64) * 3 + 10 + 10  # noqa: E731  one line for three cases
    check(mixed, base, numbers(5), block=4, tolerance=1e-6)
    check(mixed, lambda x: base(x) ** 2, numbers(5), block=4, mode="square", tolerance=1e-6)
    check(mixed, lambda x: -base(x) - 3, numbers(5), block=4, extra=(1.5,), tolerance=1e-6)


def test_choices_at_run_time() -> None:
    @tw.kernel
    def choose(x: tw.In["M N"], flags: tw.In["M"], y: tw.Out["M N"], *, bn: int):
        for i, j in tw.grid(x, (None, bn)):
            value = x[i, j]
            if flags[i] > 0:
                value = value * 2
                extra = 1.0
            else:
                extra = tw.sum(value)
            if i == 1:
                y[i, j] = value + extra
            else:
                y[i, j] = value - extra

    def reference(x: np.ndarray, flags: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        on = flags[:, None] > 0
        sums = np.stack([wide[:, :4].sum(1), wide[:, 4:].sum(1)], 1).repeat(4, axis=1)[:, :7]
        extra = np.where(on, 1.0, sums)
        sign = np.where(np.arange(len(x)) == 1, 1, -1)[:, None]
        return wide * np.where(on, 2, 1) + sign * extra

    check(choose, reference, numbers(4, 7), np.array([1, 0, -1, 5], np.int32), bn=4, tolerance=1e-6)


def test_choices_inside_loops() -> None:
    @tw.kernel
    def skip(x: tw.In["M N"], y: tw.Out["M"], *, bm: int, bn: int):
        for i in tw.grid(y, bm):
            total = tw.zeros((bm,), tw.f32)
            for j in tw.steps(x, axis=1, size=bn):
                if j % 2 == 0:
                    total = total + tw.sum(x[i, j], axis=1)
            y[i] = total

    def reference(x: np.ndarray) -> np.ndarray:
        keep = (np.arange(x.shape[1]) // 4) % 2 == 0
        return x.astype(np.float64)[:, keep].sum(1)

    check(skip, reference, numbers(5, 18), bm=2, bn=4, tolerance=1e-6)


def _shifted(x, amount=1):
    return x + amount


@tw.kernel_function
def _stable_exp(x, axis):
    """A helper with a local, a default and a return."""
    largest = tw.max(x, axis=axis, keepdims=True)
    return tw.exp(_shifted(x, amount=0) - largest)


def test_helpers_are_inlined() -> None:
    @tw.kernel
    def softmax(x: tw.In["M N"], y: tw.Out["M N"], *, bm: int):
        for i in tw.grid(x, bm):
            e = _stable_exp(x[i], axis=1)
            y[i] = _shifted(e / tw.sum(e, axis=1, keepdims=True))

    def reference(x: np.ndarray) -> np.ndarray:
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True) + 1

    check(softmax, reference, numbers(5, 9), bm=2, tolerance=1e-6)


def test_load_and_store_functions() -> None:
    @tw.kernel
    def filled(x: tw.In["M N"], y: tw.Out["M"], *, bm: int, bn: int):
        for i in tw.grid(y, bm):
            tw.store(y, i, tw.sum(tw.load(x, (i, slice(0, bn)), fill=1.0), axis=1))

    check(filled, lambda x: x.astype(np.float64).sum(1) + 3, numbers(5, 5), bm=2, bn=8, tolerance=1e-6)


def test_new_axes_and_subscripts_of_tiles() -> None:
    @tw.kernel
    def outer(x: tw.In["M"], y: tw.In["N"], z: tw.Out["M N"], *, bm: int, bn: int):
        for i, j in tw.grid(z, (bm, bn)):
            z[i, j] = x[i, None] * y[None, j] + x[i][:, None] - y[j][None, ...]

    @tw.kernel
    def parts(x: tw.In["M N"], y: tw.Out["M 3"], *, bm: int):
        for i in tw.grid(x, bm):
            tile = x[i]
            y[i] = tw.concat([tile[:, 1:5:2], tile[:, -1][:, None]], axis=1)

    check(
        outer, lambda x, y: np.outer(x, y) + x[:, None] - y, numbers(5), numbers(6, seed=1), bm=2, bn=4, tolerance=1e-6
    )
    check(parts, lambda x: x[:, [1, 3, -1]], numbers(4, 6), bm=2)


def test_shape_changes() -> None:
    @tw.kernel
    def reshaped(x: tw.In["M 12"], y: tw.Out["M 4 3"], *, bm: int):
        for i in tw.grid(x, bm):
            tile = x[i].reshape(bm, 3, -1)
            y[i] = tw.transpose(tile, (0, 2, 1)) + tw.broadcast_to(tw.arange(3, dtype=tw.f32), (bm, 4, 3))

    def reference(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, 3, 4).transpose(0, 2, 1) + np.arange(3)

    check(reshaped, reference, numbers(4, 12), bm=2, tolerance=1e-6)


@pytest.mark.parametrize("n", [1, 8, 13])
def test_statements_before_the_grid_and_closures(n: int) -> None:
    offset = np.float32(0.5)
    dtype = tw.f64

    @tw.kernel
    def shifted(x: tw.In["N"], y: tw.Out["N", tw.f64], *, block: int = 8):
        """Doc strings are no statements."""
        n = tw.num_tiles(x, 0, block) + tw.cdiv(5, 2)
        base = tw.full((block,), n, dtype)
        for i in tw.grid(x, block):
            y[i] = x[i].astype(dtype) + base + offset
        return

    check(shifted, lambda x: x.astype(np.float64) + -(-n // 8) + 3 + 0.5, numbers(n))
