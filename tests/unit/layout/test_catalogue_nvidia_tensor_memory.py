"""Tensor memory and the fragments of its loads against formulas, nested tilings and bit tables."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import Copies, Tiling, check_fragment, held
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import compact, draw, reduce, same_map
from tilewright.layout.catalogue import (
    tcgen05_column_halves,
    tcgen05_per_row,
    tcgen05_registers,
    tcgen05_transposed,
    tensor_memory_accumulator,
    tensor_memory_column_halves,
    tensor_memory_half_lanes,
    tensor_memory_scales,
    wgmma_accumulator,
    wgmma_per_column,
)

AXES = ("warp", "lane", "reg")
TCGEN05_TILES = ((128, 8), (32, 8), (8, 8))

TCGEN05 = Tiling((*TCGEN05_TILES, (2,)), (-7,), (-3, -2))
TCGEN05_TRANSPOSED = Tiling((*TCGEN05_TILES, (2, 2), (2, 1)), (-10,), (-6, -3, -5), -2)
TCGEN05_ROW = Tiling(((128,), (32,), (8,), (1,)), (-4,), (-2, Copies(4)))
TCGEN05_COL = Tiling(((8,), (2,)), (Copies(4),), (Copies(8), -2))
TMEM_NATIVE = Tiling(((128, 2), (32, 2)), (-4,), (-2,))

TILINGS = [
    (lambda shape: tcgen05_registers(shape, "16x256b"), (128, 8), TCGEN05),
    (tcgen05_transposed, (128, 8), TCGEN05_TRANSPOSED),
    (lambda shape: tcgen05_per_row(*shape), (128,), TCGEN05_ROW),
    (lambda shape: wgmma_per_column(*shape), (8,), TCGEN05_COL),
    (lambda shape: tcgen05_registers(shape, "32x32b"), (128, 2), TMEM_NATIVE),
]


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("case", range(len(TILINGS)))
def test_fragments_are_tilings(case, counts):
    make, base, tiling = TILINGS[case]
    shape = tuple(size * count for size, count in zip(base, counts, strict=False))
    assert held(make(shape), AXES) == tiling.held(shape)


@pytest.mark.parametrize("columns", [16, 48, 64])
def test_fragment_of_column_halves_is_a_tiling(columns):
    tiling = Tiling(((64, columns), (32, columns // 2), (8, 8), (2,)), (-6, -7), (-3, -2))
    assert held(tcgen05_column_halves((64, columns)), AXES) == tiling.held((64, columns))


# What each bit of the lane and of the register number adds to (row, column) in one 16-row load: from the bases that
# Triton's getTileLayout lists and, for 16x64b, from the strides of CUTLASS's copy traits.
LANE_BITS = {
    "16x64b": [(8, 0), (0, 1), (1, 0), (2, 0), (4, 0)],
    "16x128b": [(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)],
    "16x256b": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
}
REGISTER_BITS = {"16x64b": [], "16x128b": [(8, 0)], "16x256b": [(0, 1), (8, 0)]}


def _sum_of_bits(number, bases):
    return np.sum([base for bit, base in enumerate(bases) if number >> bit & 1], axis=0) + np.zeros(2, dtype=int)


@pytest.mark.parametrize("rows_per_warp", [16, 32])
@pytest.mark.parametrize("load", LANE_BITS)
def test_loads_of_16_rows(load, rows_per_warp):
    """A load repeats along columns; with 32 rows a second one adds registers for the rows 16 further on."""
    registers, columns = 1 << len(REGISTER_BITS[load]), 2 << len(REGISTER_BITS[load])
    loads = rows_per_warp // 16

    def element(warp, lane, reg):
        repeat, rest = divmod(reg, registers * loads)
        second, own = divmod(rest, registers)
        row, column = _sum_of_bits(lane, LANE_BITS[load]) + _sum_of_bits(own, REGISTER_BITS[load])
        return int(rows_per_warp * warp + 16 * second + row), int(columns * repeat + column)

    layout = tcgen05_registers((4 * rows_per_warp, 4 * columns), load, rows_per_warp)
    check_fragment(layout, element, warp=4, lane=32, reg=4 * registers * loads)


def test_a_load_of_32_rows():
    """PTX ISA, 32x32b: a lane holds a row, registers are columns."""
    check_fragment(
        tcgen05_registers((128, 16), "32x32b"),
        lambda warp, lane, reg: (32 * warp + lane, reg),
        warp=4,
        lane=32,
        reg=16,
    )


def test_relations():
    assert same_map(tcgen05_registers((64, 32), "16x256b", 16), wgmma_accumulator((64, 32)))
    matrix = tcgen05_registers((256, 24), "16x256b")
    assert same_map(compact(reduce(matrix, [1], private_axes={"reg"}), "reg"), tcgen05_per_row(256))
    assert same_map(compact(reduce(matrix, [0], private_axes={"reg"}), "reg"), wgmma_per_column(24))


MEMORY = ("cta", "tmem.row", "tmem.col", "tmem.part")


def in_memory(tiling, shape):
    """A tiling of tensor memory: warp and lane make the row, registers are columns, the vector shares one."""
    numbers = tiling.elements(shape)
    table = {}
    for warp, lane, column, part in np.ndindex(*numbers.shape):
        index = np.unravel_index(int(numbers[warp, lane, column, part]), shape)
        table[0, 32 * warp + lane, column, part] = tuple(int(at) for at in index)
    return table


@pytest.mark.parametrize("packing", [1, 2, 4])
def test_memory_is_tilings(packing):
    """JAX Mosaic's default, half-lane and collective layouts of tensor memory."""
    default = Tiling(((128, packing), (32, packing)), (-4,), (-2,))
    for shape in [(128, 16), (256, 32)]:
        assert held(tensor_memory_accumulator(shape, packing), MEMORY) == in_memory(default, shape)
    half_lane = Tiling(((64, 32), (16, 16), (packing,)), (-5,), (-4, -3))
    assert held(tensor_memory_half_lanes((64, 32), packing), MEMORY) == in_memory(half_lane, (64, 32))
    halves = Tiling(((64, 32), (32, 16), (packing,)), (-4, -5), (-3,))
    assert held(tensor_memory_column_halves((64, 32), packing), MEMORY) == in_memory(halves, (64, 32))


@pytest.mark.parametrize("shape", [(128, 4), (256, 8)])
def test_scales_are_a_tiling(shape):
    tiling = Tiling(((128, 4), (32, 1)), (Copies(4),), (-2,), -3)
    assert held(tensor_memory_scales(shape), MEMORY) == in_memory(tiling, shape)


@SMALL
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 2), st.integers(1, 3))
def test_accumulators_of_any_multiple(ctas, packing, tall, wide):
    """PTX ISA, layouts D and A: CTA c of a pair has rows 128 c to 128 c + 127, one to a row of its memory."""
    shape = (128 * ctas * tall, packing * wide)
    expected = {}
    for row, column in np.ndindex(*shape):
        tile, own = divmod(row, 128 * ctas)
        expected[own // 128, own % 128, tile * wide + column // packing, column % packing] = (row, column)
    assert held(tensor_memory_accumulator(shape, packing, ctas), MEMORY) == expected


@pytest.mark.parametrize("ctas", [1, 2])
def test_column_halves(ctas):
    """PTX ISA, layout B (pair) and E: rows 64-127 hold columns N/2 and up."""
    expected = {}
    for row, column in np.ndindex(64 * ctas, 48):
        half, own = divmod(column, 24)
        expected[row // 64, row % 64 + 64 * half, own, 0] = (row, column)
    assert held(tensor_memory_column_halves((64 * ctas, 48), ctas=ctas), MEMORY) == expected


def test_half_lanes_of_one_operation():
    """PTX ISA, layout F: rows 16 w to 16 w + 15 are rows 32 w to 32 w + 15 of the memory."""
    expected = {}
    for row, column in np.ndindex(64, 12):
        expected[0, row // 16 * 32 + row % 16, column // 2, column % 2] = (row, column)
    assert held(tensor_memory_half_lanes((64, 12), 2, folded=False), MEMORY) == expected


def test_a_drawing():
    """The transposed fragment: lanes 0 and 4 share rows 0 and 1."""
    assert draw(tcgen05_transposed((128, 8)), "lane", "reg", max_rows=5) == "\n".join(
        [
            "lane/reg of (128, 8)",
            "    |    0     1     2     3     4     5     6     7",
            "----+-----------------------------------------------",
            "  0 |  0/0   4/0   1/0   5/0   2/0   6/0   3/0   7/0",
            "  1 |  0/1   4/1   1/1   5/1   2/1   6/1   3/1   7/1",
            "  2 |  8/0  12/0   9/0  13/0  10/0  14/0  11/0  15/0",
            "... |  ...   ...   ...   ...   ...   ...   ...   ...",
            "127 | 24/7  28/7  25/7  29/7  26/7  30/7  27/7  31/7",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor_memory_accumulator((64, 8)),
        lambda: tensor_memory_accumulator((128, 8), 3),
        lambda: tensor_memory_accumulator((128, 3), 2),
        lambda: tensor_memory_accumulator((128, 8), ctas=2),
        lambda: tensor_memory_accumulator((128, 8), ctas=4),
        lambda: tensor_memory_half_lanes((128, 16)),
        lambda: tensor_memory_half_lanes((64, 24)),
        lambda: tensor_memory_half_lanes((64, 3), 2, folded=False),
        lambda: tensor_memory_column_halves((64, 16), ctas=2),
        lambda: tensor_memory_column_halves((64, 8)),
        lambda: tensor_memory_scales((64, 4)),
        lambda: tcgen05_registers((128, 8), "8x256b"),
        lambda: tcgen05_registers((64, 8), "32x32b", 16),
        lambda: tcgen05_registers((128, 4), "16x256b"),
        lambda: tcgen05_transposed((64, 8)),
        lambda: tcgen05_column_halves((64, 24)),
        lambda: tcgen05_per_row(64),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
