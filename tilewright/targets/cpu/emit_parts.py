"""Print a matmul in parts: blocks of rows and panels, and in the middle `split_kernel.py`."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.records import dataclass
from tilewright.targets.cpu.atoms.micro_kernel import Ahead
from tilewright.targets.cpu.atoms.split_kernel import NOTHING_AHEAD, RowApart, SplitKernel, SplitTarget
from tilewright.targets.cpu.atoms.tile_kernel import WORD_BYTES, configure_tiles, release_tiles
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.dot_operands import Accumulator, accumulator_of, forms_of, left_of, start_of
from tilewright.targets.cpu.loops import add, i64, loop, minimum, multiply, offset_pointer
from tilewright.targets.llvm.values import Value


def emit_parts(context: FunctionContext, op: scheduled.DotOp) -> None:
    """All blocks of a matmul in parts, which are whole, but for panels beyond the right operand's last one. While the
    rows meet a panel, each block of them asks for its share of the next one, unless panels stay near."""
    if tile.ref_type(op.left).dtype == tile.ref_type(op.accumulator).dtype:
        _emit_rows_apart(context, op)
        return
    builder, product = context.builder, _Parts.of(context, op)
    left, left_stride, _ = _blocks_of(context, op, op.left, op.left_map)
    line = context.machine.memory("l1").line_bytes
    lines = 0 if _stays_near(context, op) else -(-product.kernel.step_bytes // (product.blocks * line))
    share_bytes = lines * line * product.steps
    with (
        product.tiles(),
        loop(builder, i64(0), product.panels, 1, "panel") as panel,
        loop(builder, i64(0), i64(product.blocks), 1) as block,
    ):
        share = add(builder, i64(product.right_stride), multiply(builder, block, share_bytes))
        places = (add(builder, share, i64(n * line)) for n in range(lines))
        asked = tuple(offset_pointer(builder, product.right_panel(panel), place, 1) for place in places)
        a = offset_pointer(builder, left, multiply(builder, block, left_stride), 1)
        product.emit(a, block, panel, Ahead(asked, i64(lines * line)))


def _stays_near(context: FunctionContext, op: scheduled.DotOp) -> bool:
    """Whether the second-level cache has room for the right operand: asking it for lines that it has takes a tenth of
    the time of a tile of 32 rows."""
    right = tile.ref_type(op.right)
    return math.prod(right.shape) * right.dtype.itemsize <= context.machine.memory("l2").bytes * 3 // 4


def _emit_rows_apart(context: FunctionContext, op: scheduled.DotOp) -> None:
    """All blocks of a matmul in parts whose left operand is not split. Its blocks are outside: while one meets the
    panels, the next one is taken apart, a share of it with each panel. Rows that the operand lacks are its last one."""
    builder, product = context.builder, _Parts.of(context, op)
    kernel, left = product.kernel, left_of(context, op)
    (height, width), row_bytes = op.micro_tile, kernel.instruction.columns * WORD_BYTES
    block_bytes = product.steps * kernel.step_bytes
    words, item = context.temporary(2 * block_bytes), tile.ref_type(op.left).dtype.itemsize
    share = -(-height // -(-op.shape[1] // width))
    last = add(builder, left.rows, i64(-1))

    def row_of(block: Value, number: Value) -> RowApart:
        """A row of a block, whose words are in the half of the memory that is the block's turn."""
        row = minimum(builder, add(builder, multiply(builder, block, height), number), last)
        turn = multiply(builder, builder.and_(block, i64(1)), block_bytes)
        return RowApart(
            offset_pointer(builder, left.pointer, multiply(builder, row, left.row_stride), item),
            offset_pointer(builder, words, add(builder, turn, multiply(builder, number, row_bytes)), 1),
        )

    with loop(builder, i64(0), i64(product.steps), 1, "step") as step, loop(builder, i64(0), i64(height), 1) as number:
        kernel.take_apart(row_of(i64(0), number), step)
    with product.tiles(), loop(builder, i64(0), i64(product.blocks), 1) as block:
        turn = multiply(builder, builder.and_(block, i64(1)), block_bytes)
        following = add(builder, block, i64(1))
        with loop(builder, i64(0), product.panels, 1, "panel") as panel:
            numbers = (add(builder, multiply(builder, panel, share), i64(n)) for n in range(share))
            beside = [row_of(following, minimum(builder, number, i64(height - 1))) for number in numbers]
            product.emit(offset_pointer(builder, words, turn, 1), block, panel, beside=beside)


@dataclass(frozen=True)
class _Parts:
    """A matmul in parts: of how many blocks of rows, panels and steps, and its right operand."""

    context: FunctionContext
    op: scheduled.DotOp
    kernel: SplitKernel
    acc: Accumulator
    right: Value
    right_stride: int
    panels: Value
    spare: Value

    @staticmethod
    def of(context: FunctionContext, op: scheduled.DotOp) -> _Parts:
        (_, columns, _), (height, width) = op.shape, op.micro_tile
        dtype = tile.ref_type(op.accumulator).dtype
        kernel = SplitKernel(context.builder, context.machine.atom_of_part(dtype), *op.parts_and_scale)
        right, right_stride, present = _blocks_of(context, op, op.right, op.right_map)
        panels = minimum(context.builder, i64(-(-columns // width)), present)
        spare = context.temporary(height * width * dtype.itemsize)
        return _Parts(context, op, kernel, accumulator_of(context, op), right, right_stride, panels, spare)

    @property
    def blocks(self) -> int:
        return -(-self.op.shape[0] // self.op.micro_tile[0])

    @property
    def steps(self) -> int:
        return self.op.shape[2] // self.kernel.instruction.depth

    @contextmanager
    def tiles(self) -> Generator[None]:
        """Tile registers are the kernel's."""
        configure_tiles(self.context.builder, self.kernel.instruction)
        yield
        release_tiles(self.context.builder)

    def right_panel(self, panel: Value) -> Value:
        builder = self.context.builder
        return offset_pointer(builder, self.right, multiply(builder, panel, self.right_stride), 1)

    def emit(
        self, left: Value, block: Value, panel: Value, ahead: Ahead = NOTHING_AHEAD, beside: Sequence[RowApart] = ()
    ) -> None:
        """One block of rows by one panel."""
        builder, (height, width), acc = self.context.builder, self.op.micro_tile, self.acc
        item = tile.ref_type(self.op.accumulator).dtype.itemsize
        place = add(builder, multiply(builder, block, height * acc.pitch), multiply(builder, panel, width))
        target = SplitTarget(offset_pointer(builder, acc.pointer, place, item), acc.pitch * item, self.spare)
        accumulate = bool(self.op.accumulate)
        self.kernel.emit(left, self.right_panel(panel), target, i64(self.steps), ahead, beside, accumulate=accumulate)


def _blocks_of(
    context: FunctionContext, op: scheduled.DotOp, ref: SSAValue, map: AffineMap
) -> tuple[Value, int, Value]:
    """The base address of an operand in parts, how many bytes its blocks of rows or columns are apart, and how many of
    them there are from there on."""
    type, dim = tile.ref_type(ref), len(map.results) - 2
    strides = [math.prod(type.shape[d + 1 :]) * type.dtype.itemsize for d in range(len(type.shape))]
    starts = [start_of(context, form, list(op.symbols)) for form in forms_of(map)]
    offset: Value = i64(0)
    for start, stride in zip(starts, strides, strict=False):
        offset = add(context.builder, offset, multiply(context.builder, start, stride))
    present = add(context.builder, i64(type.shape[dim]), multiply(context.builder, starts[dim], -1))
    return offset_pointer(context.builder, context.pointers[ref], offset, 1), strides[dim], present
