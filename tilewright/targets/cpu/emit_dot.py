"""Print a register-blocked matmul: panels of the right operand outside, blocks of rows inside, and in the middle a
micro-kernel.

Rows of a right operand that is read in place are far apart in memory, or begin within cache lines. If the matmul is to
keep them, the first block of rows that reads a panel also writes it to scratch memory, the rows of a panel
contiguously, and later blocks read it from there: packing costs no pass of its own.

An operand may end before the tile does: rows that a left operand lacks are zeros in the accumulator, and so are columns
that a right operand lacks.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llvmlite import ir

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.machines.machine import MatrixAtom
from tilewright.targets.cpu.atoms.micro_kernel import DEPTH_UNROLL, Ahead, Block, MicroKernel, Step, Walk
from tilewright.targets.cpu.atoms.tile_kernel import TileKernel, configure_tiles, release_tiles
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.dot_operands import accumulator_of, depth_of, left_of, right_of
from tilewright.targets.cpu.emit_parts import emit_parts
from tilewright.targets.cpu.loops import (
    I1,
    add,
    i64,
    loop,
    maximum,
    minimum,
    multiply,
    offset_pointer,
    static,
)
from tilewright.targets.llvm.conversions import register_form
from tilewright.targets.llvm.values import Builder, Value, splat

# Heights of the last block of rows that get code of their own; with more, rows are taken one by one.
MOST_HEIGHTS = 2


@dataclass(frozen=True)
class _Panel:
    """The `number`-th panel of the right operand, of which `present` columns exist: where it is read, elements of
    `dtype`, where the `following` one begins, and where what is read of it is `kept`."""

    number: Value
    present: int
    walk: Walk
    dtype: DType
    following: Value
    kept: Walk | None = None


def emit_dot(context: FunctionContext, op: scheduled.DotOp) -> None:
    """Append the code of one matmul at the builder's position."""
    types = (tile.ref_type(ref).dtype for ref in (op.left, op.right, op.accumulator))
    instruction = context.machine.matrix_atom_of_words(*types, depth=op.shape[2])
    if op.is_split:
        emit_parts(context, op)
    elif instruction is not None:
        _emit_tiles(context, op, instruction)
    else:
        _Product(context, op).emit()


def _emit_tiles(context: FunctionContext, op: scheduled.DotOp, instruction: MatrixAtom) -> None:
    """All blocks of a matmul by a matrix instruction. Blocks are whole: the accumulator and the operands have room for
    what they have beyond the matmul's rows and columns."""
    builder = context.builder
    rows, columns, depth = op.shape
    height, width = op.micro_tile
    left, right = left_of(context, op), right_of(context, op)
    extent = depth_of(context, op, depth)
    accumulate = bool(op.accumulate)
    left_item, word = tile.ref_type(op.left).dtype.itemsize, tile.ref_type(op.right).dtype.itemsize
    acc = accumulator_of(context, op)
    pitch = acc.pitch * tile.ref_type(op.accumulator).dtype.itemsize
    panels = minimum(builder, i64(-(-columns // width)), right.panels)
    blocks = i64(-(-rows // height))
    if acc.rows is not None:
        blocks = minimum(
            builder,
            blocks,
            builder.udiv(acc.rows, i64(height))
            if static(acc.rows) is None
            else i64(int(static(acc.rows) or 0) // height),
        )
    configure_tiles(builder, instruction)
    with loop(builder, i64(0), panels, 1, "panel") as panel, loop(builder, i64(0), blocks, 1) as block:
        a = offset_pointer(builder, left.pointer, multiply(builder, block, height * left.row_stride), left_item)
        b = offset_pointer(builder, right.pointer, multiply(builder, panel, right.panel_stride), word)
        start = add(builder, multiply(builder, block, height * pitch), multiply(builder, panel, width * word))
        c = offset_pointer(builder, acc.pointer, start, 1)
        step_words = instruction.depth // instruction.group
        TileKernel(builder, instruction).emit(
            Walk(a, instruction.depth * left_item, left.row_stride * left_item),
            Walk(b, step_words * right.depth_stride * word, right.depth_stride * word),
            c,
            pitch,
            extent,
            accumulate=accumulate,
        )
    release_tiles(builder)


class _Product:
    def __init__(self, context: FunctionContext, op: scheduled.DotOp) -> None:
        self.context, self.op = context, op
        types = tuple(tile.ref_type(ref).dtype for ref in (op.left, op.right, op.accumulator))
        self.left_dtype, self.right_dtype, accumulator = types
        self.words = None if types[0] == accumulator else context.machine.word_atom(types[0], types[0], accumulator)
        self.group = 1 if self.words is None else self.words.group
        if self.words is None and not self.left_dtype == self.right_dtype.compute == accumulator:
            raise CompilerBug("the operands of a matmul are not computed in the accumulator's type")
        self.builder: Builder = context.builder
        self.type = tile.ref_type(op.accumulator)
        self.lanes = context.machine.lanes(self.type.dtype)
        self.accumulate = bool(op.accumulate)
        self.left, self.right = left_of(context, op), right_of(context, op)
        self.acc = accumulator_of(context, op)
        self.depth = depth_of(context, op, op.shape[2])
        self.kept = self._kept_panel()
        self.rows, self.counts = self.left.rows, self.left.counts
        if self.acc.rows is not None and self.left.counts == frozenset({op.shape[0]}):
            self.rows, self.counts = self.acc.rows, self.acc.counts

    def emit(self) -> None:
        panels = -(-self.op.shape[1] // self.op.micro_tile[1])
        present, tail = minimum(self.builder, i64(panels), self.right.panels), self.right.tail
        before_last = add(self.builder, self.right.panels, i64(-1))
        if self.acc.panels is not None and not tail:
            present, tail = minimum(self.builder, present, self.acc.panels), self.acc.tail
            before_last = add(self.builder, self.acc.panels, i64(-1))
        whole = present
        if tail:
            whole = maximum(self.builder, minimum(self.builder, i64(panels), before_last), i64(0))
        if not self.accumulate and self.acc.rows is None:
            self._clear_panels(present, panels)
            self._clear_rows()
        if static(whole) != 0:
            with loop(self.builder, i64(0), whole, 1, "panel") as panel:
                self._emit_panel(panel, self.op.micro_tile[1])
        if tail:
            with _when(self.builder, whole, "<", present):
                self._emit_panel(whole, tail)

    def _kept_panel(self) -> Walk | None:
        """Scratch memory for one panel of the right operand, where the matmul is to keep them."""
        if self.op.keep is None:
            return None
        width, depth = self.op.micro_tile[1], self.op.shape[2]
        if self.op.keep:
            steps = -(-depth // self.group)
            self.context.kept[self.op.right] = self.context.temporary(steps * width * self.type.dtype.itemsize)
        return Walk(self.context.kept[self.op.right], width)

    @property
    def _kept_dtype(self) -> DType:
        """The type of the elements of panels that are kept: as they are multiplied."""
        return self.type.dtype if self.words is None else dtypes.u32

    def _emit_panel(self, panel: Value, present: int) -> None:
        """All blocks of rows against one panel, of which `present` columns exist."""
        right, item = self.right, self.right_dtype.itemsize
        start = offset_pointer(self.builder, right.pointer, multiply(self.builder, panel, right.panel_stride), item)
        following = offset_pointer(self.builder, start, i64(right.panel_stride), item)
        lies = _Panel(panel, present, Walk(start, right.depth_stride), self.right_dtype, following)
        height, blocks = self.op.micro_tile[0], self._whole_blocks()
        if self.kept is None or self.op.keep is None:
            self._emit_blocks(lies, i64(0), blocks)
            return
        first, later = replace(lies, kept=self.kept), replace(lies, walk=self.kept, dtype=self._kept_dtype)
        if not self.op.keep:
            self._emit_blocks(later, i64(0), blocks)
        elif self.op.turn is not None:
            turn, _ = self._turn(self.op.turn)
            with self.builder.if_else(self.builder.icmp_signed("==", turn, i64(0))) as (then, otherwise):
                with then:
                    self._emit_blocks(first, i64(0), blocks)
                with otherwise:
                    self._emit_blocks(later, i64(0), blocks)
        elif min(self.counts) < 2 * height:
            self._emit_blocks(lies, i64(0), blocks)
        else:
            self._emit_block(first, i64(0), height, i64(0))
            self._emit_blocks(later, i64(1), blocks)

    def _whole_blocks(self) -> Value:
        height, known = self.op.micro_tile[0], static(self.rows)
        return i64(known // height) if known is not None else self.builder.udiv(self.rows, i64(height))

    def _emit_blocks(self, panel: _Panel, first: Value, blocks: Value) -> None:
        """The whole blocks of rows from the `first` on, and the rows that are left."""
        height = self.op.micro_tile[0]
        if static(blocks) != static(first):
            with loop(self.builder, first, blocks, 1, "block") as block:
                self._emit_block(panel, multiply(self.builder, block, height), height, block)
        rests = {count % height for count in self.counts} - {0}
        done = multiply(self.builder, blocks, height)
        if len(rests) > MOST_HEIGHTS:
            with loop(self.builder, done, self.rows, 1, "row") as row:
                self._emit_block(panel, row, 1, None)
            return
        for rest in sorted(rests):
            with _when(self.builder, add(self.builder, done, i64(rest)), "==", self.rows):
                self._emit_block(panel, done, rest, None)

    def _emit_block(self, panel: _Panel, row: Value, height: int, block: Value | None) -> None:
        """`height` rows from `row` on; the `block`-th block of rows looks ahead for its part of the next panel."""
        builder, left = self.builder, self.left
        item, pitch, width = self.type.dtype.itemsize, self.acc.pitch, self.op.micro_tile[1]
        a = offset_pointer(builder, left.pointer, multiply(builder, row, left.row_stride), self.left_dtype.itemsize)
        start = add(builder, multiply(builder, row, pitch), multiply(builder, panel.number, width))
        c = offset_pointer(builder, self.acc.pointer, start, item)
        ahead = self._ahead(panel.following, block)
        room = panel.present if self.acc.rows is not None else width
        types = self.type.dtype, self.left_dtype, panel.dtype
        kernel = MicroKernel(builder, *types, height, room, panel.present, self.lanes, ahead, panel.kept, self.words)
        walk = Walk(a, left.depth_stride, left.row_stride)
        kernel.emit(Block(walk, panel.walk, self.depth, self._steps, c, pitch), self.accumulate)

    @property
    def _steps(self) -> list[Step]:
        """The summed dims around the depth."""
        strides = zip(self.op.outer_steps, self.left.step_strides, self.right.step_strides, strict=True)
        return [Step(*each) for each in strides]

    def _turn(self, turn: tuple[int, ...]) -> tuple[Value, int]:
        """Which turn of how many this matmul is."""
        position, count = turn
        return self.context.scalars[self.op.symbols[position]], count

    def _ahead(self, panel: Value, block: Value | None) -> Ahead | None:
        """Prefetches of the next `panel` by the block of rows `block`."""
        if block is None or self.op.outer_steps:
            return None
        rows, _, _ = self.op.shape
        blocks = -(-rows // self.op.micro_tile[0])
        if self.op.turn is not None:
            block, blocks = self._turn(self.op.turn)
        if self.right.depth_stride == self.op.micro_tile[1]:
            return self._ahead_of_panel(panel, block, blocks)
        return self._ahead_of_rows(panel, block, blocks) if self.kept is not None else None

    def _ahead_of_panel(self, panel: Value, block: Value, blocks: int) -> Ahead:
        """Each of the blocks prefetches an equal part of the panel, in full cache lines a trip."""
        line_bytes = self.context.machine.memory("l1").line_bytes
        depth = -(-self.op.shape[2] // self.group)
        panel_lines = -(-depth * self.op.micro_tile[1] * self.type.dtype.itemsize // line_bytes)
        trips = -(-depth // DEPTH_UNROLL)
        lines = -(-panel_lines // (trips * blocks))
        part = offset_pointer(self.builder, panel, multiply(self.builder, block, lines * trips * line_bytes), 1)
        pointers = (offset_pointer(self.builder, part, i64(line * line_bytes), 1) for line in range(lines))
        return Ahead(tuple(pointers), i64(lines * line_bytes // DEPTH_UNROLL))

    def _ahead_of_rows(self, panel: Value, block: Value, blocks: int) -> Ahead:
        """Each trip asks for lines of the rows that it multiplies of this panel. Blocks that find none left ask for
        one line again and again."""
        builder, line_bytes = self.builder, self.context.machine.memory("l1").line_bytes
        item, rows = self.right_dtype.itemsize, DEPTH_UNROLL * self.group
        pitch_bytes = self.right.depth_stride * item
        row_lines = -(-self.op.micro_tile[1] * item // line_bytes)
        lines = -(-rows * row_lines // blocks)
        pointers: list[Value] = []
        for line in range(lines):
            number = add(builder, multiply(builder, block, lines), i64(line))
            row, within = builder.udiv(number, i64(row_lines)), builder.urem(number, i64(row_lines))
            start = add(builder, multiply(builder, row, pitch_bytes), multiply(builder, within, line_bytes))
            # A row need not begin where a line does: by their last bytes, all lines but the first are met, and that
            # one is the last of the panel before.
            pointers.append(offset_pointer(builder, panel, add(builder, start, i64(line_bytes - 1)), 1))
        left = builder.icmp_signed("<", multiply(builder, block, lines), i64(rows * row_lines))
        return Ahead(tuple(pointers), builder.select(left, i64(pitch_bytes * self.group), i64(0)))

    def _clear_panels(self, first: Value, panels: int) -> None:
        """Zeros where the right operand has no panels."""
        if static(first) == panels:
            return
        width = self.op.micro_tile[1]
        rows = i64(self.op.shape[0])
        with loop(self.builder, first, i64(panels), 1, "empty") as panel, loop(self.builder, i64(0), rows, 1) as row:
            self._clear(row, multiply(self.builder, panel, width), width)

    def _clear_rows(self) -> None:
        """Zeros where the left operand has no rows."""
        rows, columns, _ = self.op.shape
        if static(self.left.rows) == rows:
            return
        width = self.op.micro_tile[1]
        panels = i64(-(-columns // width))
        first = self.left.rows
        with loop(self.builder, first, i64(rows), 1, "empty") as row, loop(self.builder, i64(0), panels, 1) as panel:
            self._clear(row, multiply(self.builder, panel, width), width)

    def _clear(self, row: Value, column: Value, width: int) -> None:
        item = self.type.dtype.itemsize
        zeros = splat(ir.VectorType(register_form(self.type.dtype), self.lanes), 0)
        start = add(self.builder, multiply(self.builder, row, self.acc.pitch), column)
        pointer = offset_pointer(self.builder, self.acc.pointer, start, item)
        for first in range(0, width, self.lanes):
            self.builder.store(zeros, offset_pointer(self.builder, pointer, i64(first), item), align=item)


@contextmanager
def _when(builder: Builder, left: Value, comparison: str, right: Value) -> Generator[None]:
    """Code for when two numbers compare so, without a branch where they are known to."""
    a, b = static(left), static(right)
    if a is not None and b is not None and (a == b if comparison == "==" else a < b):
        yield
        return
    condition = builder.icmp_signed(comparison, left, right)
    with builder.if_then(ir.Constant(I1, 0) if a is not None and b is not None else condition):
        yield
