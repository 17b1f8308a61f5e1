"""Each relocation, decoded again by the instruction set's own rules: what the patched bits mean must be the target."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.cpu.relocations import RELOCATIONS, Place

X86, ARM = RELOCATIONS[62], RELOCATIONS[183]
BASE = 0x7F12_3456_0000
near = st.integers(-(2**31) + 4096, 2**31 - 4096)
page_offsets = st.integers(0, 4095)
bounded = settings(max_examples=60, deadline=None)


def apply(machine, number, *, target, addend=0, address=BASE, slot=0, stub=None, content=b"\0" * 8):
    """The patched eight bytes, or None when the relocation says that the target is out of reach."""
    image = bytearray(content)
    done = machine.appliers[number](Place(image, 0, address, target, addend, slot, stub))
    return bytes(image) if done else None


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


@bounded
@given(st.integers(0, 2**63), st.integers(-1000, 1000))
def test_absolute_64(target, addend):
    for machine, number in [(X86, 1), (ARM, 257)]:
        (value,) = struct.unpack("<Q", apply(machine, number, target=target, addend=addend))
        assert value == (target + addend) % 2**64


@bounded
@given(near)
def test_relative_32_and_64(distance):
    for machine, number in [(X86, 2), (X86, 4), (ARM, 261)]:
        patched = apply(machine, number, target=BASE + distance + 4, addend=-4)
        assert struct.unpack("<i", patched[:4])[0] == distance
    for machine, number in [(X86, 24), (ARM, 260)]:
        patched = apply(machine, number, target=BASE + distance * 1000)
        assert struct.unpack("<q", patched)[0] == distance * 1000


@pytest.mark.parametrize(
    ("machine", "number", "reach"),
    [(X86, 2, 2**31), (ARM, 261, 2**31), (ARM, 274, 2**20), (ARM, 279, 2**15), (ARM, 280, 2**20), (ARM, 282, 2**27)],
)
def test_the_last_address_in_reach_is_reached_and_the_next_is_not(machine, number, reach):
    for last, beyond in [(reach - 4, reach), (-reach, -reach - 4)]:
        assert apply(machine, number, target=BASE + last) is not None
        assert apply(machine, number, target=BASE + beyond) is None


@pytest.mark.parametrize(("number", "low", "high"), [(10, 0, 2**32 - 1), (11, -(2**31), 2**31 - 1)])
def test_x86_absolute_32_takes_its_range_only(number, low, high):
    form = "<I" if low == 0 else "<i"
    for value in (low, high):
        assert struct.unpack(form, apply(X86, number, target=value)[:4])[0] == value
    assert apply(X86, number, target=low - 1) is None
    assert apply(X86, number, target=high + 1) is None


@bounded
@given(near)
def test_x86_slots_are_addressed_relative_to_the_place(distance):
    for number in (9, 41, 42):
        patched = apply(X86, number, target=5, addend=-4, slot=BASE + distance + 4)
        assert struct.unpack("<i", patched[:4])[0] == distance


def test_a_call_out_of_reach_goes_through_its_stub():
    patched = apply(X86, 4, target=1, addend=-4, stub=BASE + 500)
    assert struct.unpack("<i", patched[:4])[0] == 496
    for number in (282, 283):
        patched = apply(ARM, number, target=1, stub=BASE + 500, content=struct.pack("<Q", 0x94000000))
        (instruction,) = struct.unpack("<I", patched[:4])
        assert instruction == 0x94000000 | 125


def run_x86_stub(image: bytes, address: int) -> int:
    """The address of the slot that `jmp *disp32(%rip)` at `address` jumps through."""
    opcode, distance = struct.unpack_from("<2si", image)
    assert opcode == b"\xff\x25"
    return address + 6 + distance


@bounded
@given(st.integers(16, 2**24))
def test_x86_stub(to_slot):
    image = bytearray(16)
    X86.write_stub(image, 0, to_slot, BASE)
    assert run_x86_stub(image, BASE) == BASE + to_slot


def arm_page(instruction: int, address: int) -> int:
    """The page that an ADRP computes (Arm ARM: immlo at bit 29, immhi at bit 5, in pages of 4 KiB)."""
    pages = signed((instruction >> 5 & 0x7FFFF) << 2 | instruction >> 29 & 3, 21)
    return (address & ~0xFFF) + (pages << 12)


@bounded
@given(near, st.integers(0, 1023))
def test_arm_page_and_offset_together_are_the_target(distance, word):
    address = BASE + 4 * word
    for scale, number in [(1, 277), (1, 278), (2, 284), (4, 285), (8, 286), (16, 299)]:
        target = (BASE + distance) // scale * scale
        page_half = apply(ARM, 275, target=target, address=address, content=struct.pack("<Q", 0x90000000))
        low_half = apply(ARM, number, target=target, address=address + 4, content=struct.pack("<Q", 0x91000000))
        (adrp,), (low,) = struct.unpack("<I", page_half[:4]), struct.unpack("<I", low_half[:4])
        assert arm_page(adrp, address) + (low >> 10 & 0xFFF) * scale == target
        assert adrp & 0x9F00001F == 0x90000000
        assert low & ~(0xFFF << 10) == 0x91000000


@pytest.mark.parametrize(("scale", "number"), [(2, 284), (4, 285), (8, 286), (16, 299)])
def test_arm_offsets_that_are_not_aligned_are_refused(scale, number):
    assert apply(ARM, number, target=BASE + scale // 2) is None


@bounded
@given(near)
def test_arm_slot_page_and_offset_are_the_slot(distance):
    slot = (BASE + distance) // 8 * 8
    (adrp, _) = struct.unpack("<2I", apply(ARM, 311, target=1, slot=slot))
    (load, _) = struct.unpack("<2I", apply(ARM, 312, target=1, slot=slot))
    assert arm_page(adrp, BASE) + (load >> 10 & 0xFFF) * 8 == slot


@bounded
@given(st.integers(-(2**13), 2**13 - 1))
def test_arm_branches(words):
    for number, width, shift in [(279, 14, 5), (280, 19, 5), (282, 26, 0), (283, 26, 0)]:
        patched = apply(ARM, number, target=BASE + 4 * words)
        (instruction,) = struct.unpack("<I", patched[:4])
        assert signed(instruction >> shift & (1 << width) - 1, width) == words


@bounded
@given(st.integers(-(2**20), 2**20 - 1))
def test_arm_adr(distance):
    (instruction,) = struct.unpack("<I", apply(ARM, 274, target=BASE + distance)[:4])
    assert signed((instruction >> 5 & 0x7FFFF) << 2 | instruction >> 29 & 3, 21) == distance


@bounded
@given(st.integers(2, 2**21), page_offsets)
def test_arm_stub(words, offset):
    address, to_slot = BASE + offset // 16 * 16, 8 * words
    image = bytearray(16)
    ARM.write_stub(image, 0, to_slot, address)
    slot = (address + to_slot) // 8 * 8
    adrp, load, branch, _ = struct.unpack("<4I", image)
    assert adrp & 0x1F == load >> 5 & 0x1F == load & 0x1F == branch >> 5 & 0x1F == 16
    assert arm_page(adrp, address) + (load >> 10 & 0xFFF) * 8 == slot
