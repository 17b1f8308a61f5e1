"""The first access, compared with the counts of whole transfers where all instructions are alike, and by hand."""

from __future__ import annotations

import pytest

from tilewright.errors import LayoutError
from tilewright.layout import Layout, column_major, row_major
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.catalogue import (
    mma_operand_a,
    padded_shared,
    shared_matrix,
    strided_registers,
    wgmma_accumulator,
)
from tilewright.layout.first_access import first_access

PORTS = MemoryPorts()


@pytest.mark.parametrize(
    ("registers", "memory", "item_bytes"),
    [
        (wgmma_accumulator((64, 64)), row_major((64, 64)), 4),
        (wgmma_accumulator((64, 64)), column_major((64, 64)), 4),
        (wgmma_accumulator((64, 64)), shared_matrix((64, 64), 16), 2),
        (mma_operand_a((64, 64), 16, (4, 1)), row_major((64, 64)), 2),
        (mma_operand_a((64, 64), 16, (4, 1)), padded_shared((64, 64), [(64, 8)]), 2),
        (strided_registers((64, 64), 8), shared_matrix((64, 64), 16), 2),
        (strided_registers((64, 64), 1), column_major((64, 64)), 4),
        (strided_registers((64, 64), 4), row_major((64, 64)), 4),
    ],
)
def test_wavefronts_are_those_of_every_instruction(registers: Layout, memory: Layout, item_bytes: int) -> None:
    whole = register_access(registers, memory, item_bytes, PORTS)
    assert whole is not None
    first = first_access(registers, memory, item_bytes, PORTS)
    assert first.wavefronts * whole.instructions == whole.wavefronts
    assert {len(own) for own in first.elements.values()} == {whole.vector}
    assert (max(first.ways.values()) > 1) == (not whole.is_ideal)


def test_ways_and_marks_by_hand() -> None:
    # Lanes 0 to 7 read column 0 of a matrix of rows of 16 words: every second lane meets in a bank.
    registers = Layout.parse("(8, 16) : [8@lane | 16@reg]")
    first = first_access(registers, row_major((8, 16), "mem.shared"), 4, MemoryPorts(widest_bytes=4))
    assert first.elements == {lane: [(lane, 0)] for lane in range(8)}
    assert first.ways == dict.fromkeys(range(8), 4)
    assert first.wavefronts == 4
    assert first.marks() == {(lane, 0): "4 words in one bank" for lane in range(8)}
    ideal = first_access(registers, column_major((8, 16)), 4, MemoryPorts(widest_bytes=4))
    assert ideal.wavefronts == 1
    assert ideal.marks() == {}


def test_registers_have_no_banks() -> None:
    with pytest.raises(LayoutError, match="no banks"):
        first_access(row_major((8,), "lane"), row_major((8,), "reg"), 4, PORTS)
