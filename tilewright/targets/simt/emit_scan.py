"""Scans of lines that a warp holds in its registers and lanes.

The digits of a line's index are taken from the fastest to the slowest. A scan within blocks of one digit's weight
becomes a scan within those of the next by combining each block with the total of the blocks before it: a register's
blocks one after the other, a lane's by shuffles from lanes 1, 2, 4, ... blocks before (Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.refinement import IndexDigit, Slot, Table
from tilewright.records import dataclass
from tilewright.targets.simt.emit_relayout import from_lane
from tilewright.targets.simt.fragments import (
    Builder,
    Coordinates,
    Fragment,
    Threads,
    Value,
    computed,
    held,
    i32,
    registers_of,
)
from tilewright.targets.simt.functions import emit_function


@dataclass(frozen=True)
class Line:
    """The dim that is scanned, and from which end."""

    dim: int
    backwards: bool


def scanned(threads: Threads, source: Fragment, fn: str, line: Line, identity: Value) -> Fragment:
    """The scan of a tile of which no line is cut between warps; padding counts as the identity."""
    builder, dtype = threads.builder, source.dtype
    coordinates = Coordinates(threads, source.layout)

    def combine(first: Value, second: Value) -> Value:
        return emit_function(builder, fn, dtype, [first, second])

    scan = _Scan(threads, coordinates.table, line, combine)
    values: dict[int, Value] = {}
    for number, digits in registers_of(coordinates.table):
        inside, value = coordinates.is_inside(digits), source.values[number]
        value = value if inside is None else builder.select(inside, value, identity)
        values[number] = computed(builder, value, dtype)
    totals = dict(values)
    for slot in scan.slots():
        step = scan.over_registers if kind_of(slot.axis) == Kind.REGISTER else scan.over_lanes
        values, totals = step(slot, values, totals)
    return Fragment(source.layout, dtype, {n: held(builder, value, dtype) for n, value in values.items()})


@dataclass
class _Scan:
    """`values`: by register, scanned within its block. `totals`: of the block, by any register of it."""

    threads: Threads
    table: Table
    line: Line
    combine: Callable[[Value, Value], Value]

    def slots(self) -> Iterator[Slot]:
        """The positions of the line's digits, the fastest first."""
        own = [
            (c.weight, s) for s, c in self.table.slots.items() if isinstance(c, IndexDigit) and c.dim == self.line.dim
        ]
        return (slot for _, slot in sorted(own))

    def over_registers(
        self, slot: Slot, values: dict[int, Value], totals: dict[int, Value]
    ) -> tuple[dict[int, Value], dict[int, Value]]:
        order = range(slot.extent - 1, -1, -1) if self.line.backwards else range(slot.extent)
        found: dict[int, Value] = {}
        sums: dict[int, Value] = {}
        by_digit: dict[int, dict[int, int]] = {}
        for number, digits in registers_of(self.table):
            rest = number - slot.stride * digits[slot]
            by_digit.setdefault(rest, {})[digits[slot]] = number
        for numbers in by_digit.values():
            before = None
            for digit in order:
                number = numbers[digit]
                found[number] = values[number] if before is None else self.combine(before, values[number])
                before = totals[number] if before is None else self.combine(before, totals[number])
            sums |= dict.fromkeys(numbers.values(), before)
        return found, sums

    def over_lanes(
        self, slot: Slot, values: dict[int, Value], totals: dict[int, Value]
    ) -> tuple[dict[int, Value], dict[int, Value]]:
        known: dict[int, tuple[Value, Value]] = {}  # equal totals are asked for once
        found: dict[int, Value] = {}
        sums: dict[int, Value] = {}
        for number, value in values.items():
            total = totals[number]
            if id(total) not in known:
                known[id(total)] = self._before_and_all(slot, total)
            before, sums[number] = known[id(total)]
            found[number] = self._where(self._has(slot, 1), self.combine(before, value), value)
        return found, sums

    def _before_and_all(self, slot: Slot, total: Value) -> tuple[Value, Value]:
        """The total of the blocks before a lane's, and of all."""
        whole, step = total, 1
        while step < slot.extent:
            earlier = self._from_before(slot, whole, step)
            whole = self._where(self._has(slot, step), self.combine(earlier, whole), whole)
            step *= 2
        builder, own = self.threads.builder, self.threads.digit(slot)
        end = 0 if self.line.backwards else slot.extent - 1
        to_end = builder.mul(builder.sub(i32(end), own), i32(slot.stride))
        last = builder.add(self.threads.numbers[slot.axis], to_end)
        return self._from_before(slot, whole, 1), from_lane(builder, whole, last)

    def _from_before(self, slot: Slot, value: Value, steps: int) -> Value:
        """The value of the lane some blocks before; of another one where there is none."""
        builder: Builder = self.threads.builder
        distance = i32(slot.stride * steps)
        move = builder.add if self.line.backwards else builder.sub
        return from_lane(builder, value, move(self.threads.numbers[slot.axis], distance))

    def _has(self, slot: Slot, steps: int) -> Value:
        """Whether there are so many blocks before that of a lane."""
        builder, own = self.threads.builder, self.threads.digit(slot)
        if self.line.backwards:
            return builder.icmp_unsigned("<", own, i32(slot.extent - steps))
        return builder.icmp_unsigned(">=", own, i32(steps))

    def _where(self, condition: Value, chosen: Value, other: Value) -> Value:
        return self.threads.builder.select(condition, chosen, other)
