"""Tensor copies: windows of arrays that the copy engine (TMA) transfers box by box.

A box has some elements along each dim of the array, and is stored row by row. Elements of a box beyond the array are
zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from xdsl.ir.affine import AffineMap

from tilewright.dialects import tile
from tilewright.dtypes import DType
from tilewright.layout import Layout
from tilewright.layout.construct import line_swizzle
from tilewright.layout.dims import static
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.warp_space import SHARED
from tilewright.records import dataclass

MOST_DIMS, _MOST_BOX, _ALIGNMENT_BYTES = 5, 256, 16
_SWIZZLES = (32, 64, 128)


@dataclass(frozen=True)
class Boxes:
    """The boxes that a window is copied by: elements along each dim of the array, bytes of the swizzle, and for each
    box the index of its first element in the window and its byte offset in the buffer. If blocks share a window, the
    boxes are those of the block of rank 0; those of the next rank are `rank_index` further in the window, and
    `rank_bytes` in the buffer."""

    box: tuple[int, ...]
    swizzle: int
    parts: tuple[tuple[tuple[int, ...], int], ...]
    rank_index: tuple[int, ...] = ()
    rank_bytes: int = 0


def boxes_of(map: AffineMap, source: tile.RefType, layout: Layout, shared: tuple[int, int] | None = None) -> Boxes:
    """How a window, `map` of whose index is that of the array, comes to a buffer. `shared`: by so many blocks, each of
    which copies an equal part along a dim.

    Raises:
        Refused: the machine does not copy it by itself.
    """
    shape, item = layout.static_shape, source.dtype.itemsize
    if len(source.shape) > MOST_DIMS:
        raise Refused(f"an array of {len(source.shape)} dims is not copied by boxes")
    if len(source.shape) > 1 and source.shape[-1] * item % _ALIGNMENT_BYTES:
        raise Refused(f"rows of {source.shape[-1]} elements of {item} bytes do not begin at multiples of 16 bytes")
    along = [_dim_along(each, shape) for each in _forms(map)]
    if sorted(dim for dim in along if dim is not None) != list(range(len(shape))):
        raise Refused("a dim of the tile is along none of the array's, or along several")
    swizzle, sides = _sides(layout, source.dtype, along[-1], shared)
    box = tuple(1 if dim is None else sides[dim] for dim in along)
    order = [dim for dim in along if dim is not None]
    parts = _parts(layout, source.dtype, tuple(sides), tuple(order))
    if shared is None:
        return Boxes(box, swizzle, parts)
    return Boxes(box, swizzle, *_parts_of_a_rank(parts, shape, *shared))


def _parts_of_a_rank(
    parts: tuple[tuple[tuple[int, ...], int], ...], shape: Sequence[int], count: int, dim: int
) -> tuple[tuple[tuple[tuple[int, ...], int], ...], tuple[int, ...], int]:
    """The boxes of the first of `count` blocks, and how much further those of the next one are."""
    step = shape[dim] // count
    by_rank: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(count)]
    for start, offset in parts:
        by_rank[start[dim] // step].append((start, offset))
    further = by_rank[1][0][1] - by_rank[0][0][1]
    for rank, own in enumerate(by_rank):
        if [offset - rank * further for _, offset in own] != [offset for _, offset in by_rank[0]]:
            raise Refused("the parts of a window differ in their buffer layout")
    return tuple(by_rank[0]), tuple(step if each == dim else 0 for each in range(len(shape))), further


def _forms(map: AffineMap) -> list[Form]:
    dims = tuple(Index(dim) for dim in range(map.num_dims))
    forms = [linear_form(expression, dims) for expression in map.results]
    if any(form is None for form in forms):
        raise Refused("the offset of the window is not linear")
    return [form for form in forms if form is not None]


def _dim_along(form: Form, shape: Sequence[int]) -> int | None:
    """The dim of the tile that is along one of the array's."""
    if len(form.dims) > 1 or any(step != 1 for _, step in form.dims):
        raise Refused("neighbours in the tile are not neighbours in the array")
    return form.dims[0][0] if form.dims else None


def _sides(
    layout: Layout, dtype: DType, contiguous: int | None, shared: tuple[int, int] | None
) -> tuple[int, list[int]]:
    """The swizzle of a buffer, and a box's elements along the dims of the tile: a line has those of the swizzle."""
    if contiguous is None:
        raise Refused("neighbours in the array are not neighbours in the tile")
    spans = [span for span in _SWIZZLES if layout.swizzle == (line_swizzle(span, dtype.itemsize, SHARED),)]
    if not spans:
        raise Refused("the buffer's swizzle is none of the copy engine's")
    of_a_block = list(layout.static_shape)
    if shared is not None:
        count, dim = shared
        if of_a_block[dim] % count:
            raise Refused(f"a tile of {layout.static_shape} is not made of {count} equal parts")
        of_a_block[dim] //= count
    sides = [min(size, _MOST_BOX) for size in of_a_block]
    sides[contiguous] = spans[0] // dtype.itemsize
    if any(size % side for size, side in zip(of_a_block, sides, strict=True)):
        raise Refused(f"a tile of {tuple(of_a_block)} is not made of boxes of {sides}")
    return spans[0], sides


@lru_cache(maxsize=256)
def _parts(
    layout: Layout, dtype: DType, sides: tuple[int, ...], order: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The origins of the boxes. Each box is dense, with its dims in the order of the array's."""
    places = _unswizzled(layout)
    inside = np.zeros(sides, np.int64)
    step = 1
    for dim in reversed(order):
        along = np.arange(sides[dim]).reshape([-1 if dim == other else 1 for other in range(len(sides))])
        inside = inside + along * step
        step *= sides[dim]
    parts: list[tuple[tuple[int, ...], int]] = []
    for number in np.ndindex(*(size // side for size, side in zip(layout.static_shape, sides, strict=True))):
        start = tuple(n * side for n, side in zip(number, sides, strict=True))
        part = places[tuple(slice(first, first + side) for first, side in zip(start, sides, strict=True))]
        if not np.array_equal(part - part.flat[0], inside):
            raise Refused("the buffer's lines do not follow each other as the copy engine writes them")
        parts.append((start, int(part.flat[0]) * dtype.itemsize))
    return tuple(parts)


def _unswizzled(layout: Layout) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The position of each element before its swizzle."""
    index = np.indices(layout.static_shape, dtype=np.int64)
    places = np.zeros(layout.static_shape, np.int64)
    for term in layout.linear_terms(SHARED):
        quotient = index[term.dim] // static(term.divisor)
        places += static(term.stride) * (quotient if term.modulus is None else quotient % static(term.modulus))
    return places
