"""CPU micro-kernels: packed panels on the axis `mem`, and the register block on `reg` and `simd`.

Source: the packing of GotoBLAS (Goto and van de Geijn, 2008) as in BLIS; depth groups as in the operands of
VPDPBUSD, VPDPWSSD and VDPBF16PS (Intel 64 instruction set reference).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.pieces import whole_tiles
from tilewright.layout.construct import row_major, strided
from tilewright.layout.dims import Size, ceil_divide, is_integer
from tilewright.layout.iters import Digits, Iter
from tilewright.layout.layout import Layout
from tilewright.layout.operations import product
from tilewright.layout.views import permute


def packed_panels_a(shape: Sequence[Size], rows: int, depth_group: int = 1) -> Layout:
    """A packed for a micro-kernel of MR = `rows`: shape (M, K), panels of MR rows, in each K slowest.

    `depth_group` consecutive k of one row are contiguous: 2 for pairs of 16-bit elements, 4 for quads of bytes. M is
    padded to whole panels, K to whole groups; M may be a `Dim`. Axis mem.

    Raises:
        LayoutError: the shape is not 2-D, K is unknown, or a size is not positive.
    """
    if len(shape) != 2 or not is_integer(shape[1]):
        raise LayoutError(f"{tuple(shape)} is not the shape of a matrix of known depth", help="give (M, K)")
    if not all(is_integer(size) and size > 0 for size in (shape[1], rows, depth_group)):
        raise LayoutError(
            f"panels of {rows} with groups of {depth_group} of depth {shape[1]} are empty", help="use positive sizes"
        )
    groups = -(-shape[1] // depth_group)
    wide = rows * depth_group
    panel: Digits = (Iter(rows, depth_group, "mem"),)
    count = ceil_divide(shape[0], rows)
    if count not in (0, 1):
        panel = (Iter(count, groups * wide, "mem"), *panel)
    return Layout(tuple(shape), (panel, (Iter(groups, wide, "mem"), Iter(depth_group, 1, "mem"))))


def packed_panels_b(shape: Sequence[Size], columns: int, depth_group: int = 1) -> Layout:
    """B packed for a micro-kernel of NR = `columns`: shape (K, N), panels of NR columns, in each K slowest.

    `depth_group` consecutive k of one column are contiguous: 2 for pairs of 16-bit elements, 4 for quads of bytes. N is
    padded to whole panels, K to whole groups; N may be a `Dim`. Axis mem.

    Raises:
        LayoutError: the shape is not 2-D, K is unknown, or a size is not positive.
    """
    if len(shape) != 2:
        raise LayoutError(f"{tuple(shape)} is not the shape of a matrix", help="give (K, N)")
    return permute(packed_panels_a((shape[1], shape[0]), columns, depth_group), (1, 0))


def spread_rows(shape: Sequence[int], line: int) -> Layout:
    """A packed for a micro-kernel that reads columns of rows: shape (M, K), row after row.

    Each row is an odd number of lines of `line` elements after the one before, so that the rows spread over the sets of
    a cache. Axis mem.

    Raises:
        LayoutError: the shape is not 2-D, or a size is not positive.
    """
    if len(shape) != 2 or not all(is_integer(size) and size > 0 for size in (*shape, line)):
        raise LayoutError(f"{tuple(shape)} in lines of {line} is not a matrix in memory", help="give (M, K)")
    lines = -(-shape[1] // line)
    return strided(shape, ((lines + 1 - lines % 2) * line, 1), "mem")


def register_block(shape: Sequence[int], lanes: int, vector_dim: int = 1) -> Layout:
    """The accumulators of a micro-kernel: shape (MR, NR), vectors of `lanes` along `vector_dim`, in row-major order.

    Axes reg (one vector register each) and simd.

    Raises:
        LayoutError: the block is not made of whole vectors.
    """
    if vector_dim not in (0, 1) or not is_integer(lanes) or lanes < 1:
        raise LayoutError(
            f"vectors of {lanes} along dim {vector_dim} do not fit a matrix", help="use a positive count and dim 0 or 1"
        )
    vector = row_major((1, lanes) if vector_dim == 1 else (lanes, 1), "simd")
    return product(row_major(whole_tiles(shape, vector.static_shape, "a register block"), "reg"), vector)
