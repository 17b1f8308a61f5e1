"""NVIDIA register fragments against the formulas of the PTX ISA manual and against nested tilings."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import Copies, Lanes, Tiling, check_fragment, held
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import compact, draw, is_injective, product, reduce, row_major, same_map
from tilewright.layout.catalogue import (
    ldmatrix_registers,
    ldmatrix_rows,
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    strided_registers,
    wgmma_accumulator,
    wgmma_operand,
    wgmma_per_column,
    wgmma_per_row,
    wgmma_transposed,
    wgmma_upcast,
)

AXES = ("warp", "lane", "reg")
WGMMA_TILES = ((64, 8), (16, 8), (8, 8))

WGMMA = Tiling((*WGMMA_TILES, (2,)), (-7,), (-3, -2))
WGMMA_ACC_32BIT = Tiling((*WGMMA_TILES, (2,), (1,)), (-8,), (-4, -3))
WGMMA_8BIT = Tiling(((64, 16), (16, 16), (8, 16), (4,)), (-7,), (-3, -2))
WGMMA_UPCAST_2X = Tiling(((64, 16), (16, 16), (8, 16), (8,), (4,)), (-8,), (-4, -2, -3))
WGMMA_UPCAST_4X = Tiling(((64, 32), (16, 32), (8, 32), (8,)), (-7,), (-3, -2))
WGMMA_TRANSPOSED = Tiling((*WGMMA_TILES, (2, 2), (2, 1)), (-10,), (-6, -3, -5), -2)
WGMMA_ROW = Tiling(((64,), (16,), (8,), (1,)), (-4,), (-2, Copies(4)))
WGMMA_COL = Tiling(((8,), (2,)), (Copies(4),), (Copies(8), -2))

TILINGS = [
    (wgmma_accumulator, (64, 8), WGMMA),
    (wgmma_accumulator, (64, 8), WGMMA_ACC_32BIT),
    (lambda shape: wgmma_operand(shape, 16), (64, 8), WGMMA),
    (lambda shape: wgmma_operand(shape, 8), (64, 16), WGMMA_8BIT),
    (lambda shape: wgmma_upcast(shape, 2), (64, 16), WGMMA_UPCAST_2X),
    (lambda shape: wgmma_upcast(shape, 4), (64, 32), WGMMA_UPCAST_4X),
    (wgmma_transposed, (64, 8), WGMMA_TRANSPOSED),
    (lambda shape: wgmma_per_row(*shape), (64,), WGMMA_ROW),
    (lambda shape: wgmma_per_column(*shape), (8,), WGMMA_COL),
]


@pytest.mark.parametrize("columns", [8, 16, 136, 256])
def test_accumulator_of_wgmma(columns):
    """PTX ISA, fragment D of wgmma.mma_async.m64nNk16."""

    def element(warp, lane, reg):
        row = 16 * warp + lane // 4 + (8 if reg % 4 >= 2 else 0)
        return row, 8 * (reg // 4) + lane % 4 * 2 + reg % 2

    check_fragment(wgmma_accumulator((64, columns)), element, warp=4, lane=32, reg=columns // 2)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_operand_of_wgmma_in_registers(bits):
    """PTX ISA, fragment A of wgmma.mma_async.m64nNk{8,16,32}, as printed for each width."""

    def element(warp, lane, reg):
        base = 16 * warp + lane // 4
        if bits == 32:
            return base + 8 * (reg % 2), lane % 4 + 4 * (reg // 2)
        if bits == 16:
            return base + (8 if reg in (2, 3, 6, 7) else 0), lane % 4 * 2 + reg % 2 + (8 if reg >= 4 else 0)
        upper = 4 <= reg < 8 or reg >= 12
        return base + (8 if upper else 0), lane % 4 * 4 + reg % 4 + (16 if reg >= 8 else 0)

    check_fragment(wgmma_operand((64, 256 // bits), bits), element, warp=4, lane=32, reg=128 // bits)


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("case", range(len(TILINGS)))
def test_fragments_of_a_warpgroup_are_tilings(case, counts):
    """The tiles and digits that JAX Mosaic lists for the same fragments, over one and several base tiles."""
    make, base, tiling = TILINGS[case]
    shape = tuple(size * count for size, count in zip(base, counts, strict=False))
    assert held(make(shape), AXES) == tiling.held(shape)


@SMALL
@given(st.sampled_from(TILINGS), st.integers(1, 2), st.integers(1, 4))
def test_tilings_of_any_multiple(case, tall, wide):
    make, base, tiling = case
    shape = tuple(size * count for size, count in zip(base, (tall, wide), strict=False))
    layout = make(shape)
    assert layout.shape == shape == layout.padded_shape
    assert held(layout, AXES) == tiling.held(shape)


@pytest.mark.parametrize("shape", [(64, 8), (64, 256), (192, 24)])
def test_vectors_are_reductions_of_the_matrix(shape):
    matrix = wgmma_accumulator(shape)
    rows = compact(reduce(matrix, [1], private_axes={"reg"}), "reg")
    columns = compact(reduce(matrix, [0], private_axes={"reg"}), "reg")
    assert same_map(rows, wgmma_per_row(shape[0]))
    assert same_map(columns, wgmma_per_column(shape[1]))


def test_a_widened_fragment_is_one_exchange_away_from_the_operand():
    """Of the 8 bytes in the registers of lanes l and l ^ 1, each lane of the 16-bit operand holds its own 4."""
    narrow = held(wgmma_upcast((64, 16), 2), AXES)
    wide = held(wgmma_operand((64, 16), 16), AXES)
    for warp, lane in np.ndindex(4, 32):
        pair = {narrow[warp, other, reg] for other in (lane, lane ^ 1) for reg in range(8)}
        assert {wide[warp, lane, reg] for reg in range(8)} <= pair


def test_a_transposed_fragment_is_one_exchange_away():
    plain, turned = held(wgmma_accumulator((64, 8)), AXES), held(wgmma_transposed((64, 8)), AXES)
    for warp, lane in np.ndindex(4, 32):
        assert turned[warp, lane, 0][1] == turned[warp, lane, 1][1]
    rows = {(warp, lane): {plain[warp, lane, reg] for reg in range(4)} for warp, lane in np.ndindex(4, 32)}
    own = {place: {turned[(*place, reg)] for reg in range(4)} for place in rows}
    assert all(sum(bool(own[place] & held_there) for held_there in rows.values()) == 2 for place in own)


def _row_a(bits, group, i):
    half = {4: 8, 8: 4, 16: 2, 32: 1}[bits]
    return group if i % (2 * half) < half else group + 8


def _column(bits, member, i):
    """The depth index of a_i, or of b_i when counted for half as many registers."""
    return {
        4: member * 8 + (i & 7) + (32 if i >= 16 else 0),
        8: member * 4 + (i & 3) + (16 if i >= 8 else 0),
        16: member * 2 + (i & 1) + (8 if i >= 4 else 0),
        32: member + (4 if i >= 2 else 0),
    }[bits]


def _depth_b(bits, member, i):
    return {
        4: member * 8 + (i & 7) + (32 if i >= 8 else 0),
        8: member * 4 + (i & 3) + (16 if i >= 4 else 0),
        16: member * 2 + (i & 1) + (8 if i >= 2 else 0),
        32: member + 4 * i,
    }[bits]


@pytest.mark.parametrize("warps", [(1, 1), (2, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_fragments_of_mma_m16n8(bits, warps):
    """PTX ISA, matrix fragments of mma.m16n8k{64,32,16,8}; two tiles of each warp along each dim."""
    depth, (tall, wide) = 256 // bits, warps
    per_a, per_b = depth // 2, depth // 4

    def element_a(warp, lane, reg):
        tile, i = divmod(reg, per_a)
        row = (tile // 2 * tall + warp // wide) * 16 + _row_a(bits, lane >> 2, i)
        return row, tile % 2 * depth + _column(bits, lane % 4, i)

    def element_b(warp, lane, reg):
        tile, i = divmod(reg, per_b)
        return tile // 2 * depth + _depth_b(bits, lane % 4, i), (tile % 2 * wide + warp % wide) * 8 + (lane >> 2)

    def element_c(warp, lane, reg):
        tile, i = divmod(reg, 4)
        row = (tile // 2 * tall + warp // wide) * 16 + (lane >> 2) + (8 if i >= 2 else 0)
        return row, (tile % 2 * wide + warp % wide) * 8 + lane % 4 * 2 + (i & 1)

    extents = {"warp": tall * wide, "lane": 32}
    a = mma_operand_a((32 * tall, 2 * depth), bits, warps)
    b = mma_operand_b((2 * depth, 16 * wide), bits, warps)
    c = mma_accumulator((32 * tall, 16 * wide), bits, warps)
    check_fragment(a, element_a, **extents, reg=4 * per_a)
    check_fragment(b, element_b, **extents, reg=4 * per_b)
    check_fragment(c, element_c, **extents, reg=16)


def test_fragments_of_mma_m8n8k4_in_double_precision():
    """PTX ISA, matrix fragments of mma.m8n8k4 with .f64."""
    check_fragment(mma_operand_a((8, 4), 64), lambda lane, reg: (lane >> 2, lane % 4), lane=32, reg=1)
    check_fragment(mma_operand_b((4, 8), 64), lambda lane, reg: (lane % 4, lane >> 2), lane=32, reg=1)
    check_fragment(mma_accumulator((8, 8), 64), lambda lane, reg: (lane >> 2, lane % 4 * 2 + reg), lane=32, reg=2)


@pytest.mark.parametrize("bits", [8, 16])
def test_fragments_of_mma_as_counts(bits):
    """IREE's outer / threads / strides / elements of mma.sync 16x8x16; for 8 bits twice as many elements along K."""
    own = 32 // bits
    depth = 8 * own
    a = Lanes((2, 2), (8, 4), (4, 1), (1, own))
    b = Lanes((2, 1), (4, 8), (1, 4), (own, 1))
    c = Lanes((2, 1), (8, 4), (4, 1), (1, 2))
    assert held(mma_operand_b((depth, 8), bits), ("lane", "reg")) == b.held()
    assert held(mma_accumulator((16, 8), bits), ("lane", "reg")) == c.held()
    # The instruction counts the outer blocks of A with rows fastest.
    renamed = {(lane, _swap_middle(reg, own)): index for (lane, reg), index in a.held().items()}
    assert held(mma_operand_a((16, depth), bits), ("lane", "reg")) == renamed


def _swap_middle(reg, own):
    row_block, column_block, i = reg // (2 * own), reg // own % 2, reg % own
    return (column_block * 2 + row_block) * own + i


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count):
    """PTX ISA, ldmatrix: thread 8 i + r addresses row r of matrix i; a thread receives one row's two elements."""
    rows = ldmatrix_rows(count)
    assert [rows.coordinates((i, r))["lane"] for i in range(count) for r in range(8)] == list(range(8 * count))

    def straight(lane, reg):
        return reg // 2, lane // 4, lane % 4 * 2 + reg % 2

    def transposed(lane, reg):
        return reg // 2, lane % 4 * 2 + reg % 2, lane // 4

    check_fragment(ldmatrix_registers(count), straight, lane=32, reg=2 * count)
    check_fragment(ldmatrix_registers(count, transposed=True), transposed, lane=32, reg=2 * count)


def test_ldmatrix_loads_the_operands_of_mma():
    """Four matrices of A in the order of its registers; two of a row-major B, transposed on the way."""
    loaded, fragment = ldmatrix_registers(4), mma_operand_a((16, 16), 16)
    for row, column in np.ndindex(16, 16):
        matrix = row // 8 + 2 * (column // 8)
        assert loaded.coordinates((matrix, row % 8, column % 8)) == fragment.coordinates((row, column))
    loaded, fragment = ldmatrix_registers(2, transposed=True), mma_operand_b((16, 8), 16)
    for row, column in np.ndindex(16, 8):
        assert loaded.coordinates((row // 8, row % 8, column)) == fragment.coordinates((row, column))


@SMALL
@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2, 4]))
def test_strided_registers(rounds, log_rows, log_vector, warps):
    """Thread t holds vectors t, t + threads, ... of the flattened array."""
    vector, threads = 1 << log_vector, 32 * warps
    size = (rounds + 1) * threads * vector
    shape = (size >> log_rows, 1 << log_rows)

    def element(warp, lane, reg):
        flat = (reg // vector * threads + 32 * warp + lane) * vector + reg % vector
        return divmod(flat, shape[1])

    layout = strided_registers(shape, vector, warps)
    check_fragment(layout, element, warp=warps, lane=32, reg=(rounds + 1) * vector)


def test_several_warpgroups_are_a_product():
    both = product(row_major((2, 1), "warpgroup"), wgmma_accumulator((64, 16)))
    assert is_injective(both)
    assert both.coordinates((64 + 17, 3)) == {"warpgroup": 1, "warp": 1, "lane": 5, "reg": 1}


def test_a_drawing():
    assert draw(mma_accumulator((8, 8), 64), "lane", "reg", max_rows=4) == "\n".join(
        [
            "lane/reg of (8, 8)",
            "    |    0     1     2     3     4     5     6     7",
            "----+-----------------------------------------------",
            "  0 |  0/0   0/1   1/0   1/1   2/0   2/1   3/0   3/1",
            "  1 |  4/0   4/1   5/0   5/1   6/0   6/1   7/0   7/1",
            "... |  ...   ...   ...   ...   ...   ...   ...   ...",
            "  7 | 28/0  28/1  29/0  29/1  30/0  30/1  31/0  31/1",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: wgmma_accumulator((32, 8)),
        lambda: wgmma_accumulator((64, 12)),
        lambda: wgmma_accumulator((64, 8, 8)),
        lambda: wgmma_accumulator((0, 8)),
        lambda: wgmma_operand((64, 16), 64),
        lambda: wgmma_operand((64, 8), 8),
        lambda: wgmma_upcast((64, 16), 3),
        lambda: wgmma_upcast((64, 16), 4),
        lambda: wgmma_transposed((64, 4)),
        lambda: wgmma_per_row(32),
        lambda: wgmma_per_column(4),
        lambda: mma_operand_a((16, 8), 16),
        lambda: mma_operand_a((16, 16), 16, (2, 1)),
        lambda: mma_operand_a((16, 16), 16, (0, 1)),
        lambda: mma_operand_b((16, 4), 16),
        lambda: mma_accumulator((16, 8), 12),
        lambda: ldmatrix_rows(3),
        lambda: ldmatrix_registers(8),
        lambda: strided_registers((100,), 1),
        lambda: strided_registers((64, 6), 1),
        lambda: strided_registers((128,), 0),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
