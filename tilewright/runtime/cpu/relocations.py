"""The ELF relocations of x86-64 and AArch64 that compiled programs use, and the call stubs of each machine.

In the formulas P is the address that is patched, S the target's address, A the addend and G the address of the slot
that holds S. Sources: x86-64 psABI, table 4.10; AAELF64, section 5.7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """One address to patch: its offset in `image`, then the addresses P, S, A and G; `stub` jumps to S from nearby."""

    image: bytearray
    offset: int
    address: int
    target: int
    addend: int
    slot: int
    stub: int | None


Applier = Callable[[Place], bool]


class Machine(NamedTuple):
    """One machine's relocations by number, each returning False when the target is out of reach.

    `write_stub(image, offset, to_slot, address)` writes a jump through the slot `to_slot` bytes on; it has 16 bytes.
    """

    appliers: dict[int, Applier]
    write_stub: Callable[[bytearray, int, int, int], None]


def _store(form: str, place: Place, value: int) -> bool:
    try:
        struct.pack_into(form, place.image, place.offset, value)
    except struct.error:
        return False
    return True


def _absolute_64(place: Place) -> bool:
    return _store("<Q", place, (place.target + place.addend) % 2**64)


def _absolute_32(place: Place) -> bool:
    return _store("<I", place, place.target + place.addend)


def _absolute_32_signed(place: Place) -> bool:
    return _store("<i", place, place.target + place.addend)


def _relative_64(place: Place) -> bool:
    return _store("<q", place, place.target + place.addend - place.address)


def _relative_32(place: Place) -> bool:
    return _store("<i", place, place.target + place.addend - place.address)


def _x86_call(place: Place) -> bool:
    if _relative_32(place):
        return True
    return place.stub is not None and _store("<i", place, place.stub + place.addend - place.address)


def _x86_slot(place: Place) -> bool:
    return _store("<i", place, place.slot + place.addend - place.address)


def _x86_stub(image: bytearray, offset: int, to_slot: int, address: int) -> None:
    # jmp *(to_slot)(%rip), which counts from the end of its six bytes; then traps.
    struct.pack_into("<2si10s", image, offset, b"\xff\x25", to_slot - 6, b"\xcc" * 10)


def _patch(place: Place, bits: int) -> bool:
    (instruction,) = struct.unpack_from("<I", place.image, place.offset)
    struct.pack_into("<I", place.image, place.offset, instruction | bits)
    return True


def _arm_branch(width: int, shift: int) -> Applier:
    """A branch of `width` bits of words at bit `shift`: B and BL 26 at 0, B.cond and CBZ 19 at 5, TBZ 14 at 5."""

    def apply(place: Place) -> bool:
        words = (place.target + place.addend - place.address) >> 2
        limit = 1 << (width - 1)
        if not -limit <= words < limit:
            if place.stub is None:
                return False
            words = (place.stub - place.address) >> 2
        return -limit <= words < limit and _patch(place, (words % 2**width) << shift)

    return apply


def _adr_bits(value: int) -> int:
    return (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5


def _arm_page(to: int, place: Place) -> bool:
    pages = (to >> 12) - (place.address >> 12)
    return -(1 << 20) <= pages < 1 << 20 and _patch(place, _adr_bits(pages))


def _arm_target_page(place: Place) -> bool:
    return _arm_page(place.target + place.addend, place)


def _arm_slot_page(place: Place) -> bool:
    return _arm_page(place.slot, place)


def _arm_adr(place: Place) -> bool:
    distance = place.target + place.addend - place.address
    return -(1 << 20) <= distance < 1 << 20 and _patch(place, _adr_bits(distance))


def _arm_low_bits(scale: int) -> Applier:
    """The low 12 bits of S + A in units of `scale` bytes, as ADD and the loads and stores take them at bit 10."""

    def apply(place: Place) -> bool:
        low = place.target + place.addend & 0xFFF
        return low % scale == 0 and _patch(place, low // scale << 10)

    return apply


def _arm_slot_low_bits(place: Place) -> bool:
    return _patch(place, (place.slot & 0xFFF) // 8 << 10)


def _arm_stub(image: bytearray, offset: int, to_slot: int, address: int) -> None:
    slot = address + to_slot
    page = 0x90000010 | _adr_bits((slot >> 12) - (address >> 12))  # adrp x16, slot
    load = 0xF9400210 | (slot & 0xFFF) // 8 << 10  # ldr x16, [x16, :lo12:slot]
    struct.pack_into("<4I", image, offset, page, load, 0xD61F0200, 0xD4200000)  # br x16; brk


_X86_64 = Machine(
    {
        1: _absolute_64,  # R_X86_64_64
        2: _relative_32,  # PC32
        4: _x86_call,  # PLT32
        9: _x86_slot,  # GOTPCREL
        10: _absolute_32,  # 32
        11: _absolute_32_signed,  # 32S
        24: _relative_64,  # PC64
        41: _x86_slot,  # GOTPCRELX
        42: _x86_slot,  # REX_GOTPCRELX
    },
    _x86_stub,
)
_AARCH64 = Machine(
    {
        257: _absolute_64,  # R_AARCH64_ABS64
        258: _absolute_32,  # ABS32
        260: _relative_64,  # PREL64
        261: _relative_32,  # PREL32
        274: _arm_adr,  # ADR_PREL_LO21
        275: _arm_target_page,  # ADR_PREL_PG_HI21
        277: _arm_low_bits(1),  # ADD_ABS_LO12_NC
        278: _arm_low_bits(1),  # LDST8_ABS_LO12_NC
        279: _arm_branch(14, 5),  # TSTBR14
        280: _arm_branch(19, 5),  # CONDBR19
        282: _arm_branch(26, 0),  # JUMP26
        283: _arm_branch(26, 0),  # CALL26
        284: _arm_low_bits(2),  # LDST16_ABS_LO12_NC
        285: _arm_low_bits(4),  # LDST32_ABS_LO12_NC
        286: _arm_low_bits(8),  # LDST64_ABS_LO12_NC
        299: _arm_low_bits(16),  # LDST128_ABS_LO12_NC
        311: _arm_slot_page,  # ADR_GOT_PAGE
        312: _arm_slot_low_bits,  # LD64_GOT_LO12_NC
    },
    _arm_stub,
)

RELOCATIONS = {62: _X86_64, 183: _AARCH64}
"""Relocations by the ELF header's machine number."""
