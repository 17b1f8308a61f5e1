"""Names of layouts: what a constructor of the catalogue makes is called after it, and nothing else is."""

from __future__ import annotations

import pytest

from tilewright.layout import Dim, Layout, column_major, permute, row_major
from tilewright.layout import catalogue as c
from tilewright.layout.naming import name_of


@pytest.mark.parametrize(
    ("layout", "bits", "name"),
    [
        (row_major((64, 32)), 32, "row-major"),
        (row_major((5, 7, 3), "mem.shared"), 32, "row-major"),
        (column_major((64, 32)), 16, "column-major"),
        (c.shared_matrix((64, 64), 16, 128), 16, "shared operand of wgmma, swizzle 128, K-major"),
        (c.shared_matrix((64, 64), 16, 64), 16, "shared operand of wgmma, swizzle 64, K-major"),
        (
            c.shared_matrix((64, 64), 16, 32, contiguous_dim=0),
            16,
            "shared operand of wgmma, swizzle 32, MN-major",
        ),
        (
            c.shared_matrix((64, 128), 16, 128, slowest_dim=1),
            16,
            "shared operand of wgmma, swizzle 128, K-major, boxes of rows",
        ),
        (c.packed_panels_b((64, 100), 32), 32, "panels of 32 columns"),
        (c.packed_panels_a((100, 64), 14, 2), 16, "panels of 14 rows, groups of 2"),
        (c.wgmma_accumulator((128, 64)), 32, "wgmma accumulator"),
        (c.wgmma_operand((64, 64), 8), 8, "wgmma operand in registers"),
        (c.wgmma_operand((64, 64), 32), 32, "wgmma operand in registers"),
        (c.wgmma_transposed((64, 64)), 16, "transposed wgmma fragment"),
        (c.wgmma_per_row(128), 32, "value per row of a wgmma accumulator"),
        (c.wgmma_per_column(64), 32, "value per column of a wgmma accumulator"),
        (c.mma_accumulator((64, 64), 16, (2, 2)), 32, "mma.sync accumulator, 2 x 2 warps"),
        (c.mma_operand_a((64, 64), 32, (2, 2)), 32, "mma.sync left operand, 2 x 2 warps"),
        (c.mma_operand_b((64, 64), 16, (2, 2)), 16, "mma.sync right operand, 2 x 2 warps"),
        (c.mma_operand_b((64, 64), 16, (2, 2)), 32, "mma.sync right operand of 16 bits, 2 x 2 warps"),
        (c.strided_registers((64, 64), 8), 16, "vectors of 8 in the order of elements"),
        (c.register_block((14, 32), 16), 32, "vectors of 16 along rows"),
        (c.register_block((32, 6), 8, 0), 32, "vectors of 8 along columns"),
    ],
)
def test_the_catalogues_layouts_have_names(layout: Layout, bits: int, name: str) -> None:
    assert name_of(layout, bits) == name


def test_equal_maps_have_one_name() -> None:
    layout = c.wgmma_accumulator((64, 16))
    split = Layout.parse("(64, 16) : [2@warp*2 2@warp 2@reg*2 2@lane*16 4@lane*4 | 2@reg*4 2@lane*2 2@lane 2@reg]")
    assert split != layout
    assert name_of(split, 32) == name_of(layout, 32) == "wgmma accumulator"


@pytest.mark.parametrize(
    "layout",
    [
        permute(c.wgmma_accumulator((64, 64)), (1, 0)),
        row_major((64, 64)).with_offset({"mem": 8}),
        row_major((Dim(1, 64), 64)),
        row_major(()),
        Layout.parse("(64) : [64@lane] + partial[add 4@warp]"),
        Layout.parse("(8, 8) : [8@mem*9 | 8@mem]"),
        Layout.parse("(8, 8) : [8@core.y | 8@mem]"),
    ],
)
def test_other_layouts_have_none(layout: Layout) -> None:
    assert name_of(layout, 32) is None
