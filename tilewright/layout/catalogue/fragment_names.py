"""Names of the layouts of operands and sums of MMA instructions, each with the constructor of the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.layout.catalogue.nvidia_registers import (
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    wgmma_accumulator,
    wgmma_operand,
    wgmma_per_column,
    wgmma_per_row,
    wgmma_transposed,
    wgmma_upcast,
)
from tilewright.layout.catalogue.nvidia_shared import shared_matrix
from tilewright.layout.layout import Layout

Candidate = tuple[str, Callable[[], Layout]]


def shared_names(shape: tuple[int, ...], bits: int) -> Iterator[Candidate]:
    """Names of layouts of a matrix in shared memory that MMA instructions read there."""
    for swizzle in (128, 64, 32, 0):
        for dim, major in ((1, "K-major"), (0, "MN-major")):
            for slowest in (0, 1):
                text = f"shared operand of wgmma, {f'swizzle {swizzle}' if swizzle else 'no swizzle'}, {major}"
                yield (
                    text if slowest == 0 else f"{text}, boxes of rows",
                    lambda swizzle=swizzle, dim=dim, slowest=slowest: shared_matrix(
                        shape, bits, swizzle, contiguous_dim=dim, slowest_dim=slowest
                    ),
                )


def fragment_names(shape: tuple[int, ...], bits: int, warps: int) -> Iterator[Candidate]:
    """Names of layouts of a tile of rank 1 or 2 in the registers of some warps."""
    if len(shape) == 1:
        yield "value per row of a wgmma accumulator", lambda: wgmma_per_row(shape[0])
        yield "value per column of a wgmma accumulator", lambda: wgmma_per_column(shape[0])
    if len(shape) == 2:
        yield "wgmma accumulator", lambda: wgmma_accumulator(shape)
        yield "wgmma operand in registers", lambda: wgmma_operand(shape, bits)
        yield "transposed wgmma fragment", lambda: wgmma_transposed(shape)
        for factor in (2, 4):
            yield f"wgmma operand to widen {factor} times", lambda f=factor: wgmma_upcast(shape, f)
        yield from _mma_names(shape, bits, warps)


def _mma_names(shape: tuple[int, ...], bits: int, warps: int) -> Iterator[Candidate]:
    for rows in (rows for rows in range(1, warps + 1) if warps % rows == 0):
        grid = (rows, warps // rows)
        across = f", {grid[0]} x {grid[1]} warps"
        yield f"mma.sync accumulator{across}", lambda w=grid: mma_accumulator(shape, 16, w)
        yield f"mma.sync accumulator of f64{across}", lambda w=grid: mma_accumulator(shape, 64, w)
        for own in dict.fromkeys((bits, 16, 32, 8)):
            width = "" if own == bits else f" of {own} bits"
            yield f"mma.sync left operand{width}{across}", lambda w=grid, b=own: mma_operand_a(shape, b, w)
            yield f"mma.sync right operand{width}{across}", lambda w=grid, b=own: mma_operand_b(shape, b, w)
