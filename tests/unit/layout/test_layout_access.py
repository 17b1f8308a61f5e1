"""Vector widths, bank conflicts and sectors against a simulator that looks at every element and every bank."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tilewright.layout import Iter, Layout, Replica, XorTerm, column_major, line_swizzle, row_major
from tilewright.layout.access import MemoryPorts, register_access

PORTS = MemoryPorts()


def simulate(registers: Layout, memory: Layout, element_bytes: int, vector: int) -> tuple[int, int, int]:
    """Instructions, wavefronts and sectors. Each thread's registers are grouped into vectors by address, vectors into
    instructions by the registers that they fill; a pass over 32 / (words a lane) lanes serves a bank word by word."""
    threads: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    axes = registers.axes
    for index in registers.indices():
        address = memory.coordinates(index)["mem"]
        for place in registers.places(index):
            at = dict(zip(axes, place, strict=True))
            threads[at.get("warp", 0), at.get("lane", 0)][at.get("reg", 0)] = address
    instructions: dict[tuple[int, frozenset[int]], dict[int, int]] = defaultdict(dict)
    for (warp, lane), held in threads.items():
        vectors: dict[int, set[int]] = defaultdict(set)
        for register, address in held.items():
            vectors[address // vector].add(register)
        for number, filled in vectors.items():
            assert {held[register] for register in filled} == set(range(number * vector, (number + 1) * vector))
            instructions[warp, frozenset(filled)][lane] = number * vector * element_bytes
    wavefronts = sectors = 0
    wide = vector * element_bytes
    lanes_a_pass = 32 // max(1, wide // 4)
    for lanes in instructions.values():
        sectors += len({byte // 32 for start in lanes.values() for byte in range(start, start + wide)})
        for first in range(0, 32, lanes_a_pass):
            words = {
                byte // 4
                for lane, start in lanes.items()
                if first <= lane < first + lanes_a_pass
                for byte in range(start, start + wide)
            }
            wavefronts += max((sum(1 for w in words if w % 32 == bank) for bank in range(32)), default=0)
    return len(instructions), wavefronts, sectors


def random_registers(generator: random.Random, shape: tuple[int, int]) -> Layout:
    """Bits of both dims dealt at random to 32 lanes, up to 4 warps and registers; lanes left over hold copies."""
    bits = [(dim, weight) for dim, size in enumerate(shape) for weight in _powers(size)]
    generator.shuffle(bits)
    places = [("lane", 1 << b) for b in range(5)] + [("warp", 1), ("warp", 2)]
    generator.shuffle(places)
    copies = generator.randrange(0, 3)
    replicas, places = places[:copies], places[copies:]
    digits: dict[int, dict[int, Iter]] = {0: {}, 1: {}}
    for register, (dim, weight) in enumerate(bits[len(places) :]):
        digits[dim][weight] = Iter(2, 1 << register, "reg")
    for (axis, stride), (dim, weight) in zip(places, bits, strict=False):
        digits[dim][weight] = Iter(2, stride, axis)
    shard = tuple(tuple(digits[dim][weight] for weight in sorted(digits[dim], reverse=True)) for dim in (0, 1))
    return Layout(shape, shard, tuple(Replica(2, stride, axis) for axis, stride in replicas))


def _powers(size: int) -> list[int]:
    return [1 << b for b in range(size.bit_length() - 1)]


def random_memory(generator: random.Random, shape: tuple[int, int], element_bytes: int) -> Layout:
    rows, columns = shape
    kind = generator.randrange(5)
    if kind == 0:
        return row_major(shape)
    if kind == 1:
        return column_major(shape)
    if kind == 2:
        pitch = columns + generator.choice((1, 2, 4, 8, 3))
        return Layout(shape, ((Iter(rows, pitch, "mem"),), (Iter(columns, 1, "mem"),)))
    if kind == 3:
        return row_major(shape).with_swizzle(line_swizzle(generator.choice((32, 64, 128)), element_bytes))
    target = generator.randrange(0, 4)
    return column_major(shape).with_swizzle(XorTerm("mem", target, target + 3, generator.randrange(1, 4)))


@pytest.mark.parametrize("seed", range(300))
def test_counts_equal_the_simulators(seed: int) -> None:
    generator = random.Random(seed)
    shape = generator.choice(((16, 32), (32, 16), (64, 8), (8, 64), (32, 32), (128, 8)))
    element_bytes = generator.choice((1, 2, 4, 4, 8))
    registers, memory = random_registers(generator, shape), random_memory(generator, shape, element_bytes)
    access = register_access(registers, memory, element_bytes, PORTS)
    assert access is not None
    found = simulate(registers, memory, element_bytes, access.vector)
    assert (access.instructions, access.wavefronts, access.sectors) == found
    assert access.least_wavefronts <= access.wavefronts


def lanes_by_rows(rows: int, columns: int) -> Layout:
    """Lane i holds row i."""
    return Layout((rows, columns), ((Iter(rows, 1, "lane"),), (Iter(columns, 1, "reg"),)))


def test_a_column_of_words_meets_in_one_bank_and_a_pitch_or_a_swizzle_helps() -> None:
    registers = Layout((32, 32), ((Iter(32, 1, "reg"),), (Iter(32, 1, "lane"),)))
    by_rows = register_access(registers, row_major((32, 32)), 4, PORTS)
    by_columns = register_access(registers, column_major((32, 32)), 4, PORTS)
    pitched = Layout((32, 32), ((Iter(32, 1, "mem"),), (Iter(32, 33, "mem"),)))
    with_pitch = register_access(registers, pitched, 4, PORTS)
    swizzled = column_major((32, 32)).with_swizzle(XorTerm("mem", 2, 5, 3))
    with_swizzle = register_access(registers, swizzled, 4, PORTS)
    assert by_rows is not None
    assert (by_rows.vector, by_rows.wavefronts, by_rows.sectors) == (1, 32, 4 * 32)
    # Column-major, a lane's words are contiguous: 16-byte accesses, 8 lanes a pass, all 8 in the same four banks.
    assert by_columns is not None
    assert (by_columns.vector, by_columns.instructions, by_columns.wavefronts) == (4, 8, 8 * 4 * 8)
    assert with_pitch is not None
    assert (with_pitch.vector, with_pitch.wavefronts) == (1, 32)
    assert with_swizzle is not None
    assert (with_swizzle.vector, with_swizzle.wavefronts) == (4, 8 * 4)


def test_sub_word_elements_need_their_order_to_be_vectors() -> None:
    swapped = Layout((32, 2), ((Iter(32, 1, "lane"),), (Iter(2, 1, "reg"),)))
    ordered = register_access(swapped, row_major((32, 2)), 2, PORTS)
    assert ordered is not None
    assert ordered.vector == 2
    crossed = Layout((32, 4), ((Iter(32, 1, "lane"),), (Iter(2, 1, "reg"), Iter(2, 2, "reg"))))
    apart = register_access(crossed, row_major((32, 4)), 2, PORTS)
    assert apart is not None
    assert apart.vector == 1


def test_layouts_without_common_digits_have_no_answer() -> None:
    registers = Layout((12,), ((Iter(3, 1, "lane"), Iter(4, 4, "lane")),))
    memory = Layout((12,), ((Iter(4, 16, "mem"), Iter(3, 1, "mem")),))
    assert register_access(registers, memory, 4, PORTS) is None
