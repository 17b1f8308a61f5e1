"""AMD register fragments, on the axes `wave`, `lane` (64 for MFMA, 32 for WMMA) and `reg`.

`reg` counts the elements that one lane holds; narrow ones share a 32-bit register. A shape larger than the
instruction's is repeated along `reg`, the last dim fastest. Tables: AMD Matrix Instruction Calculator and the CDNA and
RDNA ISA guides, as lane and element counts (outer / thread / stride / element) in IREE's IREEGPUAttrs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.layout.catalogue.pieces import Role, atom, one_of, placed, repeated
from tilewright.layout.layout import Layout

_WAVE = 64
_DEPTHS = {16: (4, 8, 16, 32, 64, 128), 32: (2, 4, 8, 16, 32, 64)}


def mfma_operand_a(shape: Sequence[int], depth: int, block: int = 16, waves: tuple[int, int] = (1, 1)) -> Layout:
    """A of MFMA block x block x depth: shape (block m, depth k); a lane holds depth * block / 64 consecutive k.

    Depths of 16 x 16: f32 and f64 4, xf32 8, 16 bits 16 (32 on gfx950), 8 bits 32 (i8 on gfx90a 16, on gfx950 also
    64), 8 to 4 bits on gfx950 128. Of 32 x 32: half as much, without f64. `waves` = (along M, along N), those along N
    fastest and holding copies. Axes wave, lane, reg.

    Raises:
        LayoutError: another block or depth, or the shape is not made of whole tiles.
    """
    one_of(block, _DEPTHS, "the side of an MFMA block")
    one_of(depth, _DEPTHS[block], f"a depth of MFMA {block}x{block}")
    groups = _WAVE // block
    text = f"({block}, {depth}) : [{block}@lane | {groups}@lane*{block} {depth // groups}@reg]"
    return _fragment(text, "a", shape, waves, "an MFMA operand A")


def mfma_operand_b(shape: Sequence[int], depth: int, block: int = 16, waves: tuple[int, int] = (1, 1)) -> Layout:
    """B of MFMA block x block x depth: shape (depth k, block n); the mirror image of `mfma_operand_a`.

    `waves` = (along M, along N), those along M holding copies. Axes wave, lane, reg.

    Raises:
        LayoutError: another block or depth, or the shape is not made of whole tiles.
    """
    one_of(block, _DEPTHS, "the side of an MFMA block")
    one_of(depth, _DEPTHS[block], f"a depth of MFMA {block}x{block}")
    groups = _WAVE // block
    text = f"({depth}, {block}) : [{groups}@lane*{block} {depth // groups}@reg | {block}@lane]"
    return _fragment(text, "b", shape, waves, "an MFMA operand B")


def mfma_accumulator(shape: Sequence[int], block: int = 16, bits: int = 32, waves: tuple[int, int] = (1, 1)) -> Layout:
    """C and D of MFMA: shape (block m, block n), `bits` = 32 (f32, i32), or 64 (f64, only 16 x 16).

    A lane holds runs of 4 rows of one column; for f64 every fourth row. `waves` = (along M, along N), those along N
    fastest. Axes wave, lane, reg.

    Raises:
        LayoutError: another block or width, or the shape is not made of whole tiles.
    """
    atoms = {
        (16, 32): "(16, 16) : [4@lane*16 4@reg | 16@lane]",
        (32, 32): "(32, 32) : [4@reg*4 2@lane*32 4@reg | 32@lane]",
        (16, 64): "(16, 16) : [4@reg 4@lane*16 | 16@lane]",
    }
    one_of((block, bits), atoms, "the block and width of an MFMA accumulator")
    return _fragment(atoms[block, bits], "c", shape, waves, "an MFMA accumulator")


def wmma_operand_a(shape: Sequence[int], generation: int, depth: int = 16, waves: tuple[int, int] = (1, 1)) -> Layout:
    """A of WMMA 16 x 16 x depth in a wave of 32: shape (16 m, depth k), `generation` 3 (RDNA3) or 4 (RDNA4).

    RDNA3: depth 16, a lane holds a whole row, and both halves of the wave hold the same. RDNA4: depth 16, or 32 for 4
    bits, the halves of the wave hold the halves of K. `waves` = (along M, along N), those along N fastest and holding
    copies. Axes wave, lane, reg.

    Raises:
        LayoutError: another generation or depth, or the shape is not made of whole tiles.
    """
    _check_wmma(generation, depth)
    halves = f"(16, {depth}) : [16@lane | 2@lane*16 {depth // 2}@reg]"
    text = "(16, 16) : [16@lane | 16@reg] + replica[2@lane*16]" if generation == 3 else halves
    return _fragment(text, "a", shape, waves, "a WMMA operand A")


def wmma_operand_b(shape: Sequence[int], generation: int, depth: int = 16, waves: tuple[int, int] = (1, 1)) -> Layout:
    """B of WMMA 16 x 16 x depth in a wave of 32: shape (depth k, 16 n); the mirror image of `wmma_operand_a`.

    `waves` = (along M, along N), those along M holding copies. Axes wave, lane, reg.

    Raises:
        LayoutError: another generation or depth, or the shape is not made of whole tiles.
    """
    _check_wmma(generation, depth)
    halves = f"({depth}, 16) : [2@lane*16 {depth // 2}@reg | 16@lane]"
    text = "(16, 16) : [16@reg | 16@lane] + replica[2@lane*16]" if generation == 3 else halves
    return _fragment(text, "b", shape, waves, "a WMMA operand B")


def wmma_accumulator(shape: Sequence[int], generation: int, waves: tuple[int, int] = (1, 1)) -> Layout:
    """C and D of WMMA in a wave of 32: shape (16 m, 16 n), `generation` 3 (RDNA3) or 4 (RDNA4), 32 or 16 bits.

    RDNA3: a lane holds every other row of a column, the upper half of the wave the odd ones. RDNA4: the halves of the
    wave hold rows 0-7 and 8-15. `waves` = (along M, along N), those along N fastest. Axes wave, lane, reg.

    Raises:
        LayoutError: another generation, or the shape is not made of whole tiles.
    """
    one_of(generation, (3, 4), "a generation of RDNA with WMMA")
    alternating, halves = "(16, 16) : [8@reg 2@lane*16 | 16@lane]", "(16, 16) : [2@lane*16 8@reg | 16@lane]"
    return _fragment(alternating if generation == 3 else halves, "c", shape, waves, "a WMMA accumulator")


def _check_wmma(generation: int, depth: int) -> None:
    one_of(generation, (3, 4), "a generation of RDNA with WMMA")
    one_of(depth, (16,) if generation == 3 else (16, 32), f"a depth of WMMA on RDNA{generation}")


def _fragment(text: str, role: Role, shape: Sequence[int], waves: tuple[int, int], what: str) -> Layout:
    return repeated(placed(atom(text), role, waves, "wave"), shape, what)
