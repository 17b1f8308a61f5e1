"""NVIDIA register fragments, on the axes `warp` (4 are a warpgroup), `lane` (32) and `reg`.

`reg` counts the elements that one lane holds, in the order of the instruction's vector operand; elements narrower than
32 bits share a 32-bit register. A shape larger than the instruction's is repeated along `reg`, the last dim fastest.
Tables: PTX ISA, "Matrix fragments for mma.m16n8k*", "Register fragments and shared memory matrix layouts" of
wgmma.mma_async, and "Warp-level matrix load instruction: ldmatrix".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.pieces import Role, atom, one_of, placed, repeated
from tilewright.layout.dims import is_integer
from tilewright.layout.iters import Iter
from tilewright.layout.layout import Layout
from tilewright.layout.views import reshape

_LANES = 32


def wgmma_accumulator(shape: Sequence[int]) -> Layout:
    """D of wgmma m64nNk*: shape (64 m, 8 n), 16 or 32 bits; also elementwise values of a warpgroup.

    Loading it two elements or one at a time does not change the map: the variant with 32-bit registers is this one.
    Axes warp, lane, reg. PTX ISA, fragment D of wgmma.mma_async.m64nNk16.

    Raises:
        LayoutError: the shape is not made of 64 x 8 tiles.
    """
    return repeated(atom("(64, 8) : [4@warp 2@reg*2 8@lane*4 | 4@lane 2@reg]"), shape, "a wgmma accumulator")


def wgmma_operand(shape: Sequence[int], bits: int) -> Layout:
    """A of wgmma in registers: shape (64 m, 128/bits k), elements of 8, 16 or 32 bits.

    One instruction takes 256 bits of K, two tiles. Axes warp, lane, reg. PTX ISA, fragment A of
    wgmma.mma_async.m64nNk8 (tf32), k16 (f16, bf16), k32 (8 bits).

    Raises:
        LayoutError: other bits, or the shape is not made of 64 x 128/bits tiles.
    """
    one_of(bits, (8, 16, 32), "the width of a wgmma operand in registers")
    own = 32 // bits
    tile = atom(f"(64, {4 * own}) : [4@warp 2@reg*{own} 8@lane*4 | 4@lane {own}@reg]")
    return repeated(tile, shape, f"a {bits}-bit wgmma operand")


def wgmma_transposed(shape: Sequence[int]) -> Layout:
    """The fragment whose register pairs hold two rows of one column: shape (64 m, 8 n), 16 or 32 bits.

    One exchange with lane ^ 4 turns `wgmma_accumulator` into it, and it stores to a transposed tile in pairs. Axes
    warp, lane, reg. Tiling (64,8)(16,8)(8,8)(2,2)(2,1) of JAX Mosaic's WGMMA_TRANSPOSED.

    Raises:
        LayoutError: the shape is not made of 64 x 8 tiles.
    """
    tile = atom("(64, 8) : [4@warp 2@reg*2 4@lane*8 2@reg | 4@lane 2@lane*4]")
    return repeated(tile, shape, "a transposed wgmma fragment")


def wgmma_per_row(size: int) -> Layout:
    """One value per row of `wgmma_accumulator`: shape (64 m), four lanes hold copies.

    It is `reduce` of the matrix layout over its columns. Axes warp, lane, reg.

    Raises:
        LayoutError: the size is not a multiple of 64.
    """
    return repeated(atom("(64) : [4@warp 2@reg 8@lane*4] + replica[4@lane]"), (size,), "a value per row of wgmma")


def wgmma_per_column(size: int) -> Layout:
    """One value per column of `wgmma_accumulator`: shape (8 n), all warps and eight lanes hold copies.

    It is `reduce` of the matrix layout over its rows, also of tcgen05's 16x256b. Axes warp, lane, reg.

    Raises:
        LayoutError: the size is not a multiple of 8.
    """
    return repeated(atom("(8) : [4@lane 2@reg] + replica[4@warp 8@lane*4]"), (size,), "a value per column of wgmma")


def wgmma_upcast(shape: Sequence[int], factor: int) -> Layout:
    """A narrow fragment that widens in place to `wgmma_operand`: shape (64 m, 8 factor n), factor 2 or 4.

    Factor 2 is for 8-bit values (4 to a register) that become 16-bit ones by one exchange with lane ^ 1, factor 4 for
    4-bit values (8 to a register) by another with lane ^ 2. Axes warp, lane, reg. Tilings (64,16)(16,16)(8,16)(8)(4)
    and (64,32)(16,32)(8,32)(8) of JAX Mosaic's WGMMA_UPCAST_2X and WGMMA_UPCAST_4X.

    Raises:
        LayoutError: another factor, or the shape is not made of 64 x 8*factor tiles.
    """
    one_of(factor, (2, 4), "a factor by which fragments widen")
    double = "(64, 16) : [4@warp 2@reg*4 8@lane*4 | 2@lane 2@lane*2 4@reg]"
    fourfold = "(64, 32) : [4@warp 2@reg*8 8@lane*4 | 4@lane 8@reg]"
    return repeated(atom(double if factor == 2 else fourfold), shape, f"a fragment to widen {factor} times")


def mma_operand_a(shape: Sequence[int], bits: int, warps: tuple[int, int] = (1, 1)) -> Layout:
    """A of mma.sync m16n8k(256/bits): shape (16 m, 256/bits k), elements of 4, 8, 16, 32 (tf32) or 64 (f64) bits.

    `warps` = (along M, along N), those along N fastest and holding copies; then shape (16 warps m, ...). For 64 bits
    the instruction is m8n8k4. Axes warp, lane, reg. PTX ISA, fragments of mma.m16n8k8/k16/k32/k64 and m8n8k4 (f64).

    Raises:
        LayoutError: other bits, or the shape is not made of whole tiles.
    """
    own = _elements_of_register(bits)
    text = f"(16, {8 * own}) : [2@reg*{own} 8@lane*4 | 2@reg*{2 * own} 4@lane {own}@reg]"
    return _mma(text if own else "(8, 4) : [8@lane*4 | 4@lane]", "a", shape, warps, f"a {bits}-bit mma.sync operand A")


def mma_operand_b(shape: Sequence[int], bits: int, warps: tuple[int, int] = (1, 1)) -> Layout:
    """B of mma.sync m16n8k(256/bits): shape (256/bits k, 8 n), elements of 4, 8, 16, 32 (tf32) or 64 (f64) bits.

    `warps` = (along M, along N), those along M holding copies; then shape (..., 8 warps n). For 64 bits the instruction
    is m8n8k4. Axes warp, lane, reg. PTX ISA, fragments of mma.m16n8k8/k16/k32/k64 and m8n8k4 (f64).

    Raises:
        LayoutError: other bits, or the shape is not made of whole tiles.
    """
    own = _elements_of_register(bits)
    text = f"({8 * own}, 8) : [2@reg*{own} 4@lane {own}@reg | 8@lane*4]"
    return _mma(text if own else "(4, 8) : [4@lane | 8@lane*4]", "b", shape, warps, f"a {bits}-bit mma.sync operand B")


def mma_accumulator(shape: Sequence[int], operand_bits: int = 16, warps: tuple[int, int] = (1, 1)) -> Layout:
    """C and D of mma.sync m16n8k*: shape (16 m, 8 n) for operands of 4 to 32 bits, (8 m, 8 n) for 64 (f64).

    `warps` = (along M, along N), those along N fastest; then the tiles are that much larger. Axes warp, lane, reg.
    PTX ISA, fragments of mma.m16n8k8/k16/k32/k64 and m8n8k4 (f64).

    Raises:
        LayoutError: other bits, or the shape is not made of whole tiles.
    """
    is_double = _elements_of_register(operand_bits) == 0
    text = "(8, 8) : [8@lane*4 | 4@lane 2@reg]" if is_double else "(16, 8) : [2@reg*2 8@lane*4 | 4@lane 2@reg]"
    return _mma(text, "c", shape, warps, "an mma.sync accumulator")


def ldmatrix_rows(count: int) -> Layout:
    """Which lane gives ldmatrix or stmatrix the address of each row: shape (count, 8), `count` = 1, 2 or 4 matrices.

    Rows are of 16 bytes. Axis lane. PTX ISA, ldmatrix: threads 0-7 address matrix 0, 8-15 matrix 1, and so on.

    Raises:
        LayoutError: another count.
    """
    one_of(count, (1, 2, 4), "a number of matrices that ldmatrix and stmatrix move")
    return atom(f"({count}, 8) : [{count}@lane*8 | 8@lane]")


def ldmatrix_registers(count: int, *, transposed: bool = False) -> Layout:
    """Registers that ldmatrix writes and stmatrix reads: shape (count, 8, 8) of 16-bit elements as stored in memory.

    `count` = 1, 2 or 4 matrices, one 32-bit register each; `transposed` is the `.trans` form. Axes lane, reg. PTX ISA,
    ldmatrix: a lane gets elements (lane/4, 2 (lane%4)) and the one after it.

    Raises:
        LayoutError: another count.
    """
    one_of(count, (1, 2, 4), "a number of matrices that ldmatrix and stmatrix move")
    row, column = "8@lane*4", "4@lane 2@reg"
    inside = f"{column} | {row}" if transposed else f"{row} | {column}"
    return atom(f"({count}, 8, 8) : [{count}@reg*2 | {inside}]")


def strided_registers(shape: Sequence[int], vector: int, warps: int = 4) -> Layout:
    """Flattened row-major, thread t holds vectors t, t + threads, and so on: the layout of coalesced copies.

    Any shape of a multiple of threads * vector elements, of any width. Axes warp, lane, reg. JAX Mosaic's
    WGStridedFragLayout.

    Raises:
        LayoutError: the size is not such a multiple, or a dim of the shape cuts through the digits of the thread.
    """
    threads = warps * _LANES if is_integer(warps) else 0
    size = prod(shape) if all(is_integer(own) and own > 0 for own in shape) else 0
    if threads < 1 or not is_integer(vector) or vector < 1 or not size or size % (threads * vector):
        raise LayoutError(
            f"shape ({', '.join(map(str, shape))}) is not dealt in vectors of {vector} to {warps} warps",
            help="use a size that is a multiple of 32 * warps * vector, or another vector",
        )
    deal = (
        Iter(size // (threads * vector), vector, "reg"),
        Iter(warps, 1, "warp"),
        Iter(_LANES, 1, "lane"),
        Iter(vector, 1, "reg"),
    )
    return reshape(Layout((size,), (deal,)), shape)


def _elements_of_register(bits: int) -> int:
    """How many elements share a 32-bit register; 0 for those that take two."""
    one_of(bits, (4, 8, 16, 32, 64), "the width of an mma.sync operand")
    return 32 // bits


def _mma(text: str, role: Role, shape: Sequence[int], warps: tuple[int, int], what: str) -> Layout:
    return repeated(placed(atom(text), role, warps, "warp"), shape, what)
