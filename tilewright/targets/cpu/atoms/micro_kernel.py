"""Print the middle of a matmul: a block of the accumulator stays in vector registers over the whole depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.targets.cpu.loops import (
    I1,
    broadcast,
    i64,
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


@dataclass(frozen=True)
class Walk:
    """The address of a block's operand: a pointer, and elements from row to row (of a left operand) and from depth to
    depth."""

    pointer: Value
    depth_stride: int
    row_stride: int = 1


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
    Its elements are also written to the panel `kept`, if there is one."""

    builder: Builder
    dtype: DType
    right_dtype: DType
    rows: int
    columns: int
    present: int
    lanes: int
    ahead: Ahead | None
    kept: Walk | None = None

    def emit(self, left: Walk, right: Walk, acc: Value, acc_stride: int, depth: Value, *, accumulate: bool) -> None:
        vectors = -(-self.columns // self.lanes)
        used = -(-self.present // self.lanes)
        # Sums of one block of the depth start from zero: added to the others' sum at the end, their rounding errors
        # grow with the number of blocks plus the depth of one, not with the whole depth.
        totals: list[Value] = [splat(self._shape, 0) for _ in range(self.rows * used)]
        known = static(depth)
        whole: Value
        if known is not None:
            whole = i64(known // DEPTH_UNROLL * DEPTH_UNROLL)
        else:
            whole = self.builder.and_(depth, i64(-DEPTH_UNROLL))
        totals = self._depth_loop(left, right, i64(0), whole, DEPTH_UNROLL, totals)
        totals = self._depth_loop(left, right, whole, depth, 1, totals)
        for row in range(self.rows):
            for vector in range(vectors):
                if vector >= used and accumulate:
                    continue
                pointer = self._at(acc, row * acc_stride + vector * self.lanes)
                total = totals[row * used + vector] if vector < used else splat(self._shape, 0)
                if accumulate:
                    earlier = self.builder.load(pointer, align=self.dtype.itemsize, typ=self._shape)
                    total = self._sum(earlier, total)
                self._store(total, pointer, self.columns - vector * self.lanes)

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

    def _depth_loop(
        self, left: Walk, right: Walk, start: Value, end: Value, step: int, totals: list[Value]
    ) -> list[Value]:
        """`step` rank-one updates a trip; the totals live in registers across trips, and so do the addresses of
        operands: accesses at constant distances from a register are the shortest instructions."""
        builder = self.builder
        first, last = static(start), static(end)
        if first is not None and first == last:
            return totals
        walks = [(left, self.dtype), (right, self.right_dtype)]
        if self.kept is not None:
            walks.append((self.kept, self.dtype))
        starts = [self._start(walk, start, dtype) for walk, dtype in walks]
        ahead = self.ahead if step == DEPTH_UNROLL else None
        pace = i64(0) if ahead is None else multiply(builder, ahead.step_bytes, step)
        before = builder.block
        body, after = builder.append_basic_block("depth"), builder.append_basic_block("depth.end")
        if first is not None and last is not None:
            builder.branch(body)
        else:
            builder.cbranch(builder.icmp_signed("<", start, end), body, after)
        builder.position_at_end(body)
        index = self._carried(start, before)
        pointers = [self._carried(pointer, before) for pointer in starts]
        running = [self._carried(total, before) for total in totals]
        offset: Value = i64(0)
        if ahead is not None:
            offset = self._carried(i64(0), before)
            self._prefetch(ahead.pointers, offset)
        a, b, *panels = pointers
        updated: list[Value] = list(running)
        for position in range(step):
            columns = self._columns(self._at(b, position * right.depth_stride, self.right_dtype))
            if self.kept is not None:
                self._keep(columns, self._at(panels[0], position * self.kept.depth_stride))
            updated = self._rank_one(self._at(a, position * left.depth_stride), left.row_stride, columns, updated)
        latch = builder.block
        following = opaque(builder, builder.add(index, i64(step), flags=["nsw"]))
        index.add_incoming(following, latch)
        for pointer, (walk, dtype) in zip(pointers, walks, strict=True):
            moved = offset_pointer(builder, pointer, i64(step * walk.depth_stride), dtype.itemsize)
            pointer.add_incoming(opaque(builder, moved), latch)
        if ahead is not None:
            offset.add_incoming(opaque(builder, builder.add(offset, pace)), latch)
        for total, value in zip(running, updated, strict=True):
            total.add_incoming(value, latch)
        builder.cbranch(builder.icmp_signed("<", following, end), body, after)
        builder.position_at_end(after)
        if first is not None and last is not None:
            return updated
        joined: list[Value] = []
        for total, value in zip(totals, updated, strict=True):
            phi = builder.phi(self._shape)
            phi.add_incoming(total, before)
            phi.add_incoming(value, latch)
            joined.append(phi)
        return joined

    def _start(self, walk: Walk, step: Value, dtype: DType) -> Value:
        """The address of an operand at a step of the depth. All that a trip reads is at constant distances."""
        offset = multiply(self.builder, step, walk.depth_stride)
        return offset_pointer(self.builder, walk.pointer, offset, dtype.itemsize)

    def _carried(self, first: Value, before: ir.Block) -> Value:
        """A value that each trip of a loop gives to the next one."""
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

    def _rank_one(self, a: Value, row_stride: int, columns: list[Value], totals: list[Value]) -> list[Value]:
        result: list[Value] = []
        for r in range(self.rows):
            scalar = self.builder.load(self._at(a, r * row_stride), typ=register_form(self.dtype))
            spread = broadcast(self.builder, scalar, self.lanes)
            for v, column in enumerate(columns):
                result.append(self._multiply_add(spread, column, totals[r * len(columns) + v]))
        return result

    def _columns(self, b: Value) -> list[Value]:
        """The columns of the right operand at one step of the depth."""
        return [self._column_vector(b, first) for first in range(0, self.present, self.lanes)]

    def _column_vector(self, b: Value, first: int) -> Value:
        """A vector of the right operand, zeros where it has no columns."""
        dtype = self.right_dtype
        pointer, shape = self._at(b, first, dtype), load_form(dtype, self.lanes)
        if first + self.lanes <= self.present:
            loaded = self.builder.load(pointer, align=dtype.itemsize, typ=shape)
        else:
            loaded = masked_load(self.builder, pointer, self._mask(self.present - first), shape, dtype.itemsize)
        return widen(self.builder, loaded, dtype)

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        if self.dtype.is_float:
            return intrinsic(self.builder, "fma", [x, y, total])
        return self.builder.add(total, self.builder.mul(x, y))
