"""Lower bounds of relayout costs, for many pairs of layouts at a time.

A plan looks at every digit of two layouts and at the banks that they meet in. Most of what it costs can be seen from
each layout alone: which bits of the index its lanes and warps hold, and how many registers there are. So the search for
layouts first compares pairs by these, and plans only what it would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import TargetError
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.differences import in_memory
from tilewright.layout.dims import static
from tilewright.layout.iters import NO_AXIS, fuse_digits, weighted
from tilewright.layout.layout import Layout
from tilewright.layout.refinement import is_memory, plain_form
from tilewright.machines.machine import Machine

Seconds = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

REGISTER_BYTES = 4

# What a bit of an axis holds other than a bit of the index. A bit of the index is numbered `WIDTH * dim + bit`.
NOTHING, COPY = -1, -2
WIDTH = 32


class Holder(msgspec.Struct, frozen=True, eq=False):
    """Facts of one register layout.

    Attributes:
        lanes, warps: for each bit of their ids, the bit of the index that it holds.
        registers: for each bit of the index whether it is in registers.
        elements: elements in the registers of a thread.
        size: elements of the tile.
        lane_count: lanes that hold the tile, copies included.
        warp_count: warps that hold the tile, copies included.
        distinct_warps: warps that hold different parts.
        terms: extents of the sums to be finished, by the kind of the axis that they are spread over.
    """

    lanes: Integers
    warps: Integers
    registers: Flags
    elements: int
    size: int
    lane_count: int
    warp_count: int
    distinct_warps: int
    terms: tuple[tuple[Kind, int], ...]


@lru_cache(maxsize=8192)
def least_seconds(sources: tuple[Layout, ...], targets: tuple[Layout, ...], dtype: DType, machine: Machine) -> Seconds:
    """For each source and each target a time that the plan between them does not undercut; 0 where that would take a
    closer look."""
    result = np.zeros((len(sources), len(targets)))
    item_bytes = max(1, dtype.itemsize)
    held, wanted = [holder_of(layout) for layout in sources], [holder_of(layout) for layout in targets]
    first = [holder for holder in held if holder is not None]
    second = [holder for holder in wanted if holder is not None and not holder.terms]
    rows = [n for n, holder in enumerate(held) if holder is not None]
    columns = [n for n, holder in enumerate(wanted) if holder is not None and not holder.terms]
    if rows and columns:
        result[np.ix_(rows, columns)] = _between_registers(first, second, item_bytes, machine)
    memories = [n for n, layout in enumerate(targets) if in_memory(layout)]
    for row in rows:
        for column in memories:
            result[row, column] = _transfer_seconds(sources[row], targets[column], item_bytes, machine)
    for row in [n for n, layout in enumerate(sources) if in_memory(layout)]:
        for column in columns:
            result[row, column] = _transfer_seconds(targets[column], sources[row], item_bytes, machine)
    # Layouts of one hash may be equal.
    hashes = [np.array([hash(plain_form(layout)) for layout in layouts]) for layouts in (sources, targets)]
    result[hashes[0][:, None] == hashes[1][None, :]] = 0.0
    return result


def _between_registers(
    sources: Sequence[Holder], targets: Sequence[Holder], item_bytes: int, machine: Machine
) -> Seconds:
    def cycles(*names: str) -> float:
        return sum(machine.cycles[name] for name in names) / machine.clock_hertz

    loads = np.array([_through_scratch(t, t.warp_count, item_bytes, machine) for t in targets])
    stores = np.array([_through_scratch(s, s.distinct_warps, item_bytes, machine) for s in sources])
    warps = np.array([t.warp_count for t in targets])
    several = (np.array([s.warp_count for s in sources])[:, None] > 1) | (warps > 1)
    trips = stores[:, None] + loads[None, :] + several * cycles("barrier")
    count = np.array([_registers(t, item_bytes) for t in targets])
    stays = np.array([t.registers for t in targets])
    lanes = _Moves.of(np.array([s.lanes for s in sources]), np.array([t.lanes for t in targets]), stays)
    between = trips
    if "exchange" in machine.cycles:
        shuffled = np.where(lanes.crosses, count, count - count // lanes.kept) * cycles("exchange")
        selected = np.where(lanes.kept > 1, 2 * count * cycles("select"), 0.0)
        between = np.minimum(trips, warps * (shuffled + selected))
    across = _Moves.of(np.array([s.warps for s in sources]), np.array([t.warps for t in targets]), stays)
    elements = np.array([t.elements for t in targets])
    renames = (lanes.picked + across.picked) * elements * warps * cycles("select")
    near = np.where(lanes.moves, between, renames)
    combining = [sum(_combining(kind, terms, s, item_bytes, machine) for kind, terms in s.terms) for s in sources]
    return np.where(across.moves, trips, near) + np.array(combining)[:, None]


def _through_scratch(holder: Holder, warps: int, item_bytes: int, machine: Machine) -> float:
    """A store or a load: banks serve every lane with words of its own, copies or not; a cache moves each line once."""
    memory = machine.memories[0]
    if memory.banks:
        return holder.elements * holder.lane_count * warps * item_bytes / memory.bytes_per_second
    issue = holder.elements * warps * machine.cycles["move"] / machine.clock_hertz
    return max(issue, holder.size * item_bytes / memory.bytes_per_second)


def _registers(holder: Holder, item_bytes: int) -> int:
    """Registers of a thread: small elements share one, large ones take several."""
    return -(-holder.elements * item_bytes // REGISTER_BYTES)


class _Moves(NamedTuple):
    """The data movement at the positions of one kind of axis, for each source and target.

    Attributes:
        moves: whether a position holds something else in the target, and no copy in the source.
        crosses: whether it comes from another such position, or the position held nothing.
        kept: one in how many of a position's elements stay there, the others going to registers elsewhere.
        picked: bits of the position that choose among registers of its own.
    """

    moves: Flags
    crosses: Flags
    kept: Integers
    picked: Integers

    @staticmethod
    def of(sources: Integers, targets: Integers, stays: Flags) -> _Moves:
        held, wanted = sources[:, None, :], targets[None, :, :]
        differs = (held != wanted) & (held != COPY)
        # Indexed by target, source and place.
        in_registers = stays[:, np.maximum(sources, 0)]
        to_registers = differs & (held >= 0) & in_registers.swapaxes(0, 1)
        return _Moves(
            differs.any(axis=2),
            (differs & ~to_registers).any(axis=2),
            1 << to_registers.sum(axis=2),
            ((held == COPY) & (wanted >= 0)).sum(axis=2),
        )


def _combining(kind: Kind, count: int, source: Holder, item_bytes: int, machine: Machine) -> float:
    """The cost of finishing a sum."""

    def cycles(*names: str) -> float:
        return sum(machine.cycles[name] for name in names) / machine.clock_hertz

    if kind == Kind.LANE:
        rounds = (count - 1).bit_length()
        return rounds * _registers(source, item_bytes) * source.warp_count * cycles("shuffle", "alu")
    if kind == Kind.REGISTER:
        return (count - 1) * source.elements * source.warp_count * cycles("alu")
    size = source.size * count * item_bytes
    return 2 * size / machine.memories[0].bytes_per_second + cycles("barrier")


def _transfer_seconds(registers: Layout, memory: Layout, item_bytes: int, machine: Machine) -> float:
    """Every element goes through the memory's port once, or is moved by an instruction of its own."""
    axes = [axis for axis in memory.axes if is_memory(axis)]
    far = any(kind_of(axis) >= Kind.BLOCK for axis in (*registers.axes, *memory.axes))
    if far or any(axis.startswith("tmem") for axis in axes) or not memory.is_static:
        return 0.0
    size = prod(memory.static_shape)
    # Element by element an instruction moves as many as there are lanes, 64 at most.
    issue = size * machine.cycles["move"] / machine.clock_hertz / 2
    try:
        return min(size * item_bytes / machine.memory_of(axes[0] if axes else "mem").bytes_per_second, issue)
    except TargetError:
        return 0.0


@lru_cache(maxsize=8192)
def holder_of(layout: Layout) -> Holder | None:
    """None for layouts of memories, of several blocks, and of other than powers of two."""
    if not layout.is_static or in_memory(layout) or any(not is_memory(term.axis) for term in layout.swizzle):
        return None
    form = plain_form(layout)
    places = {kind: np.full(WIDTH, NOTHING) for kind in (Kind.LANE, Kind.WARP)}
    registers = np.zeros(WIDTH * max(1, form.rank), bool)
    digits = [
        (digit, weight, dim) for dim, own in enumerate(form.shard) for weight, digit in weighted(fuse_digits(own))
    ]
    for part, weight, dim in (*digits, *((copy, 1, None) for copy in (*form.replica, *form.partial))):
        if part.axis == NO_AXIS:
            return None
        extent, kind = static(part.extent), kind_of(part.axis)
        if not all(map(_is_power, (extent, part.stride, weight))) or kind > Kind.WARP or form.offset:
            return None
        at, bits = _column(part.axis, part.stride), extent.bit_length() - 1
        content = None if dim is None else WIDTH * dim + weight.bit_length() - 1
        if kind in places and at + bits > WIDTH:
            return None
        if content is not None and weight.bit_length() - 1 + bits > WIDTH:
            return None
        for bit in range(bits):
            if kind in places:
                places[kind][at + bit] = COPY if content is None else content + bit
            elif content is not None:
                registers[content + bit] = True
    return Holder(
        places[Kind.LANE],
        places[Kind.WARP],
        registers,
        prod(static(part.extent) for part in form.iters if kind_of(part.axis) == Kind.REGISTER),
        prod(form.static_shape),
        prod(static(layout.span(axis)) for axis in layout.axes if kind_of(axis) == Kind.LANE),
        prod(static(layout.span(axis)) for axis in layout.axes if kind_of(axis) == Kind.WARP),
        prod(static(part.extent) for part in form.iters if kind_of(part.axis) == Kind.WARP),
        tuple((kind_of(term.axis), static(term.extent)) for term in form.partial),
    )


def _column(axis: str, stride: int) -> int:
    """The offset of an axis's bits among those of its kind: warp groups after warps."""
    return stride.bit_length() - 1 + (WIDTH // 2 if axis in ("warpgroup", "wave") else 0)


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
