"""Load a square block of memory transposed: the vectors loaded run along rows, those that result across them."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.targets.cpu.loops import i64, offset_pointer
from tilewright.targets.llvm.values import Builder, Value, element_of, lanes_of, shuffle

# Interleaving lanes is cheap within so many bytes, on x86 and on Arm.
PIECE_BYTES = 16


def can_transpose(lanes: int, itemsize: int, length: int) -> bool:
    """Whether there is code for blocks of `lanes` rows that are `length` elements long: vectors of whole pieces."""
    return min(lanes, length) * itemsize >= PIECE_BYTES


def elements_before(length: int, itemsize: int) -> int:
    """How many elements before a row are loaded with it."""
    return max(0, PIECE_BYTES // itemsize - length)


def load_transposed(
    builder: Builder, rows: Sequence[Value], shape: ir.Type, itemsize: int, registers: int, length: int
) -> list[Value]:
    """`length` vectors of `shape`: the n-th holds the n-th element of each row, given by a pointer. Elements that do
    not fill a piece are loaded with some before them. Half of the registers hold what is loaded before it is
    transposed."""
    width = PIECE_BYTES // itemsize
    piece = ir.VectorType(element_of(shape), width)
    pieces_held = max(1, registers // 2 // width)
    starts = [*range(0, length - width + 1, width), *([length - width] if length % width else [])]
    result: list[Value] = []
    for group in range(0, len(starts), pieces_held):
        firsts = starts[group : group + pieces_held]
        # Pieces of rows `width` apart side by side: what remains is transposing within each piece's place. A row's
        # pieces are loaded one after the other: of rows a page apart the first-level cache holds fewer than a block's.
        parts: dict[int, list[Value]] = {first: [] for first in firsts}
        for row in range(width):
            pieces: dict[int, list[Value]] = {first: [] for first in firsts}
            for pointer in rows[row::width]:
                for first in firsts:
                    at = offset_pointer(builder, pointer, i64(first), itemsize)
                    pieces[first].append(builder.load(at, align=itemsize, typ=piece))
            for first in firsts:
                parts[first].append(_joined(builder, pieces[first]))
        for first, vectors in parts.items():
            result.extend(_turned(builder, vectors, width)[len(result) - first :])
    return result


def _joined(builder: Builder, parts: list[Value]) -> Value:
    """Vectors one after the other."""
    while len(parts) > 1:
        lanes = range(2 * lanes_of(parts[0].type))
        parts = [shuffle(builder, a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _turned(builder: Builder, vectors: list[Value], width: int) -> list[Value]:
    """Transpose in each run of `width` lanes: interleaving the first half of the vectors with the second moves one
    bit of a vector's number to the lane's."""
    lanes = lanes_of(vectors[0].type)
    starts = range(0, lanes, width)
    low = [place for start in starts for n in range(start, start + width // 2) for place in (n, lanes + n)]
    high = [place + width // 2 for place in low]
    for _ in range(width.bit_length() - 1):
        half = width // 2
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [shuffle(builder, a, b, places) for a, b in pairs for places in (low, high)]
    return vectors
