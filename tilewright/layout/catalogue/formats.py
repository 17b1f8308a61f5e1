"""Formats of several planes over one logical shape: block floats, MX, NVFP4, and 2:4 sparsity.

A plane that has one element for a block of values has a digit of stride 0 over the block. `mem` counts elements of the
plane; planes that name the same buffer start at one base address. Sources: tt-metal's block float tiles; OCP
Microscaling Formats (MX) 1.0; NVIDIA's NVFP4 and the scale layouts of cuBLAS and tcgen05; PTX ISA, sparse matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.grid import tile_faces
from tilewright.layout.catalogue.pieces import one_of
from tilewright.layout.construct import row_major
from tilewright.layout.dims import is_integer
from tilewright.layout.iters import NO_AXIS, Digits, Iter
from tilewright.layout.layout import Layout

_SHARING = 16
"""Values that share an exponent in a block float tile: one row of a face."""


class Plane(msgspec.Struct, frozen=True):
    """One plane of a format: `layout` places elements of `bits` bits in `buffer`."""

    name: str
    layout: Layout
    bits: int
    buffer: str


class Planes(msgspec.Struct, frozen=True):
    """Named planes over one logical `shape`.

    Raises:
        LayoutError: a plane has another shape, or two have one name.
    """

    shape: tuple[int, ...]
    planes: tuple[Plane, ...]

    def __post_init__(self) -> None:
        names = [plane.name for plane in self.planes]
        if len(set(names)) != len(names):
            raise LayoutError(f"two planes have one name: {', '.join(names)}", help="name each plane differently")
        for plane in self.planes:
            if plane.layout.shape != self.shape:
                raise LayoutError(
                    f"the plane `{plane.name}` has shape {plane.layout.shape}, the format {self.shape}",
                    help="give each plane a layout of the logical shape",
                )

    def __getitem__(self, name: str) -> Plane:
        for plane in self.planes:
            if plane.name == name:
                return plane
        known = ", ".join(plane.name for plane in self.planes)
        raise LayoutError(f"the format has no plane `{name}`", help=f"choose from: {known}")


def block_float(shape: Sequence[int], mantissa_bits: int, tile_shape: tuple[int, int] = (32, 32)) -> Planes:
    """Block floats in device tiles (bfp8, bfp4, bfp2): shape (H, W), planes `exponent` (8 bits) and `mantissa`.

    `mantissa_bits` = 8, 4 or 2, sign included. The 16 values of a row of a face share an exponent. A tile holds its
    exponents, then its mantissas, both in the order of the faces; tiles are row-major and H and W are padded. Both
    planes are in the buffer `tiles`. Axis mem.

    Raises:
        LayoutError: other bits, no matrix, or a tile whose exponents do not fill whole 16-byte lines.
    """
    one_of(mantissa_bits, (8, 4, 2), "the width of a block float's mantissa")
    tile = tile_faces(tile_shape)
    exponents = tile.size // _SHARING
    if exponents % 16 or len(shape) != 2:
        raise LayoutError(
            f"there are no block floats of shape {tuple(shape)} in tiles of {tile_shape}",
            help="use a matrix and tiles of at least 256 elements",
        )
    tile_bits = exponents * 8 + tile.size * mantissa_bits
    shared = replace(tile, shard=tuple(_per_block(digits) for digits in tile.shard))
    mantissa = _tiles(shape, tile, tile_bits // mantissa_bits)
    return Planes(
        tuple(shape),
        (
            Plane("exponent", _tiles(shape, shared, tile_bits // 8), 8, "tiles"),
            Plane("mantissa", mantissa.with_offset({"mem": exponents * 8 // mantissa_bits}), mantissa_bits, "tiles"),
        ),
    )


def microscaled(shape: Sequence[int], bits: int, *, blocked_scales: bool = False) -> Planes:
    """MX formats (MXFP8, MXFP6, MXFP4, MXINT8): shape (rows, K), planes `value` (8, 6 or 4 bits) and `scale` (E8M0, 8).

    32 values along K share a scale. Values are row-major in the buffer `values`; scales row-major, or as `scale_blocks`
    when `blocked_scales`, in `scales`. Axis mem.

    Raises:
        LayoutError: other bits, or K is not a multiple of 32.
    """
    one_of(bits, (8, 6, 4), "the width of an element of an MX format")
    scales = scale_blocks(shape, 32) if blocked_scales else scale_rows(shape, 32)
    planes = (Plane("value", row_major(shape), bits, "values"), Plane("scale", scales, 8, "scales"))
    return Planes(tuple(shape), planes)


def nvfp4(shape: Sequence[int], *, blocked_scales: bool = False) -> Planes:
    """NVFP4: shape (rows, K), planes `value` (E2M1, 4 bits), `scale` (E4M3, 8 bits) and `global_scale` (f32).

    16 values along K share a scale, all share the global one. Values are row-major in the buffer `values`; scales
    row-major, or as `scale_blocks` when `blocked_scales`, in `scales`. Axis mem.

    Raises:
        LayoutError: K is not a multiple of 16.
    """
    scales = scale_blocks(shape, 16) if blocked_scales else scale_rows(shape, 16)
    rows, depth = shape
    one = Layout((rows, depth), (_still(rows), _still(depth)))
    planes = (
        Plane("value", row_major(shape), 4, "values"),
        Plane("scale", scales, 8, "scales"),
        Plane("global_scale", one, 32, "global_scale"),
    )
    return Planes(tuple(shape), planes)


def scale_rows(shape: Sequence[int], block: int) -> Layout:
    """Scales row-major: shape (rows, K) of the values, one element for `block` values along K.

    Axis mem.

    Raises:
        LayoutError: K is not a multiple of `block`.
    """
    rows, columns = _scale_shape(shape, block)
    dense = row_major((rows, columns))
    return Layout(tuple(shape), (dense.shard[0], (*dense.shard[1], *_still(block))))


def scale_blocks(shape: Sequence[int], block: int) -> Layout:
    """Scales as tcgen05 and cuBLAS read them: shape (rows, K) of the values, one element for `block` values along K.

    128 rows x 4 scales are 512 elements, stored 32 x 4 x 4: rows r, r + 32, r + 64, r + 96 side by side, the four
    scales of a row fastest. Blocks are row-major; rows are padded to 128, scales to 4. Axis mem. PTX ISA,
    scale_vec::1X; cuBLAS, "1D block scaling factors layout".

    Raises:
        LayoutError: K is not a multiple of `block`.
    """
    rows, columns = _scale_shape(shape, block)
    across = -(-columns // 4)
    row_digits = (Iter(-(-rows // 128), 512 * across, "mem"), Iter(4, 4, "mem"), Iter(32, 16, "mem"))
    return Layout(tuple(shape), (row_digits, (Iter(across, 512, "mem"), Iter(4, 1, "mem"), *_still(block))))


def sparse_2_of_4(shape: Sequence[int], bits: int) -> Planes:
    """2:4 structured sparsity: dense shape (rows, K), so logical shape (rows, K/2): the two values kept of each four.

    Planes `value` (`bits`) and `index` (2 bits: which of the four a value is), both row-major, in the buffers `values`
    and `metadata`. Axis mem. PTX ISA, "Sparse matrix storage" of mma.sp.

    Raises:
        LayoutError: K is not a multiple of 4, or no matrix of positive width.
    """
    if len(shape) != 2 or not is_integer(shape[1]) or shape[1] < 4 or shape[1] % 4 or not is_integer(bits) or bits < 1:
        raise LayoutError(
            f"a matrix of shape {tuple(shape)} and {bits} bits has no 2:4 form", help="use (rows, a multiple of 4)"
        )
    kept = (shape[0], shape[1] // 2)
    planes = (Plane("value", row_major(kept), bits, "values"), Plane("index", row_major(kept), 2, "metadata"))
    return Planes(kept, planes)


def _tiles(shape: Sequence[int], tile: Layout, pitch: int) -> Layout:
    """Row-major tiles that start `pitch` elements apart."""
    counts = [-(-size // step) for size, step in zip(shape, tile.static_shape, strict=True)]
    outer = row_major(counts).shard
    spread = [tuple(replace(digit, stride=digit.stride * pitch) for digit in digits) for digits in outer]
    shard = tuple((*many, *one) for many, one in zip(spread, tile.shard, strict=True))
    return Layout(tuple(shape), shard)


def _per_block(digits: Digits) -> Digits:
    """Digits that count rows of faces where those given count elements of faces."""
    return tuple(
        replace(digit, stride=digit.stride // _SHARING) if digit.stride >= _SHARING else Iter(digit.extent, 0, NO_AXIS)
        for digit in digits
    )


def _still(size: int) -> Digits:
    return (Iter(size, 0, NO_AXIS),) if size != 1 else ()


def _scale_shape(shape: Sequence[int], block: int) -> tuple[int, int]:
    if not is_integer(block) or block < 1 or len(shape) != 2 or not all(is_integer(size) for size in shape):
        raise LayoutError(f"{tuple(shape)} has no scales for blocks of {block}", help="give (rows, K) and a block")
    rows, depth = shape
    if rows < 1 or depth < 1 or depth % block:
        raise LayoutError(
            f"the depth {depth} is not made of whole blocks of {block}", help=f"pad it to a multiple of {block}"
        )
    return rows, depth // block
