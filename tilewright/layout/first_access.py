"""Which lanes wait for each other in the first instruction that moves a tile between registers and a banked memory.

    access = first_access(registers, shared, 2, MemoryPorts())
    print(draw_svg(shared, ports=MemoryPorts(), item_bytes=2, marked=access.marks()))

Counted element by element from the two layouts, for drawings; what an access costs is in `access`.
"""

from __future__ import annotations

from collections import Counter

from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.drawing import banks_of
from tilewright.layout.layout import Layout
from tilewright.records import dataclass


@dataclass(frozen=True)
class FirstAccess:
    """The first instruction of the first warp.

    Attributes:
        elements: the elements that each lane moves.
        ways: for each lane, how many words its busiest bank has to give in the lane's pass; 1 where it waits for none.
        wavefronts: passes through the banks that the instruction takes.
    """

    elements: dict[int, list[tuple[int, ...]]]
    ways: dict[int, int]
    wavefronts: int

    def marks(self) -> dict[tuple[int, int], str]:
        """The row and column of each element whose lane waits, with what for: marks for `draw_svg`."""
        found: dict[tuple[int, int], str] = {}
        for lane, indices in self.elements.items():
            for index in indices if self.ways[lane] > 1 else ():
                row, column = (0, 0, *index)[-2:]
                found[row, column] = f"{self.ways[lane]} words in one bank"
        return found


def first_access(registers: Layout, memory: Layout, item_bytes: int, ports: MemoryPorts) -> FirstAccess:
    """The first access between two static layouts of one shape.

    Raises:
        LayoutError: the memory has no banks.
    """
    banks = banks_of(memory, ports, item_bytes)
    access = register_access(registers, memory, item_bytes, ports)
    vector = 1 if access is None else access.vector
    elements: dict[int, list[tuple[int, ...]]] = {}
    words: dict[int, set[int]] = {}
    for lane, own in _first_vectors(registers, memory, banks.axis, vector).items():
        elements[lane] = list(own)
        words[lane] = {address * item_bytes // ports.bank_bytes for address in own.values()}
    # The lanes of one pass are the lowest: a half of them for 8 bytes a lane, a quarter for 16.
    together = max(1, ports.banks // max(1, vector * item_bytes // ports.bank_bytes))
    ways: dict[int, int] = {}
    wavefronts = 0
    for group in sorted({lane // together for lane in words}):
        lanes = [lane for lane in words if lane // together == group]
        distinct = set[int]().union(*(words[lane] for lane in lanes))
        counts = Counter(word % ports.banks for word in distinct)
        ways |= {lane: max(counts[word % ports.banks] for word in words[lane]) for lane in lanes}
        wavefronts += max(counts.values())
    return FirstAccess(elements, ways, wavefronts)


def _first_vectors(registers: Layout, memory: Layout, axis: str, vector: int) -> dict[int, dict[tuple[int, ...], int]]:
    """For each lane of the first warp the elements, with their addresses, of the vector that has its first register."""
    held: dict[int, dict[tuple[int, ...], int]] = {}
    first: dict[int, int] = {}
    for index in registers.indices():
        place = registers.coordinates(index)
        if any(place[each] for each in registers.axes if kind_of(each) not in (Kind.LANE, Kind.REGISTER)):
            continue
        lane = sum(place[each] for each in registers.axes if kind_of(each) == Kind.LANE)
        address = memory.coordinates(index)[axis]
        held.setdefault(lane, {})[index] = address
        if not any(place[each] for each in registers.axes if kind_of(each) == Kind.REGISTER):
            first[lane] = address // vector
    return {
        lane: {index: address for index, address in held[lane].items() if address // vector == begin}
        for lane, begin in first.items()
    }
