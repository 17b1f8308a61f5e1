"""Data that moves within a warp: registers renamed, lanes exchanged, terms combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from llvmlite import ir

from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.queries import same_map
from tilewright.layout.refinement import Content, Copy, IndexDigit, Slot, Table, refine
from tilewright.targets.simt.fragments import (
    I32,
    Builder,
    Fragment,
    Threads,
    Value,
    i32,
    registers_of,
    slots_of,
    table_of,
)

Combine = Callable[[Value, Value], Value]


def combine_registers(fragment: Fragment, kept: Layout, combine: Combine) -> dict[int, Value]:
    """Registers whose numbers differ in digits that `kept` has not are combined, neighbours first."""
    table, left = table_of(fragment.layout), table_of(kept)
    groups: dict[int, list[Value]] = {}
    for number, digits in registers_of(table):
        own = sum(slot.stride * digit for slot, digit in digits.items() if slot in left.slots)
        groups.setdefault(own, []).append(fragment.values[number])
    return {number: _tree(values, combine) for number, values in groups.items()}


def _tree(values: list[Value], combine: Combine) -> Value:
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


def combine_lanes(threads: Threads, fragment: Fragment, target: Layout, combine: Combine) -> dict[int, Value]:
    """Over the lanes that hold terms: after it each of them has the whole. A butterfly where their number is a power of
    two; else each asks all."""
    values = dict(fragment.values)
    for term in fragment.layout.partial:
        if kind_of(term.axis) != Kind.LANE or term in target.partial:
            continue
        slot = Slot(term.axis, term.stride, static(term.extent))
        over = _butterfly if slot.extent & (slot.extent - 1) == 0 else _asking_all
        values = {number: over(threads, value, slot, combine) for number, value in values.items()}
    return values


def _butterfly(threads: Threads, value: Value, slot: Slot, combine: Combine) -> Value:
    step = 1
    while step < slot.extent:
        value = combine(value, exchanged(threads.builder, value, slot.stride * step))
        step *= 2
    return value


def _asking_all(threads: Threads, value: Value, slot: Slot, combine: Combine) -> Value:
    """In the order of the terms, so that all lanes get the same. Lanes beyond the last whole group ask themselves."""
    builder = threads.builder
    own = threads.numbers[slot.axis]
    first = builder.sub(own, builder.mul(threads.digit(slot), i32(slot.stride)))
    result = None
    for digit in range(slot.extent):
        lane = builder.add(first, i32(digit * slot.stride))
        lane = builder.select(builder.icmp_unsigned("<", lane, i32(threads.extents[slot.axis])), lane, own)
        term = from_lane(builder, value, lane)
        result = term if result is None else combine(result, term)
    return result


def rearranged(threads: Threads, fragment: Fragment, target: Layout) -> dict[int, Value]:
    """The registers of a layout whose elements the warp's lanes hold in another."""
    if same_map(fragment.layout, target):
        return _padded(dict(fragment.values), target)
    tables = refine(fragment.layout, target)
    if tables is None:
        raise CompilerBug(f"no digits are common to {fragment.layout} and {target}")
    held, wanted = tables
    sources = _LaneSource(threads, held, wanted)
    found = {number: sources.value(fragment.values, digits) for number, digits in registers_of(wanted)}
    return _padded(found, target)


def _padded(values: dict[int, Value], target: Layout) -> dict[int, Value]:
    """All registers of a layout: what those that are padding hold does not matter."""
    anything = next(iter(values.values()))
    return {number: values.get(number, anything) for number, _ in registers_of(table_of(target))}


class _LaneSource:
    """Which lane and register each register of a target comes from."""

    def __init__(self, threads: Threads, held: Table, wanted: Table) -> None:
        self.threads = threads
        self.held = held
        self.place: dict[Content, Slot] = {c: s for s, c in wanted.slots.items() if isinstance(c, IndexDigit)}
        unheld = {slot.axis for slot in threads.unheld(held)}
        lanes = slots_of(held, Kind.LANE)
        moves = any(isinstance(c, IndexDigit) and self.place.get(c, slot) != slot for slot, c in lanes)
        self.stays = not moves and "lane" not in unheld

    def value(self, values: Mapping[int, Value], digits: Mapping[Slot, int]) -> Value:
        """The element of a target's register."""
        number = 0
        choices: list[tuple[Slot, Value]] = []
        for slot, content in slots_of(self.held, Kind.REGISTER):
            at = self.place.get(content)
            if at is None:
                continue
            if kind_of(at.axis) == Kind.REGISTER:
                number += slot.stride * digits[at]
            else:
                choices.append((slot, self.threads.digit(at)))
        lane = None if self.stays else self._lane(digits)
        result = next(iter(values.values()))  # what padding holds does not matter
        is_found = False
        for picks in product(*(range(slot.extent) for slot, _ in choices)):
            register = number + sum(s.stride * pick for (s, _), pick in zip(choices, picks, strict=True))
            if register not in values:  # padding
                continue
            value = values[register] if lane is None else from_lane(self.threads.builder, values[register], lane)
            result = self.threads.builder.select(self._are(choices, picks), value, result) if is_found else value
            is_found = True
        return result

    def _are(self, choices: Sequence[tuple[Slot, Value]], picks: Sequence[int]) -> Value:
        builder, result = self.threads.builder, None
        for (_, digit), pick in zip(choices, picks, strict=True):
            is_it = builder.icmp_unsigned("==", digit, i32(pick))
            result = is_it if result is None else builder.and_(result, is_it)
        return result

    def _lane(self, digits: Mapping[Slot, int]) -> Value:
        builder = self.threads.builder
        total: Value = i32(0)
        for slot, content in slots_of(self.held, Kind.LANE):
            at = slot if isinstance(content, Copy) else self.place.get(content)
            if at is None:
                continue
            digit = i32(digits[at]) if kind_of(at.axis) == Kind.REGISTER else self.threads.digit(at)
            total = builder.add(total, builder.mul(digit, i32(slot.stride)))
        return total


# ---- exchanges ------------------------------------------------------------------------------------------------------


def exchanged(builder: Builder, value: Value, lanes: int) -> Value:
    """The value of the lane whose number differs by XOR."""
    return _by_words(builder, value, lambda word: builder.intrinsics.shuffle_xor(builder, word, lanes))


def from_lane(builder: Builder, value: Value, lane: Value) -> Value:
    """The value of a lane."""
    return _by_words(builder, value, lambda word: builder.intrinsics.shuffle(builder, word, lane))


def _by_words(builder: Builder, value: Value, move: Callable[[Value], Value]) -> Value:
    """Apply a movement of 32-bit words to a value of any type."""
    shape = value.type
    bits = {ir.HalfType(): 16, ir.FloatType(): 32, ir.DoubleType(): 64}.get(shape) or shape.width
    own = ir.IntType(bits)
    whole = value if shape == own else builder.bitcast(value, own)
    if bits < 32:
        moved = builder.trunc(move(builder.zext(whole, I32)), own)
    elif bits == 32:
        moved = move(whole)
    else:
        low, high = builder.trunc(whole, I32), builder.trunc(builder.lshr(whole, ir.Constant(own, 32)), I32)
        parts = [builder.zext(move(each), own) for each in (low, high)]
        moved = builder.or_(parts[0], builder.shl(parts[1], ir.Constant(own, 32)))
    return moved if shape == own else builder.bitcast(moved, shape)
