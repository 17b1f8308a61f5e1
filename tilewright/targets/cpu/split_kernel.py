"""Print the middle of a matrix product in parts with AMX.

Products of parts share what they load: each after the first changes the parts of one side only. Sums start from zero,
and are scaled when they are added to the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from tilewright.machines.machine import MatrixAtom
from tilewright.targets.cpu.loops import add, i64, loop, multiply, offset_pointer, prefetch
from tilewright.targets.cpu.micro_kernel import Ahead
from tilewright.targets.cpu.tile_kernel import WORD_BYTES, TileRegisters
from tilewright.targets.cpu.vector_math_common import Builder, Value, intrinsic, splat


def snake(parts: int) -> Iterator[tuple[int, int]]:
    """The pairs of parts whose numbers have a sum below `parts`, each but the first with one part of the pair before,
    from the last part of the left operand on."""
    kept = 0
    for left in reversed(range(parts)):
        rights = [kept, *(right for right in range(parts - left) if right != kept)]
        yield from ((left, right) for right in rights)
        kept = rights[-1]


@dataclass(frozen=True)
class SplitTarget:
    """Where a block is added, its rows `stride` bytes apart, and spare memory that has room for it."""

    pointer: Value
    stride: int
    spare: Value


@dataclass(frozen=True)
class SplitKernel:
    """A block of 2 x 2 accumulators over some steps of the instruction. Operands have step after step, in each part
    after part, in each the two tiles, and are multiplied by 2^`scale`."""

    builder: Builder
    instruction: MatrixAtom
    parts: int
    scale: int

    @property
    def tile_bytes(self) -> int:
        return self.instruction.rows * self.instruction.columns * WORD_BYTES

    @property
    def step_bytes(self) -> int:
        """Of one operand."""
        return self.parts * 2 * self.tile_bytes

    def emit(
        self, left: Value, right: Value, target: SplitTarget, steps: Value, ahead: Ahead, *, accumulate: bool
    ) -> None:
        """Each step asks for what `ahead` says."""
        builder, registers = self.builder, TileRegisters(self.builder, self.instruction)
        row_bytes = self.instruction.columns * WORD_BYTES
        for tile in range(4):
            registers.clear(tile)
        with loop(builder, i64(0), steps, 1, "k") as step:
            at = [
                offset_pointer(builder, start, multiply(builder, step, self.step_bytes), 1) for start in (left, right)
            ]
            pairs = list(snake(self.parts))
            for number, pair in enumerate(pairs):
                for side in (0, 1):
                    if number == 0 or pair[side] != pairs[number - 1][side]:
                        self._load_part(registers, side, at[side], pair[side])
                for pointer in ahead.pointers[number :: len(pairs)]:
                    prefetch(builder, offset_pointer(builder, pointer, builder.mul(step, ahead.step_bytes), 1))
                registers.multiply_block()
        for tile in range(4):
            place = (tile // 2 * self.instruction.rows * 2 + tile % 2) * row_bytes
            registers.store(tile, offset_pointer(builder, target.spare, i64(place), 1), 2 * row_bytes)
        self._flush(target, accumulate)

    def _load_part(self, registers: TileRegisters, side: int, start: Value, part: int) -> None:
        """Both tiles of a part of one operand."""
        for half in (0, 1):
            place = offset_pointer(self.builder, start, i64((2 * part + half) * self.tile_bytes), 1)
            registers.load(4 + 2 * side + half, place, self.instruction.columns * WORD_BYTES)

    def _flush(self, target: SplitTarget, accumulate: bool) -> None:
        builder, columns = self.builder, self.instruction.columns
        shape = ir.VectorType(ir.FloatType(), columns)
        factor = splat(shape, 2.0 ** (-2 * self.scale))
        with loop(builder, i64(0), i64(2 * self.instruction.rows), 1, "row") as row:
            for half in (0, 1):
                within = i64(half * columns * WORD_BYTES)
                source = add(builder, multiply(builder, row, 2 * columns * WORD_BYTES), within)
                place = offset_pointer(
                    builder, target.pointer, add(builder, multiply(builder, row, target.stride), within), 1
                )
                value = builder.load(offset_pointer(builder, target.spare, source, 1), typ=shape, align=WORD_BYTES)
                if accumulate:
                    old = builder.load(place, typ=shape, align=WORD_BYTES)
                    value = intrinsic(builder, "fma", [value, factor, old])
                else:
                    value = builder.fmul(value, factor)
                builder.store(value, place, align=WORD_BYTES)
