"""AMD register fragments against the formulas of the matrix instruction calculator and against counts per dim."""

from __future__ import annotations

import pytest
from catalogue_oracle import Lanes, check_fragment, held

from tilewright.errors import LayoutError
from tilewright.layout import Replica, draw
from tilewright.layout.catalogue import (
    mfma_accumulator,
    mfma_operand_a,
    mfma_operand_b,
    wmma_accumulator,
    wmma_operand_a,
    wmma_operand_b,
)

# Outer / threads / lane strides / elements of IREE's table of operand layouts.
COUNTS = [
    *((mfma_operand_a((16, k), k), Lanes((1, 1), (16, 4), (1, 16), (1, k // 4))) for k in (4, 8, 16, 32, 64, 128)),
    *((mfma_operand_b((k, 16), k), Lanes((1, 1), (4, 16), (16, 1), (k // 4, 1))) for k in (4, 8, 16, 32, 64, 128)),
    *((mfma_operand_a((32, k), k, 32), Lanes((1, 1), (32, 2), (1, 32), (1, k // 2))) for k in (2, 4, 8, 16, 32, 64)),
    *((mfma_operand_b((k, 32), k, 32), Lanes((1, 1), (2, 32), (32, 1), (k // 2, 1))) for k in (2, 4, 8, 16, 32, 64)),
    (mfma_accumulator((16, 16)), Lanes((1, 1), (4, 16), (16, 1), (4, 1))),
    (mfma_accumulator((32, 32), 32), Lanes((4, 1), (2, 32), (32, 1), (4, 1))),
    (mfma_accumulator((16, 16), bits=64), Lanes((4, 1), (4, 16), (16, 1), (1, 1))),
    (wmma_operand_a((16, 16), 4), Lanes((1, 1), (16, 2), (1, 16), (1, 8))),
    (wmma_operand_b((16, 16), 4), Lanes((1, 1), (2, 16), (16, 1), (8, 1))),
    (wmma_operand_a((16, 32), 4, 32), Lanes((1, 1), (16, 2), (1, 16), (1, 16))),
    (wmma_accumulator((16, 16), 4), Lanes((1, 1), (2, 16), (16, 1), (8, 1))),
    (wmma_accumulator((16, 16), 3), Lanes((8, 1), (2, 16), (16, 1), (1, 1))),
]


@pytest.mark.parametrize("case", range(len(COUNTS)))
def test_fragments_as_counts(case):
    layout, counts = COUNTS[case]
    assert held(layout, ("lane", "reg")) == counts.held()


def test_f16_on_gfx942():
    """v_mfma_f32_32x32x8_f16 and v_mfma_f32_16x16x16_f16: A[i][k] in lane i + 32 (k / 4), register k % 4, and so on."""
    check_fragment(
        mfma_operand_a((32, 8), 8, 32), lambda lane, reg: (lane % 32, 4 * (lane // 32) + reg), lane=64, reg=4
    )
    check_fragment(mfma_operand_b((16, 16), 16), lambda lane, reg: (4 * (lane // 16) + reg, lane % 16), lane=64, reg=4)

    def accumulator(lane, reg):
        return 8 * (reg // 4) + 4 * (lane // 32) + reg % 4, lane % 32

    check_fragment(mfma_accumulator((32, 32), 32), accumulator, lane=64, reg=16)
    check_fragment(mfma_accumulator((16, 16)), lambda lane, reg: (4 * (lane // 16) + reg, lane % 16), lane=64, reg=4)


def test_f64():
    """v_mfma_f64_16x16x4_f64: one element of A and B to a lane, rows of D four apart."""
    check_fragment(mfma_operand_a((16, 4), 4), lambda lane, reg: (lane % 16, lane // 16), lane=64, reg=1)
    check_fragment(
        mfma_accumulator((16, 16), bits=64), lambda lane, reg: (4 * reg + lane // 16, lane % 16), lane=64, reg=4
    )


def test_rdna3_repeats_operands_in_both_halves_of_the_wave():
    """v_wmma_f32_16x16x16_f16, wave32: lanes l and l + 16 hold row l of A; odd rows of D are in the upper half."""
    check_fragment(wmma_operand_a((16, 16), 3), lambda lane, reg: (lane % 16, reg), lane=32, reg=16)
    check_fragment(wmma_operand_b((16, 16), 3), lambda lane, reg: (reg, lane % 16), lane=32, reg=16)
    check_fragment(wmma_accumulator((16, 16), 3), lambda lane, reg: (2 * reg + lane // 16, lane % 16), lane=32, reg=8)


def test_rdna4_does_not():
    check_fragment(wmma_operand_a((16, 16), 4), lambda lane, reg: (lane % 16, lane // 16 * 8 + reg), lane=32, reg=8)
    check_fragment(wmma_accumulator((16, 16), 4), lambda lane, reg: (lane // 16 * 8 + reg, lane % 16), lane=32, reg=8)
    assert not wmma_operand_a((16, 16), 4).replica
    assert wmma_operand_a((16, 16), 3).replica == (Replica(2, 16, "lane"),)


@pytest.mark.parametrize("waves", [(1, 1), (4, 1), (2, 2)])
def test_waves_side_by_side(waves):
    tall, wide = waves

    def element_a(wave, lane, reg):
        tile, i = divmod(reg, 8)
        return (tile // 3 * tall + wave // wide) * 16 + lane % 16, tile % 3 * 32 + 8 * (lane // 16) + i

    def element_b(wave, lane, reg):
        tile, i = divmod(reg, 8)
        return tile // 2 * 32 + 8 * (lane // 16) + i, (tile % 2 * wide + wave % wide) * 16 + lane % 16

    def element_c(wave, lane, reg):
        tile, i = divmod(reg, 4)
        row = (tile // 2 * tall + wave // wide) * 16 + 4 * (lane // 16) + i
        return row, (tile % 2 * wide + wave % wide) * 16 + lane % 16

    extents = {"wave": tall * wide, "lane": 64}
    check_fragment(mfma_operand_a((32 * tall, 96), 32, waves=waves), element_a, **extents, reg=48)
    check_fragment(mfma_operand_b((96, 32 * wide), 32, waves=waves), element_b, **extents, reg=48)
    check_fragment(mfma_accumulator((32 * tall, 32 * wide), waves=waves), element_c, **extents, reg=16)


def test_a_drawing():
    assert draw(mfma_accumulator((16, 16)), "lane", "reg", max_rows=7, max_columns=5) == "\n".join(
        [
            "lane/reg of (16, 16)",
            "    |    0     1     2  ...    15",
            "----+----------------------------",
            "  0 |  0/0   1/0   2/0  ...  15/0",
            "  1 |  0/1   1/1   2/1  ...  15/1",
            "  2 |  0/2   1/2   2/2  ...  15/2",
            "  3 |  0/3   1/3   2/3  ...  15/3",
            "  4 | 16/0  17/0  18/0  ...  31/0",
            "... |  ...   ...   ...  ...   ...",
            " 15 | 48/3  49/3  50/3  ...  63/3",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: mfma_operand_a((16, 16), 12),
        lambda: mfma_operand_a((16, 16), 2),
        lambda: mfma_operand_a((16, 16), 16, 8),
        lambda: mfma_operand_a((8, 16), 16),
        lambda: mfma_operand_b((16, 24), 16),
        lambda: mfma_accumulator((32, 32), 32, 64),
        lambda: mfma_accumulator((16, 24)),
        lambda: mfma_accumulator((16, 16), waves=(2, 1)),
        lambda: wmma_operand_a((16, 16), 2),
        lambda: wmma_operand_a((16, 32), 3, 32),
        lambda: wmma_operand_b((8, 16), 4),
        lambda: wmma_accumulator((16, 16), 5),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
