"""Matmuls of warps without MMA instructions: operands in shared memory, sums in registers."""

from __future__ import annotations

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.records import dataclass
from tilewright.targets.llvm.conversions import load_form, widen
from tilewright.targets.llvm.values import intrinsic
from tilewright.targets.simt.emit_memory import Memory
from tilewright.targets.simt.fragments import I32, Builder, Coordinates, Fragment, Threads, Value, i32, registers_of
from tilewright.targets.simt.functions import emit_cast


def multiply_and_add(threads: Threads, left: Memory, right: Memory, accumulator: Fragment) -> Fragment:
    """A loop over the depth that computes the matmul with FMAs: in each step a thread adds the outer product of a
    column of its rows and a row of its columns."""
    builder, depth = threads.builder, left.shape[1]
    coordinates = Coordinates(threads, accumulator.layout)
    registers = list(registers_of(coordinates.table))
    places = {number: coordinates.at(digits) for number, digits in registers}
    before = builder.block
    body, after = builder.append_basic_block("depth"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(I32)
    step.add_incoming(i32(0), before)
    sums = {number: builder.phi(accumulator.values[number].type) for number, _ in registers}
    rows, columns = _Line(builder, left, accumulator.dtype, 0), _Line(builder, right, accumulator.dtype, 1)
    for number, digits in registers:
        row, column = (coordinates.register_part(dim, digits) for dim in (0, 1))
        a = rows.element(row, places[number][0], step)
        b = columns.element(column, places[number][1], step)
        total = _multiplied(builder, a, b, sums[number])
        sums[number].add_incoming(accumulator.values[number], before)
        sums[number].add_incoming(total, body)
    following = builder.add(step, i32(1))
    step.add_incoming(following, body)
    totals = {number: phi.incomings[1][0] for number, phi in sums.items()}
    builder.cbranch(builder.icmp_unsigned("<", following, i32(depth)), body, after)
    builder.position_at_end(after)
    return Fragment(accumulator.layout, accumulator.dtype, totals)


@dataclass
class _Line:
    """The elements of an operand at one step of the depth: along dim `across`, each read once."""

    builder: Builder
    memory: Memory
    dtype: DType
    across: int

    def __post_init__(self) -> None:
        self._read: dict[int, Value] = {}

    def element(self, register_part: int, place: Value, step: Value) -> Value:
        """The element at a position, in the accumulator's register form. Positions that differ in `register_part` have
        elements of their own."""
        if register_part not in self._read:
            self._read[register_part] = self._load(place, step)
        return self._read[register_part]

    def _load(self, place: Value, step: Value) -> Value:
        builder, memory = self.builder, self.memory
        size = memory.shape[self.across]
        inside = builder.icmp_unsigned("<", place, i32(size))
        place = builder.select(inside, place, i32(0))  # what padding holds does not matter
        row, column = (place, step) if self.across == 0 else (step, place)
        offset = builder.add(builder.mul(row, i32(memory.shape[1])), column)
        pointer = builder.gep(memory.pointer, [offset], source_etype=load_form(memory.dtype))
        raw = builder.load(pointer, typ=load_form(memory.dtype), align=memory.dtype.itemsize)
        value = widen(builder, raw, memory.dtype)
        if memory.dtype == dtypes.tf32:  # a buffer of it holds f32 numbers
            value = builder.intrinsics.rounded_to_tf32(builder, value)
        return emit_cast(builder, value, memory.dtype, self.dtype)


def _multiplied(builder: Builder, a: Value, b: Value, total: Value) -> Value:
    if isinstance(total.type, ir.IntType):
        return builder.add(total, builder.mul(a, b))
    return intrinsic(builder, "fma", [a, b, total])
