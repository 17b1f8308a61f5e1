"""How registers meet memory: vector width, instructions, bank conflicts and coalescing of the transfer of a tile.

A load or store moves, per instruction, a vector of elements per lane. The cost follows from the memory strides of the
digits of the lanes and of the vector. If their strides and extents are powers of two, the addresses of one instruction
are a linear space over bits, XOR terms included, so that words, banks and sectors are counted by ranks; other strides
(a padded pitch) are counted lane by lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.cached import cached_property
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.iters import XorTerm
from tilewright.layout.layout import Layout
from tilewright.layout.refinement import Content, Table, is_memory, plain_form, refine

Integers = np.ndarray[Any, np.dtype[np.int64]]


class MemoryPorts(msgspec.Struct, frozen=True):
    """The properties of a memory that determine the cost of an access.

    Attributes:
        banks: words that are served at once.
        bank_bytes: bytes of a word.
        sector_bytes: the smallest piece that moves to or from the next level.
        widest_bytes: the widest access of one lane.
    """

    banks: int = 32
    bank_bytes: int = 4
    sector_bytes: int = 32
    widest_bytes: int = 16


class Access(msgspec.Struct, frozen=True):
    """The transfer of a tile between registers and memory.

    Attributes:
        vector: elements that a lane moves in one instruction.
        instructions: instructions of all warps together.
        wavefronts: passes through the banks that they take; an instruction of more bytes per lane than a word has
            takes at least as many as words per lane, a quarter or half of the lanes at a time.
        least_wavefronts: passes if no two words met in a bank.
        sectors: distinct sectors that each instruction touches, summed over instructions.
    """

    vector: int
    instructions: int
    wavefronts: int
    least_wavefronts: int
    sectors: int

    @property
    def is_ideal(self) -> bool:
        """Whether no two words meet in a bank."""
        return self.wavefronts == self.least_wavefronts


class Digit(NamedTuple):
    """A digit of the registers' coordinates: the kind and stride of its slot, and how far one step moves in memory."""

    kind: Kind
    slot_stride: int
    extent: int
    stride: int


@lru_cache(maxsize=8192)
def register_access(registers: Layout, memory: Layout, element_bytes: int, ports: MemoryPorts) -> Access | None:
    """The accesses that move a tile between a layout of registers and one of memory.

    Lanes that hold copies read one word, which costs nothing more, and copies within a thread are loaded once. None
    where the layouts have no common digits or the memory has several axes.
    """
    tables = refine(registers, memory)
    if tables is None or sum(map(is_memory, memory.axes)) != 1:
        return None
    strides = {content: slot.stride for slot, content in tables[1].slots.items() if is_memory(slot.axis)}
    base = sum(offset for axis, offset in tables[1].offset if is_memory(axis))
    return digit_access(tables[0], strides, plain_form(memory).swizzle, base, element_bytes, ports)


def digit_access(
    registers: Table,
    strides: Mapping[Content, int],
    terms: Sequence[XorTerm],
    base: int,
    element_bytes: int,
    ports: MemoryPorts,
) -> Access:
    """The accesses between registers and a memory in which digit `d` has stride `strides[d]`, `base` elements in."""
    found = [
        Digit(kind_of(slot.axis), slot.stride, slot.extent, strides.get(content, 0))
        for slot, content in registers.slots.items()
    ]
    digits = [digit for digit in found if digit.stride or digit.kind != Kind.REGISTER]
    lanes = [digit for digit in digits if digit.kind == Kind.LANE]
    vector, others = _vectorised(digits, terms, base, element_bytes, max(1, ports.widest_bytes // element_bytes))
    pattern = _Pattern(lanes, vector, terms, element_bytes, ports)
    instructions = prod(digit.extent for digit in others)
    if pattern.is_bitwise and _is_bitwise([*lanes, *others]) and base == 0:
        counts = [count * instructions for count in pattern.by_rank()]
    else:
        starts = (base + sum(at) for at in product(*([k * d.stride for k in range(d.extent)] for d in others)))
        counts = pattern.by_lanes(starts)
    return Access(vector, instructions, *counts)


def _vectorised(
    digits: Sequence[Digit], terms: Sequence[XorTerm], base: int, element_bytes: int, widest: int
) -> tuple[int, list[Digit]]:
    """The widest vector of elements that are next to each other in a thread's registers and in memory and begin at a
    multiple of their number, and the digits but the lanes' that count the vectors."""
    inside = {digit.stride: digit for digit in digits if digit.kind == Kind.REGISTER}
    vector = 1
    while vector in inside and vector < widest:
        digit = inside[vector]
        is_in_order = digit.slot_stride == vector or vector * element_bytes >= 4
        step = gcd(digit.extent, widest // vector) if is_in_order else 1
        vector *= step & -step
        if step != digit.extent:
            break
    others = [digit for digit in digits if digit.kind != Kind.LANE]
    lanes = [digit for digit in digits if digit.kind == Kind.LANE]
    while True:
        left = [rest for digit in others for rest in _outside(digit, vector)]
        strides = [base, *(digit.stride for digit in (*left, *lanes)), *(1 << min(t.target, t.source) for t in terms)]
        if all(stride % vector == 0 for stride in strides):
            return vector, left
        vector //= 2


def _outside(digit: Digit, vector: int) -> Iterator[Digit]:
    """The part of a digit that counts vectors, not elements of one vector."""
    if digit.kind != Kind.REGISTER or digit.stride >= vector:
        yield digit
    elif digit.stride * digit.extent > vector:
        taken = vector // digit.stride
        yield digit._replace(extent=digit.extent // taken, stride=vector)


class _Pattern(msgspec.Struct, frozen=True, dict=True):
    """The accesses of the lanes of one instruction: a vector of elements each."""

    lanes: Sequence[Digit]
    vector: int
    terms: Sequence[XorTerm]
    element_bytes: int
    ports: MemoryPorts

    @property
    def words(self) -> int:
        """Words that a lane touches, at least 1."""
        return max(1, self.vector * self.element_bytes // self.ports.bank_bytes)

    @property
    def is_bitwise(self) -> bool:
        sizes = (self.element_bytes, self.vector, self.ports.bank_bytes, self.ports.banks, self.ports.sector_bytes)
        return all(size & (size - 1) == 0 for size in sizes)

    def by_rank(self) -> tuple[int, int, int]:
        """Wavefronts, the least possible, and sectors, where addresses are linear over bits."""
        lane_bits = sorted(
            (digit.slot_stride << bit, self._bytes(digit.stride << bit))
            for digit in self.lanes
            for bit in range(digit.extent.bit_length() - 1)
        )
        within = [self._bytes(1 << bit) for bit in range(self.vector.bit_length() - 1)]
        addresses = [address for _, address in lane_bits]
        # The lanes of one pass are the lowest: a half of them for 8 bytes a lane, a quarter for 16.
        lanes = self._lanes_a_pass
        together = [address for lane, address in lane_bits if lane < lanes]
        passes = 1 << (len(addresses) - len(together))
        words = _rank(address // self.ports.bank_bytes for address in (*together, *within))
        mask = self.ports.banks - 1
        in_banks = _rank(address // self.ports.bank_bytes & mask for address in (*together, *within))
        sectors = _rank(address // self.ports.sector_bytes for address in (*addresses, *within))
        return passes << (words - in_banks), passes * max(1, (1 << words) // self.ports.banks), 1 << sectors

    def by_lanes(self, starts: Iterable[int]) -> list[int]:
        """The cost of instructions whose lane 0 begins at `starts`, counted address by address. Without XOR terms only
        the offset of an address within a row of the banks and within a sector matters."""
        period = lcm(self.ports.banks * self.ports.bank_bytes, self.ports.sector_bytes)
        period //= gcd(period, self.element_bytes)
        alike = Counter(starts if self.terms else (start % period for start in starts))
        times = np.array(list(alike.values()))
        first = self._bytes_of(np.array(list(alike))[:, None] + self._lane_steps[None, :])
        last = first + self.vector * self.element_bytes - 1
        sectors = _distinct(_between(first // self.ports.sector_bytes, last // self.ports.sector_bytes))
        words = _between(first // self.ports.bank_bytes, last // self.ports.bank_bytes)
        wavefronts, least = np.zeros_like(times), np.zeros_like(times)
        for group in np.unique(self._lane_numbers // self._lanes_a_pass):
            together = words[:, self._lane_numbers // self._lanes_a_pass == group]
            wavefronts += _fullest_bank(together, self.ports.banks)
            least += np.maximum(1, _distinct(together) // self.ports.banks)
        return [int((count * times).sum()) for count in (wavefronts, least, sectors)]

    @property
    def _lanes_a_pass(self) -> int:
        return max(1, self.ports.banks // self.words)

    def _bytes(self, coordinate: int) -> int:
        for term in self.terms:
            coordinate = term.apply(coordinate)
        return coordinate * self.element_bytes

    def _bytes_of(self, coordinates: Integers) -> Integers:
        for term in self.terms:
            mask = (1 << term.bits) - 1
            coordinates = coordinates ^ (((coordinates >> term.source) & mask) << term.target)
        return coordinates * self.element_bytes

    @cached_property
    def _lane_numbers(self) -> Integers:
        return _sums([(digit.slot_stride, digit.extent) for digit in self.lanes])

    @cached_property
    def _lane_steps(self) -> Integers:
        """How far each lane's vector is from lane 0's."""
        return _sums([(digit.stride, digit.extent) for digit in self.lanes])


def _sums(digits: Sequence[tuple[int, int]]) -> Integers:
    """Every sum of steps, the last digit fastest."""
    total = np.zeros(1, np.int64)
    for stride, extent in digits:
        total = (total[:, None] + stride * np.arange(extent)[None, :]).reshape(-1)
    return total


def _between(first: Integers, last: Integers) -> Integers:
    """The numbers from `first` to `last` (repeated where a range is shorter), as one more axis."""
    steps = np.arange(int((last - first).max(initial=0)) + 1)
    return np.minimum(first[..., None] + steps, last[..., None])


def _distinct(numbers: Integers) -> Integers:
    """How many different numbers there are in each row."""
    ordered = np.sort(numbers.reshape(len(numbers), -1), axis=1)
    return 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)


def _fullest_bank(words: Integers, banks: int) -> Integers:
    """In each row, the number of different words in the bank that has the most."""
    ordered = np.sort(words.reshape(len(words), -1), axis=1)
    is_new = np.concatenate([np.ones((len(ordered), 1), bool), np.diff(ordered, axis=1) != 0], axis=1)
    rows = np.broadcast_to(np.arange(len(ordered))[:, None], ordered.shape)
    counts = np.bincount((rows * banks + ordered % banks)[is_new], minlength=len(ordered) * banks)
    return counts.reshape(len(ordered), banks).max(axis=1)


def _is_bitwise(digits: Sequence[Digit]) -> bool:
    """Whether sums of steps of the digits are sums of bits without a carry."""
    reached = 0
    for digit in sorted(digits, key=lambda d: d.stride):
        if digit.extent & (digit.extent - 1) or digit.stride & (digit.stride - 1):
            return False
        if digit.stride and digit.extent > 1:
            if digit.stride <= reached:
                return False
            reached += digit.stride * (digit.extent - 1)
    return True


def _rank(vectors: Iterable[int]) -> int:
    """The dimension of the space that bit vectors span under XOR."""
    basis: list[int] = []
    for vector in vectors:
        for known in basis:
            vector = min(vector, vector ^ known)
        if vector:
            basis.append(vector)
    return len(basis)
