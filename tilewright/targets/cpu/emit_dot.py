"""Print a register-blocked matrix product: panels of the right operand outside, blocks of rows inside, and in the
middle a micro-kernel.

Rows of a right operand that is read where it lies are far from each other in memory, or begin within lines. Where the
product is to keep them, the first block of rows that meets a panel writes what it reads to scratch memory, a panel's
rows one after the other, and the blocks after it read it from there: packing costs no pass of its own.

An operand may end before the tile does: rows that a left operand lacks are zeros in the accumulator, and so are columns
that a right operand lacks.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llvmlite import ir
from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import decode
from tilewright.errors import CompilerBug
from tilewright.machines.machine import MatrixAtom
from tilewright.passes.affine_access import Form, Index, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.conversions import register_form
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
from tilewright.targets.cpu.micro_kernel import DEPTH_UNROLL, Ahead, MicroKernel, Walk
from tilewright.targets.cpu.split_kernel import SplitKernel, SplitTarget
from tilewright.targets.cpu.tile_kernel import TileKernel, configure_tiles, release_tiles
from tilewright.targets.cpu.vector_math_common import Builder, Value, splat

# Heights of the last block of rows that get code of their own; with more, rows are taken one by one.
MOST_HEIGHTS = 2


@dataclass(frozen=True)
class Left:
    """The left operand from the tile's origin on, in elements. `rows` of the tile exist, which is one of `counts`."""

    pointer: Value
    row_stride: int
    depth_stride: int
    rows: Value
    counts: frozenset[int]


@dataclass(frozen=True)
class _Right:
    """The right operand from the tile's origin on, in elements. It has `panels` from there; the last of them has only
    `tail` columns if `tail` is not 0."""

    pointer: Value
    panel_stride: int
    depth_stride: int
    panels: Value
    tail: int


@dataclass(frozen=True)
class Accumulator:
    """The accumulator from the tile's origin on, in elements: a buffer, which has room for whole register blocks, or a
    window of an array, which has `rows` (one of `counts`) and `columns`, in `panels`, the last of them with `tail`."""

    pointer: Value
    pitch: int
    rows: Value | None = None
    counts: frozenset[int] = frozenset()
    columns: Value | None = None
    panels: Value | None = None
    tail: int = 0


@dataclass(frozen=True)
class _Panel:
    """The `number`-th panel of the right operand, of which `present` columns exist: where it is read, where the
    `following` one begins, and where what is read of it is `kept`."""

    number: Value
    present: int
    walk: Walk
    following: Value
    kept: Walk | None = None


def emit_dot(context: FunctionContext, op: scheduled.DotOp) -> None:
    """Append the code of one product at the builder's position."""
    types = (tile.ref_type(ref).dtype for ref in (op.left, op.right, op.accumulator))
    instruction = context.machine.matrix_atom_of_words(*types, depth=op.shape[2])
    if op.is_split:
        _emit_parts(context, op)
    elif instruction is not None:
        _emit_tiles(context, op, instruction)
    else:
        _Product(context, op).emit()


def _emit_tiles(context: FunctionContext, op: scheduled.DotOp, instruction: MatrixAtom) -> None:
    """All blocks of a product by a matrix instruction. Blocks are whole: the accumulator and the operands have room for
    what they have beyond the product's rows and columns."""
    builder = context.builder
    rows, columns, depth = op.shape
    height, width = op.micro_tile
    left, right = left_of(context, op), _right(context, op)
    extent = depth_of(context, op, depth)
    accumulate = bool(op.accumulate.value.data)
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


def _emit_parts(context: FunctionContext, op: scheduled.DotOp) -> None:
    """All blocks of a product in parts, which are whole, but for panels beyond the right operand's last one. While the
    rows meet a panel, each block of them asks for its share of the next one."""
    builder, (rows, columns, depth), (height, width) = context.builder, op.shape, op.micro_tile
    instruction = context.machine.atom_of_part(tile.ref_type(op.accumulator).dtype)
    left, left_stride, _ = _blocks_of(context, op, op.left, op.left_map.data)
    right, right_stride, present = _blocks_of(context, op, op.right, op.right_map.data)
    acc, item = accumulator_of(context, op), tile.ref_type(op.accumulator).dtype.itemsize
    spare = context.temporary(height * width * item)
    kernel = SplitKernel(builder, instruction, *op.parts_and_scale)
    panels = minimum(builder, i64(-(-columns // width)), present)
    blocks, steps = -(-rows // height), depth // instruction.depth
    line = context.machine.memory("l1").line_bytes
    lines = -(-kernel.step_bytes // (blocks * line))
    configure_tiles(builder, instruction)
    with loop(builder, i64(0), panels, 1, "panel") as panel, loop(builder, i64(0), i64(blocks), 1) as block:
        row, column = multiply(builder, block, height * acc.pitch), multiply(builder, panel, width)
        b = offset_pointer(builder, right, multiply(builder, panel, right_stride), 1)
        share = add(builder, i64(right_stride), multiply(builder, block, lines * line * steps))
        asked = tuple(offset_pointer(builder, b, add(builder, share, i64(n * line)), 1) for n in range(lines))
        kernel.emit(
            offset_pointer(builder, left, multiply(builder, block, left_stride), 1),
            b,
            SplitTarget(offset_pointer(builder, acc.pointer, add(builder, row, column), item), acc.pitch * item, spare),
            i64(steps),
            Ahead(asked, i64(lines * line)),
            accumulate=bool(op.accumulate.value.data),
        )
    release_tiles(builder)


def _blocks_of(
    context: FunctionContext, op: scheduled.DotOp, ref: SSAValue, map: AffineMap
) -> tuple[Value, int, Value]:
    """Where an operand in parts begins, how many bytes its blocks of rows or columns are apart, and how many of them
    there are from there on."""
    type, dim = tile.ref_type(ref), len(map.results) - 2
    strides = [math.prod(type.shape[d + 1 :]) * type.dtype.itemsize for d in range(len(type.shape))]
    starts = [_form(context, form, list(op.symbols)) for form in _forms(map)]
    offset: Value = i64(0)
    for start, stride in zip(starts, strides, strict=False):
        offset = add(context.builder, offset, multiply(context.builder, start, stride))
    present = add(context.builder, i64(type.shape[dim]), multiply(context.builder, starts[dim], -1))
    return offset_pointer(context.builder, context.pointers[ref], offset, 1), strides[dim], present


class _Product:
    def __init__(self, context: FunctionContext, op: scheduled.DotOp) -> None:
        self.context, self.op = context, op
        if len({tile.ref_type(ref).dtype for ref in (op.left, op.right, op.accumulator)}) > 1:
            raise CompilerBug("a product of operands that have not the accumulator's type")
        self.builder: Builder = context.builder
        self.type = tile.ref_type(op.accumulator)
        self.lanes = context.machine.lanes(self.type.dtype)
        self.accumulate = bool(op.accumulate.value.data)
        self.left, self.right = left_of(context, op), _right(context, op)
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
        """Scratch memory for one panel of the right operand, where the product is to keep them."""
        if self.op.keep is None:
            return None
        width, depth = self.op.micro_tile[1], self.op.shape[2]
        if self.op.keep.value.data:
            self.context.kept[self.op.right] = self.context.temporary(depth * width * self.type.dtype.itemsize)
        return Walk(self.context.kept[self.op.right], width)

    def _emit_panel(self, panel: Value, present: int) -> None:
        """All blocks of rows against one panel, of which `present` columns exist."""
        right, item = self.right, self.type.dtype.itemsize
        start = offset_pointer(self.builder, right.pointer, multiply(self.builder, panel, right.panel_stride), item)
        following = offset_pointer(self.builder, start, i64(right.panel_stride), item)
        lies = _Panel(panel, present, Walk(start, right.depth_stride), following)
        height, blocks = self.op.micro_tile[0], self._whole_blocks()
        if self.kept is None or self.op.keep is None:
            self._emit_blocks(lies, i64(0), blocks)
            return
        first, later = replace(lies, kept=self.kept), replace(lies, walk=self.kept)
        if not self.op.keep.value.data:
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
        a = offset_pointer(builder, left.pointer, multiply(builder, row, left.row_stride), item)
        start = add(builder, multiply(builder, row, pitch), multiply(builder, panel.number, width))
        c = offset_pointer(builder, self.acc.pointer, start, item)
        ahead = self._ahead(panel.following, block)
        room = panel.present if self.acc.rows is not None else width
        kernel = MicroKernel(builder, self.type.dtype, height, room, panel.present, self.lanes, ahead, panel.kept)
        kernel.emit(
            Walk(a, left.depth_stride, left.row_stride),
            panel.walk,
            c,
            pitch,
            self.depth,
            accumulate=self.accumulate,
        )

    def _turn(self, turn: DenseArrayBase) -> tuple[Value, int]:
        """Which turn of how many this product is."""
        position, count = decode(turn)
        return self.context.scalars[self.op.symbols[position]], count

    def _ahead(self, panel: Value, block: Value | None) -> Ahead | None:
        """What the block of rows `block` asks for of the next `panel`."""
        if block is None:
            return None
        rows, _, _ = self.op.shape
        blocks = -(-rows // self.op.micro_tile[0])
        if self.op.turn is not None:
            block, blocks = self._turn(self.op.turn)
        if self.right.depth_stride == self.op.micro_tile[1]:
            return self._ahead_of_panel(panel, block, blocks)
        return self._ahead_of_rows(panel, block, blocks) if self.kept is not None else None

    def _ahead_of_panel(self, panel: Value, block: Value, blocks: int) -> Ahead:
        """Each of the blocks asks for an equal part of it, in whole lines a trip."""
        line_bytes = self.context.machine.memory("l1").line_bytes
        depth = self.op.shape[2]
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
        item = self.type.dtype.itemsize
        pitch_bytes = self.right.depth_stride * item
        row_lines = -(-self.op.micro_tile[1] * item // line_bytes)
        lines = -(-DEPTH_UNROLL * row_lines // blocks)
        pointers: list[Value] = []
        for line in range(lines):
            number = add(builder, multiply(builder, block, lines), i64(line))
            row, within = builder.udiv(number, i64(row_lines)), builder.urem(number, i64(row_lines))
            start = add(builder, multiply(builder, row, pitch_bytes), multiply(builder, within, line_bytes))
            # A row need not begin where a line does: by their last bytes, all lines but the first are met, and that
            # one is the last of the panel before.
            pointers.append(offset_pointer(builder, panel, add(builder, start, i64(line_bytes - 1)), 1))
        left = builder.icmp_signed("<", multiply(builder, block, lines), i64(DEPTH_UNROLL * row_lines))
        return Ahead(tuple(pointers), builder.select(left, i64(pitch_bytes), i64(0)))

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


def depth_of(context: FunctionContext, op: scheduled.DotOp, depth: int) -> Value:
    if op.depth_map is None or op.depth_limit is None:
        return i64(depth)
    form = linear_form(op.depth_map.data.results[0], ())
    if form is None:
        raise CompilerBug("the depth of a product is not linear")
    room = context.room(int(op.depth_limit.value.data), form, op.symbols)
    return minimum(context.builder, i64(depth), room)


def _form(context: FunctionContext, form: Form, symbols: list[SSAValue]) -> Value:
    total: Value = i64(form.constant)
    for position, coefficient in form.symbols:
        total = add(context.builder, total, multiply(context.builder, context.scalars[symbols[position]], coefficient))
    return total


def _forms(map: AffineMap) -> list[Form]:
    at = (Index(0), Index(1))
    forms = [linear_form(e, at) for e in map.results]
    if any(f is None for f in forms):
        raise CompilerBug(f"operand map {map} is not linear")
    return [f for f in forms if f is not None]


def left_of(context: FunctionContext, op: scheduled.DotOp) -> Left:
    """A strided operand."""
    type = tile.ref_type(op.left)
    forms = _forms(op.left_map.data)
    row_stride = depth_stride = 0
    offset: Value = i64(0)
    rows: Value = i64(op.shape[0])
    counts = frozenset({op.shape[0]})
    for term in address_terms(type):
        if term.divisor != 1 or term.modulus is not None:
            raise CompilerBug("the left operand of a product is not strided")
        form = forms[term.dim]
        row_stride += term.stride * form.coefficient(0)
        depth_stride += term.stride * form.coefficient(1)
        start = _form(context, form, list(op.symbols))
        offset = add(context.builder, offset, multiply(context.builder, start, term.stride))
        if form.coefficient(0):
            size = type.shape[term.dim]
            rows = minimum(context.builder, rows, context.room(size, form, op.symbols))
            counts = _counts(context, form, op.symbols, size, op.shape[0])
    pointer = offset_pointer(context.builder, context.pointers[op.left], offset, type.dtype.itemsize)
    return Left(pointer, row_stride, depth_stride, rows, counts)


def accumulator_of(context: FunctionContext, op: scheduled.DotOp) -> Accumulator:
    type = tile.ref_type(op.accumulator)
    if op.accumulator_map is None:
        return Accumulator(context.pointers[op.accumulator], type.shape[1])
    builder, width = context.builder, op.micro_tile[1]
    offset, rows, columns, panels = i64(0), i64(op.shape[0]), i64(op.shape[1]), i64(-(-op.shape[1] // width))
    pitch = tail = 0
    counts = frozenset({op.shape[0]})
    for term, form in zip(address_terms(type), _forms(op.accumulator_map.data), strict=True):
        start = _form(context, form, list(op.symbols))
        offset = add(builder, offset, multiply(builder, start, term.stride))
        size = type.shape[term.dim]
        if form.coefficient(0):
            pitch = term.stride
            rows = minimum(builder, rows, context.room(size, form, op.symbols))
            counts = _counts(context, form, op.symbols, size, op.shape[0])
        if form.coefficient(1):
            tail = size % width
            columns = minimum(builder, columns, context.room(size, form, op.symbols))
            room = add(builder, context.room(size, form, op.symbols), i64(width - 1))
            known = static(room)
            panels = i64(known // width) if known is not None else builder.udiv(room, i64(width))
    pointer = offset_pointer(builder, context.pointers[op.accumulator], offset, type.dtype.itemsize)
    return Accumulator(pointer, pitch, rows, counts, columns, panels, tail)


def _counts(context: FunctionContext, start: Form, symbols: Sequence[SSAValue], size: int, most: int) -> frozenset[int]:
    """How many of `most` positions from a start on may lie below `size`, for every value of the index scalars."""
    starts = {start.constant}
    for position, coefficient in start.symbols:
        steps = [coefficient * value for value in range(context.bound(symbols[position]))]
        starts = {low + step for low in starts for step in steps}
    return frozenset(max(0, min(most, size - low)) for low in starts)


def _right(context: FunctionContext, op: scheduled.DotOp) -> _Right:
    """An operand in panels, or one whose columns follow each other in memory."""
    type = tile.ref_type(op.right)
    forms = _forms(op.right_map.data)
    width = op.micro_tile[1]
    panel = depth = tail = 0
    offset: Value = i64(0)
    remaining: Value = i64(-(-op.shape[1] // width))
    builder = context.builder
    for term in address_terms(type):
        form = forms[term.dim]
        start = _form(context, form, list(op.symbols))
        if form.coefficient(1):
            # The tile starts at a whole panel, so only the panel number moves the start. Where the depth is 1, panels
            # follow each other without a gap and the layout is one run of columns too.
            whole = term.divisor == 1 and term.modulus is None
            if term.divisor == width or whole:
                step = term.stride * (width if whole else 1)
                panel += step
                known = static(start)
                number = i64(known // width) if known is not None else builder.sdiv(start, i64(width))
                offset = add(builder, offset, multiply(builder, number, step))
                size = type.shape[term.dim]
                total = -(-size // width)
                # What has a layout is padded to whole panels.
                tail = 0 if type.layout.data else size % width
                moves = static(number) is None
                remaining = builder.sub(i64(total), number) if moves else i64(total - int(static(number) or 0))
                if context.highest(form, op.symbols) // width > total:
                    remaining = maximum(builder, remaining, i64(0))
            elif term.divisor != 1 or term.stride != 1:
                raise CompilerBug("the right operand of a product is not in panels of the register block's width")
            continue
        if term.divisor != 1 or term.modulus is not None:
            raise CompilerBug("the right operand of a product is split along its depth")
        depth += term.stride * form.coefficient(0)
        offset = add(builder, offset, multiply(builder, start, term.stride))
    pointer = offset_pointer(builder, context.pointers[op.right], offset, type.dtype.itemsize)
    return _Right(pointer, panel, depth, remaining, tail)
