"""Radix sort, least significant digit first (Knuth, "The art of computer programming", volume 3, 5.2.5): records in
memory, which are integers, go to the other of two buffers in the order of one byte of them after the other.

The counts of all digits are taken in one pass. A digit that all records share moves nothing, so that few different
elements, or small ones, take few passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I64, POINTER, entry_alloca, i64, loop, offset_pointer
from tilewright.targets.cpu.ordered_keys import rank_bits
from tilewright.targets.llvm.values import Builder, Value, builder_of

# Nanoseconds of a record: for each digit that it is moved by, and for each square of the logarithm of the number of
# records that are compared, where vectors of 32 bytes hold integers of 32 bits. On such vectors, integers of twice the
# width take four times as long (Zen 3).
_DIGIT_NS, _COMPARED_NS = 2.6, 0.031
# Counts are of 32 bits.
_MOST = 2**32 - 1

_I32 = ir.IntType(32)
_VALUES = 256


@dataclass(frozen=True)
class Digits:
    """The bytes of integers of `bits` bits that decide their order, from the least significant on. `signed`: the last
    one states a sign, too."""

    bits: int
    places: tuple[int, ...]
    signed: bool

    @staticmethod
    def of_ranks(dtype: DType) -> Digits:
        """Of the ranks of a type. All bits of the rank of a float below those of its significand state its sign."""
        bits = rank_bits(dtype)
        if dtype.is_float:
            stored, own = (52 if bits == 64 else 23), -round(math.log2(dtype.epsilon))
            first = max(0, stored - own) // 8
            return Digits(bits, tuple(range(first, bits // 8)), signed=True)
        used = max(8, dtype.bits)
        return Digits(bits, tuple(range(used // 8)), signed=dtype.is_signed or used == bits)

    @property
    def of_records(self) -> Digits:
        """Of records of these ranks, above indices of 32 bits that ascend."""
        return Digits(64, tuple(place + 4 for place in self.places), self.signed)

    def worth(self, count: int, machine: Machine) -> bool:
        """Whether so many records are sorted sooner by digits than by comparisons."""
        if not 1 < count <= _MOST:
            return False
        # As many records as a power of two are compared.
        levels = (count - 1).bit_length()
        compared_ns = _COMPARED_NS * levels**2 * (self.bits / 32) ** 2 * 32 / machine.vector.bytes
        return _DIGIT_NS * len(self.places) * count < compared_ns * 2**levels


def radix_sort(builder: Builder, digits: Digits, records: Value, spare: Value, count: Value) -> Value:
    """Sort `count` records; the memory that holds the result, which is that of the records or the spare one."""
    name = f"radix.i{digits.bits}.{'s' if digits.signed else 'u'}{'.'.join(map(str, digits.places))}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(POINTER, [POINTER, POINTER, I64]), name)
        function.linkage = "internal"
        inner = builder_of(function)
        inner.ret(_Passes(inner, digits, *function.args).run())
    return builder.call(function, [records, spare, count])


@dataclass(frozen=True)
class _Passes:
    builder: Builder
    digits: Digits
    records: Value
    spare: Value
    count: Value

    def run(self) -> Value:
        builder, places = self.builder, self.digits.places
        counts = entry_alloca(builder, _I32, _VALUES * len(places))
        source, target = entry_alloca(builder, POINTER), entry_alloca(builder, POINTER)
        builder.store(self.records, source)
        builder.store(self.spare, target)
        tables = [offset_pointer(builder, counts, i64(_VALUES * n), 4) for n in range(len(places))]
        self._count(tables)
        for place, table in zip(places, tables, strict=True):
            first = self._record(builder.load(source, typ=POINTER), i64(0))
            shared = builder.load(self._slot(table, first, place), typ=_I32)
            with builder.if_then(builder.icmp_unsigned("!=", builder.zext(shared, I64), self.count)):
                self._move(place, table, builder.load(source, typ=POINTER), builder.load(target, typ=POINTER))
                moved = builder.load(target, typ=POINTER)
                builder.store(builder.load(source, typ=POINTER), target)
                builder.store(moved, source)
        return builder.load(source, typ=POINTER)

    def _count(self, tables: Sequence[Value]) -> None:
        """How many records have each value of each digit."""
        builder = self.builder
        with loop(builder, i64(0), i64(_VALUES * len(tables)), 1, "clear") as at:
            builder.store(_I32(0), offset_pointer(builder, tables[0], at, 4))
        with loop(builder, i64(0), self.count, 1, "count") as at:
            record = self._record(self.records, at)
            for place, table in zip(self.digits.places, tables, strict=True):
                self._advance(self._slot(table, record, place))

    def _move(self, place: int, table: Value, source: Value, target: Value) -> None:
        """Write the records in the order of a digit, those of one value as they were."""
        builder = self.builder
        start = entry_alloca(builder, _I32)
        builder.store(_I32(0), start)
        with loop(builder, i64(0), i64(_VALUES), 1, "starts") as at:
            slot, before = offset_pointer(builder, table, at, 4), builder.load(start, typ=_I32)
            builder.store(builder.add(before, builder.load(slot, typ=_I32)), start)
            builder.store(before, slot)
        with loop(builder, i64(0), self.count, 1, "move") as at:
            record = self._record(source, at)
            index = self._advance(self._slot(table, record, place))
            builder.store(record, offset_pointer(builder, target, index, self._bytes), align=self._bytes)

    def _advance(self, slot: Value) -> Value:
        """Add one to a count; what it was."""
        before = self.builder.load(slot, typ=_I32)
        self.builder.store(self.builder.add(before, _I32(1)), slot)
        return self.builder.zext(before, I64)

    def _slot(self, table: Value, record: Value, place: int) -> Value:
        """The address of the count of a record's digit."""
        builder = self.builder
        digit = builder.and_(builder.lshr(record, record.type(8 * place)), record.type(_VALUES - 1))
        if self.digits.signed and place == self.digits.places[-1]:
            digit = builder.xor(digit, record.type(_VALUES // 2))
        return offset_pointer(builder, table, digit if self.digits.bits == 64 else builder.zext(digit, I64), 4)

    def _record(self, memory: Value, at: Value) -> Value:
        pointer = offset_pointer(self.builder, memory, at, self._bytes)
        return self.builder.load(pointer, typ=ir.IntType(self.digits.bits), align=self._bytes)

    @property
    def _bytes(self) -> int:
        return self.digits.bits // 8
