"""Print a matmul of few rows whose right operand is with the depth inside: sums of matmuls along the depth, vectors of
both operands at a time, so that the right operand is read once, as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llvmlite import ir

from tilewright.dialects import scheduled, tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Index, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.dot_operands import accumulator_of, depth_of, left_of
from tilewright.targets.cpu.loops import (
    I32,
    add,
    broadcast,
    entry_alloca,
    i64,
    lane_numbers,
    loop,
    minimum,
    multiply,
    offset_pointer,
    static,
)
from tilewright.targets.cpu.masked_memory import masked_load, masked_store
from tilewright.targets.llvm.conversions import load_form, register_form, widen
from tilewright.targets.llvm.values import Builder, Value, intrinsic, shuffle, splat

MOST_ROWS = 4
# Columns that are read side by side: no more streams than the hardware follows, nor lines than one set of the
# first-level cache holds, where columns are a multiple of its period apart.
STREAMS = 8


@dataclass(frozen=True)
class _Right:
    """The right operand from the tile's origin on, in elements; `columns` of the tile exist."""

    pointer: Value
    column_stride: int
    columns: Value


def lies_along_depth(op: scheduled.DotOp) -> bool:
    """Whether neighbours along the depth of the right operand are neighbours in memory, and its columns are not."""
    type = tile.ref_type(op.right)
    if type.layout.data or op.is_split or op.outer_steps:
        return False
    strides = [0, 0]
    for term in address_terms(type):
        form = linear_form(op.right_map.results[term.dim], (Index(0), Index(1)))
        for dim in (0, 1):
            strides[dim] += term.stride * form.coefficient(dim) if form is not None else 0
    return strides[0] == 1 and strides[1] != 1


def emit_row_dot(context: FunctionContext, op: scheduled.DotOp) -> None:
    """Append the code of one such matmul at the builder's position."""
    _RowDot(context, op).emit()


class _RowDot:
    def __init__(self, context: FunctionContext, op: scheduled.DotOp) -> None:
        self.context, self.op = context, op
        self.builder: Builder = context.builder
        self.type = tile.ref_type(op.accumulator)
        self.lanes = context.machine.lanes(self.type.dtype)
        self.shape = ir.VectorType(register_form(self.type.dtype), self.lanes)
        self.accumulate = bool(op.accumulate)
        self.left, self.right = left_of(context, op), _right(context, op)
        self.left_dtype, self.right_dtype = (tile.ref_type(ref).dtype for ref in (op.left, op.right))
        if self.left.depth_stride > 1:
            raise CompilerBug("the left operand of a row-wise matmul is not contiguous along the depth")
        self.acc = accumulator_of(context, op)
        self.rows, self.columns = self.left.rows, self.right.columns
        if self.acc.rows is not None and self.acc.columns is not None:
            self.rows = minimum(self.builder, self.rows, self.acc.rows)
            self.columns = minimum(self.builder, self.columns, self.acc.columns)
        self.depth = depth_of(context, op, op.shape[2])

    def emit(self) -> None:
        known = static(self.rows)
        whole = known == self.op.shape[0] and static(self.columns) == self.op.shape[1]
        if not self.accumulate and self.acc.rows is None and not whole:
            self._clear()
        if known is None:
            with loop(self.builder, i64(0), self.rows, 1, "row") as row:
                self._emit_groups([(row, 1)])
            return
        most = min(MOST_ROWS, self.lanes)
        count = -(-known // most)
        ends = [known * n // count for n in range(count + 1)]
        self._emit_groups([(i64(first), end - first) for first, end in pairwise(ends)])

    def _emit_groups(self, groups: Sequence[tuple[Value, int]]) -> None:
        """All groups of rows against some columns, which are near then, before the next columns: as many at a time as
        there are lanes for."""
        width = self.lanes // (1 << (max(rows for _, rows in groups) - 1).bit_length())
        known = static(self.columns)
        if known is not None:
            width = min(width, 1 << (known - 1).bit_length())
        whole = i64(known // width * width) if known is not None else self.builder.and_(self.columns, i64(-width))
        if static(whole) != 0:
            with loop(self.builder, i64(0), whole, width, "column") as column:
                for row, rows in groups:
                    self._emit_columns(row, rows, column, width, None)
        if width == 1 or (known is not None and known % width == 0):
            return
        rest = self.builder.sub(self.columns, whole)
        with self.builder.if_then(self.builder.icmp_signed(">", rest, i64(0))):
            for row, rows in groups:
                self._emit_columns(row, rows, whole, width, rest)

    def _clear(self) -> None:
        """Zeros, for the rows and columns that the operands lack."""
        rows, columns, _ = self.op.shape
        every_row = loop(self.builder, i64(0), i64(rows), 1, "row")
        with every_row as row, loop(self.builder, i64(0), i64(columns), self.lanes, "column") as column:
            self._store(splat(self.shape, 0), row, column)

    def _emit_columns(self, row: Value, rows: int, column: Value, width: int, present: Value | None) -> None:
        """A block of the result, of which only `present` columns exist if that is given: the last stands for others."""
        builder = self.builder
        columns: list[Value] = []
        for n in range(width):
            number: Value = i64(n)
            if present is not None:
                number = minimum(builder, number, builder.sub(present, i64(1)))
            start = multiply(builder, add(builder, column, number), self.right.column_stride)
            columns.append(offset_pointer(builder, self.right.pointer, start, self.right_dtype.itemsize))
        starts = [multiply(builder, add(builder, row, i64(n)), self.left.row_stride) for n in range(rows)]
        item = self.left_dtype.itemsize
        totals = self._sums([offset_pointer(builder, self.left.pointer, start, item) for start in starts], columns)
        for n in range(rows):
            part = self._lanes(totals, n * width, width)
            inside: Value | None = None
            if present is not None:
                inside = builder.icmp_signed(
                    "<", lane_numbers(I32, width), broadcast(builder, builder.trunc(present, I32), width)
                )
                part = builder.select(inside, part, splat(part.type, 0))
            self._store(part, add(builder, row, i64(n)), column, inside)

    def _sums(self, rows: Sequence[Value], columns: Sequence[Value]) -> Value:
        """The matmuls of rows and columns, one a lane."""
        builder = self.builder
        slots = [[entry_alloca(builder, self.shape) for _ in columns] for _ in rows]
        for slot in (slot for row in slots for slot in row):
            builder.store(splat(self.shape, 0), slot)
        for first in range(0, len(columns), STREAMS):
            some = slice(first, first + STREAMS)
            self._add_all_products(rows, columns[some], [row[some] for row in slots])
        return self._across([builder.load(slot, typ=self.shape) for row in slots for slot in row])

    def _add_all_products(
        self, rows: Sequence[Value], columns: Sequence[Value], slots: Sequence[Sequence[Value]]
    ) -> None:
        """Add what the whole depth gives to the slot of each row and column."""
        builder = self.builder
        known = static(self.depth)
        whole = (
            i64(known // self.lanes * self.lanes) if known is not None else builder.and_(self.depth, i64(-self.lanes))
        )
        if static(whole) != 0:
            with loop(builder, i64(0), whole, self.lanes, "depth") as position:
                self._add_products(rows, columns, slots, position, None)
        if known is None or known % self.lanes:
            rest = builder.trunc(builder.sub(self.depth, whole), I32)
            mask = builder.icmp_signed("<", lane_numbers(I32, self.lanes), broadcast(builder, rest, self.lanes))
            self._add_products(rows, columns, slots, whole, mask)

    def _add_products(
        self,
        rows: Sequence[Value],
        columns: Sequence[Value],
        slots: Sequence[Sequence[Value]],
        position: Value,
        mask: Value | None,
    ) -> None:
        """Add what one vector along the depth gives."""
        left = [self._load(row, position, mask, self.left_dtype) for row in rows]
        right = [self._load(column, position, mask, self.right_dtype) for column in columns]
        for x, row in zip(left, slots, strict=True):
            for y, slot in zip(right, row, strict=True):
                self.builder.store(self._multiply_add(x, y, self.builder.load(slot, typ=self.shape)), slot)

    def _load(self, pointer: Value, position: Value, mask: Value | None, dtype: DType) -> Value:
        item, shape = dtype.itemsize, load_form(dtype, self.lanes)
        at = offset_pointer(self.builder, pointer, position, item)
        if mask is None:
            return widen(self.builder, self.builder.load(at, align=item, typ=shape), dtype)
        return widen(self.builder, masked_load(self.builder, at, mask, shape, item), dtype)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        if self.type.dtype.is_float:
            return intrinsic(self.builder, "fma", [x, y, total])
        return self.builder.add(total, self.builder.mul(x, y))

    def _plus(self, x: Value, y: Value) -> Value:
        return self.builder.fadd(x, y) if self.type.dtype.is_float else self.builder.add(x, y)

    def _across(self, vectors: list[Value]) -> Value:
        """The sum of each vector's lanes, in the vectors' order: two vectors at a time become one with half the lanes
        of each."""
        vectors = [*vectors, *[splat(self.shape, 0)] * (self.lanes - len(vectors))]
        length = self.lanes
        while length > 1:
            starts = [start for start in range(0, 2 * self.lanes, length)]
            low = [start + n for start in starts for n in range(length // 2)]
            high = [lane + length // 2 for lane in low]
            vectors = [
                self._plus(shuffle(self.builder, a, b, low), shuffle(self.builder, a, b, high))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            length //= 2
        return vectors[0]

    def _lanes(self, value: Value, start: int, count: int) -> Value:
        """Some neighbouring lanes of a vector."""
        return value if count == self.lanes else shuffle(self.builder, value, value, range(start, start + count))

    def _store(self, part: Value, row: Value, column: Value, inside: Value | None = None) -> None:
        """Write a vector of the accumulator, or add to it; of an array only the lanes inside."""
        item = self.type.dtype.itemsize
        start = add(self.builder, multiply(self.builder, row, self.acc.pitch), column)
        pointer = offset_pointer(self.builder, self.acc.pointer, start, item)
        if inside is not None and self.acc.rows is not None:
            masked_store(self.builder, part, pointer, inside, item)
            return
        if self.accumulate:
            part = self._plus(self.builder.load(pointer, align=item, typ=part.type), part)
        self.builder.store(part, pointer, align=item)


def _right(context: FunctionContext, op: scheduled.DotOp) -> _Right:
    """An operand without a layout whose depth runs inside."""
    builder, type = context.builder, tile.ref_type(op.right)
    offset: Value = i64(0)
    columns: Value = i64(op.shape[1])
    stride = 0
    for term in address_terms(type):
        form = linear_form(op.right_map.results[term.dim], (Index(0), Index(1)))
        if form is None:
            raise CompilerBug(f"operand map {op.right_map} is not linear")
        start: Value = i64(form.constant)
        for position, coefficient in form.symbols:
            start = add(builder, start, multiply(builder, context.scalars[op.symbols[position]], coefficient))
        offset = add(builder, offset, multiply(builder, start, term.stride))
        stride += term.stride * form.coefficient(1)
        if form.coefficient(1):
            columns = minimum(builder, columns, context.room(type.shape[term.dim], form, op.symbols))
    return _Right(offset_pointer(builder, context.pointers[op.right], offset, type.dtype.itemsize), stride, columns)
