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


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("columns", [7776, 7777, 7783])
@pytest.mark.parametrize("threads", [1, 2])
def test_reversed_rows_whose_tiles_are_not_whole(dtype: str, columns: int, threads: int) -> None:
    """The last tile of a row reads backwards, to the first element of the row and not beyond: no vector but the last
    one needs a mask."""
    x = (np.arange(5 * columns).reshape(5, columns) % 251).astype(dtype)
    with tw.options(threads=threads):
        program = tw.jit(lambda x: tw.flip(x, axis=1))
        compiled = program.lower(x).compile("cpu")
        for before in (False, True):
            np.testing.assert_array_equal(compiled(guarded_copy(x, before)), x[:, ::-1])
        if dtype == "f4":
            assert program.lower(x).compile("cpu:x86-64-v3").asm().count("vmaskmov") <= 2


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("length", [1, 3, 6, 17, 22, 56, 100])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_vectors_that_are_not_whole(dtype: str, length: int, channels: int, target: str) -> None:
    """Channels come last and first again: the last vector of each row is stored and loaded up to its last element, in
    arrays between pages that cannot be read."""
    first = (np.arange(6 * channels * 7 * length).reshape(6, channels, 7, length) % 97).astype(dtype)
    last = np.ascontiguousarray(first.transpose(2, 0, 3, 1))
    to_last = tw.jit(lambda x: tw.permute_dims(x, (2, 0, 3, 1)) + 1)
    to_first = tw.jit(lambda x: tw.permute_dims(x, (1, 3, 0, 2)) + 1)
    for before in (False, True):
        x, y = guarded_copy(first, before), guarded_copy(last, before)
        np.testing.assert_array_equal(to_last.lower(x).compile(target)(x), last + 1)
        np.testing.assert_array_equal(to_first.lower(y).compile(target)(y), first + 1)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4"])
@pytest.mark.parametrize("step", [5, 6, 7, 8])
@pytest.mark.parametrize("columns", [33, 64, 125])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_narrow_elements_that_are_farther_apart(dtype: str, step: int, columns: int, target: str) -> None:
    """Each of a few columns, of which whole rows are vectors."""
    x = (np.arange(21 * columns * step).reshape(21, columns, step) % 61).astype(dtype)
    program = tw.jit(lambda x: x[..., 0] * 2 + x[..., step - 1] + x[..., 2])
    compiled = program.lower(x).compile(target)
    for before in (False, True):
        np.testing.assert_array_equal(compiled(guarded_copy(x, before)), x[..., 0] * 2 + x[..., -1] + x[..., 2])


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("columns", [31, 64, 107])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_reversed_pixels(dtype: str, columns: int, channels: int, target: str) -> None:
    x = (np.arange(9 * columns * channels).reshape(9, columns, channels) % 97).astype(dtype)
    compiled = tw.jit(lambda x: tw.flip(x, axis=1) + 1).lower(x).compile(target)
    for before in (False, True):
        np.testing.assert_array_equal(compiled(guarded_copy(x, before)), x[:, ::-1] + 1)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("columns", [31, 64, 643])
@pytest.mark.parametrize("widths", [(3, 1), (1, 2), (1, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_channels_side_by_side(dtype: str, columns: int, widths: tuple[int, ...], target: str) -> None:
    """Of each channel one operand is read, of which the others have none."""
    arrays = [(np.arange(9 * columns * n).reshape(9, columns, n) % (90 + n)).astype(dtype) for n in widths]
    compiled = tw.jit(lambda *xs: tw.concat(xs, axis=-1)).lower(*arrays).compile(target)
    for before in (False, True):
        got = compiled(*(guarded_copy(x, before) for x in arrays))
        np.testing.assert_array_equal(got, np.concatenate(arrays, axis=-1))
    filled = tw.jit(lambda x: tw.concat([x, tw.full((9, columns, 1), 7, dtype=x.dtype)], axis=-1))
    np.testing.assert_array_equal(filled.lower(arrays[0]).compile(target)(arrays[0])[..., -1], 7)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("length", [2, 3, 5, 7, 11, 15, 23, 31, 45, 63])
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_short_reversed_rows(dtype: str, length: int, target: str) -> None:
    """The remainder of a row is loaded and stored as two overlapping vectors, in arrays between guard pages."""
    x = (np.arange(131 * length).reshape(131, length) % 251).astype(dtype)
    program = tw.jit(lambda x: (tw.flip(x, axis=1), x + 1))
    for before in (False, True):
        given = guarded_copy(x, before)
        reverse, following = program.lower(given).compile(target)(given)
        np.testing.assert_array_equal(reverse, x[:, ::-1])
        np.testing.assert_array_equal(following, x + 1)
    if dtype == "u1" and target != "cpu":
        reverse_alone = tw.jit(lambda x: tw.flip(x, axis=1)).lower(x)
        assert reverse_alone.compile(target).asm().count("pextrb") <= 1
