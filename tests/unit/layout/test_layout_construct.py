"""Constructors against NumPy packing loops and the instruction set's published tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import (
    Dim,
    Layout,
    blocked,
    column_major,
    distributed,
    line_swizzle,
    panels,
    product,
    row_major,
    same_map,
    strided,
)

shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)
M = Dim(1, 100, name="M")


def check_buffer(layout, array, buffer):
    """The element at each index of `array` is the one in `buffer` at its coordinate on `mem`."""
    assert layout.shape == array.shape
    for index in np.ndindex(*array.shape):
        assert buffer[layout.coordinates(index).get("mem", 0)] == array[index]


def numbered(shape):
    return np.arange(1, int(np.prod(shape, dtype=int)) + 1).reshape(shape)


@SMALL
@given(shapes)
def test_dense_arrays(shape):
    array = numbered(shape)
    check_buffer(row_major(shape), array, array.ravel(order="C"))
    check_buffer(column_major(shape), array, array.ravel(order="F"))


@SMALL
@given(shapes, st.data())
def test_strided_arrays(shape, data):
    array = numbered(tuple(2 * size for size in shape))
    views = [
        data.draw(st.sampled_from([slice(None, None, 2), slice(1, None, -1), slice(size, None)])) for size in shape
    ]
    view = array[tuple(views)] if shape else array
    layout = strided(view.shape, [step // array.itemsize for step in view.strides])
    first = int(view[(0,) * view.ndim]) - 1
    check_buffer(layout.with_offset({"mem": first}), view, array.ravel())
    repeated = np.broadcast_to(array, (3, *array.shape))
    check_buffer(
        strided(repeated.shape, [step // array.itemsize for step in repeated.strides]), repeated, array.ravel()
    )


@SMALL
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_blocked(rows, columns, tile_rows, tile_columns):
    array = numbered((rows, columns))
    padded = np.pad(array, ((0, -rows % tile_rows), (0, -columns % tile_columns)))
    tiles = padded.reshape(padded.shape[0] // tile_rows, tile_rows, padded.shape[1] // tile_columns, tile_columns)
    layout = blocked((rows, columns), (tile_rows, tile_columns))
    check_buffer(layout, array, tiles.transpose(0, 2, 1, 3).ravel())
    assert layout.padded_shape == padded.shape


@SMALL
@given(st.integers(1, 7), st.integers(1, 20), st.integers(1, 8))
def test_panels_of_b_as_a_packing_loop_writes_them(depth, columns, width):
    """Packed B: for each panel of `width` columns, each row of it in turn, zero where the matrix ends."""
    array = numbered((depth, columns))
    packed = []
    for first in range(0, columns, width):
        for k in range(depth):
            packed.extend(array[k, j] if j < columns else 0 for j in range(first, first + width))
    layout = panels((depth, columns), 1, width)
    check_buffer(layout, array, packed)
    assert layout.padded_shape == (depth, -(-columns // width) * width)
    assert layout.span("mem") == len(packed)


@SMALL
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 8))
def test_panels_of_a(rows, depth, height):
    """Packed A: panels of `height` rows, each column of the panel in turn."""
    array = numbered((rows, depth))
    packed = []
    for first in range(0, rows, height):
        for k in range(depth):
            packed.extend(array[i, k] if i < rows else 0 for i in range(first, first + height))
    check_buffer(panels((rows, depth), 0, height), array, packed)
    check_buffer(panels((rows, depth), -2, height), array, packed)


def test_panels_of_a_batch_and_of_unknown_width():
    assert panels((2, 64, 100), 2, 16) == Layout.parse("(2, 64, 100) : [2@mem*1024 | 64@mem*16 | 7@mem*2048 16@mem]")
    assert panels((64, M), 1, 16) == Layout.parse(
        "(64, M) : [64@mem*16 | ((M+15)//16)@mem*1024 16@mem] where M in 1..100"
    )


@SMALL
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_distributed_deals_equal_blocks(rows, columns, down, across):
    layout = distributed((rows, columns), [(0, "core.y", down), (1, "core.x", across)])
    height, width = -(-rows // down), -(-columns // across)
    for row, column in np.ndindex(rows, columns):
        local = (row % height) * width + column % width
        expected = {"core.y": row // height, "core.x": column // width, "mem": local}
        found = layout.coordinates((row, column))
        assert {axis: found.get(axis, 0) for axis in expected} == expected


def test_distributed_splits_nest():
    layout = distributed((100,), [(0, "device.x", 4), (0, "core", 5)])
    assert layout == Layout.parse("(100) : [4@device.x 5@core 5@mem]")
    assert distributed((M, 8), [(1, "core", 2)]) == Layout.parse("(M, 8) : [M@mem*4 | 2@core 4@mem] where M in 1..100")


def test_dense_arrays_of_unknown_size():
    assert row_major((M, 8)).span("mem") == M * 8
    assert row_major((1, M, 8)).shape == (1, M, 8)
    assert column_major((8, M)).span("mem") == M * 8
    assert blocked((M, 64), (16, 64)).span("mem") == (M + 15) // 16 * 1024
    assert row_major((0, 4)).shape == (0, 4)
    assert blocked((0, 4), (2, 2)).shape == (0, 4)


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("span_bytes", [32, 64, 128])
def test_line_swizzle_permutes_the_chunks_of_a_line(span_bytes, element_bytes):
    """The chunk number within a 128-byte line is XORed with the line number modulo span / 16."""
    line = 128 // element_bytes
    layout = row_major((16, line)).with_swizzle(line_swizzle(span_bytes, element_bytes))
    for row, column in np.ndindex(16, line):
        chunk, rest = divmod(column * element_bytes, 16)
        address = row * 128 + (chunk ^ (row % (span_bytes // 16))) * 16 + rest
        assert layout.coordinates((row, column)) == {"mem": address // element_bytes}


def test_column_reads_of_swizzled_lines_hit_all_banks():
    """Eight rows of one 16-byte chunk: one bank group without the swizzle, eight with it."""
    plain = row_major((8, 64))
    swizzled = plain.with_swizzle(line_swizzle(128, 2))
    for column in range(0, 64, 8):
        assert len({plain.coordinates((row, column))["mem"] * 2 % 128 // 16 for row in range(8)}) == 1
        assert len({swizzled.coordinates((row, column))["mem"] * 2 % 128 // 16 for row in range(8)}) == 8


def test_fragments_of_mma_m16n8k16():
    """PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": rows and columns of a0..a7 and c0..c3."""
    a = Layout.parse("(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]")
    c = Layout.parse("(16, 8) : [2@reg*2 8@lane*4 | 4@lane 2@reg]")
    for lane in range(32):
        group, member = lane >> 2, lane % 4
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            column = member * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert a.coordinates((row, column)) == {"reg": i, "lane": lane}
        for i in range(4):
            row = group if i < 2 else group + 8
            assert c.coordinates((row, member * 2 + (i & 1))) == {"reg": i, "lane": lane}


def test_fragment_of_wgmma_is_a_product():
    """PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16", D: row and column of d_i in a warpgroup."""
    atom = Layout.parse("(64, 8) : [4@warp 2@reg*2 8@lane*4 | 4@lane 2@reg]")
    d = product(row_major((1, 4), "reg"), atom)
    for warp, lane, i in np.ndindex(4, 32, 16):
        row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + lane % 4 * 2 + i % 2
        assert d.coordinates((row, column)) == {"warp": warp, "lane": lane, "reg": i}


def test_column_major_is_row_major_permuted():
    assert same_map(column_major((4, 5, 6)), Layout.parse("(4, 5, 6) : [4@mem | 5@mem*4 | 6@mem*20]"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: row_major((4, M)),
        lambda: column_major((M, 4)),
        lambda: strided((4, 4), (1,)),
        lambda: strided((4,), (M,)),
        lambda: blocked((4, 4), (2,)),
        lambda: blocked((4, 4), (2, -1)),
        lambda: blocked((4, M), (2, 2)),
        lambda: panels((4, 4), 2, 4),
        lambda: panels((4, 4), 1, 0),
        lambda: panels((8, M), 0, 4),
        lambda: distributed((4, 4), [(2, "core", 2)]),
        lambda: distributed((4, 4), [(0, "core", 0)]),
        lambda: distributed((4, 4), [(0, "core", 2), (1, "core", 2)]),
        lambda: distributed((4, 4), [(0, "mem", 2)]),
        lambda: line_swizzle(256, 2),
        lambda: line_swizzle(128, 3),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
