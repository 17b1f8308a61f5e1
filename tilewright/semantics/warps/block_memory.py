"""The memory that the warps of a block share, by physical address, and the accesses to each of its cells.

The model is pessimistic: data of a copy arrives when a thread has waited for it and no sooner, and a cell that one
thread writes and another one accesses needs an ordering between the two (`clocks.py`). An access by one lane counts as
one by its warp. Asynchronous operations see writes of warps only after a fence. Buffers with planned addresses overlap
as their addresses do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.iters import fuse_digits, weighted
from tilewright.records import dataclass
from tilewright.semantics.hazards import HazardError, RaceError
from tilewright.semantics.warps.agents import Agent
from tilewright.semantics.warps.clocks import Clocks

Tensor = np.ndarray[Any, Any]
# Numbers of cells, or a range of them.
Cells = Tensor | slice
Placed = scheduled.AllocOp | asynchronous.MbarrierOp | tensor_memory.TensorAllocOp
# Which warps hold what is not said: all of them read, and one that is no other writes.
EVERY_WARP, SOME_WARP = np.uint64((1 << 64) - 1), np.uint64(1 << 63)
_SOME_WARP_BIT = 63


@dataclass(frozen=True)
class Buffer:
    """A tile of a buffer: how far its elements are from the start of the block's memory, in bytes. `is_dense`: they are
    all the elements between the first and the last one, each once."""

    places: Tensor
    dtype: DType
    is_dense: bool = False

    @property
    def bytes(self) -> int:
        return self.places.size * self.dtype.itemsize

    def part(self, dim: int, number: int, count: int) -> Buffer:
        """One of so many equal parts along a dim."""
        return Buffer(np.array_split(self.places, count, dim)[number], self.dtype)


@dataclass(frozen=True)
class Ring:
    """The tiles of a buffer with stages."""

    first: Buffer
    stages: int
    stage_bytes: int

    def stage(self, number: int) -> Buffer:
        if not 0 <= number < self.stages:
            raise CompilerBug(f"there is no stage {number} of {self.stages}")
        return Buffer(self.first.places + number * self.stage_bytes, self.first.dtype, self.first.is_dense)


# ---- where buffers are ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Address ranges of the buffers and barriers of a block, in bytes, and its cells: no element of a buffer is
    smaller. `has_commits`: MMAs end at barriers."""

    starts: dict[Placed, int]
    end_bytes: int
    cell_bytes: int
    has_commits: bool = False

    @staticmethod
    def of(region: scheduled.ParallelOp) -> Plan:
        """The addresses of a region's buffers. A buffer without an address gets one of its own after all that have.

        Raises:
            HazardError: a buffer is where barriers are.
        """
        ops = list(region.body.block.walk())
        found = [op for op in ops if isinstance(op, Placed)]
        spaces = scheduled.BLOCK, tensor_memory.TENSOR
        held = [op for op in found if tile.ref_type(op.result).space.data in spaces]
        starts: dict[Placed, int] = {}
        end = max((op.offset_bytes + op.bytes for op in held if op.offset_bytes is not None), default=0)
        for op in held:
            starts[op] = op.offset_bytes if op.offset_bytes is not None else _aligned(end)
            end = max(end, starts[op] + op.bytes)
        _check_barriers_alone(starts)
        sizes = [tile.ref_type(op.result).dtype.itemsize for op in held if isinstance(op, scheduled.AllocOp)]
        has_commits = any(isinstance(op, tensor_memory.MmaCommitOp) for op in ops)
        return Plan(starts, end, min(sizes, default=1), has_commits)


def _aligned(bytes: int) -> int:
    return -(-bytes // scheduled.BUFFER_ALIGNMENT_BYTES) * scheduled.BUFFER_ALIGNMENT_BYTES


def _check_barriers_alone(starts: dict[Placed, int]) -> None:
    for barriers, start in starts.items():
        if isinstance(barriers, scheduled.AllocOp):
            continue
        for other, begin in starts.items():
            if other is not barriers and start < begin + other.bytes and begin < start + barriers.bytes:
                raise HazardError(f"`{other.name}` from byte {begin} overlaps `{barriers.name}`, from {start}")


# ---- who did what ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Copy:
    """A copy under way: its buffer, what it copies, the warps that wait for it, a bit for each, and its name."""

    buffer: Buffer
    values: Tensor
    warps: Tensor
    name: str


@dataclass
class _Groups:
    """The copies of a role: those since its last commit, and the groups before them."""

    open: list[_Copy] = field(default_factory=list[_Copy])
    committed: list[list[_Copy]] = field(default_factory=list[list[_Copy]])


class BlockMemory:
    """Bytes, and for each cell the last write, the last read of each warp, and what is under way to it or reads it."""

    def __init__(self, plan: Plan, clocks: Clocks, agents: Sequence[Agent]) -> None:
        self._plan = plan
        self._clocks = clocks
        self._agents = {agent.name: number for number, agent in enumerate(agents)}
        size = _aligned(plan.end_bytes)
        cells = size // plan.cell_bytes
        self._data = np.zeros(size, np.uint8)
        self._writer = np.zeros(cells, np.int16)
        self._written = np.zeros(cells, np.int32)
        # Those that read: warps, and the barriers at which products end.
        self._readers = clocks.seen.shape[1] if plan.has_commits else clocks.warps
        self._reads = np.zeros((self._readers, cells), np.int32)
        # Which of `_names` wrote, read, or is going to write a cell; of each agent, which product reads it.
        self._written_by, self._read_by, self._arriving = (np.zeros(cells, np.int32) for _ in range(3))
        self._reading = np.zeros((len(agents), cells), np.int32)
        self._names = [""]
        self._groups: dict[str, _Groups] = {agent.name: _Groups() for agent in agents}

    def buffer(self, op: scheduled.AllocOp) -> Buffer | Ring:
        """The buffer of an allocation, filled with poison."""
        type = tile.ref_type(op.result)
        places = places_in(type.layout.data, type.shape)
        is_dense = _are_dense(type.layout.data, type.shape)
        first = Buffer(self._plan.starts[op] + places * type.dtype.itemsize, type.dtype, is_dense)
        for number in range(op.count):
            self._poison(Buffer(first.places + number * op.stage_bytes, type.dtype))
        return first if op.stages is None else Ring(first, op.count, op.stage_bytes)

    # ---- accesses of warps ------------------------------------------------------------------------------------------

    def load(self, agent: Agent, buffer: Buffer, at: tuple[Tensor, ...], warps: Tensor, who: str) -> Tensor:
        """The elements at some coordinates, each read by `warps` of `agent` (a bit for each)."""
        places = buffer.places[at]
        cells, masks = self._cells(places, buffer.dtype, warps)
        self._check_arriving(cells, f"{who} reads")
        shares = list(_shares(agent, cells, masks))
        self._check_seen(shares, f"{who} reads")
        self._note_reads(shares, who)
        return self._data.view(buffer.dtype.numpy)[places // buffer.dtype.itemsize]

    def store(
        self, agent: Agent, buffer: Buffer, at: tuple[Tensor, ...], values: Tensor, warps: Tensor, who: str
    ) -> None:
        """Write elements at some coordinates, each by one warp."""
        places = buffer.places[at]
        cells, masks = self._cells(places, buffer.dtype, warps)
        shares = list(_shares(agent, cells, masks))
        self._check_write(cells, shares, who)
        self._note_writes(shares, who)
        self._put(buffer, places, values)

    def contents(self, buffer: Buffer) -> Tensor:
        """The contents of a buffer."""
        return self._data.view(buffer.dtype.numpy)[buffer.places // buffer.dtype.itemsize]

    def _note_reads(self, shares: Sequence[tuple[int, Cells]], who: str) -> None:
        name = self._name(who)
        for row, cells in shares:
            self._reads[row, cells] = self._clocks.now[row]
            self._read_by[cells] = name

    def _note_writes(self, shares: Sequence[tuple[int, Cells]], who: str) -> None:
        name = self._name(who)
        for row, cells in shares:
            self._writer[cells] = row
            self._written[cells] = self._clocks.now[row]
            self._written_by[cells] = name

    def _cells_of(self, places: Tensor, dtype: DType) -> Tensor:
        """The cells of elements, one element after the other."""
        first = places.reshape(-1) // self._plan.cell_bytes
        more = dtype.itemsize // self._plan.cell_bytes
        return first if more == 1 else (first[:, None] + np.arange(more)).reshape(-1)

    def _all_cells_of(self, buffer: Buffer) -> Cells:
        """The cells of a whole buffer, in any order: NumPy has a range of them without a copy."""
        if not buffer.is_dense:
            return self._cells_of(buffer.places, buffer.dtype)
        first = int(buffer.places.min()) // self._plan.cell_bytes
        return slice(first, first + buffer.bytes // self._plan.cell_bytes)

    def _cells(self, places: Tensor, dtype: DType, warps: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of elements, and for each of them the warps of its element."""
        return self._cells_of(places, dtype), np.repeat(warps.reshape(-1), dtype.itemsize // self._plan.cell_bytes)

    def _put(self, buffer: Buffer, places: Tensor, values: Tensor) -> None:
        dtype = buffer.dtype
        self._data.view(dtype.numpy)[places // dtype.itemsize] = values.astype(dtype.numpy, copy=False)

    def _poison(self, buffer: Buffer) -> None:
        value = float("nan") if buffer.dtype.is_float else buffer.dtype.highest
        self._put(buffer, buffer.places, np.asarray(value))

    def _name(self, who: str) -> int:
        if self._names[-1] != who:
            self._names.append(who)
        return len(self._names) - 1

    # ---- checks -----------------------------------------------------------------------------------------------------

    def _check_arriving(self, cells: Cells, who: str) -> None:
        arriving = self._arriving[cells]
        if arriving.any():
            raise RaceError(f"{who} where {self._names[int(arriving.max())]} has not arrived")

    def _check_write(self, cells: Cells, shares: Sequence[tuple[int, Cells]], who: str) -> None:
        """Some warps write, now or later: what others did there is over."""
        self._check_arriving(cells, f"{who} writes")
        self._check_not_read(cells, who)
        self._check_seen(shares, f"{who} writes")
        floor = self._clocks.floor([row for row, _ in shares])[: self._readers]
        if (self._reads[:, cells] <= floor[:, None]).all():
            return
        for row, mine in shares:
            late: Tensor = np.any(self._reads[:, mine] > self._clocks.seen[row, : self._readers, None], axis=0)
            self._check(late, mine, self._read_by, f"{who} writes what {{}} read")

    def _check_not_read(self, cells: Cells, who: str) -> None:
        reading = self._reading[:, cells]
        if reading.any():
            raise RaceError(f"{who} writes what {self._names[int(reading.max())]} still reads")

    def _check_seen(self, shares: Sequence[tuple[int, Cells]], who: str) -> None:
        """Some warps know of the last write of each cell."""
        if not shares:
            return
        floor = self._clocks.floor([row for row, _ in shares])
        if all((self._written[cells] <= floor[self._writer[cells]]).all() for _, cells in shares):
            return
        for row, cells in shares:
            late = self._written[cells] > self._clocks.seen[row, self._writer[cells]]
            landed = late & (self._writer[cells] >= self._clocks.warps)
            self._check(landed, cells, self._written_by, f"{who} what {{}} copied, which was not waited for", "")
            self._check(late, cells, self._written_by, f"{who} what {{}} wrote")

    def _check_fenced(self, shares: Sequence[tuple[int, Cells]], who: str) -> None:
        """Check that writes of warps are visible to asynchronous operations."""
        for row, cells in shares:
            writer = self._writer[cells]
            late = (writer < self._clocks.warps) & (self._written[cells] > self._clocks.fenced[row, writer])
            self._check(late, cells, self._written_by, f"{who} what {{}} wrote, with no fence before a barrier", "")

    def _check(
        self, wrong: Tensor, cells: Cells, names: Tensor, message: str, end: str = " since the last barrier"
    ) -> None:
        if wrong.any():
            other = self._names[int(names[cells][int(np.argmax(wrong))])]
            raise RaceError(message.format(other) + end)

    # ---- copies of warps --------------------------------------------------------------------------------------------

    def copy(self, agent: Agent, buffer: Buffer, values: Tensor, warps: Tensor, who: str) -> None:
        """`values` are on their way to all of a buffer."""
        cells, masks = self._cells(buffer.places, buffer.dtype, warps)
        self._check_write(cells, list(_shares(agent, cells, masks)), who)
        self._poison(buffer)
        self._arriving[cells] = self._name(who)
        self._groups[agent.name].open.append(_Copy(buffer, values, warps, who))

    def commit(self, agent: Agent) -> None:
        """The copies since the last commit are a group."""
        groups = self._groups[agent.name]
        groups.committed.append(groups.open)
        groups.open = []

    def wait(self, agent: Agent, pending: int) -> None:
        """All groups but the newest `pending` arrive."""
        committed = self._groups[agent.name].committed
        while len(committed) > pending:
            for copy in committed.pop(0):
                cells, masks = self._cells(copy.buffer.places, copy.buffer.dtype, copy.warps)
                self._arriving[cells] = 0
                self._note_writes(list(_shares(agent, cells, masks)), copy.name)
                self._put(copy.buffer, copy.buffer.places, copy.values)

    def end(self, agent: Agent) -> None:
        """A role ends.

        Raises:
            RaceError: a copy of it is still under way.
        """
        groups = self._groups[agent.name]
        left = [*groups.open, *(copy for group in groups.committed for copy in group)]
        if left:
            raise RaceError(f"nothing waits for {left[0].name}")

    # ---- what works asynchronously ----------------------------------------------------------------------------------

    def start_write(self, row: int, buffer: Buffer, who: str) -> None:
        """A copy that the machine makes, begun by a warp, will write all of a buffer."""
        cells = self._all_cells_of(buffer)
        shares = [(row, cells)]
        self._check_write(cells, shares, who)
        self._check_fenced(shares, f"{who} writes")
        self._poison(buffer)
        self._arriving[cells] = self._name(who)

    def finish_write(self, buffer: Buffer, values: Tensor, column: int, clock: int, who: str) -> None:
        """Record a write, in the name of a column of the clocks."""
        cells = self._all_cells_of(buffer)
        self._arriving[cells] = 0
        self._writer[cells] = column
        self._written[cells] = clock
        self._written_by[cells] = self._name(who)
        self._put(buffer, buffer.places, values)

    def start_read(self, agent: Agent, buffer: Buffer, who: str) -> tuple[Cells, int]:
        """An MMA of all warps of a role reads a buffer from now on; gives what `finish_read` wants."""
        cells = self._all_cells_of(buffer)
        self._check_arriving(cells, f"{who} reads")
        shares = [(row, cells) for row in agent.rows]
        self._check_seen(shares, f"{who} reads")
        self._check_fenced(shares, f"{who} reads")
        number = len(self._names)  # of its own, though others have the same name
        self._names.append(who)
        self._reading[self._agents[agent.name], cells] = number
        return cells, number

    def finish_read(self, agent: Agent, cells: Cells, number: int, rows: Sequence[int] = ()) -> None:
        """The MMA has been done, and no later one of the role still reads its operands. `rows`: the warps that know
        that, if not all of the role do."""
        self._end_reading(agent, cells, number)
        self._note_reads([(row, cells) for row in rows or agent.rows], self._names[number])

    def finish_read_at(self, agent: Agent, cells: Cells, number: int, column: int, clock: int) -> None:
        """Record the end of a read, in the name of a column of the clocks."""
        self._end_reading(agent, cells, number)
        self._reads[column, cells] = clock
        self._read_by[cells] = self._name(self._names[number])

    def _end_reading(self, agent: Agent, cells: Cells, number: int) -> None:
        reading = self._reading[self._agents[agent.name]]
        held = reading[cells]
        reading[cells] = np.where(held == number, 0, held)


def _shares(agent: Agent, cells: Tensor, masks: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The rows of a role's warps, and the cells of each."""
    if not cells.size:
        return
    together = np.bitwise_or.reduce(masks)
    for bit, row in [*enumerate(agent.said_rows), (_SOME_WARP_BIT, agent.rows[-1])]:
        flag = np.uint64(1) << np.uint64(bit)
        if together & flag:
            of_row = (masks & flag) != 0
            yield row, cells if of_row.all() else cells[of_row]


@lru_cache(maxsize=256)
def places_in(layout: str, shape: tuple[int, ...]) -> Tensor:
    """How many elements into a buffer each element of a tile is; without a layout, row after row."""
    if not layout:
        return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    parsed = Layout.parse(layout)
    axis = next((axis for axis in parsed.axes if kind_of(axis) == Kind.MEMORY), "mem")
    total = _coordinate(parsed, axis, shape) + static(parsed.offset_on(axis))
    for term in parsed.swizzle_on(axis):
        total = total ^ (((total >> term.source) & ((1 << term.bits) - 1)) << term.target)
    return total


@lru_cache(maxsize=256)
def _are_dense(layout: str, shape: tuple[int, ...]) -> bool:
    """Whether the positions of a tile's elements are a range of numbers."""
    places = places_in(layout, shape)
    return bool(places.size) and bool((np.diff(np.sort(places, axis=None)) == 1).all())


@lru_cache(maxsize=256)
def warps_of(layout: str, shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """For each element of a tile the warps of `count` that hold it, a bit for each, and the one that stores it."""
    if not layout:
        return np.full(shape, EVERY_WARP), np.full(shape, SOME_WARP)
    parsed = Layout.parse(layout)
    first = _coordinate(parsed, "warp", shape)
    slots = [
        (d.stride, static(d.extent)) for own in parsed.shard for _, d in weighted(fuse_digits(own)) if d.axis == "warp"
    ]
    holders = np.zeros(shape, np.uint64)
    for warp in range(count):
        held = sum(warp // stride % extent * stride for stride, extent in slots if stride)
        holders |= (first == held).astype(np.uint64) << np.uint64(warp)
    return holders, np.uint64(1) << first.astype(np.uint64)


@lru_cache(maxsize=256)
def coordinates_on(axis: str, layout: str, shape: tuple[int, ...]) -> Tensor:
    """The coordinate of each element of a tile on an axis."""
    return _coordinate(Layout.parse(layout), axis, shape)


def _coordinate(layout: Layout, axis: str, shape: tuple[int, ...]) -> Tensor:
    """The coordinate of each element on an axis, without offset and XOR terms."""
    grids = np.indices(shape, np.int64)
    total = np.zeros(shape, np.int64)
    for term in layout.linear_terms(axis):
        part = grids[term.dim] // term.divisor
        total += (part if term.modulus is None else part % term.modulus) * term.stride
    return total
