"""Print the middle of a matmul: a block of the accumulator stays in vector registers over the whole depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.machines.machine import MatrixAtom
from tilewright.targets.cpu.atoms.word_multiply import multiply_words
from tilewright.targets.cpu.loops import (
    I1,
    I32,
    add,
    broadcast,
    i64,
    loop,
    multiply,
    offset_pointer,
    opaque,
    prefetch,
    static,
)
from tilewright.targets.cpu.masked_memory import masked_load, masked_store
from tilewright.targets.llvm.conversions import load_form, register_form, widen
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat

DEPTH_UNROLL = 4
# Steps, at most, that are summed in registers over several dims.
BLOCK_DEPTH = 2048
# Multiplications of vectors, at most, in the straight-line code of a nest of summed dims.
NEST_MULTIPLIES = 256


# What a loop carries, after a trip, from its counter and what it carried before.
Trip = Callable[[Value, list[Value]], list[Value]]


@dataclass(frozen=True)
class Walk:
    """The address of a block's operand: a pointer, and elements from row to row (of a left operand) and from depth to
    depth."""

    pointer: Value
    depth_stride: int
    row_stride: int = 1


@dataclass(frozen=True)
class Step:
    """A summed dim around the depth: its size, and elements from one to the next in the left and right operands."""

    size: int
    left_stride: int
    right_stride: int


@dataclass(frozen=True)
class Block:
    """A block of a matmul: its operands, the depth and the steps around it, and the accumulator, whose rows are
    `acc_stride` elements apart."""

    left: Walk
    right: Walk
    depth: Value
    steps: Sequence[Step]
    acc: Value
    acc_stride: int


@dataclass(frozen=True)
class Ahead:
    """Lines of the next panel of the right operand, asked for while this one is in use: each trip of a block's depth
    loop takes one from each of `pointers`, which move on by `step_bytes` with each step of the depth."""

    pointers: tuple[Value, ...]
    step_bytes: Value


@dataclass(frozen=True)
class MicroKernel:
    """`rows` x `columns` accumulators, of which the last vector is partly written if `columns` is no multiple of the
    vector width; of the right operand, of `right_dtype`, only `present` columns may be read, and the others are zeros.
    Its elements are also written to the panel `kept`, if there is one. With `words` a step multiplies words of several
    steps of the depth, adjacent in the left operand and in words of the right one."""

    builder: Builder
    dtype: DType
    left_dtype: DType
    right_dtype: DType
    rows: int
    columns: int
    present: int
    lanes: int
    ahead: Ahead | None
    kept: Walk | None = None
    words: MatrixAtom | None = None

    def emit(self, block: Block, accumulate: bool) -> None:
        steps = block.steps
        inner = next(n for n in range(len(steps) + 1) if self._is_summed_at_once(block.depth, steps[n:]))
        if not inner:
            self._emit_sums(block, accumulate)
            return
        if not accumulate:
            self._clear(block.acc, block.acc_stride)
        left, right = block.left, block.right
        with ExitStack() as loops:
            for step in steps[:inner]:
                index = loops.enter_context(loop(self.builder, i64(0), i64(step.size), 1, "step"))
                left = self._moved(left, index, step.left_stride, self.left_dtype)
                right = self._moved(right, index, step.right_stride, self.right_dtype)
            self._emit_sums(replace(block, left=left, right=right, steps=steps[inner:]), accumulate=True)

    def _clear(self, acc: Value, acc_stride: int) -> None:
        for row in range(self.rows):
            for first in range(0, self.columns, self.lanes):
                self._store(splat(self._shape, 0), self._at(acc, row * acc_stride + first), self.columns - first)

    def _is_summed_at_once(self, depth: Value, steps: Sequence[Step]) -> bool:
        """Whether steps, of the depth too, are summed in registers; those of the depth alone are."""
        known = static(depth)
        return not steps or (known is not None and known * math.prod(step.size for step in steps) <= BLOCK_DEPTH)

    @property
    def _vectors(self) -> int:
        return -(-self.columns // self.lanes)

    def _emit_sums(self, block: Block, accumulate: bool) -> None:
        """Sum a block in registers. Sums start from zero: added to the others' sum at the end, their rounding errors
        grow with the number of blocks plus the depth of one, not with the whole depth."""
        used = -(-self.present // self.lanes)
        totals: list[Value] = [splat(self._shape, 0) for _ in range(self.rows * used)]
        known = static(block.depth)
        is_short = bool(block.steps) and known is not None and known * len(totals) <= NEST_MULTIPLIES
        unroll = known if is_short and known else DEPTH_UNROLL
        totals = self._nest(block.left, block.right, block.depth, unroll, block.steps, totals)
        for row in range(self.rows):
            for vector in range(self._vectors):
                if vector >= used and accumulate:
                    continue
                pointer = self._at(block.acc, row * block.acc_stride + vector * self.lanes)
                total = totals[row * used + vector] if vector < used else splat(self._shape, 0)
                if accumulate:
                    total = self._sum(self._earlier(pointer, self.columns - vector * self.lanes), total)
                self._store(total, pointer, self.columns - vector * self.lanes)

    def _earlier(self, pointer: Value, columns: int) -> Value:
        """A vector of the accumulator."""
        if columns >= self.lanes:
            return self.builder.load(pointer, align=self.dtype.itemsize, typ=self._shape)
        return masked_load(self.builder, pointer, self._mask(columns), self._shape, self.dtype.itemsize)

    def _store(self, total: Value, pointer: Value, columns: int) -> None:
        if columns >= self.lanes:
            self.builder.store(total, pointer, align=self.dtype.itemsize)
        else:
            masked_store(self.builder, total, pointer, self._mask(columns), self.dtype.itemsize)

    def _mask(self, columns: int) -> Value:
        """The first lanes."""
        bits = [ir.Constant(I1, int(lane < columns)) for lane in range(self.lanes)]
        return ir.Constant(ir.VectorType(I1, self.lanes), bits)

    @property
    def _shape(self) -> ir.VectorType:
        return ir.VectorType(register_form(self.dtype), self.lanes)

    def _sum(self, x: Value, y: Value) -> Value:
        return self.builder.fadd(x, y) if self.dtype.is_float else self.builder.add(x, y)

    def _at(self, base: Value, elements: int, dtype: DType | None = None) -> Value:
        return offset_pointer(self.builder, base, i64(elements), (dtype or self.dtype).itemsize)

    def _nest(
        self, left: Walk, right: Walk, depth: Value, unroll: int, steps: Sequence[Step], totals: list[Value]
    ) -> list[Value]:
        """Loops over the summed dims, the depth innermost; the inner ones are straight-line code where that is
        short."""
        if not steps:
            return self._whole_depth(left, right, depth, unroll, totals)
        step, inner = steps[0], steps[1:]
        updates = math.prod((step.size, *(each.size for each in inner), static(depth) or NEST_MULTIPLIES))

        def trip(index: Value, running: list[Value]) -> list[Value]:
            a = self._moved(left, index, step.left_stride, self.left_dtype)
            b = self._moved(right, index, step.right_stride, self.right_dtype)
            return self._nest(a, b, depth, unroll, inner, running)

        if updates * len(totals) > NEST_MULTIPLIES:
            return self._loop(i64(0), i64(step.size), 1, totals, trip)
        for index in range(step.size):
            totals = trip(i64(index), totals)
        return totals

    def _moved(self, operand: Walk, index: Value, stride: int, dtype: DType) -> Walk:
        """An operand from a step on."""
        offset = multiply(self.builder, index, stride)
        return replace(operand, pointer=offset_pointer(self.builder, operand.pointer, offset, dtype.itemsize))

    def _whole_depth(self, left: Walk, right: Walk, depth: Value, unroll: int, totals: list[Value]) -> list[Value]:
        """`unroll` steps of the depth a trip, and those that are left one by one; last, part of a word."""
        group = self._group
        left = replace(left, depth_stride=left.depth_stride * group)
        if self._joins_rows:
            right = replace(right, depth_stride=right.depth_stride * group)
        steps = depth if group == 1 else self._divided(depth, group)
        known = static(steps)
        whole: Value = self.builder.and_(steps, i64(-unroll)) if known is None else i64(known // unroll * unroll)
        totals = self._depth_loop(left, right, i64(0), whole, unroll, totals)
        totals = self._depth_loop(left, right, whole, steps, 1, totals)
        if group == 1:
            return totals
        rounded = self._divided(add(self.builder, depth, i64(group - 1)), group)
        return self._depth_loop(left, right, steps, rounded, 1, totals, is_part=True)

    @property
    def _group(self) -> int:
        """Steps of the depth in a word."""
        return 1 if self.words is None else self.words.group

    @property
    def _joins_rows(self) -> bool:
        """Whether the words of the right operand are made of its rows."""
        return self.words is not None and self.right_dtype == self.left_dtype

    def _divided(self, value: Value, divisor: int) -> Value:
        known = static(value)
        return self.builder.udiv(value, i64(divisor)) if known is None else i64(known // divisor)

    def _depth_loop(
        self,
        left: Walk,
        right: Walk,
        start: Value,
        end: Value,
        step: int,
        totals: list[Value],
        is_part: bool = False,
    ) -> list[Value]:
        """`step` rank-one updates a trip. The addresses of operands live in registers across trips, as the totals do:
        accesses at constant distances from a register are the shortest instructions. `is_part`: of words only the first
        step of the depth counts."""
        builder = self.builder
        if static(start) is not None and static(start) == static(end):
            return totals
        walks = [(left, self.left_dtype), (right, self.right_dtype)]
        if self.kept is not None:
            walks.append((self.kept, self.dtype))
        pointers = [self._start(walk, start, dtype) for walk, dtype in walks]
        ahead = self.ahead if step == DEPTH_UNROLL else None
        pace = i64(0) if ahead is None else multiply(builder, ahead.step_bytes, step)
        offsets = [] if ahead is None else [i64(0)]

        def trip(_: Value, carried: list[Value]) -> list[Value]:
            a, b, *panels = operands = carried[: len(walks)]
            moved = carried[len(walks) : len(walks) + len(offsets)]
            running = carried[len(walks) + len(offsets) :]
            for offset in moved:
                self._prefetch(ahead.pointers if ahead is not None else (), offset)
            for position in range(step):
                start = self._at(b, position * right.depth_stride, self.right_dtype)
                columns = self._columns(start, right.depth_stride // self._group, is_part)
                if self.kept is not None:
                    self._keep(columns, self._at(panels[0], position * self.kept.depth_stride))
                row = self._at(a, position * left.depth_stride, self.left_dtype)
                running = self._rank_one(row, left.row_stride, columns, running, is_part)
            return [
                *(
                    self._next(pointer, step * walk.depth_stride, dtype)
                    for pointer, (walk, dtype) in zip(operands, walks, strict=True)
                ),
                *(opaque(builder, builder.add(offset, pace)) for offset in moved),
                *running,
            ]

        return self._loop(start, end, step, [*pointers, *offsets, *totals], trip)[-len(totals) :]

    def _loop(self, start: Value, end: Value, step: int, values: list[Value], trip: Trip) -> list[Value]:
        """A loop whose values live in registers across trips."""
        builder = self.builder
        first, last = static(start), static(end)
        if first is not None and first == last:
            return values
        if first is not None and last is not None and first + step >= last:
            return trip(start, values)
        before = builder.block
        body, after = builder.append_basic_block("depth"), builder.append_basic_block("depth.end")
        if first is not None and last is not None:
            builder.branch(body)
        else:
            builder.cbranch(builder.icmp_signed("<", start, end), body, after)
        builder.position_at_end(body)
        index = self._carried(start, before)
        running = [self._carried(value, before) for value in values]
        updated = trip(index, running)
        following = opaque(builder, builder.add(index, i64(step), flags=["nsw"]))
        latch = builder.block
        index.add_incoming(following, latch)
        for phi, value in zip(running, updated, strict=True):
            phi.add_incoming(value, latch)
        builder.cbranch(builder.icmp_signed("<", following, end), body, after)
        builder.position_at_end(after)
        if first is not None and last is not None:
            return updated
        joined: list[Value] = []
        for value, after_trip in zip(values, updated, strict=True):
            phi = self._carried(value, before)
            phi.add_incoming(after_trip, latch)
            joined.append(phi)
        return joined

    def _start(self, walk: Walk, step: Value, dtype: DType) -> Value:
        """The address of an operand at a step of the depth."""
        offset = multiply(self.builder, step, walk.depth_stride)
        return offset_pointer(self.builder, walk.pointer, offset, dtype.itemsize)

    def _next(self, pointer: Value, elements: int, dtype: DType) -> Value:
        """The address of an operand in the next trip."""
        return opaque(self.builder, self._at(pointer, elements, dtype))

    def _carried(self, first: Value, before: ir.Block) -> Value:
        """A value that each trip of a loop gives to the next one, at its start."""
        phi = self.builder.phi(first.type)
        phi.add_incoming(first, before)
        return phi

    def _prefetch(self, pointers: Sequence[Value], offset: Value) -> None:
        """Ask the second-level cache for lines of the next panel."""
        for pointer in pointers:
            prefetch(self.builder, offset_pointer(self.builder, pointer, offset, 1))

    def _keep(self, columns: list[Value], panel: Value) -> None:
        """Write the columns of one step of the depth to the panel."""
        for vector, column in enumerate(columns):
            self.builder.store(column, self._at(panel, vector * self.lanes), align=self.dtype.itemsize)

    def _rank_one(
        self, a: Value, row_stride: int, columns: list[Value], totals: list[Value], is_part: bool
    ) -> list[Value]:
        result: list[Value] = []
        for r in range(self.rows):
            pointer = self._at(a, r * row_stride, self.left_dtype)
            spread = broadcast(self.builder, self._element(pointer, is_part), self.lanes)
            for v, column in enumerate(columns):
                result.append(self._multiply_add(spread, column, totals[r * len(columns) + v]))
        return result

    def _element(self, pointer: Value, is_part: bool) -> Value:
        """An element of the left operand, or a word of it, which need not be aligned; nothing after a part is read."""
        builder = self.builder
        if self.words is None:
            return builder.load(pointer, typ=register_form(self.dtype))
        item = self.left_dtype.itemsize
        if is_part:
            return builder.zext(builder.load(pointer, align=item, typ=ir.IntType(self.left_dtype.bits)), I32)
        return builder.load(pointer, align=item, typ=I32)

    def _columns(self, b: Value, pitch: int, is_part: bool) -> list[Value]:
        """The columns of the right operand at one step of the depth; rows that are joined are `pitch` apart."""
        firsts = range(0, self.present, self.lanes)
        if self._joins_rows:
            return [self._joined(b, first, pitch, 1 if is_part else self._group) for first in firsts]
        columns = [self._column_vector(b, first) for first in firsts]
        if not is_part:
            return columns
        mask = splat(ir.VectorType(I32, self.lanes), (1 << self.left_dtype.bits) - 1)
        return [self.builder.and_(column, mask) for column in columns]

    def _joined(self, b: Value, first: int, pitch: int, rows: int) -> Value:
        """A vector of words of some rows of the right operand."""
        builder, shape = self.builder, ir.VectorType(I32, self.lanes)
        total = builder.zext(self._stored_vector(b, first), shape)
        for row in range(1, rows):
            bits = builder.zext(self._stored_vector(self._at(b, row * pitch, self.right_dtype), first), shape)
            total = builder.or_(total, builder.shl(bits, splat(shape, row * self.right_dtype.bits)))
        return total

    def _column_vector(self, b: Value, first: int) -> Value:
        """A vector of the right operand as it is multiplied."""
        return widen(self.builder, self._stored_vector(b, first), self.right_dtype)

    def _stored_vector(self, b: Value, first: int) -> Value:
        """A vector of the right operand, zeros where it has no columns."""
        dtype = self.right_dtype
        pointer, shape = self._at(b, first, dtype), load_form(dtype, self.lanes)
        if first + self.lanes <= self.present:
            return self.builder.load(pointer, align=dtype.itemsize, typ=shape)
        return masked_load(self.builder, pointer, self._mask(self.present - first), shape, dtype.itemsize)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        if self.words is not None:
            return multiply_words(self.builder, self.words, x, y, total)
        if self.dtype.is_float:
            return intrinsic(self.builder, "fma", [x, y, total])
        return self.builder.add(total, self.builder.mul(x, y))
