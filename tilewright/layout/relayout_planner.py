"""The ways from layout to layout, and what they cost on a machine. `plan_relayout` is the way in.

Times are of one core: instructions at their rate, words through banks, bytes over a memory's or link's bandwidth. Sums
of such parts are not overlapped: a plan is compared with plans, and a step's time with that of work that it overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import msgspec
from msgspec.structs import replace

from tilewright.dtypes import DType
from tilewright.errors import LayoutError, TargetError
from tilewright.layout.access import Access, MemoryPorts, digit_access, register_access
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.differences import (
    Ends,
    assembled,
    collective,
    common_run,
    dense,
    ends,
    first_run,
    in_memory,
    lanes_are_neighbours,
    moved_kinds,
    moved_slots,
    rows_are_lanes,
    shares_places,
    stride_of_lanes,
)
from tilewright.layout.dims import static
from tilewright.layout.iters import NO_AXIS, Partial, Replica
from tilewright.layout.layout import Layout
from tilewright.layout.queries import same_map
from tilewright.layout.refinement import Content, Copy, IndexDigit, Slot, Table, bitwise, is_memory, plain_form, refine
from tilewright.layout.relayout import Move, Plan, Reason, Step
from tilewright.layout.scratch import Arrangement, arrangements, in_order, lanes_first
from tilewright.machines.machine import Link, Machine, Memory

REGISTER_BYTES = 4
# Elements so far apart are loaded and stored as whole vectors whose lanes are shuffled: farther apart, a gather of
# single elements is as fast.
SHUFFLED_STRIDES = range(2, 5)
# Likewise those that no instruction gathers, which take several each: loads.
NARROW_BYTES, SHUFFLED_NARROW_STRIDES = 2, range(2, 9)


class Planner:
    """Plans for one element type on one machine."""

    def __init__(self, dtype: DType, machine: Machine) -> None:
        self.item_bytes = max(1, dtype.itemsize)
        self.machine = machine

    def plan(self, source: Layout, target: Layout) -> Plan | Reason:
        """The cheapest of the known ways."""
        try:
            refusal = self._refusal(source, target)
            if refusal is not None:
                return Reason(refusal)
            if _same(source, target):
                return Plan(source, ())
            steps = self._combined(source, target)
            at = steps[-1].layout if steps else source
            if not steps or not _same(at, target):
                steps += self._route(at, target)
            return Plan(source, tuple(steps))
        except _NoWay as reason:
            return Reason(str(reason))
        except LayoutError as error:
            return Reason(error.message)

    def _refusal(self, source: Layout, target: Layout) -> str | None:
        if source.shape != target.shape:
            return f"the layouts are of shapes {_shape(source)} and {_shape(target)}"
        if not source.is_static or not target.is_static:
            return "a size or an offset is unknown: bind it first"
        for layout in (source, target):
            misfit = _misfit(layout, self.machine)
            if misfit is not None:
                return misfit
        if any(digit.stride == 0 and digit.extent != 1 for digit in target.iters) and not shares_places(source, target):
            return "elements would share an address"
        if set(target.partial) - set(source.partial):
            return "terms of a sum cannot be made from a finished value"
        return None

    # ---- combining --------------------------------------------------------------------------------------------------

    def _combined(self, source: Layout, target: Layout) -> list[Step]:
        """Steps that combine the terms of the source that the target does not keep, from the nearest axis outwards."""
        steps: list[Step] = []
        at = source
        pending = [term for term in source.partial if term not in target.partial]
        for term in sorted(pending, key=lambda each: kind_of(each.axis)):
            kind = kind_of(term.axis)
            if kind >= Kind.BLOCK:
                steps.append(self._reduction(at, term, target))
            elif kind == Kind.WARP:
                steps += self._combine_warps(at, term)
            elif kind == Kind.LANE:
                steps.append(self._combine_lanes(at, term))
            else:
                steps.append(self._combine_here(at, term))
            at = steps[-1].layout
        return steps

    def _combine_here(self, at: Layout, term: Partial) -> Step:
        """Terms in registers of one thread, or in one memory."""
        result = _without(at, term)
        count = static(term.extent)
        seconds = (count - 1) * self._elements_a_thread(result) * self._warps(result) * self._cycles("alu")
        if is_memory(term.axis):
            seconds += self._copy_seconds(at, result, self._local_elements(at) * count)
        return Step(Move.COMBINE, result, kind_of(term.axis), seconds, f"{count} terms")

    def _combine_lanes(self, at: Layout, term: Partial) -> Step:
        """A butterfly: after it every lane has the sum."""
        rounds = (static(term.extent) - 1).bit_length()
        seconds = rounds * self._registers(at) * self._warps(at) * self._cycles("shuffle", "alu")
        return Step(Move.COMBINE, _as_copies(at, term), Kind.LANE, seconds, f"{rounds} rounds of shuffles")

    def _combine_warps(self, at: Layout, term: Partial) -> list[Step]:
        """Every warp stores its terms, and reads those of all."""
        scratch = self._scratch_name()
        elements = prod(at.static_shape)
        stored = dense(_without(at, term), scratch, keep=Kind.BLOCK)
        stored = replace(stored, partial=(*stored.partial, Partial(term.extent, elements, scratch, term.op)))
        size = elements * static(term.extent) * self.item_bytes
        seconds = size / self.machine.memory_of(scratch).bytes_per_second
        return [
            Step(Move.STORE, stored, Kind.WARP, seconds + self._cycles("barrier"), f"{size} bytes and a barrier"),
            Step(Move.COMBINE, _as_copies(at, term), Kind.WARP, seconds, f"{size} bytes, {term.extent} terms"),
        ]

    def _reduction(self, at: Layout, term: Partial, target: Layout) -> Step:
        """Terms spread over cores or devices: to shards, copies or one position, as the target has them."""
        end = ends(at, target, term)
        result = {Ends.COPIES: _as_copies, Ends.ONE: _without}.get(end, _Shards(target))(at, term)
        link = self._link(term.axis)
        count = static(term.extent)
        share = self._local_elements(at) * self.item_bytes * (count - 1) / count
        move, size, rounds = {
            Ends.COPIES: (Move.ALL_REDUCE, 2 * share, 2 * (count - 1)),
            Ends.SHARDS: (Move.REDUCE_SCATTER, share, count - 1),
            Ends.ONE: (Move.REDUCE, share, count - 1),
        }[end]
        seconds = size / link.bytes_per_second + rounds * link.latency_s
        detail = f"{size:.0f} bytes over `{term.axis}` in {rounds} rounds"
        return Step(move, result, kind_of(term.axis), seconds, detail)

    # ---- routes -----------------------------------------------------------------------------------------------------

    def _route(self, at: Layout, target: Layout) -> list[Step]:
        tables = refine(at, target)
        far = self._far_axes(at, target, tables)
        if far:
            return self._far_route(at, target, far)
        if in_memory(at) and in_memory(target):
            return [self._copy(at, target)]
        if in_memory(at):
            return [self._transfer(Move.LOAD, target, at, target)]
        if in_memory(target):
            return [self._transfer(Move.STORE, at, target, target)]
        if tables is None:
            return self._trip(at, target)
        moved = moved_kinds(*tables)
        if Kind.WARP in moved:
            return self._trip(at, target)
        if Kind.LANE not in moved:
            return [self._rename(target, *tables)]
        if "exchange" not in self.machine.cycles:
            return self._trip(at, target)
        shuffle = self._shuffle(target, *tables)
        if shuffle.seconds <= self._least_trip_seconds(target):
            return [shuffle]
        trip = self._trip(at, target)
        return [shuffle] if shuffle.seconds <= sum(step.seconds for step in trip) else trip

    def _far_axes(self, at: Layout, target: Layout, tables: tuple[Table, ...] | None) -> list[str]:
        """The axes of blocks, cores and devices along which elements move."""
        axes = [axis for axis in dict.fromkeys((*at.axes, *target.axes)) if kind_of(axis) >= Kind.BLOCK]
        if tables is None:
            return axes
        return [axis for axis in axes if any(slot.axis == axis for slot in moved_slots(*tables))]

    def _far_route(self, at: Layout, target: Layout, far: Sequence[str]) -> list[Step]:
        steps: list[Step] = []
        if not in_memory(at):
            local = dense(at, "mem", keep=Kind.BLOCK)
            steps.append(self._transfer(Move.STORE, at, local, local))
            at = local
        if all(kind_of(axis) == Kind.BLOCK for axis in far):
            # Blocks share the memory that `mem` counts: what one has stored, another reads.
            return steps + self._shared_route(at, target)
        ways = [self._message_then(at, dense(target, "mem", keep=Kind.CORE), target, far)]
        if in_memory(target):
            ways.append([self._message(at, target, far)])
        return steps + min(ways, key=lambda way: sum(step.seconds for step in way))

    def _shared_route(self, at: Layout, target: Layout) -> list[Step]:
        if in_memory(target):
            return [self._copy(at, target, Kind.BLOCK)]
        step = self._transfer(Move.LOAD, target, at, target)
        return [replace(step, reach=Kind.BLOCK)]

    def _message_then(self, at: Layout, between: Layout, target: Layout, far: Sequence[str]) -> list[Step]:
        steps = [self._message(at, between, far)]
        return steps if _same(between, target) else steps + self._route(between, target)

    def _message(self, at: Layout, target: Layout, far: Sequence[str]) -> Step:
        """One movement over the links of the far axes."""
        tables = refine(at, target)
        move = Move(collective(tables[0], tables[1], far)) if tables is not None else Move.SEND
        links = [self._link(axis) for axis in far if kind_of(axis) != Kind.BLOCK]
        link = min(links, key=lambda each: each.bytes_per_second)
        count = max(2, prod(max(static(at.span(axis)), static(target.span(axis))) for axis in far))
        before, after = (self._local_elements(layout) * self.item_bytes for layout in (at, target))
        bytes_, rounds = {
            Move.ALL_GATHER: (after * (count - 1) / count, count - 1),
            Move.ALL_TO_ALL: (before * (count - 1) / count, count - 1),
            Move.BROADCAST: (after, 1 if link.multicast else (count - 1).bit_length()),
        }.get(move, (after, 1))
        run = (common_run(*tables) if tables is not None else 1) * self.item_bytes
        granules = max(1.0, min(link.message_bytes, bytes_) / max(1, min(run, bytes_)))
        seconds = bytes_ * granules / link.bytes_per_second + rounds * link.latency_s
        names = ", ".join(f"`{axis}`" for axis in far)
        reach = max(kind_of(axis) for axis in far)
        return Step(move, target, reach, seconds, f"{bytes_:.0f} bytes a position over {names}, runs of {run} bytes")

    # ---- within a block ---------------------------------------------------------------------------------------------

    def _rename(self, target: Layout, source_table: Table, target_table: Table) -> Step:
        """Registers get other names, which costs nothing; where the lane decides which register it is, selects do."""
        selects = self._selects(source_table, target_table) * self._elements_a_thread(target)
        seconds = selects * self._warps(target) * self._cycles("select")
        detail = f"{selects} selects" if selects else "only names change"
        return Step(Move.RENAME, target, Kind.REGISTER, seconds, detail)

    @staticmethod
    def _selects(source: Table, target: Table) -> int:
        """Selects per element: lanes that hold copies keep one of several registers, which the lane number picks."""
        total = 0
        for slot, content in target.slots.items():
            kind = kind_of(slot.axis)
            if kind not in (Kind.LANE, Kind.WARP) or not isinstance(content, IndexDigit):
                continue
            held = source.slot_of(content)
            if held is not None and kind_of(held.axis) == Kind.REGISTER:
                total += content.extent - 1
        return total

    def _shuffle(self, target: Layout, source_table: Table, target_table: Table) -> Step:
        """Each lane receives, one a shuffle, the registers that other lanes hold: all of them where digits of the lane
        id are exchanged, all but one in n where a digit of n comes from the registers."""
        crosses, kept = False, 1
        for slot, content in source_table.slots.items():
            if kind_of(slot.axis) != Kind.LANE or isinstance(content, Copy):
                continue
            wanted = target_table.slot_of(content)
            if wanted == slot:
                continue
            if wanted is not None and kind_of(wanted.axis) == Kind.REGISTER:
                kept *= content.extent
            else:
                crosses = True
        unsourced = [
            slot for slot in target_table.slots if kind_of(slot.axis) == Kind.LANE and slot not in source_table.slots
        ]
        registers = self._registers(target)
        shuffles = registers if crosses or unsourced else registers - registers // kept
        selects = 2 * registers if kept > 1 else 0
        warps = self._warps(target)
        seconds = warps * (shuffles * self._cycles("exchange") + selects * self._cycles("select"))
        detail = f"{shuffles} shuffles" + (f" and {selects} selects" if selects else "") + " a warp"
        return Step(Move.SHUFFLE, target, Kind.LANE, seconds, detail)

    def _trip(self, at: Layout, target: Layout) -> list[Step]:
        """Through a memory: stored, a barrier where there are several warps, loaded; by the arrangement with the fewest
        conflicts."""
        tables = refine(at, target)
        name = self._scratch_name()
        if tables is None:
            scratch = dense(at, name, keep=Kind.BLOCK)
            store, load = (
                self._transfer(Move.STORE, at, scratch, scratch),
                self._transfer(Move.LOAD, target, scratch, target),
            )
            return [self._with_barrier(store, at, target), load]
        if "simd" in (*at.axes, *target.axes):
            return self._vector_trip(at, target, *tables)
        memory = self.machine.memory_of(name)
        ports = self._ports(memory)
        tables = _bits_where_possible(_stored_once(tables[0]), tables[1])
        best: tuple[float, Arrangement, Access, Access] | None = None
        least = self._least_trip_seconds(target) - self._barrier_seconds(target)
        for arrangement in arrangements(*tables, name, self.item_bytes, ports):
            store, load = (
                digit_access(table, arrangement.strides, arrangement.swizzle, 0, self.item_bytes, ports)
                for table in tables
            )
            seconds = self._access_seconds(store, memory) + self._access_seconds(load, memory)
            if best is None or seconds < best[0]:
                best = seconds, arrangement, store, load
            if best[0] <= 1.05 * least:
                break
        if best is None:
            raise _NoWay("there is no memory in which the value could be rearranged")
        _, arrangement, store, load = best
        scratch = assembled(at, {}, arrangement.slots, arrangement.swizzle)
        first = Step(Move.STORE, scratch, Kind.WARP, self._access_seconds(store, memory), _counted(store, memory))
        last = Step(Move.LOAD, target, Kind.WARP, self._access_seconds(load, memory), _counted(load, memory))
        return [self._with_barrier(first, at, target), last]

    def _vector_trip(self, at: Layout, target: Layout, stored: Table, loaded: Table) -> list[Step]:
        """Through a cache: in the order of the vectors of one side, which the other side gathers or scatters."""
        name = self._scratch_name()
        memory = self.machine.memory_of(name)
        lines = -(-prod(at.static_shape) * self.item_bytes // memory.line_bytes)
        ways: list[list[Step]] = []
        for table in (stored, loaded):
            slots = in_order(lanes_first(table), name)
            strides = {content: slot.stride for slot, content in slots.items()}
            scratch = assembled(at, {}, slots)
            store = self._vector_step(Move.STORE, scratch, _stored_once(stored), strides, lines, memory)
            load = self._vector_step(Move.LOAD, target, loaded, strides, lines, memory)
            ways.append([self._with_barrier(store, at, target), load])
        return min(ways, key=lambda way: sum(step.seconds for step in way))

    def _vector_step(
        self, move: Move, result: Layout, registers: Table, strides: Mapping[Content, int], lines: int, memory: Memory
    ) -> Step:
        """The time of a vector unit: an instruction a vector, or the time of each element that it gathers or scatters;
        each line of the cache once, however many accesses touch it."""
        kinds = {Kind.REGISTER: 1, Kind.LANE: 1, Kind.WARP: 1}
        for slot, content in registers.slots.items():
            is_needed = kind_of(slot.axis) != Kind.REGISTER or strides.get(content, 0)
            kinds[kind_of(slot.axis)] *= content.extent if is_needed else 1
        vectors = kinds[Kind.REGISTER] * kinds[Kind.WARP]
        is_whole = lanes_are_neighbours(registers, strides)
        apart = (None if is_whole else stride_of_lanes(registers, strides)) or 0
        if is_whole:
            count, each, what = vectors, "move", "vectors"
        elif self._is_shuffled(move, apart) and (move == Move.LOAD or _fills_gaps(registers, strides, apart)):
            # Loads: as many vectors as lanes are apart, and shuffles that join or reverse them. Stores join as many.
            count = vectors * (2 * abs(apart) - (apart > 0) if move == Move.LOAD else apart)
            each, what = "move", "vectors and shuffles"
        else:
            count, what = vectors * kinds[Kind.LANE], "elements one by one"
            each = "gather" if move == Move.LOAD else "scatter"
        seconds = max(count * self._cycles(each), lines * memory.line_bytes / memory.bytes_per_second)
        detail = f"{count} {what}, {lines} lines"
        return Step(move, result, Kind.WARP, seconds, detail)

    def _is_shuffled(self, move: Move, apart: int) -> bool:
        if move == Move.STORE:
            return apart in SHUFFLED_STRIDES
        strides = SHUFFLED_NARROW_STRIDES if self.item_bytes <= NARROW_BYTES else SHUFFLED_STRIDES
        return apart == -1 or abs(apart) in strides

    def _with_barrier(self, step: Step, *layouts: Layout) -> Step:
        return replace(step, seconds=step.seconds + self._barrier_seconds(*layouts))

    def _barrier_seconds(self, *layouts: Layout) -> float:
        """One warp alone goes in step with itself."""
        return self._cycles("barrier") if any(self._warps(layout) > 1 for layout in layouts) else 0.0

    def _least_trip_seconds(self, layout: Layout) -> float:
        """A trip cannot be quicker than its bytes and its barrier."""
        bytes_ = 2 * prod(layout.static_shape) * self.item_bytes
        return bytes_ / self.machine.memories[0].bytes_per_second + self._barrier_seconds(layout)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _transfer(self, move: Move, registers: Layout, memory_layout: Layout, result: Layout) -> Step:
        """A load or a store of a tile."""
        axes = [axis for axis in memory_layout.axes if is_memory(axis)]
        if any(axis.startswith("tmem") for axis in axes):
            return self._tensor_memory(move, registers, memory_layout, result)
        memory = self.machine.memory_of(axes[0] if axes else "mem")
        if move == Move.STORE:
            registers = replace(
                registers, replica=tuple(copy for copy in registers.replica if kind_of(copy.axis) != Kind.WARP)
            )
        tables = refine(registers, memory_layout)
        if "simd" in registers.axes and tables is not None:
            run, apart = first_run(memory_layout)
            lines_of_run = -(-((run - 1) * abs(apart) + 1) * self.item_bytes // memory.line_bytes)
            lines = -(-prod(memory_layout.static_shape) // run) * min(run, lines_of_run)
            places = {content: slot.stride for slot, content in tables[1].slots.items() if is_memory(slot.axis)}
            return self._vector_step(move, result, tables[0], places, lines, memory)
        access = register_access(registers, memory_layout, self.item_bytes, self._ports(memory))
        if access is None:
            elements = self._elements_a_thread(registers) * self._warps(registers)
            seconds = elements * self._cycles("move") * 32
            return Step(move, result, Kind.WARP, seconds, "element by element")
        return Step(move, result, Kind.WARP, self._access_seconds(access, memory), _counted(access, memory))

    def _access_seconds(self, access: Access, memory: Memory) -> float:
        issue = access.instructions * self._cycles("move")
        if memory.banks:
            return max(issue, access.wavefronts * memory.banks * memory.bank_bytes / memory.bytes_per_second)
        return max(issue, access.sectors * memory.line_bytes / memory.bytes_per_second)

    @staticmethod
    def _ports(memory: Memory) -> MemoryPorts:
        return MemoryPorts(memory.banks or 32, memory.bank_bytes, memory.line_bytes, memory.widest_bytes)

    def _tensor_memory(self, move: Move, registers: Layout, memory_layout: Layout, result: Layout) -> Step:
        """Tensor memory: lane and warp are the row, so that a warp reaches its own 32 rows only."""
        tables = refine(registers, memory_layout)
        if tables is None or not rows_are_lanes(*tables):
            raise _NoWay("tensor memory gives a warp its own 32 rows, one a lane: these registers hold others")
        columns = self._elements_a_thread(registers) * self.item_bytes // REGISTER_BYTES or 1
        seconds = columns * self._warps(registers) * self._cycles("move")
        return Step(move, result, Kind.WARP, seconds, f"{columns} columns")

    def _copy(self, at: Layout, target: Layout, reach: Kind = Kind.MEMORY) -> Step:
        elements = self._local_elements(target)
        tables = refine(at, target)
        run = common_run(*tables) if tables is not None else 1
        seconds = self._copy_seconds(at, target, elements)
        lanes = max(1, self.machine.vector.bytes // self.item_bytes)
        seconds += 2 * elements / min(run, lanes) * self._cycles("move")
        return Step(Move.COPY, target, reach, seconds, f"{elements * self.item_bytes} bytes in runs of {run} elements")

    def _copy_seconds(self, at: Layout, target: Layout, elements: int) -> float:
        total = 0.0
        for layout in (at, target):
            axis = next((axis for axis in layout.axes if axis.startswith("mem")), "mem")
            total += elements * self.item_bytes / self.machine.memory_of(axis).bytes_per_second
        return total

    # ---- figures ----------------------------------------------------------------------------------------------------

    def _cycles(self, *names: str) -> float:
        """Seconds of one instruction of each of the cost classes."""
        return sum(self.machine.cycles[name] for name in names) / self.machine.clock_hertz

    def _link(self, axis: str) -> Link:
        link = self.machine.link_of(axis)
        if link is None:
            raise _NoWay(f"{self.machine.name} has no link along `{axis}`")
        return link

    def _scratch_name(self) -> str:
        return f"mem.{self.machine.memories[0].name}"

    @staticmethod
    def _warps(layout: Layout) -> int:
        return prod(static(layout.span(axis)) for axis in layout.axes if kind_of(axis) == Kind.WARP)

    @staticmethod
    def _elements_a_thread(layout: Layout) -> int:
        return prod(static(part.extent) for part in layout.iters if part.stride and kind_of(part.axis) == Kind.REGISTER)

    def _registers(self, layout: Layout) -> int:
        """Registers of a thread: small elements share one, large ones take several."""
        return -(-self._elements_a_thread(layout) * self.item_bytes // REGISTER_BYTES)

    @staticmethod
    def _local_elements(layout: Layout) -> int:
        """Elements in the memory of one position."""
        held = prod(static(p.extent) for p in layout.iters if p.axis != NO_AXIS and kind_of(p.axis) >= Kind.BLOCK)
        return -(-prod(layout.static_shape) // held)


def _bits_where_possible(source: Table, target: Table) -> tuple[Table, Table]:
    first, second = bitwise(source), bitwise(target)
    return (source, target) if first is None or second is None else (first, second)


def _fills_gaps(registers: Table, strides: Mapping[Content, int], apart: int) -> bool:
    """Whether other registers hold what is between neighbouring lanes in memory."""
    between = [
        content.extent
        for slot, content in registers.slots.items()
        if kind_of(slot.axis) == Kind.REGISTER and 0 < strides.get(content, 0) < apart
    ]
    return prod(between) == apart


def _stored_once(table: Table) -> Table:
    """Without the copies that other warps hold: one of them stores."""
    slots = {s: c for s, c in table.slots.items() if kind_of(s.axis) != Kind.WARP or not isinstance(c, Copy)}
    return replace(table, slots=slots)


def _same(first: Layout, second: Layout) -> bool:
    first, second = plain_form(first), plain_form(second)
    # Comparing different XOR terms means comparing every element: taking them for different costs at most a copy.
    return first == second or (not first.swizzle and not second.swizzle and same_map(first, second))


def _without(at: Layout, term: Partial) -> Layout:
    """The layout after the terms were combined at the first of their positions."""
    return replace(at, partial=tuple(other for other in at.partial if other != term))


def _as_copies(at: Layout, term: Partial) -> Layout:
    """The layout after the terms were combined at all of their positions."""
    plain = _without(at, term)
    return replace(plain, replica=(*plain.replica, Replica(term.extent, term.stride, term.axis)))


class _Shards(msgspec.Struct, frozen=True):
    """The layout after the terms were combined into the shards that `target` has along their axis."""

    target: Layout

    def __call__(self, at: Layout, term: Partial) -> Layout:
        plain = _without(at, term)
        tables = refine(plain, self.target)
        if tables is None:
            return plain
        slot = Slot(term.axis, term.stride, static(term.extent))
        digit = tables[1].slots[slot]
        rest = {held: content for held, content in tables[0].slots.items() if content != digit}
        return assembled(plain, {**rest, slot: digit}, {})


@lru_cache(maxsize=8192)
def _misfit(layout: Layout, machine: Machine) -> str | None:
    """Why the machine has no room for a layout; None where it has."""
    for axis in layout.axes:
        # Registers are counted when everything else is known: what does not fit is spilled or refused there.
        most = None if kind_of(axis) == Kind.REGISTER else machine.axes.get(axis)
        if axis == "simd" and most is not None:
            # A tile may be cast on its way: what counts are the lanes of the smallest elements.
            most = machine.vector.bytes
        if most is not None and static(layout.span(axis)) > most:
            return f"`{axis}` has {most} places on {machine.name}, the layout uses {layout.span(axis)}"
        if most is None and (kind_of(axis) in (Kind.LANE, Kind.WARP) or axis.startswith("tmem")):
            return f"{machine.name} has no axis `{axis}`"
        if axis.startswith("mem"):
            try:
                machine.memory_of(axis)
            except TargetError as error:
                return error.message
    return None


class _NoWay(Exception):
    """There is no plan, and why."""


def _shape(layout: Layout) -> str:
    return f"({', '.join(map(str, layout.shape))})"


def _counted(access: Access, memory: Memory) -> str:
    if not memory.banks:
        return f"{access.instructions} accesses of {access.vector} elements a lane, {access.sectors} sectors"
    conflicts = access.wavefronts - access.least_wavefronts
    text = f"{access.instructions} accesses of {access.vector} elements a lane, {access.wavefronts} wavefronts"
    return f"{text}, {conflicts} of them conflicts" if conflicts else text
