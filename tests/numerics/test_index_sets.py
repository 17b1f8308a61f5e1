"""Loops cut where a `select` changes sides: what they compute, against NumPy, and what code they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.sampling import count

DTYPES = ["f4", "f8", "f2", "i1", "u1", "i4", "i8", "?"]
SIZES = st.sampled_from([1, 2, 3, 7, 16, 33, 64, 100, 257])


def drawn(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape) * 50
    return values > 0 if dtype == "?" else values.astype(dtype)


def check(function: Any, reference: Any, *arrays: Any) -> None:
    found = tw.jit(function)(*arrays)
    expected = reference(*arrays)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 1, 2, 5, 16, 31, 64, 100]), min_size=2, max_size=20),
    st.sampled_from(DTYPES),
    st.data(),
)
@settings(max_examples=count(20, 100), deadline=None)
def test_concatenations(shape: list[int], sizes: list[int], dtype: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    arrays = [drawn([*shape[:axis], size, *shape[axis + 1 :]], dtype, n) for n, size in enumerate(sizes)]
    check(lambda *xs: tw.concat(xs, axis=axis), lambda *xs: np.concatenate(xs, axis=axis), *arrays)
    if dtype != "?":
        check(
            lambda *xs: tw.flip(tw.concat(xs, axis=axis), axis=axis) * 2,
            lambda *xs: np.flip(np.concatenate(xs, axis=axis), axis=axis) * np.array(2, dtype),
            *arrays,
        )


@given(st.lists(SIZES, min_size=1, max_size=3), st.sampled_from(DTYPES), st.data())
@settings(max_examples=count(20, 100), deadline=None)
def test_paddings_rolls_and_window_updates(shape: list[int], dtype: str, data: st.DataObject) -> None:
    widths = [(data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))) for _ in shape]
    x = drawn(shape, dtype)
    check(lambda x: tw.pad(x, widths), lambda x: np.pad(x, widths), x)
    axis, distance = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(-300, 300))
    check(lambda x: tw.roll(x, distance, axis=axis), lambda x: np.roll(x, distance, axis=axis), x)
    update = drawn([data.draw(st.integers(1, n)) for n in shape], dtype, 1)
    starts = [np.int64(data.draw(st.integers(-2, n + 2))) for n in shape]
    check(lambda x, y, *at: tw.dynamic_update_slice(x, y, list(at)), updated, x, update, *starts)


def updated(x: np.ndarray, update: np.ndarray, *starts: np.int64) -> np.ndarray:
    lows = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, x.shape, update.shape, strict=True)]
    result = x.copy()
    result[tuple(slice(low, low + m) for low, m in zip(lows, update.shape, strict=True))] = update
    return result


@given(SIZES, SIZES, st.integers(-20, 20), st.sampled_from(["f4", "i8", "u1"]))
@settings(max_examples=count(15, 80), deadline=None)
def test_masks_between_two_positions(rows: int, columns: int, diagonal: int, dtype: str) -> None:
    x = drawn((rows, columns), dtype)
    check(lambda x: tw.tril(x, k=diagonal), lambda x: np.tril(x, diagonal), x)
    check(lambda x: tw.triu(x, k=diagonal), lambda x: np.triu(x, diagonal), x)

    def banded(xp: Any, x: Any) -> Any:
        i, j = xp.arange(rows)[:, None], xp.arange(columns)[None, :]
        return xp.where((j - i <= 3) & (j >= i - 5), x, x[:1])

    check(lambda x: banded(tw, x), lambda x: banded(np, x), x)


@given(st.sampled_from(["x[:, ::2]", "x[:, 1::3]", "x[::2, 2::4]", "x[:, ::5]"]), SIZES, st.sampled_from(DTYPES))
@settings(max_examples=count(15, 80), deadline=None)
def test_elements_a_stride_apart(expression: str, columns: int, dtype: str) -> None:
    x = drawn((3, 4 * columns), dtype)
    code = compile(f"lambda xp, x: xp.where({expression} == {expression}, {expression}, x[:1, :1])", "strided", "eval")
    function = eval(code)
    check(lambda x: function(tw, x), lambda x: function(np, x), x)
    code = compile(f"lambda xp, x: {expression.replace('x[', 'xp.flip(x, axis=1)[')}", "reversed", "eval")
    reversed_function = eval(code)
    check(lambda x: reversed_function(tw, x), lambda x: reversed_function(np, x), x)


def test_memory_that_a_stride_ends_with_is_all_that_is_read() -> None:
    """The last element of a page before one that may not be read."""
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
    try:
        for stride in (2, 3, 4):
            count = 200
            source = (ctypes.c_float * (stride * (count - 1) + 1)).from_address(
                address + page - 4 * (stride * (count - 1) + 1)
            )
            x = np.ctypeslib.as_array(source)
            x[:] = np.arange(len(x))
            found = tw.jit(lambda x, stride=stride: x[::stride] + 1)(x)
            np.testing.assert_array_equal(found, x[::stride] + 1)
    finally:
        libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 3)


def kernel_text(
    function: Any, *shapes: tuple[int, ...], dtype: tw.DType = tw.f32, target: str = "cpu:x86-64-v4"
) -> str:
    arrays = [tw.ShapeDtype(shape, dtype) for shape in shapes]
    return tw.jit(function).lower(*arrays).compile(target).ir("llvm")


def test_each_part_of_a_concatenation_loads_one_operand() -> None:
    text = kernel_text(lambda *xs: tw.concat(xs, axis=0), *[(64, 1024)] * 32)
    assert "llvm.masked.load" not in text
    # A copy of each operand in the loop of its part, and no other.
    assert len(re.findall(r"= load <\d+ x float>", text)) == 32


def test_padding_is_not_compared_for_each_element() -> None:
    text = kernel_text(lambda x: tw.pad(x, ((1, 1), (0, 0))) * 2, (100, 256))
    assert "llvm.masked.load" not in text
    assert not re.search(r"select <\d+ x i1>", text)


def test_a_choice_by_values_is_padded_without_masks() -> None:
    """Elements of two arrays by those of a third, which is no choice by position."""
    text = kernel_text(lambda c, x, y: tw.pad(tw.where(c > 0, x, y), ((2, 1), (0, 0))), *[(100, 256)] * 3)
    assert "llvm.masked.load" not in text


@pytest.mark.parametrize("operands", [2, 32])
def test_axes_of_the_grid_decide_once_for_each_tile(operands: int) -> None:
    """Rows of the concatenation are tiles: a branch for each operand around them."""
    functions = [lambda *xs: tw.concat([x[:, :, ::2] for x in xs], axis=0), lambda *xs: tw.concat(xs, axis=1)]
    for function, shape in zip(functions, [(3, 128, 200), (70, 5, 6400)], strict=True):
        text = kernel_text(function, *[shape] * operands, dtype=tw.i64)
        assert "llvm.masked.load" not in text
        assert not re.search(r"select <\d+ x i1>", text)


@pytest.mark.parametrize("function", [tw.tril, lambda x: tw.triu(x, k=3) + 1], ids=["lower", "upper"])
def test_triangles_are_two_loops(function: Any) -> None:
    """A row is cut at the difference of two positions: elements of the array on one side, zeros on the other."""
    text = kernel_text(function, (50, 300))
    assert not re.search(r"= select +<\d+ x i1>", text)


@pytest.mark.parametrize("columns", [2, 70])
@pytest.mark.parametrize("fn", ["triu", "tril"])
def test_rows_of_triangles_at_indices(fn: str, columns: int) -> None:
    """The place of the diagonal is another one in each lane where lanes are rows."""
    x = drawn((64, columns), "f4", 0)
    rows = np.arange(1, 63).repeat(2)
    want = getattr(np, fn)(x)[rows]
    np.testing.assert_array_equal(tw.jit(lambda x: getattr(tw, fn)(x)[rows], target="cpu")(x), want)
    np.testing.assert_array_equal(tw.jit(lambda x, i: getattr(tw, fn)(x)[i], target="cpu")(x, rows), want)


def test_padding_along_the_grid_and_within_tiles() -> None:
    """Nine bodies of a tile that holds elements of the array, and one of a tile that does not."""
    text = kernel_text(lambda x: tw.pad(x, ((1, 0), (2, 1), (1, 2), (32, 40))), (40, 77, 56, 112))
    assert "llvm.masked.load" not in text
    assert len(re.findall(r"= load <\d+ x float>", text)) == 1


def test_short_parts_along_vectors_stay_in_one_loop() -> None:
    text = kernel_text(lambda x: tw.pad(x, ((0, 0), (1, 1))), (100, 14))
    assert "llvm.masked.load" in text


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8"])
def test_conditions_of_several_axes(dtype: str) -> None:
    """Selects along the grid and within tiles: elements, rows and images of several arrays."""
    x, y, z = (drawn((5, 6, 70, 90), dtype, n) for n in range(3))

    def both(xp: Any, x: Any, y: Any, z: Any) -> Any:
        i, j, k = (xp.reshape(xp.arange(n), (-1, *[1] * (3 - d))) for d, n in enumerate((5, 6, 70)))
        inner = xp.where((i < 2) | (j >= 4), x, xp.where((i == 3) & (k <= 20), y, z))
        return xp.where((j > 0) & ((i >= 1) | (k < 7)), inner, z * xp.asarray(3, dtype=z.dtype))

    check(lambda *a: both(tw, *a), lambda *a: both(np, *a), x, y, z)
    halves = (slice(None), slice(None), slice(None), slice(None, None, 2))
    check(
        lambda *a: tw.sum(tw.concat([each[halves] for each in a], axis=1), axis=3, dtype=tw.i64),
        lambda *a: np.sum(np.concatenate([each[halves] for each in a], axis=1), axis=3, dtype=np.int64),
        *(x.astype("i4"), y.astype("i4"), z.astype("i4")),
    )


@pytest.mark.parametrize("rows", [3, 20, 70, 900])
@pytest.mark.parametrize("columns", [5, 73, 300])
def test_columns_that_are_reduced_on_either_side(rows: int, columns: int) -> None:
    """Totals of each side have memory of their own."""
    x = drawn((30, columns, rows), "f4")

    def normed(xp: Any, x: Any) -> Any:
        padded = xp.pad(xp.exp(xp.permute_dims(x, (0, 2, 1)) / 64), ((0, 2), (1, 0), (0, 1)))
        return padded / (xp.sum(padded, axis=1, keepdims=True) + 1)

    np.testing.assert_allclose(tw.jit(lambda x: normed(tw, x))(x), normed(np, x), rtol=2e-5)


@pytest.mark.parametrize("operands", [32, 33, 65, 130])
def test_many_operands(operands: int) -> None:
    arrays = [drawn((3, 40), "f4", n) for n in range(operands)]
    for axis in (0, 1):
        check(lambda *xs, axis=axis: tw.concat(xs, axis=axis), lambda *xs, a=axis: np.concatenate(xs, axis=a), *arrays)


@given(
    st.lists(st.sampled_from([1, 2, 5, 33, 64, 100, 257]), min_size=1, max_size=2),
    st.integers(2, 5),
    st.sampled_from(DTYPES),
)
@settings(max_examples=count(15, 80), deadline=None)
def test_short_rows_are_interleaved(shape: list[int], channels: int, dtype: str) -> None:
    """Channels last and channels first, each made from the other, moved and computed with."""
    first, last = drawn((2, channels, *shape), dtype), drawn((2, *shape, channels), dtype)
    to_last, to_first = (0, *range(2, len(shape) + 2), 1), (0, len(shape) + 1, *range(1, len(shape) + 1))
    check(lambda x: tw.permute_dims(x, to_last), lambda x: np.transpose(x, to_last), first)
    check(lambda x: tw.permute_dims(x, to_first), lambda x: np.transpose(x, to_first), last)
    scale = drawn((channels,), dtype, 1)

    def both(xp: Any, x: Any, scale: Any) -> Any:
        return xp.where(x == scale, scale, x)

    check(lambda x, s: both(tw, x, s), lambda x, s: both(np, x, s), last, scale)
    check(
        lambda x, s: tw.permute_dims(both(tw, x, s), to_first),
        lambda x, s: np.transpose(both(np, x, s), to_first),
        last,
        scale,
    )
    check(
        lambda x, s: both(tw, tw.permute_dims(x, to_last), s),
        lambda x, s: both(np, np.transpose(x, to_last), s),
        first,
        scale,
    )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: tw.permute_dims(x, (0, 2, 1)) * 2, (4, 1000, 3)),
        (lambda x: tw.permute_dims(x, (0, 2, 1)) * 2, (4, 3, 1000)),
        (lambda x: x * tw.arange(3, dtype=tw.f32), (4000, 3)),
        (lambda x: x[:, ::2] + 1, (4, 1000)),
        (lambda x: tw.flip(x, axis=1) + 1, (4, 1000)),
    ],
    ids=["to channels first", "to channels last", "channels last", "every second", "backwards"],
)
def test_no_lane_is_loaded_or_stored_by_itself(function: Any, shape: tuple[int, ...]) -> None:
    """But those of a last vector that is not whole."""
    text = kernel_text(function, shape)
    loop_bodies = re.findall(r"\nv\d\S*body\S*:\n((?:  .+\n)*)", text)
    assert loop_bodies
    assert not any("gather" in body or "scatter" in body for body in loop_bodies)


@pytest.mark.parametrize("dtype", [tw.u8, tw.bf16, tw.f32, tw.i64])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, ::2] + x[:, 1::2],
        lambda x: tw.concat([x[:, 1::3], x[:, :500], x[:, ::4]], axis=1),
        lambda x: tw.stack([x[:, ::2], x[:, :28883]], axis=1),
        lambda x: tw.concat([x[:, ::2], tw.flip(x, axis=1)[:, ::3]], axis=1),
    ],
    ids=["two columns", "concatenation", "stack", "backwards"],
)
def test_whole_vectors_a_stride_apart_are_loaded_without_a_mask(function: Any, dtype: tw.DType) -> None:
    """Tiles do not divide rows of 28883: the last vectors alone need one."""
    text = kernel_text(function, (3, 57766), dtype=dtype)
    loop_bodies = re.findall(r"\nv\d\S*body\S*:\n((?:  .+\n)*)", text)
    assert loop_bodies
    assert not any("gather" in body or "masked" in body for body in loop_bodies)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_windows_that_are_inside_of_a_padded_image_have_no_masks(stride: int, target: str) -> None:
    """Only the vectors at the ends of a row meet the padding."""
    text = kernel_text(lambda x: tw.nn.max_pool(x, 3, stride=stride, padding=1), (1, 8, 224, 224), target=target)
    loop_bodies = re.findall(r"\nv\d\S*body\S*:\n((?:  .+\n)*)", text)
    assert loop_bodies
    assert not any(re.search(r"icmp ult <\d+ x", body) for body in loop_bodies)


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "f2"])
@pytest.mark.parametrize("padding", [(0, 1), (1, 0), (2, 2), (5, 9)])
def test_windows_of_padded_rows(padding: tuple[int, int], dtype: str) -> None:
    """Rows of as many vectors that each end has code of its own, of more and of fewer."""
    for columns in (7, 31, 64, 65, 130, 500):
        x = drawn((2, 5, columns), dtype)
        for stride in (1, 2, 3):
            widths = ((0, 0), (0, 0), padding)
            lowest = np.iinfo(dtype).min if np.dtype(dtype).kind in "ui" else -np.inf
            windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, widths, constant_values=lowest), 3, axis=2)
            expected = windows[:, :, ::stride].max(-1)
            found = tw.jit(lambda x, s=stride: tw.nn.max_pool(x, 3, stride=s, padding=(padding,)))(x)
            np.testing.assert_array_equal(found, expected)


def test_masks_of_short_rows_are_constants():
    program = tw.jit(lambda x: tw.pad(x, ((1, 1), (1, 1)))).lower(tw.ShapeDtype((1000, 16), tw.f32))
    assert "vpcmpgtq" not in program.compile("cpu:x86-64-v3").asm()


def test_bytes_are_cut_where_they_have_no_masks():
    """LLVM loads them lane by lane under masks."""
    program = tw.jit(lambda x: tw.pad(x, ((0, 0), (3, 3)))).lower(tw.ShapeDtype((1000, 40), tw.u8))
    assert "vpinsr" not in program.compile("cpu:x86-64-v3").asm()


def test_positions_that_wrap_around_are_compared_as_they_are() -> None:
    far = np.int64(2**63 - 50)

    def function(xp: Any, x: Any, y: Any) -> Any:
        return xp.where(xp.arange(300, dtype=xp.int64) + far < 0, x, y)

    check(lambda x, y: function(tw, x, y), lambda x, y: function(np, x, y), drawn((300,), "f4"), drawn((300,), "f4", 1))
