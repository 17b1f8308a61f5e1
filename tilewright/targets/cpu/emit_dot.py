"""Print a register-blocked matrix product: panels of the right operand outside, blocks of rows inside, and in the
middle a micro-kernel that keeps a block of the accumulator in vector registers over the whole depth."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Form, Index, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.conversions import register_form
from tilewright.targets.cpu.loops import (
    I64,
    add,
    broadcast,
    i64,
    loop,
    maximum,
    minimum,
    multiply,
    offset_pointer,
    prefetch,
    static,
)
from tilewright.targets.cpu.vector_math_common import Builder, Value, intrinsic, splat

DEPTH_UNROLL = 4


@dataclass(frozen=True)
class _Operand:
    """Memory walk of one operand, in elements: pointer to the tile's origin and the strides of its two dimensions."""

    pointer: Value
    outer_stride: int
    depth_stride: int
    panels: Value | None = None


@dataclass(frozen=True)
class _Ahead:
    """The next panel of the right operand, asked for while this one is in use: each trip of a block's depth loop takes
    `lines` cache lines, the block's first from `pointer`."""

    pointer: Value
    lines: int
    line_bytes: int


def emit_dot(context: FunctionContext, op: scheduled.DotOp) -> None:
    """Append the code of one product at the builder's position."""
    builder = context.builder
    rows, columns, depth = op.shape
    micro_rows, micro_columns = op.micro_tile
    acc_type = tile.ref_type(op.accumulator)
    left = _left(context, op)
    right = _right(context, op)
    extent = _depth(context, op, depth)
    acc_stride = acc_type.shape[1]
    item = acc_type.dtype.itemsize
    panels, blocks = -(-columns // micro_columns), -(-rows // micro_rows)
    # The last tile of a row of tiles may reach beyond the operand's last panel.
    last_panel = i64(panels) if right.panels is None else minimum(builder, i64(panels), right.panels)
    if not op.accumulate.value.data and static(last_panel) != panels:
        _clear(context, op, last_panel, panels)
    if static(last_panel) == 0:
        return
    with loop(builder, i64(0), last_panel, 1, "panel") as panel:
        b = offset_pointer(builder, right.pointer, multiply(builder, panel, right.outer_stride), item)
        c_panel = offset_pointer(
            builder, context.pointers[op.accumulator], multiply(builder, panel, micro_columns), item
        )
        with loop(builder, i64(0), i64(blocks), 1, "block") as block:
            a = offset_pointer(builder, left.pointer, multiply(builder, block, micro_rows * left.outer_stride), item)
            c = offset_pointer(builder, c_panel, multiply(builder, block, micro_rows * acc_stride), item)
            lanes = context.machine.lanes(acc_type.dtype)
            ahead = _ahead(context, offset_pointer(builder, b, i64(right.outer_stride), item), block, op)
            kernel = _MicroKernel(builder, acc_type.dtype, micro_rows, micro_columns, lanes, ahead)
            kernel.emit(
                _Operand(a, left.outer_stride, left.depth_stride),
                _Operand(b, right.outer_stride, right.depth_stride),
                c,
                acc_stride,
                extent,
                accumulate=bool(op.accumulate.value.data),
            )


def _clear(context: FunctionContext, op: scheduled.DotOp, first: Value, panels: int) -> None:
    """Zeros where the operand has no panels."""
    builder = context.builder
    type = tile.ref_type(op.accumulator)
    width = op.micro_tile[1]
    lanes = context.machine.lanes(type.dtype)
    zeros = splat(ir.VectorType(register_form(type.dtype), lanes), 0)
    with loop(builder, first, i64(panels), 1, "empty") as panel, loop(builder, i64(0), i64(op.shape[0]), 1) as row:
        start = add(builder, multiply(builder, row, type.shape[1]), multiply(builder, panel, width))
        pointer = offset_pointer(builder, context.pointers[op.accumulator], start, type.dtype.itemsize)
        for column in range(0, width, lanes):
            place = offset_pointer(builder, pointer, i64(column), type.dtype.itemsize)
            builder.store(zeros, place, align=type.dtype.itemsize)


def _ahead(context: FunctionContext, panel: Value, block: Value, op: scheduled.DotOp) -> _Ahead:
    """What the block of rows `block` asks for of the next `panel`: an equal part, in whole lines a trip."""
    rows, _, depth = op.shape
    micro_rows, micro_columns = op.micro_tile
    line_bytes = context.machine.memory("l1").line_bytes
    panel_lines = -(-depth * micro_columns * tile.ref_type(op.right).dtype.itemsize // line_bytes)
    trips = -(-depth // DEPTH_UNROLL)
    blocks = -(-rows // micro_rows)
    lines = -(-panel_lines // (trips * blocks))
    part = multiply(context.builder, block, lines * trips * line_bytes)
    return _Ahead(offset_pointer(context.builder, panel, part, 1), lines, line_bytes)


def _depth(context: FunctionContext, op: scheduled.DotOp, depth: int) -> Value:
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


def _left(context: FunctionContext, op: scheduled.DotOp) -> _Operand:
    type = tile.ref_type(op.left)
    if type.dtype != tile.ref_type(op.accumulator).dtype:
        raise CompilerBug("the left operand of a product has not the accumulator's type")
    forms = _forms(op.left_map.data)
    row = depth = 0
    offset: Value = i64(0)
    for term in address_terms(type):
        if term.divisor != 1 or term.modulus is not None:
            raise CompilerBug("the left operand of a product is not strided")
        form = forms[term.dim]
        row += term.stride * form.coefficient(0)
        depth += term.stride * form.coefficient(1)
        start = _form(context, form, list(op.symbols))
        offset = add(context.builder, offset, multiply(context.builder, start, term.stride))
    pointer = offset_pointer(context.builder, context.pointers[op.left], offset, type.dtype.itemsize)
    return _Operand(pointer, row, depth)


def _right(context: FunctionContext, op: scheduled.DotOp) -> _Operand:
    """A panelled operand: `outer_stride` from panel to panel."""
    type = tile.ref_type(op.right)
    if type.dtype != tile.ref_type(op.accumulator).dtype:
        raise CompilerBug("the right operand of a product has not the accumulator's type")
    forms = _forms(op.right_map.data)
    width = op.micro_tile[1]
    panel = depth = 0
    offset: Value = i64(0)
    remaining: Value | None = None
    builder = context.builder
    for term in address_terms(type):
        form = forms[term.dim]
        start = _form(context, form, list(op.symbols))
        if form.coefficient(1):
            # Columns: the tile starts at a whole panel, so only the panel number moves the start. Where the depth is 1,
            # panels follow each other without a gap and the layout is one run of columns.
            whole = term.divisor == 1 and term.modulus is None
            if term.divisor == width or whole:
                step = term.stride * (width if whole else 1)
                panel += step
                known = static(start)
                number = i64(known // width) if known is not None else builder.sdiv(start, i64(width))
                offset = add(builder, offset, multiply(builder, number, step))
                total = -(-type.shape[term.dim] // width)
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
    return _Operand(pointer, panel, depth, remaining)


@dataclass(frozen=True)
class _MicroKernel:
    """`rows x columns` accumulators in registers, `columns` a multiple of the vector width."""

    builder: Builder
    dtype: DType
    rows: int
    columns: int
    lanes: int
    ahead: _Ahead

    def emit(
        self, left: _Operand, right: _Operand, acc: Value, acc_stride: int, depth: Value, *, accumulate: bool
    ) -> None:
        shape = ir.VectorType(register_form(self.dtype), self.lanes)
        vectors = self.columns // self.lanes
        places = [(r, v) for r in range(self.rows) for v in range(vectors)]
        pointers = {p: self._at(acc, p[0] * acc_stride + p[1] * self.lanes) for p in places}
        # Sums of one block of the depth start from zero: added to the others' sum at the end, their rounding errors
        # grow with the number of blocks plus the depth of one, not with the whole depth.
        totals: list[Value] = [splat(shape, 0) for _ in places]
        known = static(depth)
        whole: Value
        if known is not None:
            whole = i64(known // DEPTH_UNROLL * DEPTH_UNROLL)
        else:
            whole = self.builder.and_(depth, i64(-DEPTH_UNROLL))
        totals = self._depth_loop(left, right, i64(0), whole, DEPTH_UNROLL, totals, shape)
        totals = self._depth_loop(left, right, whole, depth, 1, totals, shape)
        for place, total in zip(places, totals, strict=True):
            if accumulate:
                earlier = self.builder.load(pointers[place], align=self.dtype.itemsize, typ=shape)
                total = self._sum(earlier, total)
            self.builder.store(total, pointers[place], align=self.dtype.itemsize)

    def _sum(self, x: Value, y: Value) -> Value:
        return self.builder.fadd(x, y) if self.dtype.is_float else self.builder.add(x, y)

    def _at(self, base: Value, elements: int) -> Value:
        return offset_pointer(self.builder, base, i64(elements), self.dtype.itemsize)

    def _depth_loop(
        self,
        left: _Operand,
        right: _Operand,
        start: Value,
        end: Value,
        step: int,
        totals: list[Value],
        shape: ir.VectorType,
    ) -> list[Value]:
        """`step` rank-one updates a trip; the totals live in registers across trips."""
        builder = self.builder
        first, last = static(start), static(end)
        if first is not None and first == last:
            return totals
        before = builder.block
        body, after = builder.append_basic_block("depth"), builder.append_basic_block("depth.end")
        if first is not None and last is not None:
            builder.branch(body)
        else:
            builder.cbranch(builder.icmp_signed("<", start, end), body, after)
        builder.position_at_end(body)
        index = builder.phi(I64, "k")
        index.add_incoming(start, before)
        running: list[Value] = []
        for total in totals:
            phi = builder.phi(shape)
            phi.add_incoming(total, before)
            running.append(phi)
        a = offset_pointer(builder, left.pointer, multiply(builder, index, left.depth_stride), self.dtype.itemsize)
        b = offset_pointer(builder, right.pointer, multiply(builder, index, right.depth_stride), self.dtype.itemsize)
        if step == DEPTH_UNROLL:
            self._prefetch(index)
        updated: list[Value] = list(running)
        for position in range(step):
            updated = self._rank_one(a, b, left, right, position, updated, shape)
        following = builder.add(index, i64(step), flags=["nsw"])
        index.add_incoming(following, builder.block)
        for phi, value in zip(running, updated, strict=True):
            phi.add_incoming(value, builder.block)
        latch = builder.block
        builder.cbranch(builder.icmp_signed("<", following, end), body, after)
        builder.position_at_end(after)
        if first is not None and last is not None:
            return updated
        joined: list[Value] = []
        for total, value in zip(totals, updated, strict=True):
            phi = builder.phi(shape)
            phi.add_incoming(total, before)
            phi.add_incoming(value, latch)
            joined.append(phi)
        return joined

    def _prefetch(self, index: Value) -> None:
        """Ask the second-level cache for the next panel's lines that belong to the trip at `index`."""
        bytes_a_trip = self.ahead.lines * self.ahead.line_bytes
        offset = multiply(self.builder, index, bytes_a_trip // DEPTH_UNROLL)
        for line in range(self.ahead.lines):
            position = add(self.builder, offset, i64(line * self.ahead.line_bytes))
            prefetch(self.builder, offset_pointer(self.builder, self.ahead.pointer, position, 1))

    def _rank_one(
        self,
        a: Value,
        b: Value,
        left: _Operand,
        right: _Operand,
        position: int,
        totals: list[Value],
        shape: ir.VectorType,
    ) -> list[Value]:
        builder = self.builder
        vectors = self.columns // self.lanes
        base = position * right.depth_stride
        columns = [
            builder.load(self._at(b, base + v * self.lanes), align=self.dtype.itemsize, typ=shape)
            for v in range(vectors)
        ]
        result: list[Value] = []
        for r in range(self.rows):
            element = self._at(a, r * left.outer_stride + position * left.depth_stride)
            scalar = builder.load(element, typ=shape.element)
            spread = broadcast(builder, scalar, self.lanes)
            for v in range(vectors):
                result.append(self._multiply_add(spread, columns[v], totals[r * vectors + v]))
        return result

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        if self.dtype.is_float:
            return intrinsic(self.builder, "fma", [x, y, total])
        return self.builder.add(total, self.builder.mul(x, y))
