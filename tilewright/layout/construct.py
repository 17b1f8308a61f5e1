"""Layouts that are often needed: strided arrays, tiles, packed panels, distributions, and line swizzles."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.dims import Size, ceil_divide, is_integer, normal
from tilewright.layout.iters import Digits, Iter, XorTerm
from tilewright.layout.layout import Layout
from tilewright.layout.operations import product


def row_major(shape: Sequence[Size], axis: str = "mem") -> Layout:
    """A dense array on one axis, last dim fastest. The first dim may be a `Dim`.

    Raises:
        LayoutError: another dim has an unknown size, which would make a stride unknown.
    """
    return strided(shape, _dense_strides(shape, range(len(shape))), axis)


def column_major(shape: Sequence[Size], axis: str = "mem") -> Layout:
    """A dense array on one axis, first dim fastest. The last dim may be a `Dim`.

    Raises:
        LayoutError: another dim has an unknown size, which would make a stride unknown.
    """
    return strided(shape, _dense_strides(shape, range(len(shape) - 1, -1, -1)), axis)


def strided(shape: Sequence[Size], strides: Sequence[int], axis: str = "mem") -> Layout:
    """An array on one axis with the given stride per dim, in elements; 0 repeats an element, negative runs backwards.

    Raises:
        LayoutError: there is not one static stride per dim.
    """
    if len(shape) != len(strides):
        raise LayoutError(f"{len(strides)} strides do not fit {len(shape)} dims", help="give one stride per dim")
    return Layout(tuple(shape), tuple(_digit(size, step, axis) for size, step in zip(shape, strides, strict=True)))


def blocked(shape: Sequence[Size], tile_shape: Sequence[int], axis: str = "mem") -> Layout:
    """Row-major tiles of `tile_shape`, row-major inside; each dim is padded to whole tiles.

    Raises:
        LayoutError: the tile does not fit the rank, or a dim but the first has an unknown size.
    """
    if len(tile_shape) != len(shape) or any(not is_integer(size) or size < 1 for size in tile_shape):
        raise LayoutError(
            f"tile shape {tuple(tile_shape)} does not fit a shape of {len(shape)} dims",
            help="give one positive size per dim",
        )
    counts = tuple(_at_least_one(ceil_divide(size, step)) for size, step in zip(shape, tile_shape, strict=True))
    tiles = product(row_major(counts, axis), row_major(tile_shape, axis))
    return replace(tiles, shape=tuple(shape))


def panels(shape: Sequence[Size], dim: int, width: int, axis: str = "mem") -> Layout:
    """Packed panels: `dim` is cut into panels of `width`, each stored densely with `dim` fastest inside it.

    For `shape` (K, N), `dim` 1 and `width` NR: N is (N/NR, NR) with strides (K*NR, 1) and K has stride NR. `dim` is
    padded to whole panels and may be a `Dim`.

    Raises:
        LayoutError: there is no such dim, or another dim has an unknown size.
    """
    rank = len(shape)
    if not is_integer(dim) or not -rank <= dim < rank or not is_integer(width) or width < 1:
        raise LayoutError(
            f"panels of width {width} along dim {dim} do not fit a shape of {rank} dims",
            help="name an existing dim and a positive width",
        )
    dim %= rank
    count = _at_least_one(ceil_divide(shape[dim], width))
    others = tuple(1 if number == dim else size for number, size in enumerate(shape))
    strides = _dense_strides((count, *others, width), range(rank + 2))
    shard = [_digit(size, step, axis) for size, step in zip(others, strides[1:-1], strict=True)]
    shard[dim] = (*_digit(count, strides[0], axis), *_digit(width, 1, axis))
    return Layout(tuple(shape), tuple(shard))


def distributed(shape: Sequence[Size], splits: Sequence[tuple[int, str, int]], axis: str = "mem") -> Layout:
    """An array spread over named axes in contiguous blocks, each holder keeping its block row-major on `axis`.

    Each split `(dim, axis, extent)` deals the dim over `extent` holders; several on one dim nest, outermost first. A
    dim is padded so that all blocks are equal.

    Raises:
        LayoutError: a split names no dim or a bad extent, an axis is used twice, or a size is unknown.
    """
    local = list(shape)
    holders: list[list[Iter]] = [[] for _ in shape]
    names = [name for _, name, _ in splits]
    if len({*names, axis}) != len(names) + 1:
        raise LayoutError(
            f"an axis is used twice in the distribution over ({', '.join(names)}) and `{axis}`",
            help="use one axis per split and another for the elements of a block",
        )
    for dim, name, extent in splits:
        if not is_integer(dim) or not 0 <= dim < len(local) or not is_integer(extent) or extent < 1:
            raise LayoutError(
                f"the split of dim {dim} over {extent} of `{name}` does not fit a shape of {len(local)} dims",
                help="name an existing dim and a positive extent",
            )
        local[dim] = _at_least_one(ceil_divide(local[dim], extent))
        holders[dim].append(Iter(extent, 1, name))
    inner = row_major(local, axis)
    shard = tuple((*many, *one) for many, one in zip(holders, inner.shard, strict=True))
    return Layout(tuple(shape), shard)


def line_swizzle(span_bytes: int, element_bytes: int, axis: str = "mem") -> XorTerm:
    """The XOR of shared-memory copy engines: in 128-byte lines, the 16-byte chunk number is XORed with the line number.

    `span_bytes` (32, 64 or 128) is the width that the chunks are permuted within. Coordinates on `axis` count elements
    of `element_bytes`.

    Raises:
        LayoutError: another span, or an element that is no power of two up to 16 bytes.
    """
    if span_bytes not in (32, 64, 128) or element_bytes not in (1, 2, 4, 8, 16):
        raise LayoutError(
            f"there is no line swizzle of {span_bytes} bytes for elements of {element_bytes} bytes",
            help="use 32, 64 or 128 bytes and elements of 1, 2, 4, 8 or 16 bytes",
        )
    element_bits = element_bytes.bit_length() - 1
    chunk_bits, line_bits = 4, 7
    return XorTerm(axis, chunk_bits - element_bits, line_bits - element_bits, (span_bytes // 16).bit_length() - 1)


def _digit(size: Size, stride: int, axis: str) -> Digits:
    return (Iter(size, stride, axis),) if size not in (0, 1) else ()


def _at_least_one(count: Size) -> Size:
    return max(1, count) if isinstance(count, int) else count


def _dense_strides(shape: Sequence[Size], order: Sequence[int]) -> list[int]:
    """Strides of a dense array whose dims are listed from slowest to fastest."""
    strides = [1] * len(shape)
    inner = 1
    for position in range(len(order) - 1, -1, -1):
        dim = order[position]
        strides[dim] = inner
        size = normal(shape[dim])
        if not is_integer(size):
            if any(shape[outer] != 1 for outer in order[:position]):
                raise LayoutError(
                    f"dim {dim} has the unknown size `{size}`, so the strides of the dims outside it are unknown",
                    help="only the slowest dim of a dense layout may be a Dim: bind it, or pad it to its maximum",
                )
            break
        inner *= max(1, size)
    return strides
