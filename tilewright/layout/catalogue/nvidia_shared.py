"""NVIDIA shared memory, on the axis `mem`, which counts elements.

Tables: PTX ISA, "Shared memory matrix layout" of wgmma and tcgen05 (core matrices, canonical layouts) and "Swizzling
modes" of tensor copies; Triton's padded_shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.pieces import one_of, whole_tiles
from tilewright.layout.construct import column_major, line_swizzle, row_major
from tilewright.layout.dims import is_integer
from tilewright.layout.iters import Iter, XorTerm
from tilewright.layout.layout import Layout
from tilewright.layout.operations import product
from tilewright.layout.views import reshape

_CORE_ROWS = 8
_CHUNK_BYTES = 16


def shared_matrix(
    shape: Sequence[int],
    bits: int,
    swizzle_bytes: int = 128,
    *,
    contiguous_dim: int = 1,
    slowest_dim: int = 0,
) -> Layout:
    """An operand of wgmma or tcgen05 in shared memory: a 2-D shape of whole atoms, elements of 4, 8, 16 or 32 bits.

    An atom is 8 lines of `swizzle_bytes` (32, 64 or 128), the 16-byte chunks of its lines exchanged by the XOR of the
    copy engine; with 0 it is one core matrix of 8 lines of 16 bytes. Lines run along `contiguous_dim`: K for a K-major
    operand, M or N for an MN-major one. Atoms follow one another densely, `slowest_dim` outermost: 1 is what a tensor
    copy of boxes (shape[0], one line) writes. The base is aligned to 8 * swizzle_bytes. Axis mem.

    Raises:
        LayoutError: other bits, swizzles or dims, or the shape is not made of whole atoms.
    """
    one_of(bits, (4, 8, 16, 32), "the width of an element of a shared operand")
    one_of(swizzle_bytes, (0, 32, 64, 128), "a swizzle of shared memory in bytes")
    one_of(contiguous_dim, (0, 1), "a dim of a matrix")
    one_of(slowest_dim, (0, 1), "a dim of a matrix")
    line = (swizzle_bytes or _CHUNK_BYTES) * 8 // bits
    core = row_major((_CORE_ROWS, line)) if contiguous_dim == 1 else column_major((line, _CORE_ROWS))
    if swizzle_bytes:
        core = core.with_swizzle(_chunk_swizzle(swizzle_bytes, bits))
    counts = whole_tiles(shape, core.static_shape, f"a shared operand of {bits}-bit elements")
    return product(row_major(counts) if slowest_dim == 0 else column_major(counts), core)


def padded_shared(shape: Sequence[int], paddings: Sequence[tuple[int, int]]) -> Layout:
    """Row-major with gaps: after every `interval` elements `pad` unused ones, for each (interval, pad) of `paddings`.

    [(columns, 8)] is a row pitch of columns + 8. Intervals are given from the shortest up, each a multiple of the one
    before. Axis mem. Triton's padded_shared: i + sum over (i // interval) * pad.

    Raises:
        LayoutError: intervals do not nest, or a dim of the shape cuts through them.
    """
    intervals = [interval for interval, _ in paddings]
    if not all(is_integer(value) and value > 0 for pair in paddings for value in pair):
        raise LayoutError(f"{list(paddings)} are not paddings", help="give pairs of a positive interval and a pad")
    if any(outer % inner for inner, outer in pairwise(intervals)):
        raise LayoutError(f"the intervals {intervals} do not nest", help="make each a multiple of the one before")
    size, pitch, inner = prod(shape), 1, 1
    digits: list[Iter] = []
    for interval, pad in paddings:
        digits.insert(0, Iter(interval // inner, pitch, "mem"))
        pitch, inner = pitch * (interval // inner) + pad, interval
    digits.insert(0, Iter(max(1, -(-size // inner)), pitch, "mem"))
    return reshape(Layout((size,), (tuple(digits),)), shape)


def _chunk_swizzle(span_bytes: int, bits: int) -> XorTerm:
    """`line_swizzle` for elements that may be halves of bytes."""
    if bits >= 8:
        return line_swizzle(span_bytes, bits // 8)
    term = line_swizzle(span_bytes, 1)
    return replace(term, target=term.target + 1, source=term.source + 1)
