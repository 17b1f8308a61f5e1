"""Formats of several planes against buffers packed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import numbered, padded
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL, coordinate_arrays

from tilewright.errors import LayoutError
from tilewright.layout import row_major
from tilewright.layout.catalogue import (
    Plane,
    Planes,
    block_float,
    microscaled,
    nvfp4,
    scale_blocks,
    scale_rows,
    sparse_2_of_4,
    tensor_memory_scales,
)


def places(plane):
    arrays = coordinate_arrays(plane.layout)
    return arrays["mem"][..., 0] if "mem" in arrays else np.zeros(plane.layout.padded_shape, dtype=int)


@pytest.mark.parametrize("tile_shape", [(32, 32), (16, 32), (32, 16), (16, 16), (8, 32)])
@pytest.mark.parametrize("mantissa_bits", [8, 4, 2])
def test_block_floats(mantissa_bits, tile_shape):
    """Per tile: a byte for each row of each face, then the mantissas of the faces in the same order."""
    rows, columns = tile_shape
    shape = (2 * rows - 3, 3 * columns - 5)
    height = min(rows, 16)
    exponents, mantissas = {}, {}
    bit = 0
    for tile_row, tile_column in np.ndindex(2, 3):
        order = [
            (tile_row * rows + face_row * height + row, tile_column * columns + face_column * 16 + column)
            for face_row, face_column in np.ndindex(rows // height, columns // 16)
            for row, column in np.ndindex(height, 16)
        ]
        for position, index in enumerate(order):
            exponents[index] = bit + position // 16 * 8
        bit += len(order) // 16 * 8
        for position, index in enumerate(order):
            mantissas[index] = bit + position * mantissa_bits
        bit += len(order) * mantissa_bits
    planes = block_float(shape, mantissa_bits, tile_shape)
    shared, own = places(planes["exponent"]) * 8, places(planes["mantissa"]) * mantissa_bits
    for index in np.ndindex(*shape):
        assert (shared[index], own[index]) == (exponents[index], mantissas[index])
    assert planes["exponent"].buffer == planes["mantissa"].buffer == "tiles"
    assert (planes["exponent"].bits, planes["mantissa"].bits) == (8, mantissa_bits)


def test_bytes_of_a_block_float_tile():
    """tt-metal: 1088 bytes for bfp8, 576 for bfp4, 320 for bfp2."""
    for bits, size in [(8, 1088), (4, 576), (2, 320)]:
        two = block_float((64, 32), bits)
        assert places(two["exponent"])[32, 0] == size
        assert places(two["mantissa"]).max() * bits // 8 == 2 * size - 1


@SMALL
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([16, 32]))
def test_scales_in_rows(rows, blocks, block):
    found = coordinate_arrays(scale_rows((rows, blocks * block), block))
    mem = found.get("mem", np.zeros((rows, blocks * block, 1), dtype=int))[..., 0]
    for row, k in np.ndindex(rows, blocks * block):
        assert mem[row, k] == row * blocks + k // block


@SMALL
@given(st.integers(1, 300), st.integers(1, 9), st.sampled_from([1, 16, 32]))
def test_scales_in_blocks(rows, columns, block):
    """Pad to 128 x 4, reshape (R/128, 4, 32, C/4, 4), transpose to (R/128, C/4, 32, 4, 4)."""
    scales = numbered((rows, columns))
    whole = padded(scales, (128, 4))
    split = whole.reshape(whole.shape[0] // 128, 4, 32, whole.shape[1] // 4, 4)
    buffer = split.transpose(0, 3, 2, 1, 4).ravel()
    mem = coordinate_arrays(scale_blocks((rows, columns * block), block))["mem"][..., 0]
    assert np.array_equal(buffer[mem[:rows, : columns * block : block]], scales)
    for row in (0, rows - 1):
        for k in (0, columns * block - 1):
            c, across = k // block, whole.shape[1] // 4
            closed = (row // 128 * across + c // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + c % 4
            assert mem[row, k] == closed


def test_a_copy_of_scale_blocks_fills_tensor_memory():
    """tcgen05.cp.32x128b: line r of 16 bytes goes to row r (of each warp), its 4-byte words to four columns."""
    memory = coordinate_arrays(scale_blocks((256, 8), 1))["mem"][..., 0]
    target = coordinate_arrays(tensor_memory_scales((256, 8)))
    for index in np.ndindex(256, 8):
        block, inside = divmod(int(memory[index]), 512)
        assert set(target["tmem.row"][index]) == {inside // 16 + 32 * warp for warp in range(4)}
        assert set(target["tmem.col"][index]) == {4 * block + inside % 16 // 4}
        assert set(target["tmem.part"][index]) == {inside % 4}


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("bits", [8, 6, 4])
def test_microscaling(bits, blocked):
    """OCP MX: 32 elements share an 8-bit scale."""
    planes = microscaled((5, 96), bits, blocked_scales=blocked)
    assert np.array_equal(places(planes["value"]), np.arange(5 * 96).reshape(5, 96))
    scale = places(planes["scale"])[:5, :96]
    assert len(set(scale.ravel())) == 15
    assert all(len(set(block)) == 1 for block in scale.reshape(15, 32))
    assert (planes["value"].bits, planes["scale"].bits) == (bits, 8)
    assert planes["value"].buffer != planes["scale"].buffer


@pytest.mark.parametrize("blocked", [False, True])
def test_nvfp4(blocked):
    """16 elements share an 8-bit scale, all share one f32."""
    planes = nvfp4((5, 96), blocked_scales=blocked)
    scale = places(planes["scale"])[:5, :96]
    assert len(set(scale.ravel())) == 30
    assert all(len(set(block)) == 1 for block in scale.reshape(30, 16))
    assert not places(planes["global_scale"]).any()
    assert [plane.bits for plane in planes.planes] == [4, 8, 32]
    assert not blocked or scale[0, 16 * 4] == 512


def test_sparsity_keeps_two_of_four():
    """Compress by hand: kept value j of a row comes from group j // 2; its index is its place among the four."""
    rng = np.random.default_rng(0)
    shape = (6, 32)
    kept = np.stack([np.sort(rng.choice(4, 2, replace=False)) for _ in range(6 * 8)]).reshape(6, 16)
    dense = np.zeros(shape, dtype=int)
    values, metadata = np.zeros(96, dtype=int), np.zeros(96, dtype=int)
    planes = sparse_2_of_4(shape, 16)
    value_at, index_at = places(planes["value"]), places(planes["index"])
    for row, j in np.ndindex(6, 16):
        dense[row, j // 2 * 4 + kept[row, j]] = number = 1 + row * 16 + j
        values[value_at[row, j]], metadata[index_at[row, j]] = number, kept[row, j]
    rebuilt = np.zeros(shape, dtype=int).reshape(6, 8, 4)
    for row, group, slot in np.ndindex(6, 8, 2):
        at = (row * 8 + group) * 2 + slot
        rebuilt[row, group, metadata[at]] = values[at]
    assert np.array_equal(rebuilt.reshape(shape), dense)
    assert planes.shape == (6, 16)
    assert [plane.bits for plane in planes.planes] == [16, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: block_float((64, 64), 7),
        lambda: block_float((64, 64), 8, (4, 32)),
        lambda: block_float((64, 64), 8, (24, 32)),
        lambda: block_float((64,), 8),
        lambda: microscaled((4, 48), 8),
        lambda: microscaled((4, 64), 5),
        lambda: nvfp4((4, 24)),
        lambda: nvfp4((4, 4, 32)),
        lambda: scale_rows((4, 64), 0),
        lambda: scale_blocks((4, 40), 32),
        lambda: sparse_2_of_4((4, 6), 16),
        lambda: sparse_2_of_4((4, 8), 0),
        lambda: nvfp4((4, 32))["metadata"],
        lambda: Planes((4, 4), (Plane("value", row_major((4, 5)), 8, "values"),)),
        lambda: Planes((4,), (Plane("value", row_major((4,)), 8, "a"), Plane("value", row_major((4,)), 8, "b"))),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
