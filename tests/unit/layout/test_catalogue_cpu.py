"""Panels and register blocks of CPU micro-kernels against NumPy packing."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import check_buffer, held, numbered, padded
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import Dim, draw, panels, same_map
from tilewright.layout.catalogue import packed_panels_a, packed_panels_b, register_block, spread_rows

sizes = st.integers(1, 12)
M = Dim(1, 100, name="M")


@SMALL
@given(sizes, sizes, st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_panels_of_a(rows, depth, width, group):
    array = numbered((rows, depth))
    whole = padded(array, (width, group))
    tiles = whole.reshape(whole.shape[0] // width, width, whole.shape[1] // group, group)
    layout = packed_panels_a(array.shape, width, group)
    check_buffer(layout, array, {(): tiles.transpose(0, 2, 1, 3).ravel()})
    assert layout.padded_shape == whole.shape


@SMALL
@given(sizes, sizes, st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_panels_of_b(depth, columns, width, group):
    array = numbered((depth, columns))
    whole = padded(array, (group, width))
    tiles = whole.reshape(whole.shape[0] // group, group, whole.shape[1] // width, width)
    layout = packed_panels_b(array.shape, width, group)
    check_buffer(layout, array, {(): tiles.transpose(2, 0, 3, 1).ravel()})
    assert layout.padded_shape == whole.shape


@SMALL
@given(sizes, sizes, st.integers(1, 6))
def test_spread_rows(rows, depth, line):
    """Rows of the fewest whole lines that are an odd number."""
    array = numbered((rows, depth))
    pitch = next(lines * line for lines in range(1, 2 * depth + 2, 2) if lines * line >= depth)
    whole = np.zeros((rows, pitch), array.dtype)
    whole[:, :depth] = array
    check_buffer(spread_rows(array.shape, line), array, {(): whole.ravel()})


@pytest.mark.parametrize("depth", [1, 16, 17, 512, 1000, 1024])
def test_spread_rows_are_in_different_sets(depth):
    """64 rows of f32 in a cache of 64 sets and lines of 64 bytes."""
    layout = spread_rows((64, depth), 16)
    assert len({layout.coordinates((row, 0)).get("mem", 0) // 16 % 64 for row in range(64)}) == 64


def test_without_groups_they_are_the_plain_panels():
    assert same_map(packed_panels_b((64, 100), 16), panels((64, 100), 1, 16))
    assert same_map(packed_panels_a((100, 64), 6), panels((100, 64), 0, 6))


def test_unknown_sizes():
    assert packed_panels_a((M, 10), 8, 4).bind({M: 20}) == packed_panels_a((20, 10), 8, 4)
    assert packed_panels_b((10, M), 8, 4).bind({M: 20}) == packed_panels_b((10, 20), 8, 4)


@pytest.mark.parametrize("vector_dim", [0, 1])
def test_register_block(vector_dim):
    """Vectors in row-major order of the block."""
    shape = (6, 32) if vector_dim == 1 else (32, 6)
    blocks = numbered(shape).reshape(6, 2, 16) if vector_dim == 1 else numbered(shape).reshape(2, 16, 6).swapaxes(1, 2)
    registers = blocks.reshape(12, 16)
    found = held(register_block(shape, 16, vector_dim), ("reg", "simd"))
    assert len(found) == registers.size
    for place, index in found.items():
        assert registers[place] == numbered(shape)[index]


def test_a_drawing():
    """Pairs of k, two columns to a panel."""
    assert draw(packed_panels_b((4, 4), 2, 2)) == "\n".join(
        [
            "mem of (4, 4)",
            "  | 0  1   2   3",
            "--+-------------",
            "0 | 0  2   8  10",
            "1 | 1  3   9  11",
            "2 | 4  6  12  14",
            "3 | 5  7  13  15",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: packed_panels_a((4, M), 2),
        lambda: packed_panels_a((4, 4), 0),
        lambda: packed_panels_a((4, 4), 2, 0),
        lambda: packed_panels_a((4, 4, 4), 2),
        lambda: packed_panels_b((M, 4), 2),
        lambda: packed_panels_b((4,), 2),
        lambda: spread_rows((M, 4), 16),
        lambda: spread_rows((4,), 16),
        lambda: spread_rows((4, 4), 0),
        lambda: register_block((6, 20), 16),
        lambda: register_block((6, 32), 0),
        lambda: register_block((6, 32), 16, 2),
        lambda: register_block((6,), 2),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help


def test_quads_of_bytes():
    """VPDPBUSD: four k of one column are four neighbouring bytes."""
    layout = packed_panels_b((8, 16), 16, 4)
    for k, n in np.ndindex(8, 16):
        assert layout.coordinates((k, n))["mem"] == k // 4 * 64 + n * 4 + k % 4
