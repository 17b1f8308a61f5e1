"""Print the middle of a matrix product in parts with AMX.

Six products of parts share what they load: each after the first changes the parts of one side only. Sums start from
zero, and are scaled when they are added to the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from tilewright.machines.machine import MatrixAtom
from tilewright.targets.cpu.loops import add, i64, loop, multiply, offset_pointer, prefetch
from tilewright.targets.cpu.tile_kernel import WORD_BYTES, TileRegisters
from tilewright.targets.cpu.vector_math_common import Builder, Value, intrinsic, splat


LINE_BYTES = 64


def snake(parts: int) -> Iterator[tuple[int, int]]:
    """The pairs of parts whose numbers have a sum below `parts`, each but the first with one part of the pair before:
    from the smallest products to the largest."""
    for left in reversed(range(parts)):
        rights = list(range(parts - left))
        upward = (parts - 1 - left) % 2 == 0
        yield from ((left, right) for right in (rights if upward else reversed(rights)))


@dataclass(frozen=True)
class SplitKernel:
    """A block of 2 x 2 accumulators over some steps of the instruction, added to `acc` (its rows `acc_stride` bytes
    apart) by way of `spare` memory that has room for them. Operands have step after step, in each part after part, in
    each the two tiles."""

    builder: Builder
    instruction: MatrixAtom
    parts: int
    scale: int

    def emit(
        self,
        left: Value,
        right: Value,
        acc: Value,
        acc_stride: int,
        steps: Value,
        spare: Value,
        ahead: Value,
        ahead_bytes: int,
        *,
        accumulate: bool,
    ) -> None:
        """Each step asks for `ahead_bytes` of what is needed next from `ahead` on."""
        builder, rows = self.builder, self.instruction.rows
        registers = TileRegisters(builder, self.instruction)
        row_bytes = self.instruction.columns * WORD_BYTES
        tile_bytes = rows * row_bytes
        part_bytes = 2 * tile_bytes
        for tile in range(4):
            registers.clear(tile)
        with loop(builder, i64(0), steps, 1, "k") as step:
            start = multiply(builder, step, self.parts * part_bytes)
            a, b = (offset_pointer(builder, operand, start, 1) for operand in (left, right))
            lines = self._lines_ahead(ahead, step, ahead_bytes)
            before: tuple[int | None, int | None] = None, None
            for pair in snake(self.parts):
                for half in (0, 1):
                    if pair[0] != before[0]:
                        place = pair[0] * part_bytes + half * tile_bytes
                        registers.load(4 + half, offset_pointer(builder, a, i64(place), 1), row_bytes)
                    if pair[1] != before[1]:
                        place = pair[1] * part_bytes + half * tile_bytes
                        registers.load(6 + half, offset_pointer(builder, b, i64(place), 1), row_bytes)
                for line in lines.pop():
                    prefetch(builder, line)
                registers.multiply_block()
                before = pair
        for tile in range(4):
            place = tile // 2 * rows * 2 * row_bytes + tile % 2 * row_bytes
            registers.store(tile, offset_pointer(builder, spare, i64(place), 1), 2 * row_bytes)
        self._flush(spare, 2 * row_bytes, acc, acc_stride, accumulate)

    def _lines_ahead(self, ahead: Value, step: Value, nbytes: int) -> list[list[Value]]:
        """The lines that a step asks for, shared by its products of parts."""
        start = offset_pointer(self.builder, ahead, multiply(self.builder, step, nbytes), 1)
        lines = [offset_pointer(self.builder, start, i64(line), 1) for line in range(0, nbytes, LINE_BYTES)]
        pairs = self.parts * (self.parts + 1) // 2
        return [lines[n::pairs] for n in range(pairs)]

    def _flush(self, spare: Value, spare_stride: int, acc: Value, acc_stride: int, accumulate: bool) -> None:
        builder, columns = self.builder, self.instruction.columns
        shape = ir.VectorType(ir.FloatType(), columns)
        with loop(builder, i64(0), i64(2 * self.instruction.rows), 1, "row") as row:
            for half in (0, 1):
                within = half * columns * WORD_BYTES
                source = add(builder, multiply(builder, row, spare_stride), i64(within))
                target = add(builder, multiply(builder, row, acc_stride), i64(within))
                place = offset_pointer(builder, acc, target, 1)
                value = builder.load(offset_pointer(builder, spare, source, 1), typ=shape, align=WORD_BYTES)
                factor = splat(shape, 2.0 ** (-2 * self.scale))
                if accumulate:
                    old = builder.load(place, typ=shape, align=WORD_BYTES)
                    value = intrinsic(builder, "fma", [value, factor, old])
                else:
                    value = builder.fmul(value, factor)
                builder.store(value, place, align=WORD_BYTES)
