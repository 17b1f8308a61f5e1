"""Copies from global to shared memory that pass no registers: `cp.async`.

PTX ISA, "Non-bulk copy": 16 bytes by `.cg`, which leaves the first-level cache alone, 8 and 4 by `.ca`; of a source
size of 0 nothing is read and zeros are written. Groups are those of the thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled
from tilewright.errors import CompilerBug
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.refinement import Copy, IndexDigit
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.warps.tile_lower_to_warps import parsed
from tilewright.targets.simt.emit_memory import (
    GLOBAL_SPACE,
    SHARED_SPACE,
    Memory,
    Symbol,
    Window,
    below,
    evaluated,
)
from tilewright.targets.simt.fragments import I32, Builder, Coordinates, Threads, Value, i32, registers_of
from tilewright.targets.simt.places import Places
from tilewright.targets.simt.vectors import vector_of

_INSTRUCTIONS = {16: "cg.shared.global.16", 8: "ca.shared.global.8", 4: "ca.shared.global.4"}


def emit_copy(
    threads: Threads, op: scheduled.CopyOp, source: Memory, target: Memory, symbols: Sequence[Symbol]
) -> None:
    """Each thread begins its copies of a window, if there is a trip for it.

    Raises:
        CompilerBug: neighbours are not together on both sides.
    """
    builder, map = threads.builder, list(op.map.results)
    coordinates = Coordinates(threads, parsed(op.layout))
    if op.trip is None or op.trips is None:
        _emit_window(threads, Window(builder, source, coordinates, map, symbols), target)
        return
    (expression,) = op.trip.results
    trips = op.trips
    trip = evaluated(builder, expression, [], [symbol.value({}) for symbol in symbols])
    window = Window(builder, source, coordinates, map, below(symbols, expression, trips))
    with builder.if_then(builder.icmp_signed("<", trip, i32(trips))):
        _emit_window(threads, window, target)


def _emit_window(threads: Threads, source: Window, target: Memory) -> None:
    """Of threads that have the same to copy the first does."""
    builder, coordinates, item = threads.builder, source.coordinates, target.dtype.itemsize
    within = Window(builder, target, coordinates, list(AffineMap.identity(len(target.shape)).results), [])
    wide, near = vector_of(source), vector_of(within)
    count = min(len(wide), len(near))
    if count * item not in _INSTRUCTIONS or list(wide[:count]) != list(near[:count]):
        raise CompilerBug(f"a copy of {count} elements of {item} bytes at once")
    table = coordinates.table
    unheld = threads.unheld(table)
    copies = [s for s, c in table.slots.items() if isinstance(c, Copy) and kind_of(s.axis) in (Kind.LANE, Kind.WARP)]
    elected = threads.is_first([*copies, *unheld])
    if elected is None:
        _Copies(threads, source, target, count).emit(wide[:count])
        return
    with builder.if_then(elected):
        _Copies(threads, source, target, count).emit(wide[:count])


class _Copies:
    """The copies of one window by one thread."""

    def __init__(self, threads: Threads, source: Window, target: Memory, count: int) -> None:
        self.builder = threads.builder
        self.source, self.count = source, count
        self.bytes = count * target.dtype.itemsize
        coordinates = source.coordinates
        rank = len(target.shape)
        reached = [_reached(coordinates, dim) for dim in range(rank)]
        thread = [coordinates.of_thread(dim) for dim in range(rank)]
        self.places = Places(self.builder, target, thread, reached)
        self.forms = [linear_form(e, tuple(Index(n) for n in range(rank))) for e in source.map]
        # The copies of a thread are constants apart in the array: one address is computed for all.
        zero = {slot: 0 for slot in coordinates.table.slots if kind_of(slot.axis) == Kind.REGISTER}
        self.start = source.offset(source.places(zero))
        self.steps = _strides(source.memory.shape)

    def emit(self, vector: Any) -> None:
        coordinates = self.source.coordinates
        done: set[int] = set()
        for number, digits in registers_of(coordinates.table):
            if number in done:
                continue
            done.update(number + further for further in vector)
            index = [coordinates.register_part(dim, digits) for dim in range(len(coordinates.layout.static_shape))]
            there = self.source.is_there(digits, self.source.places(digits))
            target, address = self.places.pointer(index), self._address(index, there)
            inside = coordinates.is_inside(digits)
            with contextlib.nullcontext() if inside is None else self.builder.if_then(inside):
                self._one(target, address, there)

    def _address(self, index: list[int], there: Value | None) -> Value:
        """The array offsets of a register's elements; 0 for those beyond the end."""
        moved = 0
        for form, step in zip(self.forms, self.steps, strict=True):
            assert form is not None  # or there would be no vectors
            moved += step * sum(form.coefficient(dim) * own for dim, own in enumerate(index))
        start = self.start if there is None else self.builder.select(there, self.start, i32(-moved))
        pointer = self.source.pointer(start)
        size = self.source.memory.dtype.itemsize
        further = ir.Constant(ir.IntType(64), moved * size)
        return self.builder.gep(pointer, [further], source_etype=ir.IntType(8)) if moved else pointer

    def _one(self, target: Value, source: Value, there: Value | None) -> None:
        sized = "" if there is None else ".s"
        name = f"llvm.nvvm.cp.async.{_INSTRUCTIONS[self.bytes]}{sized}"
        types: list[Any] = [ir.PointerType(addrspace=SHARED_SPACE), ir.PointerType(addrspace=GLOBAL_SPACE)]
        operands = [target, source]
        if there is not None:
            types.append(I32)
            operands.append(self.builder.select(there, i32(self.bytes), i32(0)))
        self.builder.call(_function(self.builder, name, types), operands)


def emit_commit(builder: Builder) -> None:
    """The copies that the thread began are a group."""
    builder.call(_function(builder, "llvm.nvvm.cp.async.commit.group", []), [])


def emit_wait(builder: Builder, pending: int) -> None:
    """All groups of the thread but the newest have arrived."""
    builder.call(_function(builder, "llvm.nvvm.cp.async.wait.group", [I32]), [i32(pending)])


def _function(builder: Builder, name: str, types: list[Any]) -> Any:
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), types), name)


def _reached(coordinates: Coordinates, dim: int) -> int:
    """The bits of an index that threads decide."""
    bits = 0
    for slot, content in coordinates.table.slots.items():
        if isinstance(content, IndexDigit) and content.dim == dim and kind_of(slot.axis) in (Kind.LANE, Kind.WARP):
            bits |= content.weight * (content.extent - 1)
    return bits


def _strides(shape: tuple[int, ...]) -> list[int]:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    return steps[: len(shape)]
