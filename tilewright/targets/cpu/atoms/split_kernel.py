"""Print the middle of a matmul in parts with AMX.

Matmuls of parts share what they load: each after the first changes the parts of one side only. Sums start from zero,
and are scaled when they are added to the result. Between the instructions, which leave the vector units idle, rows of
the left operand may be taken apart for the next block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llvmlite import ir

from tilewright.machines.machine import MatrixAtom
from tilewright.records import dataclass
from tilewright.targets.cpu.atoms.micro_kernel import Ahead
from tilewright.targets.cpu.atoms.tile_kernel import WORD_BYTES, TileRegisters
from tilewright.targets.cpu.loops import add, i64, loop, multiply, offset_pointer, prefetch
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat


def snake(parts: int) -> Iterator[tuple[int, int]]:
    """The pairs of parts whose numbers have a sum below `parts`, each but the first with one part of the pair before,
    from the last part of the left operand on."""
    kept = 0
    for left in reversed(range(parts)):
        rights = [kept, *(right for right in range(parts - left) if right != kept)]
        yield from ((left, right) for right in rights)
        kept = rights[-1]


NOTHING_AHEAD = Ahead((), i64(0))


@dataclass(frozen=True)
class SplitTarget:
    """The address that a block is added to, its rows `stride` bytes apart, and spare memory that has room for it."""

    pointer: Value
    stride: int
    spare: Value


@dataclass(frozen=True)
class RowApart:
    """A row of f32 to take apart, and where its words of the first step go."""

    source: Value
    target: Value


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
        self,
        left: Value,
        right: Value,
        target: SplitTarget,
        steps: Value,
        ahead: Ahead,
        beside: Sequence[RowApart] = (),
        *,
        accumulate: bool,
    ) -> None:
        """Each step asks for what `ahead` states, and takes a step of each row of `beside` apart."""
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
                for row in beside[number :: len(pairs)]:
                    self.take_apart(row, step)
                registers.multiply_block()
        for tile in range(4):
            place = (tile // 2 * self.instruction.rows * 2 + tile % 2) * row_bytes
            registers.store(tile, offset_pointer(builder, target.spare, i64(place), 1), 2 * row_bytes)
        self._flush(target, accumulate)

    def take_apart(self, row: RowApart, step: Value) -> None:
        """One step of a row: words of two numbers half a step from each other. As `scheduled_split_operands.py` does
        it, with the same bits."""
        builder, lanes = self.builder, self.instruction.columns
        numbers, words = ir.VectorType(ir.FloatType(), lanes), ir.VectorType(ir.IntType(32), lanes)
        source = offset_pointer(builder, row.source, multiply(builder, step, 2 * lanes * WORD_BYTES), 1)
        target = offset_pointer(builder, row.target, multiply(builder, step, self.step_bytes), 1)
        upper, half = splat(words, 0xFFFF0000), splat(words, 16)
        rests: list[Value] = []
        for at in (0, lanes * WORD_BYTES):
            loaded = builder.load(offset_pointer(builder, source, i64(at), 1), typ=numbers, align=WORD_BYTES)
            rests.append(builder.fmul(loaded, splat(numbers, 2.0**self.scale)))
        for part in range(self.parts):
            bits = [builder.bitcast(rest, words) for rest in rests]
            if part == 0:
                bits = [builder.add(each, splat(words, 1 << 15)) for each in bits]
            kept = [builder.and_(each, upper) for each in bits]
            rests = [builder.fsub(r, builder.bitcast(k, numbers)) for r, k in zip(rests, kept, strict=True)]
            word = builder.or_(builder.lshr(bits[0], half), kept[1])
            place = offset_pointer(builder, target, i64(2 * part * self.tile_bytes), 1)
            builder.store(word, place, align=WORD_BYTES)

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
