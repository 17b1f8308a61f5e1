"""Prefetches of a loop nest: of runs of memory that the hardware does not find by itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.affine_access import Access, Indices, address_terms
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.loops import i64, offset_pointer, prefetch
from tilewright.targets.cpu.nest_plan import NestPlan, lanes_vary
from tilewright.targets.cpu.nest_position import Position
from tilewright.targets.cpu.past_caches import outgrows_cache
from tilewright.targets.llvm.values import Builder, Value

# Runs of memory that the hardware does not find by itself: it looks ahead within a page of 4 KiB.
JUMP_BYTES = 128
RUN_BYTES = 2048
TRIPS_AHEAD = 8
# How far ahead of a stream of stores the lines are asked for, which a store otherwise waits for when it is done.
STORED_AHEAD_BYTES = 1024
READ_AHEAD_BYTES = 2048
WINDOWS_AHEAD = 2
# Arithmetic on a vector that is less than this leaves the processor tens of vectors ahead by itself: prefetches would
# only take turns with the loads.
BRIEF_CYCLES = 10.0


class NestPrefetches(msgspec.Struct, eq=False):
    """Asks for what a nest reads and writes later; `first_pointer` gives the address of an access's first lane."""

    context: FunctionContext
    plan: NestPlan
    position: Position
    first_pointer: Callable[[Access], Value]

    @property
    def builder(self) -> Builder:
        return self.context.builder

    def ask_ahead(self, found: Access, pointer: Value) -> None:
        """Prefetch data that the loop around the vectors reads some trips later, if it jumps farther than the hardware
        prefetcher follows, from one short run of memory to another. An array that fits the second-level cache needs no
        prefetch."""
        plan, item = self.plan, found.type.dtype.itemsize
        if found.type.space.data or plan.vector_dim is None or not outgrows_cache(found, self.context.machine):
            return
        if (next_trip := self._next_trip_bytes(found)) is not None:
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(next_trip), 1))
            return
        place = plan.order.index(plan.vector_dim)
        # What is read between two jumps: all vectors of a row, or a few where the jumps are inside.
        inside = plan.order[place + 1 : place + 2]
        neighbour = inside or plan.order[max(0, place - 1) : place]
        run = 0 if inside else item * plan.space[plan.vector_dim]
        for dim in neighbour:
            step = item * (found.stride_along(dim, lanes_vary(plan, found)) or 0)
            if step >= JUMP_BYTES and run <= min(RUN_BYTES, step) and plan.space[dim] > TRIPS_AHEAD:
                prefetch(self.builder, offset_pointer(self.builder, pointer, i64(TRIPS_AHEAD * step), 1))

    def ask_for_next_window(self, op: tile.LoadOp, found: Access) -> None:
        """A value that a nest reads for the second time is in cache: it prefetches what the first one will read
        next."""
        step_bytes = found.type.dtype.itemsize * _step_of_windows(found) * WINDOWS_AHEAD
        earlier = [load for load in self.context.loaded if _same_window(load, op)]
        machine = self.context.machine
        if len(earlier) != 1 or not step_bytes or not outgrows_cache(found, machine):
            return
        level = next((n for n in (1, 2) if 4 * step_bytes <= machine.memory(f"l{n}").bytes), None)
        if level is not None:
            pointer = self.first_pointer(found)
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(step_bytes), 1), level)

    def _next_trip_bytes(self, found: Access) -> int | None:
        """How far it is to what the nest reads or writes in the next trip, while the matmul of which comes first; None
        where there is no matmul, or the array stays in a cache."""
        counter = self.context.turn
        steps = [
            coefficient * term.stride
            for term in address_terms(found.type)
            if (form := found.forms[term.dim]) is not None and term.divisor == 1 and term.modulus is None
            for symbol, coefficient in form.symbols
            if found.symbols[symbol] is counter
        ]
        return sum(steps) * found.type.dtype.itemsize if steps and outgrows_cache(found, self.context.machine) else None

    def ask_for_stream(self, op: tile.LoadOp, found: Access) -> None:
        """Ask for the lines that a stream of loads comes to, which the hardware loads no nearer than the second-level
        cache: too far for arithmetic to continue meanwhile."""
        again = any(_same_window(load, op) for load in self.context.loaded)
        if self.plan.reduced or again or found.lanes or self._is_brief():
            return
        if self._streams(found, READ_AHEAD_BYTES):
            pointer = self.first_pointer(found)
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(READ_AHEAD_BYTES), 1), 1)

    def claim_ahead(self, op: tile.StoreOp, at: Indices, found: Access, pointer: Value) -> None:
        """Prefetch the cache lines of a stream of stores. The destination of a later nest is prefetched here, by the
        nest that fills the buffer it is computed from, while that one computes."""
        context = self.context
        if self.position.block is not None and self.plan.turned_dim is not None:
            self._claim_next_block(found, pointer, self.plan.turned_dim)
            return
        if not found.type.space.data:
            next_trip = self._next_trip_bytes(found)
            if next_trip is not None:
                prefetch(self.builder, offset_pointer(self.builder, pointer, i64(next_trip), 1), 1, to_write=True)
            elif op not in context.claimed and not self._is_brief() and self._streams(found, STORED_AHEAD_BYTES):
                self._claim(pointer)
            return
        later = next((s for s in context.upcoming if array_type(s.value).shape == self.plan.space), None)
        if later is None or context.claimed.get(later, op) is not op or len(at) != len(self.plan.space):
            return
        target = self.plan.access(later, at)
        if not target.lanes and self._streams(target, STORED_AHEAD_BYTES):
            context.claimed[later] = op
            self._claim(self.first_pointer(target))

    def _claim_next_block(self, found: Access, pointer: Value, dim: int) -> None:
        """Ask for the line that the same row of the next block writes."""
        step = found.stride_along(dim, False)
        if step is not None and outgrows_cache(found, self.context.machine):
            ahead = i64(self.plan.lanes * step * found.type.dtype.itemsize)
            prefetch(self.builder, offset_pointer(self.builder, pointer, ahead, 1), 1, to_write=True)

    def _is_brief(self) -> bool:
        """Whether the nest, alone in its block, does little but load and store."""
        if self.context.loaded or self.context.upcoming:
            return False
        applied = (value.owner for value, _ in self.plan.dependences)
        costs = [ops.FUNCTIONS[op.fn].cost for op in applied if isinstance(op, tile.MapOp)]
        return sum(self.context.machine.cycles[cost] for cost in costs) < BRIEF_CYCLES

    def _streams(self, found: Access, ahead_bytes: int) -> bool:
        """Whether vectors fill lines one after the other, in an array that does not stay in the second-level cache: in
        runs that are long next to what is ahead, or continue where they end."""
        plan = self.plan
        if plan.vector_dim is None or not found.is_contiguous(plan.vector_dim, plan.lanes, False):
            return False
        extent = plan.space[plan.vector_dim]
        run_bytes = found.type.dtype.itemsize * extent
        long = run_bytes >= 2 * ahead_bytes or extent >= found.type.shape[-1]
        return long and outgrows_cache(found, self.context.machine)

    def _claim(self, pointer: Value) -> None:
        prefetch(self.builder, offset_pointer(self.builder, pointer, i64(STORED_AHEAD_BYTES), 1), 1, to_write=True)


def _same_window(first: tile.LoadOp, second: tile.LoadOp) -> bool:
    """Whether two loads read the same elements."""
    if first.source is not second.source or first.map != second.map:
        return False
    pairs = zip(first.symbols, second.symbols, strict=True)
    return array_type(first.result).shape == array_type(second.result).shape and all(a is b for a, b in pairs)


def _step_of_windows(found: Access) -> int:
    """Elements from a window of an array to the one that follows; 0 when that is not constant."""
    steps: dict[int, int] = {}
    for term in address_terms(found.type):
        form = found.forms[term.dim]
        if form is None or found.varying_lanes(term.dim) or term.divisor != 1 or term.modulus is not None:
            return 0
        for symbol, coefficient in form.symbols:
            steps[symbol] = steps.get(symbol, 0) + coefficient * term.stride
    return min((step for step in steps.values() if step > 0), default=0)
