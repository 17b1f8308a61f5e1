"""Windows of arrays that the machine copies by itself, a box at a time: tensor copies.

A box has some elements along each dim of the array, and is written line after line: PTX ISA, "Tensor Data Movement"
and cp.async.bulk.tensor; limits: CUDA Driver API, cuTensorMapEncodeTiled. What of a box is beyond the array is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from xdsl.ir.affine import AffineMap

from tilewright.dialects import tile
from tilewright.dtypes import DType
from tilewright.layout import Layout
from tilewright.layout.construct import line_swizzle
from tilewright.layout.dims import static
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.passes.copied_windows import Refused
from tilewright.passes.layout_spaces import SHARED

MOST_DIMS, _MOST_BOX, _ALIGNMENT_BYTES = 5, 256, 16
_SWIZZLES = (32, 64, 128)


@dataclass(frozen=True)
class Boxes:
    """The boxes that a window is copied by: elements along each dim of the array, bytes of the swizzle, and for each
    box the index of its first element in the window and how many bytes into the buffer it goes."""

    box: tuple[int, ...]
    swizzle: int
    parts: tuple[tuple[tuple[int, ...], int], ...]


def boxes_of(map: AffineMap, source: tile.RefType, layout: Layout) -> Boxes:
    """How a window, `map` of whose index is that of the array, comes to a buffer.

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
    swizzle, sides = _sides(layout, source.dtype, along[-1])
    box = tuple(1 if dim is None else sides[dim] for dim in along)
    order = [dim for dim in along if dim is not None]
    return Boxes(box, swizzle, _parts(layout, source.dtype, tuple(sides), tuple(order)))


def _forms(map: AffineMap) -> list[Form]:
    dims = tuple(Index(dim) for dim in range(map.num_dims))
    forms = [linear_form(expression, dims) for expression in map.results]
    if any(form is None for form in forms):
        raise Refused("its place in the array is not linear")
    return [form for form in forms if form is not None]


def _dim_along(form: Form, shape: Sequence[int]) -> int | None:
    """The dim of the tile that is along one of the array's."""
    if len(form.dims) > 1 or any(step != 1 for _, step in form.dims):
        raise Refused("neighbours in the tile are not neighbours in the array")
    return form.dims[0][0] if form.dims else None


def _sides(layout: Layout, dtype: DType, contiguous: int | None) -> tuple[int, list[int]]:
    """The swizzle of a buffer, and a box's elements along the dims of the tile: a line has those of the swizzle."""
    if contiguous is None:
        raise Refused("neighbours in the array are not neighbours in the tile")
    spans = [span for span in _SWIZZLES if layout.swizzle == (line_swizzle(span, dtype.itemsize, SHARED),)]
    if not spans:
        raise Refused("the buffer's swizzle is none of the copy engine's")
    sides = [min(size, _MOST_BOX) for size in layout.static_shape]
    sides[contiguous] = spans[0] // dtype.itemsize
    if any(size % side for size, side in zip(layout.static_shape, sides, strict=True)):
        raise Refused(f"a tile of {layout.static_shape} is not made of boxes of {sides}")
    return spans[0], sides


@lru_cache(maxsize=256)
def _parts(
    layout: Layout, dtype: DType, sides: tuple[int, ...], order: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Where the boxes begin. Each is dense, its dims in the order of the array's."""
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
    """The place of each element before its swizzle."""
    index = np.indices(layout.static_shape, dtype=np.int64)
    places = np.zeros(layout.static_shape, np.int64)
    for term in layout.linear_terms(SHARED):
        quotient = index[term.dim] // static(term.divisor)
        places += static(term.stride) * (quotient if term.modulus is None else quotient % static(term.modulus))
    return places
