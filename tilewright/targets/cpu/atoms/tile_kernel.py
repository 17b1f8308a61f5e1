"""Print the middle of a matmul with AMX: 2 x 2 accumulators stay in tile registers over the whole depth.

Tiles 0 to 3 are the accumulators, 4 and 5 rows of the left operand, 6 and 7 columns of the right one, in words.
Source: Intel 64 instruction set reference, LDTILECFG, TILELOADD, TDPBF16PS, TDPBSSD.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.machines.machine import MatrixAtom
from tilewright.records import dataclass
from tilewright.targets.cpu.atoms.micro_kernel import Walk
from tilewright.targets.cpu.loops import I8, I64, POINTER, i64, loop, multiply, offset_pointer
from tilewright.targets.llvm.values import Builder, Value

TILES = 8
WORD_BYTES = 4


def configure_tiles(builder: Builder, instruction: MatrixAtom) -> None:
    """Give all tile registers the shape of the instruction's matrices, which has one number of rows and of bytes a row
    for all three. Tiles hold zeros then."""
    row_bytes = instruction.columns * WORD_BYTES
    config = bytearray(64)
    config[0] = 1  # the only palette
    for tile in range(TILES):
        config[16 + 2 * tile : 18 + 2 * tile] = row_bytes.to_bytes(2, "little")
        config[48 + tile] = instruction.rows
    name = f"tiles.{instruction.rows}x{row_bytes}"
    table = builder.module.globals.get(name)
    if table is None:
        shape = ir.ArrayType(I8, len(config))
        table = ir.GlobalVariable(builder.module, shape, name)
        table.linkage = "internal"
        table.global_constant = True
        table.initializer = ir.Constant(shape, config)  # type: ignore[assignment]  untyped in llvmlite
    _call(builder, "llvm.x86.ldtilecfg", [table])


def release_tiles(builder: Builder) -> None:
    """Tile registers that hold nothing cost no time when the system switches threads."""
    _call(builder, "llvm.x86.tilerelease", [])


@dataclass(frozen=True)
class TileRegisters:
    """The tile registers of a block of 2 x 2 accumulators."""

    builder: Builder
    instruction: MatrixAtom

    def clear(self, tile: int) -> None:
        _call(self.builder, "llvm.x86.tilezero", [self._number(tile)])

    def load(self, tile: int, pointer: Value, stride: int) -> None:
        _call(self.builder, "llvm.x86.tileloadd64", [self._number(tile), pointer, i64(stride)])

    def store(self, tile: int, pointer: Value, stride: int) -> None:
        _call(self.builder, "llvm.x86.tilestored64", [self._number(tile), pointer, i64(stride)])

    def multiply(self, accumulator: int, left: int, right: int) -> None:
        tiles = [self._number(tile) for tile in (accumulator, left, right)]
        _call(self.builder, f"llvm.x86.{self.instruction.name}", tiles)

    def multiply_block(self) -> None:
        """Both tiles of rows by both of columns."""
        for half in (0, 1):
            for n in (0, 1):
                self.multiply(2 * half + n, 4 + half, 6 + n)

    def _number(self, tile: int) -> Value:
        return ir.Constant(I8, tile)


@dataclass(frozen=True)
class TileKernel:
    """A block of 2 x 2 accumulators. Strides are in bytes."""

    builder: Builder
    instruction: MatrixAtom

    def emit(self, left: Walk, right: Walk, acc: Value, acc_stride: int, depth: Value, *, accumulate: bool) -> None:
        """`left.depth_stride` and `right.depth_stride` are the bytes of one step of the instruction."""
        builder, rows = self.builder, self.instruction.rows
        registers = TileRegisters(builder, self.instruction)
        row_bytes = self.instruction.columns * WORD_BYTES
        places = [
            offset_pointer(builder, acc, i64(m * rows * acc_stride + n * row_bytes), 1) for m in (0, 1) for n in (0, 1)
        ]
        for tile, place in enumerate(places):
            if accumulate:
                registers.load(tile, place, acc_stride)
            else:
                registers.clear(tile)
        steps = builder.udiv(depth, i64(self.instruction.depth))
        with loop(builder, i64(0), steps, 1, "k") as step:
            a = offset_pointer(builder, left.pointer, multiply(builder, step, left.depth_stride), 1)
            b = offset_pointer(builder, right.pointer, multiply(builder, step, right.depth_stride), 1)
            registers.load(6, b, right.row_stride)
            registers.load(7, offset_pointer(builder, b, i64(row_bytes), 1), right.row_stride)
            for half in (0, 1):
                start = offset_pointer(builder, a, i64(half * rows * left.row_stride), 1)
                registers.load(4 + half, start, left.row_stride)
                for n in (0, 1):
                    registers.multiply(2 * half + n, 4 + half, 6 + n)
        for tile, place in enumerate(places):
            registers.store(tile, place, acc_stride)


def _call(builder: Builder, name: str, arguments: list[Value]) -> None:
    function = builder.module.globals.get(name)
    if function is None:
        kinds = {I8: I8, I64: I64}
        types = [kinds.get(argument.type, POINTER) for argument in arguments]
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), types), name)
    builder.call(function, arguments)
