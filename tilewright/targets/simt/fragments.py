"""The part of a tile that one thread holds, and where in the tile its elements are.

A layout's table states which digit of an index each position of the lanes, warps and registers holds. A position that
holds none is of a thread that has what the thread at position 0 has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.iters import fuse_digits, weighted
from tilewright.layout.refinement import Content, Copy, IndexDigit, Slot, Table
from tilewright.targets.llvm.conversions import load_form, narrow, register_form, widen
from tilewright.targets.llvm.values import BFLOAT, with_element

Value = Any  # llvmlite carries no annotations
Builder = Any
I32 = ir.IntType(32)


def i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


@lru_cache(maxsize=4096)
def table_of(layout: Layout) -> Table:
    """Which digit each position holds, with all the padding that the layout has."""
    slots: dict[Slot, Content] = {}
    still: set[IndexDigit] = set()
    for dim, digits in enumerate(layout.shard):
        for weight, digit in weighted(fuse_digits(digits)):
            content = IndexDigit(dim, weight, static(digit.extent))
            if digit.stride == 0:
                still.add(content)
            else:
                slots[Slot(digit.axis, digit.stride, content.extent)] = content
    for copy in (*layout.replica, *layout.partial):
        if copy.extent != 1:
            slots[Slot(copy.axis, copy.stride, static(copy.extent))] = Copy(
                static(copy.extent), getattr(copy, "op", None)
            )
    return Table(slots, frozenset(still), ())


@dataclass(frozen=True)
class Fragment:
    """A thread's elements of a tile by register number, each in the form in which a register holds it: of narrow floats
    their bits, which are computed with as f32."""

    layout: Layout
    dtype: DType
    values: Mapping[int, Value]


def is_packed(dtype: DType) -> bool:
    """Whether elements are held in fewer bits than they are computed with."""
    return dtype.is_narrow_float


def held_form(dtype: DType) -> ir.Type:
    """The LLVM type of a held element."""
    return load_form(dtype) if is_packed(dtype) else register_form(dtype)


def held(builder: Builder, value: Value, dtype: DType) -> Value:
    """Computed elements, one or a vector, as they are held: narrow floats are rounded, and those that are known now."""
    known: Any = getattr(value, "constant", None)
    if isinstance(known, float) and isinstance(held_form(dtype), ir.IntType):
        return _constant_bits(known, dtype)
    if dtype == dtypes.bf16:
        rounded = builder.fptrunc(value, with_element(value.type, BFLOAT))
        return builder.bitcast(rounded, with_element(value.type, ir.IntType(16)))
    if builder.intrinsics.converts(builder, dtype):
        return builder.intrinsics.rounded_code(builder, value, dtype)
    return narrow(builder, value, dtype) if is_packed(dtype) else value


def _constant_bits(number: float, dtype: DType) -> ir.Constant:
    """The bits of the f32 number that a constant is, rounded."""
    with np.errstate(over="ignore"):
        rounded = np.float32(number).astype(dtype.numpy)
    return ir.Constant(ir.IntType(dtype.bits), int.from_bytes(rounded.tobytes(), "little"))


def computed(builder: Builder, value: Value, dtype: DType) -> Value:
    """Held elements, one or a vector, in register form."""
    if builder.intrinsics.converts(builder, dtype):
        return builder.intrinsics.number_of(builder, value, dtype)
    return widen(builder, value, dtype) if is_packed(dtype) else value


def slots_of(table: Table, kind: Kind) -> list[tuple[Slot, Content]]:
    """The positions of a kind and what they hold, the fastest first."""
    found = [(slot, content) for slot, content in table.slots.items() if kind_of(slot.axis) == kind]
    return sorted(found, key=lambda each: each[0].stride)


def registers_of(table: Table) -> Iterator[tuple[int, dict[Slot, int]]]:
    """Each register number with the digits that lead to it, in rising order."""
    slots = [slot for slot, _ in slots_of(table, Kind.REGISTER)]
    for digits in product(*(range(slot.extent) for slot in reversed(slots))):
        chosen = dict(zip(reversed(slots), digits, strict=True))
        yield sum(slot.stride * digit for slot, digit in chosen.items()), chosen


@dataclass
class Threads:
    """The lane and the warp that a thread is, and the digits of both. `extents`: how many there are on each axis;
    `home`: the block where the numbers are known, if that is not the function's first."""

    builder: Builder
    numbers: Mapping[str, Value]
    extents: Mapping[str, int]
    home: Any = None
    _digits: dict[Slot, Value] = field(default_factory=dict[Slot, Value])

    def digit(self, slot: Slot) -> Value:
        """The thread's digit at a position of its lane or warp number."""
        if slot not in self._digits:
            # From where it reaches all uses.
            with self.builder.goto_block(self.home or self.builder.function.entry_basic_block):
                self._digits[slot] = self._digit(slot)
        return self._digits[slot]

    def _digit(self, slot: Slot) -> Value:
        number = self.numbers[slot.axis]
        if slot.stride > 1:
            number = self.builder.udiv(number, i32(slot.stride))
        if slot.stride * slot.extent < self.extents[slot.axis]:
            number = self.builder.urem(number, i32(slot.extent))
        return number

    def unheld(self, table: Table) -> list[Slot]:
        """The positions of threads that hold what the thread at position 0 of them holds."""
        found: list[Slot] = []
        for axis, extent in self.extents.items():
            at = 1
            for slot in sorted((s for s in table.slots if s.axis == axis), key=lambda s: s.stride):
                if slot.stride > at:
                    found.append(Slot(axis, at, slot.stride // at))
                at = slot.stride * slot.extent
            if at < extent:
                found.append(Slot(axis, at, -(-extent // at)))
        return found

    def is_first(self, slots: Sequence[Slot]) -> Value | None:
        """Whether the thread's digits at some positions are all 0; None where there are no positions."""
        result = None
        for slot in slots:
            is_zero = self.builder.icmp_unsigned("==", self.digit(slot), i32(0))
            result = is_zero if result is None else self.builder.and_(result, is_zero)
        return result


@dataclass
class Coordinates:
    """The indices of a thread's elements in a tile: along each dim a part that the thread decides, and one that the
    register decides."""

    threads: Threads
    layout: Layout

    def __post_init__(self) -> None:
        self.table = table_of(self.layout)
        self._of_thread = [self._thread_part(dim) for dim in range(self.layout.rank)]

    def _thread_part(self, dim: int) -> Value | None:
        builder = self.threads.builder
        total = None
        for kind in (Kind.LANE, Kind.WARP):
            for slot, content in slots_of(self.table, kind):
                if isinstance(content, IndexDigit) and content.dim == dim:
                    part = builder.mul(self.threads.digit(slot), i32(content.weight))
                    total = part if total is None else builder.add(total, part)
        return total

    def of_thread(self, dim: int) -> Value:
        """The part of an index along a dim that the thread decides."""
        own = self._of_thread[dim]
        return i32(0) if own is None else own

    def register_part(self, dim: int, digits: Mapping[Slot, int]) -> int:
        """The part of an index along a dim that the register decides."""
        total = 0
        for slot, digit in digits.items():
            content = self.table.slots[slot]
            if isinstance(content, IndexDigit) and content.dim == dim:
                total += content.weight * digit
        return total

    def at(self, digits: Mapping[Slot, int]) -> list[Value]:
        """The index of the element in a register."""
        index: list[Value] = []
        for dim, own in enumerate(self._of_thread):
            step = i32(self.register_part(dim, digits))
            index.append(step if own is None else self.threads.builder.add(own, step))
        return index

    def is_inside(self, digits: Mapping[Slot, int]) -> Value | None:
        """Whether the element in a register is one of the tile, not padding; None where all are."""
        builder, result = self.threads.builder, None
        for dim, (size, own) in enumerate(zip(self.layout.static_shape, self._of_thread, strict=True)):
            step = self.register_part(dim, digits)
            if self.highest(dim) + step < size:
                continue
            if own is None:
                return ir.Constant(ir.IntType(1), 0)
            below = builder.icmp_unsigned("<", own, i32(max(0, size - step)))
            result = below if result is None else builder.and_(result, below)
        return result

    def highest(self, dim: int) -> int:
        """The most that a thread adds along a dim."""
        total = 0
        for slot, content in self.table.slots.items():
            if isinstance(content, IndexDigit) and content.dim == dim and kind_of(slot.axis) in (Kind.LANE, Kind.WARP):
                total += content.weight * (content.extent - 1)
        return total
