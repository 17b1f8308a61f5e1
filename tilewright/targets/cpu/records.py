"""Records of elements in memory: a rank and an index each, in an order without equals."""

from __future__ import annotations

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.records import dataclass
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.loops import I1, I64, add, i64, loop, maximum, offset_pointer, vector
from tilewright.targets.cpu.ordered_keys import LAST, rank_bits, record, record_index
from tilewright.targets.cpu.sorting_network import MemorySort, Record
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat, with_element

# Indices below this fit into one integer with a rank of 32 bits.
SHORT_INDICES = 2**32 - 1


@dataclass(frozen=True)
class Records:
    """Records from an index on. One plane holds ranks of 32 bits above indices, two hold ranks and indices."""

    builder: Builder
    planes: tuple[Value, ...]

    @staticmethod
    def temporary(context: FunctionContext, dtype: DType, indices: int, count: int) -> Records:
        """Memory of this thread for `count` records of elements of a type, whose indices are below `indices`. Vector
        stores may pass its end by a vector."""
        planes = 1 if rank_bits(dtype) == 32 and indices <= SHORT_INDICES else 2
        room = count * 8 + context.machine.vector.bytes
        return Records(context.builder, tuple(context.temporary(room) for _ in range(planes)))

    def sorting(self, machine: Machine) -> MemorySort:
        """The sorter of the records."""
        return MemorySort(machine, len(self.planes), 64)

    def at(self, place: Value) -> Records:
        """The records from an index on."""
        return Records(self.builder, tuple(offset_pointer(self.builder, p, place, 8) for p in self.planes))

    def values(self, rank: Value, index: Value) -> Record:
        """The record of a rank and an index, or of vectors of them."""
        if len(self.planes) == 1:
            return (record(self.builder, rank, index),)
        wide = with_element(rank.type, I64)
        return (rank if rank.type == wide else self.builder.sext(rank, wide), index)

    def put(self, rank: Value, index: Value) -> None:
        """Write the record of a rank and an index."""
        for plane, value in zip(self.planes, self.values(rank, index), strict=True):
            self.builder.store(value, plane, align=8)

    def index(self, lanes: int = 1) -> Value:
        """The indices of the first records, as i64."""
        last = self.builder.load(self.planes[-1], typ=vector(I64, lanes), align=8)
        return record_index(self.builder, last) if len(self.planes) == 1 else last

    def is_last(self) -> Value:
        """Whether the first record is none of an element."""
        return self.builder.icmp_signed("==", self.builder.load(self.planes[-1], typ=I64), i64(LAST))

    def clear(self, start: Value, end: Value, lanes: int) -> None:
        """Write records after all others to a range of indices, a vector at a time."""
        nothing = splat(ir.VectorType(I64, lanes), LAST)
        with loop(self.builder, start, end, lanes, "clear") as at:
            for plane in self.at(at).planes:
                self.builder.store(nothing, plane, align=8)


def power_of_two(builder: Builder, count: Value, least: int) -> Value:
    """The smallest power of two that is at least a count and at least `least`, one itself."""
    limited = maximum(builder, count, i64(least))
    zeros = intrinsic(builder, "ctlz", [add(builder, limited, i64(-1)), ir.Constant(I1, 0)])
    return builder.shl(i64(1), builder.sub(i64(64), zeros))
