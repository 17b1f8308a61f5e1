"""Layouts by family: groups of warps share a tile's rows or columns, and each has its part as one alone has a tile."""

from __future__ import annotations

import itertools

import pytest

from tilewright.errors import CompilerBug
from tilewright.layout.catalogue import mma_operand_b, tcgen05_registers, wgmma_accumulator, wgmma_operand
from tilewright.layout.catalogue.fragments import group_fragments, warp_fragments

WARPS = 4  # of a group


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_share_rows(groups: int) -> None:
    fragments, rows = group_fragments("wgmma"), 64
    assert fragments.left is not None
    shared = fragments.accumulator((rows * groups, 16), groups), fragments.left((rows * groups, 16), 16, groups)
    alone = wgmma_accumulator((rows, 16)), wgmma_operand((rows, 16), 16)
    for whole, part in zip(shared, alone, strict=True):
        for row, column in itertools.product(range(0, rows * groups, 7), range(16)):
            expected = part.coordinates((row % rows, column))
            expected["warp"] = expected.get("warp", 0) + WARPS * (row // rows)
            assert {"warp": 0, **whole.coordinates((row, column))} == expected


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_share_columns(groups: int) -> None:
    fragments, columns = group_fragments("tcgen05"), 32
    whole, part = fragments.accumulator((128, columns), groups), tcgen05_registers((128, columns // groups), "32x32b")
    assert fragments.left is None
    for row, column in itertools.product(range(0, 128, 5), range(columns)):
        expected = part.coordinates((row, column % (columns // groups)))
        expected["warp"] = expected.get("warp", 0) + WARPS * (column // (columns // groups))
        assert {"warp": 0, **whole.coordinates((row, column))} == expected


def test_families_are_found_by_name() -> None:
    assert warp_fragments("mma.sync").right((32, 16), 16, (1, 2)) == mma_operand_b((32, 16), 16, (1, 2))
    with pytest.raises(CompilerBug, match=r"no layouts of `wgmma`: it has those of mma\.sync"):
        warp_fragments("wgmma")
    with pytest.raises(CompilerBug, match="no layouts of `mfma`"):
        group_fragments("mfma")
