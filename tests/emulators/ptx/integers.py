"""Integer, logic and shift instructions: PTX ISA, chapters of these names."""

from collections.abc import Callable

import numpy as np

from tests.emulators.ptx.formats import TYPES
from tests.emulators.ptx.words import Pure, Words

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
PACKED = ("u16x2", "s16x2")
LOGIC = ("pred", "b16", "b32", "b64")


def _doubled(name: str) -> str:
    return f"{name[0]}{2 * TYPES[name].bits}"


def add(words: Words) -> Pure:
    """add and sub: modulo the width, or with `.sat` (s32 only) clamped."""
    name = words.take_type((*INTEGERS, *PACKED))
    saturate = words.take("sat")
    if saturate and name != "s32":
        raise words.unknown()
    operation = np.add if words.name == "add" else np.subtract
    if not saturate:
        return Pure((name,), (name, name), operation)

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.clip(operation(a.astype(np.int64), b.astype(np.int64)), -(1 << 31), (1 << 31) - 1).astype(np.int32)

    return Pure((name,), (name, name), compute)


def _high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        doubled = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(doubled) * b.astype(doubled)) >> doubled.type(bits)).astype(a.dtype)
    return ((a.astype(object) * b.astype(object)) >> 64).astype(a.dtype)


def mul(words: Words) -> Pure:
    """mul.lo, mul.hi, mul.wide, and the same with an addition (mad)."""
    name = words.take_type(INTEGERS)
    part = words.take_one(("lo", "hi", "wide"), None)
    if part == "wide" and TYPES[name].bits == 64:
        raise words.unknown()
    result = _doubled(name) if part == "wide" else name
    dtype = TYPES[result].dtype

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _high_product(a, b) if part == "hi" else a.astype(dtype) * b.astype(dtype)

    if words.name == "mul":
        return Pure((result,), (name, name), product)
    return Pure((result,), (name, name, result), lambda a, b, c: product(a, b) + c)


def div(words: Words) -> Pure:
    """div and rem, towards zero. By zero, which the ISA leaves open, all bits are set (rem: the dividend)."""
    name = words.take_type(INTEGERS)
    quotient = words.name == "div"

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        rest = np.fmod(a, b)
        if quotient:
            return np.where(b == 0, ~np.zeros_like(a), (a - rest) // b)
        return np.where(b == 0, a, rest)

    return Pure((name,), (name, name), compute)


def sign(words: Words) -> Pure:
    name = words.take_type(("s16", "s32", "s64"))
    return Pure((name,), (name,), np.negative if words.name == "neg" else np.abs)


def extreme(words: Words) -> Pure:
    name = words.take_type((*INTEGERS, *PACKED))
    relu = words.take("relu")
    if relu and name not in ("s16x2", "s32"):
        raise words.unknown()
    operation = np.minimum if words.name == "min" else np.maximum
    if not relu:
        return Pure((name,), (name, name), operation)
    return Pure((name,), (name, name), lambda a, b: np.maximum(operation(a, b), a.dtype.type(0)))


def logic(words: Words) -> Pure:
    name = words.take_type(LOGIC)
    operation = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[words.name]
    return Pure((name,), (name, name), operation)


def complement(words: Words) -> Pure:
    """not: all bits flipped; cnot: 1 for zero, else 0."""
    name = words.take_type(LOGIC if words.name == "not" else LOGIC[1:])
    if words.name == "not":
        return Pure((name,), (name,), np.invert)
    return Pure((name,), (name,), lambda a: (a == 0).astype(a.dtype))


def shift(words: Words) -> Pure:
    """shl and shr: amounts beyond the width shift everything out."""
    left = words.name == "shl"
    name = words.take_type(("b16", "b32", "b64") if left else ("b16", "b32", "b64", *INTEGERS))
    bits = TYPES[name].bits

    def compute(a: np.ndarray, amount: np.ndarray) -> np.ndarray:
        if TYPES[name].is_signed:
            return a >> np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
        within = np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
        return np.where(amount < bits, a << within if left else a >> within, a.dtype.type(0))

    return Pure((name,), (name, "u32"), compute)


def funnel_shift(words: Words) -> Pure:
    """shf: 32 bits of the 64 that c:b (b is `a`'s upper neighbour) hold, shifted by the third operand."""
    words.take_type(("b32",))
    left = words.take_one(("l", "r"), None) == "l"
    clamp = words.take_one(("clamp", "wrap"), None) == "clamp"

    def compute(low: np.ndarray, high: np.ndarray, amount: np.ndarray) -> np.ndarray:
        amount = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        shifted = (both << amount) >> np.uint64(32) if left else both >> amount
        return shifted.astype(np.uint32)

    return Pure(("b32",), ("b32", "b32", "u32"), compute)


def any_logic(words: Words) -> Pure:
    """lop3: bit i of the result is bit (a_i b_i c_i) of the table, where 0xF0, 0xCC and 0xAA stand for a, b and c."""
    words.take_type(("b32",))

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
        for row in range(8):
            chosen = np.where((table >> np.uint32(row)) & np.uint32(1), np.uint32(0xFFFFFFFF), np.uint32(0))
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result |= term & chosen
        return result

    return Pure(("b32",), ("b32", "b32", "b32", "u32"), compute)


def permute(words: Words) -> Pure:
    """prmt: each byte of the result is one of the eight of b:a, or its sign repeated."""
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    mode = words.take_one(modes, "index")
    words.take_type(("b32",))

    def compute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        if mode == "index" and selector.size == 1 and not int(selector[0]) & 0x8888:
            return _permuted(a, b, int(selector[0]))
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint32)
        for position in range(4):
            choice = _byte_choice(mode, selector, position)
            byte = (both >> ((choice & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint32)
            byte = byte & np.uint32(0xFF)
            sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result |= np.where(choice & np.uint32(8), sign, byte) << np.uint32(8 * position)
        return result

    return Pure(("b32",), ("b32", "b32", "u32"), compute)


def _permuted(a: np.ndarray, b: np.ndarray, selector: int) -> np.ndarray:
    """prmt by a constant that repeats no sign."""
    both = np.empty((max(a.size, b.size), 2), np.uint32)
    both[:, 0], both[:, 1] = a, b
    choice = [selector >> 4 * position & 7 for position in range(4)]
    return np.ascontiguousarray(both.view(np.uint8)[:, choice]).view(np.uint32)[:, 0]


def _byte_choice(mode: str, selector: np.ndarray, position: int) -> np.ndarray:
    if mode == "index":
        return (selector >> np.uint32(4 * position)) & np.uint32(15)
    low = (selector & np.uint32(3)).astype(np.int64)
    choice: Callable[[], np.ndarray] = {
        "f4e": lambda: low + position,
        "b4e": lambda: (low - position) % 8,
        "rc8": lambda: low,
        "ecl": lambda: np.maximum(low, position),
        "ecr": lambda: np.minimum(low, position),
        "rc16": lambda: (low & 1) * 2 + (position & 1),
    }[mode]
    return choice().astype(np.uint32)


def _bit_table(a: np.ndarray) -> np.ndarray:
    """The bits of each number along a new last axis, the least first."""
    bits = 8 * a.dtype.itemsize
    return ((a[..., None] >> np.arange(bits, dtype=a.dtype)) & a.dtype.type(1)).astype(bool)


def count(words: Words) -> Pure:
    """popc and clz."""
    name = words.take_type(("b32", "b64"))
    if words.name == "popc":
        return Pure(("u32",), (name,), lambda a: np.bitwise_count(a).astype(np.uint32))

    def leading_zeros(a: np.ndarray) -> np.ndarray:
        return np.logical_and.accumulate(~_bit_table(a)[..., ::-1], axis=-1).sum(-1).astype(np.uint32)

    return Pure(("u32",), (name,), leading_zeros)


def reverse_bits(words: Words) -> Pure:
    name = words.take_type(("b32", "b64"))

    def compute(a: np.ndarray) -> np.ndarray:
        bits = 8 * a.dtype.itemsize
        values = _bit_table(a)[..., ::-1].astype(a.dtype) << np.arange(bits, dtype=a.dtype)
        return np.bitwise_or.reduce(values, axis=-1)

    return Pure((name,), (name,), compute)


def find_bit(words: Words) -> Pure:
    """bfind: the highest bit that differs from the sign (of unsigned: the highest set); 0xFFFFFFFF if there is none."""
    name = words.take_type(INTEGERS[2:])
    amount = words.take("shiftamt")
    kind = TYPES[name]

    def compute(a: np.ndarray) -> np.ndarray:
        differing = np.where(a < 0, ~a, a).view(f"uint{kind.bits}")
        table = _bit_table(differing)
        position = kind.bits - 1 - np.argmax(table[..., ::-1], axis=-1)
        found = kind.bits - 1 - position if amount else position
        return np.where(table.any(-1), found, 0xFFFFFFFF).astype(np.uint32)

    return Pure(("u32",), (name,), compute)


def extract_field(words: Words) -> Pure:
    """bfe: `length` bits from `start` on; beyond the number a signed one repeats the field's last bit."""
    name = words.take_type(INTEGERS[2:])
    kind = TYPES[name]

    def compute(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = (start & np.uint32(0xFF)).astype(np.int64), (length & np.uint32(0xFF)).astype(np.int64)
        table = _bit_table(a.view(f"uint{kind.bits}"))
        a_shape = np.broadcast_shapes(a.shape, start.shape, length.shape)
        table = np.broadcast_to(table, (*a_shape, kind.bits))
        start, length = np.broadcast_to(start, a_shape), np.broadcast_to(length, a_shape)
        last = np.minimum(start + length - 1, kind.bits - 1)
        sign = np.take_along_axis(table, np.maximum(last, 0)[..., None], -1)[..., 0]
        sign = sign & (length > 0) & kind.is_signed
        target = np.arange(kind.bits)
        inside = (target < length[..., None]) & (target + start[..., None] < kind.bits)
        source = np.minimum(target + start[..., None], kind.bits - 1)
        result = np.where(inside, np.take_along_axis(table, source, -1), sign[..., None])
        unsigned = np.dtype(f"uint{kind.bits}")
        values = result.astype(unsigned) << np.arange(kind.bits, dtype=unsigned)
        return np.bitwise_or.reduce(values, axis=-1).view(kind.dtype)

    return Pure((name,), (name, "u32", "u32"), compute)


def insert_field(words: Words) -> Pure:
    """bfi f, a, b, start, length: the low bits of a in place of those of b."""
    name = words.take_type(("b32", "b64"))
    bits = TYPES[name].bits

    def compute(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        target = np.arange(bits)
        within = (target >= start[..., None]) & (target < start[..., None].astype(np.int64) + length[..., None])
        mask = np.bitwise_or.reduce(within.astype(a.dtype) << np.arange(bits, dtype=a.dtype), axis=-1)
        moved = np.where(start < bits, a << np.minimum(start, np.uint32(bits - 1)).astype(a.dtype), a.dtype.type(0))
        return (moved & mask) | (b & ~mask)

    return Pure((name,), (name, name, "u32", "u32"), compute)


def extend(words: Words) -> Pure:
    """szext: the low `b` bits of a, with the sign or zeros above."""
    name = words.take_type(("u32", "s32"))
    clamp = words.take_one(("clamp", "wrap"), None) == "clamp"
    signed = TYPES[name].is_signed

    def compute(a: np.ndarray, width: np.ndarray) -> np.ndarray:
        width = np.minimum(width, np.uint32(32)) if clamp else width & np.uint32(31)
        kept = a.astype(np.int64) & ((np.int64(1) << width.astype(np.int64)) - 1)
        top = np.where(width > 0, kept >> np.maximum(width.astype(np.int64) - 1, 0), 0) & 1
        extended = kept - (top << width.astype(np.int64)) if signed else kept
        return extended.astype(np.int64).astype(a.dtype)

    return Pure((name,), (name, "u32"), compute)
