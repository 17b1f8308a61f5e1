"""Shared memory of NVIDIA GPUs against brute-force byte addresses and the boxes that a tensor copy writes."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import numbered
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL, coordinate_arrays

from tilewright.errors import LayoutError
from tilewright.layout import Layout, contiguous_run, draw, is_injective, row_major, same_map
from tilewright.layout.catalogue import padded_shared, shared_matrix


def exchanged(address, swizzle_bytes):
    """The copy engine's XOR: the chunk of 16 bytes with the number of the 128-byte line, modulo swizzle / 16."""
    chunks = swizzle_bytes // 16
    chunk, line = address // 16 % chunks, address // 128
    return address + ((chunk ^ (line % chunks)) - chunk) * 16


def address_bits(across, along, counts, bits, swizzle_bytes, slowest_is_across):
    """The bit address of an element that is `along` in line `across`, with `counts` = atoms (across, along)."""
    line_bytes = swizzle_bytes or 16
    atom_across, line = divmod(across, 8)
    atom_along, offset_bits = divmod(along * bits, line_bytes * 8)
    number = atom_across * counts[1] + atom_along if slowest_is_across else atom_along * counts[0] + atom_across
    byte = number * 8 * line_bytes + line * line_bytes + offset_bits // 8
    return (exchanged(byte, swizzle_bytes) if swizzle_bytes else byte) * 8 + offset_bits % 8


@pytest.mark.parametrize("slowest_dim", [0, 1])
@pytest.mark.parametrize("contiguous_dim", [0, 1])
@pytest.mark.parametrize("swizzle_bytes", [0, 32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_operands_of_wgmma_in_shared_memory(bits, swizzle_bytes, contiguous_dim, slowest_dim):
    line = (swizzle_bytes or 16) * 8 // bits
    counts = (3, 2)
    shape = (8 * counts[0], line * counts[1]) if contiguous_dim == 1 else (line * counts[1], 8 * counts[0])
    layout = shared_matrix(shape, bits, swizzle_bytes, contiguous_dim=contiguous_dim, slowest_dim=slowest_dim)
    places = coordinate_arrays(layout)["mem"][..., 0]
    for index in np.ndindex(*shape):
        across, along = index if contiguous_dim == 1 else index[::-1]
        is_across = (slowest_dim == 0) == (contiguous_dim == 1)
        assert places[index] * bits == address_bits(across, along, counts, bits, swizzle_bytes, is_across)
    assert sorted(places.ravel()) == list(range(places.size))
    assert contiguous_run(layout, "mem", contiguous_dim) == 128 // bits


@SMALL
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from([8, 16]), st.sampled_from([32, 64, 128]))
def test_boxes_of_a_tensor_copy(tall, wide, bits, swizzle_bytes):
    """A copy of boxes (rows, one line) writes each box densely, its chunks exchanged; boxes follow one another."""
    line = swizzle_bytes * 8 // bits
    array = numbered((8 * tall, line * wide))
    memory = np.zeros(array.size, dtype=int)
    for box in range(wide):
        dense = array[:, box * line : (box + 1) * line].ravel()
        for position, value in enumerate(dense):
            byte = exchanged(position * bits // 8, swizzle_bytes)
            memory[box * dense.size + byte * 8 // bits] = value
    layout = shared_matrix(array.shape, bits, swizzle_bytes, slowest_dim=1)
    places = coordinate_arrays(layout)["mem"][..., 0]
    assert np.array_equal(memory[places], array)


@SMALL
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 9)), min_size=1, max_size=3), st.integers(1, 5))
def test_padded_rows(steps, count):
    """Element i is at i + sum over (i // interval) * pad."""
    paddings, interval = [], 8
    for factor, pad in steps:
        interval *= factor
        paddings.append((interval, pad))
    layout = padded_shared((count * interval,), paddings)
    places = coordinate_arrays(layout)["mem"][..., 0]
    for i in range(count * interval):
        assert places[i] == i + sum(i // interval * pad for interval, pad in paddings)
    assert is_injective(layout)


def test_a_padded_row_pitch():
    assert same_map(padded_shared((64, 32), [(32, 8)]), Layout.parse("(64, 32) : [64@mem*40 | 32@mem]"))
    assert same_map(padded_shared((3, 5), []), row_major((3, 5)))


def test_a_drawing():
    """Rows of a 64-byte swizzle: chunks of 8 elements exchange every second row."""
    assert draw(shared_matrix((8, 32), 16, 64), max_columns=8, max_rows=8) == "\n".join(
        [
            "mem of (8, 32)",
            "  |   0    1    2    3    4    5  ...   31",
            "--+---------------------------------------",
            "0 |   0    1    2    3    4    5  ...   31",
            "1 |  32   33   34   35   36   37  ...   63",
            "2 |  72   73   74   75   76   77  ...   87",
            "3 | 104  105  106  107  108  109  ...  119",
            "4 | 144  145  146  147  148  149  ...  143",
            "5 | 176  177  178  179  180  181  ...  175",
            "6 | 216  217  218  219  220  221  ...  199",
            "7 | 248  249  250  251  252  253  ...  231",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: shared_matrix((8, 64), 12),
        lambda: shared_matrix((8, 64), 16, 256),
        lambda: shared_matrix((8, 32), 16),
        lambda: shared_matrix((4, 64), 16),
        lambda: shared_matrix((8, 64), 16, contiguous_dim=0),
        lambda: shared_matrix((8, 64), 16, contiguous_dim=2),
        lambda: shared_matrix((8, 64), 16, slowest_dim=-1),
        lambda: padded_shared((64, 32), [(32, 0)]),
        lambda: padded_shared((64, 32), [(32, 8), (48, 8)]),
        lambda: padded_shared((3, 5), [(8, 1)]),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
