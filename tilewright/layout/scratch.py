"""The layout of a tile in a scratch memory, between two register layouts.

If all digits are powers of two, the arrangement is made to measure: the registers that both sides hold next to each
other come first, so that both move vectors; then the bits that decide the bank, of which each side has its own, joined
by XOR so that the lanes of neither side meet in a bank (the idea of Triton's linear layouts, arXiv 2505.23819, section
5). Elsewhere a few usual arrangements are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from tilewright.layout.access import MemoryPorts
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.iters import XorTerm
from tilewright.layout.refinement import Content, IndexDigit, Slot, Table, index_digits, is_bitwise


class Arrangement(msgspec.Struct, frozen=True):
    """The memory strides of the digits of an index."""

    slots: Mapping[Slot, Content]
    swizzle: tuple[XorTerm, ...] = ()

    @property
    def strides(self) -> dict[Content, int]:
        return {content: slot.stride for slot, content in self.slots.items()}


def in_order(digits: Sequence[IndexDigit], axis: str, pitch_after: int = 0, pad: int = 0) -> dict[Slot, Content]:
    """Digits packed on a memory axis, the last fastest; `pad` elements are left free after each `pitch_after`."""
    slots: dict[Slot, Content] = {}
    stride = 1
    for digit in reversed(digits):
        if pad and stride == pitch_after:
            stride += pad
        slots[Slot(axis, stride, digit.extent)] = digit
        stride *= digit.extent
    return slots


def arrangements(source: Table, target: Table, axis: str, item_bytes: int, ports: MemoryPorts) -> Iterator[Arrangement]:
    """Arrangements of memory `axis` to store a tile as `source` and load it as `target`, promising ones first, in terms
    of the digits of the tables, which must be cut alike: into bits where that is possible."""
    if not is_bitwise(source) or not is_bitwise(target) or item_bytes & (item_bytes - 1):
        # The simpler arrangements of both sides come before the more involved ones of either.
        yield from chain.from_iterable(zip(*(_usual(t, axis, item_bytes) for t in (source, target)), strict=True))
        return
    first, second = _Side.of(source), _Side.of(target)
    for vector in _vectors(first, second, item_bytes, ports):
        yield _without_conflicts(first, second, vector, axis, item_bytes, ports)


# ---- powers of two --------------------------------------------------------------------------------------------------


class _Side(msgspec.Struct, frozen=True):
    """The bits of an index in registers, as {stride: bit} of the registers and of the lanes, and all of them."""

    registers: dict[int, IndexDigit]
    lanes: dict[int, IndexDigit]
    every: list[IndexDigit]

    @staticmethod
    def of(table: Table) -> _Side:
        side = _Side({}, {}, index_digits(table))
        for slot, content in table.slots.items():
            places = {Kind.REGISTER: side.registers, Kind.LANE: side.lanes}.get(kind_of(slot.axis))
            if places is not None and isinstance(content, IndexDigit):
                places[slot.stride] = content
        return side

    def lane_bits(self, lanes: int) -> list[IndexDigit]:
        """The bits that the lowest `lanes` lanes hold."""
        return [bit for stride, bit in sorted(self.lanes.items()) if stride < lanes]


def _width(extent: int) -> int:
    return extent.bit_length() - 1


def _vectors(source: _Side, target: _Side, item_bytes: int, ports: MemoryPorts) -> Iterator[list[IndexDigit]]:
    """Digits that may be contiguous in memory: the registers that both sides have, and where these fill no word, more
    registers of one side. Elements of less than a word move together where they share a register."""
    word = _width(max(1, ports.bank_bytes // item_bytes))
    first, second = ([side.registers.get(1 << b) for b in range(word)] for side in (source, target))
    together = 0
    while together < word and first[together] is not None and first[together] == second[together]:
        together += 1
    shared = [bit for bit in first[:together] if bit is not None]
    if together == word:
        # Registers of a word and more may be in any order, which is then the memory's.
        others = [bit for _, bit in sorted(source.registers.items()) if bit in target.registers.values()]
        widest = _width(max(1, ports.widest_bytes // item_bytes))
        yield [*shared, *(bit for bit in others if bit not in shared)][:widest]
        return
    yield shared
    for own in (first, second):
        whole = [bit for bit in own if bit is not None]
        if len(whole) == word:
            yield whole


def _without_conflicts(
    source: _Side, target: _Side, vector: Sequence[IndexDigit], axis: str, item_bytes: int, ports: MemoryPorts
) -> Arrangement:
    vector_bytes = item_bytes << len(vector)
    lanes = max(1, ports.banks * ports.bank_bytes // max(vector_bytes, ports.bank_bytes))
    within_a_word = _width(max(1, ports.bank_bytes // vector_bytes))
    room = within_a_word + _width(lanes)
    stored, loaded = ([bit for bit in side.lane_bits(lanes) if bit not in vector] for side in (source, target))
    both = [bit for bit in stored if bit in loaded]
    one = [bit for bit in stored if bit not in loaded]
    other = [bit for bit in loaded if bit not in stored]
    rest = [bit for bit in source.every if bit not in vector and bit not in stored and bit not in loaded]
    near = [*both, *one, *other, *rest][:room]
    placed = [*vector, *near]
    order = [*placed, *(bit for bit in [*both, *one, *other, *rest] if bit not in near)]
    position = {bit: n for n, bit in enumerate(order)}
    free = [position[bit] for bit in one if len(vector) + within_a_word <= position[bit] < len(placed)]
    distant = [position[bit] for bit in other if position[bit] >= len(placed)]
    slots: dict[Slot, Content] = {Slot(axis, 1 << n, 2): bit for bit, n in position.items()}
    return Arrangement(slots, tuple(_joined(axis, list(zip(free, distant, strict=False)))))


def _joined(axis: str, pairs: Sequence[tuple[int, int]]) -> Iterator[XorTerm]:
    """XOR of each second bit onto its first, neighbouring pairs in one term."""
    start = 0
    while start < len(pairs):
        target, source = pairs[start]
        bits = 1
        while (
            start + bits < len(pairs)
            and pairs[start + bits] == (target + bits, source + bits)
            and bits < source - target
        ):
            bits += 1
        yield XorTerm(axis, target, source, bits)
        start += bits


# ---- any size -------------------------------------------------------------------------------------------------------


def _usual(table: Table, axis: str, item_bytes: int) -> Iterator[Arrangement]:
    """Arrangements in the order of a layout's registers, then lanes, then the rest: straight, with the swizzles of a
    128-byte line, and with a pitch that is one access wider than a line. The simpler come first."""
    order = _by_nearness(table)
    straight = in_order(order, axis)
    yield Arrangement(straight)
    if 128 % item_bytes:
        return
    line, wide = 128 // item_bytes, max(1, 16 // item_bytes)
    for count in (3, 2, 1):
        yield Arrangement(straight, (XorTerm(axis, wide.bit_length() - 1, line.bit_length() - 1, count),))
    yield Arrangement(in_order(order, axis, pitch_after=line, pad=wide))


def _by_nearness(table: Table) -> list[IndexDigit]:
    """Digits so that those of registers are fastest, then those of lanes, then the rest."""

    def rank(digit: IndexDigit) -> tuple[int, int]:
        slot = table.slot_of(digit)
        return (0, 0) if slot is None else (int(kind_of(slot.axis)), slot.stride)

    return sorted(index_digits(table), key=rank, reverse=True)


def lanes_first(table: Table) -> list[IndexDigit]:
    """Digits so that those of lanes are fastest, in the order of the lanes, then those of registers, then the rest."""

    def rank(digit: IndexDigit) -> tuple[int, int]:
        slot = table.slot_of(digit)
        kind = Kind.MEMORY if slot is None else kind_of(slot.axis)
        return (-1 if kind == Kind.LANE else int(kind), 0 if slot is None else slot.stride)

    return sorted(index_digits(table), key=rank, reverse=True)
