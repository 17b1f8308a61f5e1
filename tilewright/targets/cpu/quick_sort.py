"""Quicksort by vectors (Bramas, "A novel hybrid quicksort algorithm vectorized using AVX-512 on Intel Skylake", 2017):
integers below a pivot go to the front of their memory, a vector of them at a time, the others to the end of other
memory. A part is in one of two memories, at its final index; one of a few vectors is sorted in registers, from where it
goes to the memory that is wanted.

The pivot is the middle one of a sorted vector of samples. Parts of equal integers are in order. If no integer is below
the pivot, those that equal it are divided from the others. Parts that are left after so many partitions as even bad
pivots take are sorted by digits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.elements import Mask, first_lanes, vector_loop
from tilewright.targets.cpu.loops import (
    I1,
    I64,
    POINTER,
    broadcast,
    entry_alloca,
    i64,
    maximum,
    minimum,
    offset_pointer,
)
from tilewright.targets.cpu.masked_memory import masked_load, masked_store
from tilewright.targets.cpu.radix_sort import Digits, radix_sort
from tilewright.targets.cpu.sorting_network import MemorySort
from tilewright.targets.llvm.values import Builder, Value, builder_of, has_features, intrinsic, splat

# Vectors that are sorted in registers. Half of them take as long to compile, and a tenth longer to sort.
_IN_REGISTERS = 16
# Partitions of a part, for each bit of its length.
_PARTITIONS = 2


def has_quick_sort(builder: Builder) -> bool:
    """Whether vectors are partitioned by one instruction."""
    return has_features(builder, "avx512f")


def quick_sort(builder: Builder, machine: Machine, bits: int, memory: Value, spare: Value, count: Value) -> None:
    """Sort `count` signed integers of `bits` bits in memory; the spare memory has as much room."""
    # A length of n bits is halved n times.
    length = builder.sub(i64(64), intrinsic(builder, "ctlz", [count, ir.Constant(I1, 0)]))
    _Sort(machine, bits).call(builder, memory, spare, memory, count, builder.mul(length, i64(_PARTITIONS)))


class _Division(NamedTuple):
    """How many integers are at the front, and whether one is greater than the pivot."""

    front: Value
    has_greater: Value


@dataclass(frozen=True)
class _Sort:
    """The functions of a module that sort integers of one width."""

    machine: Machine
    bits: int

    @property
    def lanes(self) -> int:
        return 8 * self.machine.vector.bytes // self.bits

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(ir.IntType(self.bits), self.lanes)

    @property
    def memory(self) -> MemorySort:
        return MemorySort(self.machine, 1, self.bits)

    def call(self, builder: Builder, here: Value, other: Value, target: Value, count: Value, partitions: Value) -> None:
        """Sort what is `here` into the target, which is that memory or the other one."""
        name = f"quick.i{self.bits}"
        function = builder.module.globals.get(name)
        if function is None:
            type = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, POINTER, I64, I64])
            function = ir.Function(builder.module, type, name)
            function.linkage = "internal"
            inner = builder_of(function)
            self._write(inner)
            inner.ret_void()
        builder.call(function, [here, other, target, count, partitions])

    def _write(self, builder: Builder) -> None:
        here, other, target, count, partitions = builder.function.args
        most = _IN_REGISTERS * self.lanes
        with builder.if_else(builder.icmp_signed("<=", count, i64(most))) as (short, long):
            with short:
                builder.call(self._in_registers(builder), [here, target, count])
            with long, builder.if_else(builder.icmp_signed(">", partitions, i64(0))) as (left, none_left):
                with left:
                    self._sort_parts(builder, here, other, target, count, builder.sub(partitions, i64(1)))
                with none_left:
                    self._sort_by_digits(builder, here, other, target, count)

    def _sort_parts(
        self, builder: Builder, here: Value, other: Value, target: Value, count: Value, partitions: Value
    ) -> None:
        pivot = self._pivot(builder, here, count)
        found = self._divided(builder, "<", here, other, count, pivot)
        is_divided = builder.icmp_signed(">", found.front, i64(0))
        with builder.if_else(is_divided, likely=True) as (divided, undivided):
            with divided:
                self.call(builder, here, other, target, found.front, partitions)
                back, left = (self._at(builder, each, found.front) for each in (other, here))
                rest, count_back = self._at(builder, target, found.front), builder.sub(count, found.front)
                with self._unless_equal(builder, found, rest, count_back, pivot):
                    self.call(builder, back, left, rest, count_back, partitions)
            with undivided, self._unless_equal(builder, found, target, count, pivot):
                front = self._divided(builder, "<=", other, here, count, pivot).front
                self._fill(builder, target, front, pivot)
                back, left, rest = (self._at(builder, each, front) for each in (here, other, target))
                self.call(builder, back, left, rest, builder.sub(count, front), partitions)

    @contextmanager
    def _unless_equal(
        self, builder: Builder, found: _Division, target: Value, count: Value, pivot: Value
    ) -> Generator[None]:
        """Write a part of which all integers equal the pivot; code for others follows."""
        with builder.if_else(found.has_greater) as (different, equal):
            with different:
                yield
            with equal:
                self._fill(builder, target, count, pivot)

    def _fill(self, builder: Builder, target: Value, count: Value, value: Value) -> None:
        values = broadcast(builder, value, self.lanes)
        vector_loop(builder, count, self.lanes, lambda at, mask: self._store(builder, target, at, values, mask), "fill")

    def _pivot(self, builder: Builder, memory: Value, count: Value) -> Value:
        """The middle one of as many integers as a vector has."""
        step = builder.udiv(count, i64(self.lanes))
        samples: Value = splat(self.vector, 0)
        for lane in range(self.lanes):
            place = builder.add(builder.mul(step, i64(lane)), builder.lshr(step, i64(1)))
            one = builder.load(self._at(builder, memory, place), typ=self.vector.element, align=self.bits // 8)
            samples = builder.insert_element(samples, one, ir.Constant(ir.IntType(32), lane))
        ((ordered,),) = self.memory.network(builder).sorted([(samples,)])
        return builder.extract_element(ordered, ir.Constant(ir.IntType(32), self.lanes // 2))

    def _divided(
        self, builder: Builder, comparison: str, here: Value, other: Value, count: Value, pivot: Value
    ) -> _Division:
        """Move integers below a pivot, or up to it, to the front, others to the end of the other memory."""
        name = f"quick.{'below' if comparison == '<' else 'up_to'}.i{self.bits}"
        function = builder.module.globals.get(name)
        if function is None:
            type = ir.FunctionType(ir.LiteralStructType([I64, I1]), [POINTER, POINTER, I64, self.vector.element])
            function = ir.Function(builder.module, type, name)
            function.linkage = "internal"
            self._write_division(builder_of(function), comparison)
        found = builder.call(function, [here, other, count, pivot])
        return _Division(builder.extract_value(found, 0), builder.extract_value(found, 1))

    def _write_division(self, builder: Builder, comparison: str) -> None:
        here, other, count, pivot = builder.function.args
        pivot = broadcast(builder, pivot, self.lanes)
        front, end = entry_alloca(builder, I64), entry_alloca(builder, I64)
        builder.store(i64(0), front)
        builder.store(count, end)
        lanes = ir.IntType(self.lanes)
        greater = entry_alloca(builder, lanes)
        builder.store(lanes(0), greater)

        def divide(at: Value, mask: Mask | None) -> None:
            # A vector at the front ends where what has been read does, at most.
            values = self._load(builder, here, at, mask)
            is_front = builder.icmp_signed(comparison, values, pivot)
            if mask is not None:
                is_front = builder.and_(is_front, mask.lanes)
            is_back = builder.not_(is_front) if mask is None else builder.and_(builder.not_(is_front), mask.lanes)
            start, found = builder.load(front, typ=I64), self._count(builder, is_front)
            kept = None if mask is None else self._first(builder, found)
            self._store(builder, here, start, self._compressed(builder, values, is_front), kept)
            builder.store(builder.add(start, found), front)
            others = builder.sub(i64(self.lanes), found) if mask is None else self._count(builder, is_back)
            place = builder.sub(builder.load(end, typ=I64), others)
            self._store(builder, other, place, self._compressed(builder, values, is_back), self._first(builder, others))
            builder.store(place, end)
            is_greater = builder.icmp_signed(">", values, pivot)
            if mask is not None:
                is_greater = builder.and_(is_greater, mask.lanes)
            seen = builder.load(greater, typ=lanes)
            builder.store(builder.or_(seen, builder.bitcast(is_greater, lanes)), greater)

        vector_loop(builder, count, self.lanes, divide, "divide")
        has_greater = builder.icmp_unsigned("!=", builder.load(greater, typ=lanes), lanes(0))
        results: Value = ir.Constant(ir.LiteralStructType([I64, I1]), None)
        results = builder.insert_value(results, builder.load(front, typ=I64), 0)
        builder.ret(builder.insert_value(results, has_greater, 1))

    def _in_registers(self, builder: Builder) -> ir.Function:
        """The function that sorts a few vectors of integers, or fewer integers."""
        name = f"quick.registers.i{self.bits}"
        function = builder.module.globals.get(name)
        if function is not None:
            return function
        type = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64])
        function = ir.Function(builder.module, type, name)
        function.linkage = "internal"
        inner = builder_of(function)
        here, target, count = function.args
        last = splat(self.vector, 2 ** (self.bits - 1) - 1)
        masks: list[Mask] = []
        records: list[tuple[Value, ...]] = []
        for number in range(_IN_REGISTERS):
            start = i64(number * self.lanes)
            left = maximum(inner, i64(0), minimum(inner, i64(self.lanes), inner.sub(count, start)))
            masks.append(first_lanes(inner, left, self.lanes))
            values = self._load(inner, here, start, masks[-1])
            records.append((inner.select(masks[-1].lanes, values, last),))
        for number, (values,) in enumerate(self.memory.network(inner).sorted(records)):
            self._store(inner, target, i64(number * self.lanes), values, masks[number])
        inner.ret_void()
        return function

    def _sort_by_digits(self, builder: Builder, here: Value, other: Value, target: Value, count: Value) -> None:
        digits = Digits(self.bits, tuple(range(self.bits // 8)), signed=True)
        result = radix_sort(builder, digits, here, other, count)
        is_elsewhere = builder.icmp_unsigned("!=", builder.ptrtoint(result, I64), builder.ptrtoint(target, I64))
        with builder.if_then(is_elsewhere):

            def put_back(at: Value, mask: Mask | None) -> None:
                self._store(builder, target, at, self._load(builder, result, at, mask), mask)

            vector_loop(builder, count, self.lanes, put_back, "copy")

    # ---- vectors ------------------------------------------------------------------------------------------------

    def _compressed(self, builder: Builder, values: Value, mask: Value) -> Value:
        """The lanes of a mask side by side, from the first one on."""
        name = f"llvm.experimental.vector.compress.v{self.lanes}i{self.bits}"
        function = builder.module.globals.get(name)
        if function is None:
            type = ir.FunctionType(self.vector, [self.vector, mask.type, self.vector])
            function = ir.Function(builder.module, type, name)
        return builder.call(function, [values, mask, values])

    def _count(self, builder: Builder, mask: Value) -> Value:
        return builder.zext(intrinsic(builder, "ctpop", [builder.bitcast(mask, ir.IntType(self.lanes))]), I64)

    def _first(self, builder: Builder, count: Value) -> Mask:
        """The first lanes, by arithmetic: units that move lanes are busy."""
        bits = builder.sub(builder.shl(i64(1), count), i64(1))
        lanes = builder.bitcast(builder.trunc(bits, ir.IntType(self.lanes)), ir.VectorType(I1, self.lanes))
        return Mask(lanes, None)

    def _load(self, builder: Builder, memory: Value, at: Value, mask: Mask | None) -> Value:
        pointer, align = self._at(builder, memory, at), self.bits // 8
        if mask is None:
            return builder.load(pointer, typ=self.vector, align=align)
        return masked_load(builder, pointer, mask.lanes, self.vector, align)

    def _store(self, builder: Builder, memory: Value, at: Value, values: Value, mask: Mask | None) -> None:
        pointer, align = self._at(builder, memory, at), self.bits // 8
        if mask is None:
            builder.store(values, pointer, align=align)
        else:
            masked_store(builder, values, pointer, mask.lanes, align)

    def _at(self, builder: Builder, memory: Value, place: Value) -> Value:
        return offset_pointer(builder, memory, place, self.bits // 8)
