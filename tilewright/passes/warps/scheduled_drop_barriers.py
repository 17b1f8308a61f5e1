"""Remove redundant barriers of a thread block.

The pass traces the accesses of a block's warps to its buffers through the kernel. It follows a loop for one period of
its rings' stages and one trip more, with copies ahead also for as many trips as the deepest ring has stages; if the
trip count is dynamic, it follows each count up to that. A barrier stays if without it one warp would write data that
another has read or written since, or read data that another has written. If only lanes of one warp depend on each
other, a warp barrier replaces it.

Before (sm_90a):
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        %b = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%a, %b) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %c = tile.load(%b) {map = affine_map<(d0) -> (((d0 * -1) + 63))>} : tensor<64xf32,
            "(64) : [2@warp 32@lane]">
        %d = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%c, %d) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %e = tile.load(%d) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [32@lane 2@warp]">
        tile.store(%e, %out) {map = affine_map<(d0) -> (d0)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        %b = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        tile.store(%a, %b) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %c = tile.load(%b) {map = affine_map<(d0) -> (((d0 * -1) + 63))>} : tensor<64xf32,
            "(64) : [2@warp 32@lane]">
        %d = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%c, %d) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %e = tile.load(%d) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [32@lane 2@warp]">
        tile.store(%e, %out) {map = affine_map<(d0) -> (d0)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import lcm, prod
from typing import Any, ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, layout_text
from tilewright.dialects.rewriting import erase
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.passes.base import Unit
from tilewright.passes.warps.tile_lower_to_warps import layout_of
from tilewright.semantics.tile import evaluate_map
from tilewright.semantics.warps.block_memory import EVERY_WARP, places_in, warps_of

Cells = np.ndarray[Any, Any]
# Warps that write other bytes of one cell count as if they wrote the same.
_CELL_BYTES = 4
_MOST_WAYS = 100


class ScheduledDropBarriersPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-drop-barriers"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                _drop(region)


@dataclass(frozen=True)
class _Touch:
    """An access: the cells of the block's memory and for each the warps that touch it. Copies write when they are
    waited for."""

    cells: Cells
    warps: Cells
    writes: bool
    later: bool = False


@dataclass(frozen=True)
class _Wait:
    """The end of a group of copies, or a wait for all groups but some."""

    pending: int | None


_Event = _Touch | _Wait | scheduled.BarrierOp


def _drop(region: scheduled.ParallelOp) -> None:
    found = (op for op in region.body.block.walk() if isinstance(op, scheduled.BarrierOp))
    of_all = scheduled.EVERY_ROLE, scheduled.CLUSTER
    barriers = [op for op in found if op.scope not in of_all and not _is_for_others(op)]
    if not barriers:
        return
    ways = _ways(region)
    if ways is None:
        return
    changed: dict[scheduled.BarrierOp, str] = {}
    for barrier in barriers:
        for scope in ("", scheduled.WARP):
            if not any(_meets(events, {**changed, barrier: scope}) for events in ways):
                changed[barrier] = scope
                break
    for barrier, scope in changed.items():
        if scope:
            barrier.scope = scope
        else:
            erase(barrier)


def _is_for_others(op: scheduled.BarrierOp) -> bool:
    """Whether it is there for arrays, or columns are freed, or declared to be, that the warps before it used."""
    return op.arrays or isinstance(op.next_op, tensor_memory.TensorFreeOp | tensor_memory.TensorFenceOp)


def _ways(region: scheduled.ParallelOp) -> list[list[_Event]] | None:
    """The events on each path through a region; None if an `if` accesses buffers, there are too many paths to follow,
    or accesses conflict with all barriers kept."""
    ops = list(region.body.block.walk())
    if any(isinstance(op, tile.IfOp) and _touches_buffers(op) for op in ops):
        return None
    loops = [op for op in ops if isinstance(op, tile.ForOp) and op.end is not None and _touches_buffers(op)]
    open_ended = [op for op in loops if not _is_last(op)]
    counts = [range(_followed(op) + 1) for op in open_ended]
    if prod(map(len, counts)) > _MOST_WAYS:
        return None
    warps = 1 if region.warps is None else region.warps
    recorder = _Recorder(warps)
    ways: list[list[_Event]] = []
    for chosen in product(*counts):
        recorder.trips = dict(zip(open_ended, chosen, strict=True))
        ways.append(recorder.events_of(region.body.block))
    return None if any(_meets(events, {}) for events in ways) else ways


def _touches_buffers(op: Operation) -> bool:
    return any(isinstance(inner, scheduled.AllocOp | scheduled.StageOp | scheduled.BarrierOp) for inner in op.walk())


def _is_last(op: tile.ForOp) -> bool:
    """Whether nothing after a loop touches buffers: fewer trips are the beginning of what more trips are."""
    behind = op.next_op
    while isinstance(behind, asynchronous.StoreWaitOp | tensor_memory.TensorFreeOp | tile.ZoneOp):
        behind = behind.next_op
    return isinstance(behind, scheduled.EndOp)


def _followed(op: tile.ForOp) -> int:
    """How many trips of a loop show all that its trips do to each other."""
    inner = list(op.body.block.walk())
    rings = [_ring(stage).count for stage in inner if isinstance(stage, scheduled.StageOp) and _goes_by(stage, op)]
    trips, period = op.trips, lcm(*rings)
    # The last ones, in which nothing is copied ahead, come on top.
    ahead = max(rings, default=1) if any(isinstance(each, scheduled.CopyOp) for each in inner) else 0
    enough = period + 1 + ahead
    # The last of them is at the stage at which the loop ends.
    return min(trips, enough + (trips - enough) % period)


def _goes_by(stage: scheduled.StageOp, op: tile.ForOp) -> bool:
    """Whether it takes the trips of a loop to come to all stages: those of no loop in it do."""
    around = stage.parent_op()
    while around is not None and around is not op:
        if isinstance(around, tile.ForOp) and around.body.block.args[0] in stage.symbols:
            return False
        around = around.parent_op()
    return around is op


# ---- what happens ---------------------------------------------------------------------------------------------------


@dataclass
class _Recorder:
    """Follows a block: buffers have their addresses in memory, counters numbers, tiles nothing. `trips`: how many the
    loops have whose number is not known."""

    warps: int
    trips: dict[tile.ForOp, int] = field(default_factory=dict[tile.ForOp, int])
    starts: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    counters: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    known: dict[object, tuple[Cells, Cells]] = field(default_factory=dict[object, tuple[Cells, Cells]])
    # What the asynchronous products under way read, the newest last.
    reading: list[list[_Touch]] = field(default_factory=list[list[_Touch]])
    # What tensor stores read until they are waited for.
    storing: list[_Touch] = field(default_factory=list[_Touch])

    def events_of(self, block: Block) -> list[_Event]:
        self.reading = []
        return list(self._block(block))

    def _block(self, block: Block) -> Iterator[_Event]:
        for op in block.ops:
            yield from self._op(op)

    def _op(self, op: Operation) -> Iterator[_Event]:
        match op:
            case scheduled.AllocOp():
                self.starts[op.result] = 0 if op.offset_bytes is None else op.offset_bytes
            case scheduled.StageOp():
                self._stage(op)
            case scheduled.BarrierOp():
                yield op
            case scheduled.CommitOp():
                yield _Wait(None)
            case scheduled.WaitOp():
                yield _Wait(op.pending)
            case tile.ForOp():
                yield from self._for(op)
            case scheduled.RoleOp():
                return  # orders what it does by barriers in memory
            case scheduled.MmaWaitOp():
                yield from self._done(op.pending)
            case asynchronous.TensorStoreOp():
                self.storing.append(self._whole(op, op.source, ""))
                yield self.storing[-1]
            case asynchronous.StoreWaitOp():
                yield from self.storing
                self.storing = []
            case _:
                touches = list(self._accesses(op))
                if isinstance(op, scheduled.MmaOp) and op.asynchronous:
                    self.reading.append(touches)
                yield from touches

    def _done(self, pending: int) -> Iterator[_Touch]:
        """Asynchronous MMAs read until they are waited for."""
        while len(self.reading) > pending:
            yield from self.reading.pop(0)

    def _accesses(self, op: Operation) -> Iterator[_Touch]:
        match op:
            case scheduled.CopyOp():
                if self._is_made(op):
                    yield self._whole(op, op.destination, op.layout, later=True)
            case scheduled.MmaOp():
                for operand, fragment in zip((op.left, op.right), op.fragments, strict=True):
                    if operand in self.starts:
                        yield self._whole((op, operand), operand, fragment)
            case tile.LoadOp() if op.source in self.starts:
                yield self._part(op, op.source, op.result)
            case tile.StoreOp() if op.destination in self.starts:
                yield self._part(op, op.destination, op.value)
            case _:
                pass

    def _is_made(self, op: scheduled.CopyOp) -> bool:
        """Whether there is a trip for a copy: the trips that are followed end as those of the loop do, where it is
        known how many it has."""
        loop = op.parent_op()
        if op.trip is None or op.trips is None or not isinstance(loop, tile.ForOp) or loop in self.trips:
            return True
        (trip,) = evaluate_map(op.trip, (), [self.counters.get(s, 0) for s in op.symbols])
        left_out = loop.trips - _followed(loop)
        return int(trip) + left_out < op.trips

    def _stage(self, op: scheduled.StageOp) -> None:
        assert isinstance(op.ring.owner, scheduled.AllocOp)
        (number,) = evaluate_map(op.map, (), [self.counters.get(s, 0) for s in op.symbols])
        self.starts[op.result] = self.starts[op.ring] + int(number) * op.ring.owner.stage_bytes

    def _for(self, op: tile.ForOp) -> Iterator[_Event]:
        for trip in range(self.trips.get(op, _followed(op))):
            self.counters[op.body.block.args[0]] = trip
            yield from self._block(op.body.block)

    def _whole(self, key: object, buffer: SSAValue, layout: str, later: bool = False) -> _Touch:
        """An access to all of a buffer by the threads of a layout."""
        if key not in self.known:
            type = tile.ref_type(buffer)
            holders, storing = warps_of(layout, type.shape, self.warps)
            places = places_in(type.layout.data, type.shape) * type.dtype.itemsize
            self.known[key] = _cells(places, type.dtype.itemsize, storing if later else holders)
        return self._at(key, buffer, later, later)

    def _part(self, op: tile.LoadOp | tile.StoreOp, buffer: SSAValue, value: SSAValue) -> _Touch:
        """An access to the elements of a buffer that a tile is."""
        is_store = isinstance(op, tile.StoreOp)
        if op not in self.known:
            type, shape = tile.ref_type(buffer), array_type(value).shape
            symbols = [self.counters.get(symbol, 0) for symbol in op.symbols]
            at = evaluate_map(op.map, shape, symbols)
            inside = np.ones(shape, bool)
            for coordinate, size in zip(at, type.shape, strict=True):
                inside = inside & (coordinate >= 0) & (coordinate < size)
            places = places_in(type.layout.data, type.shape)[tuple(each[inside] for each in at)] * type.dtype.itemsize
            holders, storing = warps_of(layout_text(value), shape, self.warps)
            warps = (storing if is_store else holders)[inside]
            if not is_store and (not inside.all() or _is_padded(value)):  # what is not there is read from the beginning
                places, warps = np.append(places, 0), np.append(warps, EVERY_WARP)
            self.known[op] = _cells(places, type.dtype.itemsize, warps)
        return self._at(op, buffer, is_store)

    def _at(self, key: object, buffer: SSAValue, writes: bool, later: bool = False) -> _Touch:
        cells, warps = self.known[key]
        return _Touch(cells + self.starts[buffer] // _CELL_BYTES, warps, writes, later)


def _is_padded(value: SSAValue) -> bool:
    layout = layout_of(value)
    return layout is None or layout.padded_shape != layout.shape


def _ring(op: scheduled.StageOp) -> scheduled.AllocOp:
    assert isinstance(op.ring.owner, scheduled.AllocOp)
    return op.ring.owner


def _cells(places: Cells, item: int, warps: Cells) -> tuple[Cells, Cells]:
    """The cells that elements at some positions touch, each once, and the warps of each."""
    within = np.arange(0, item, _CELL_BYTES)
    cells = ((places.reshape(-1, 1) + within) // _CELL_BYTES).reshape(-1)
    masks = np.repeat(np.asarray(warps, np.uint64).reshape(-1), within.size)
    found, where = np.unique(cells, return_inverse=True)
    together = np.zeros(found.size, np.uint64)
    np.bitwise_or.at(together, where.reshape(-1), masks)
    return found, together


# ---- whether that is in order ---------------------------------------------------------------------------------------


@dataclass
class _State:
    """Who wrote and read each cell since the last barrier: warps, and anyone since the last barrier of the warp."""

    writers: Cells
    readers: Cells
    written: Cells
    read: Cells

    @staticmethod
    def of(size: int) -> _State:
        return _State(*(np.zeros(size, np.uint64) for _ in range(2)), *(np.zeros(size, bool) for _ in range(2)))

    def barrier(self, scope: str) -> None:
        self.written.fill(False)
        self.read.fill(False)
        if scope != scheduled.WARP:
            self.writers.fill(0)
            self.readers.fill(0)

    def is_free(self, touch: _Touch) -> bool:
        """Whether no other thread did what this would have to wait for."""
        cells, warps = touch.cells, touch.warps
        if self.written[cells].any() or (touch.writes and self.read[cells].any()):
            return False
        if _are_others(self.writers[cells], warps):
            return False
        return not (touch.writes and _are_others(self.readers[cells], warps))

    def note(self, touch: _Touch) -> None:
        masks, flags = (self.writers, self.written) if touch.writes else (self.readers, self.read)
        masks[touch.cells] |= touch.warps
        flags[touch.cells] = True


def _are_others(before: Cells, now: Cells) -> bool:
    """Whether one of the warps that touched a cell is not the one that does now. Of several that touch it each may
    touch what another one did."""
    both = before | now
    return bool(((before != 0) & (both & (both - np.uint64(1)) != 0)).any())


def _meets(events: Sequence[_Event], changed: dict[Operation, str]) -> _Touch | None:
    """The first access that has to wait for another warp or lane and does not, with some barriers of another scope, or
    of none."""
    touches = [event for event in events if isinstance(event, _Touch)]
    state = _State.of(1 + max((int(touch.cells.max()) for touch in touches), default=0))
    groups: list[list[_Touch]] = [[]]
    for event in events:
        if isinstance(event, scheduled.BarrierOp):
            scope = changed.get(event, event.scope)
            if scope and scope != scheduled.CLUSTER:  # of which a block's own memory is not seen
                state.barrier(scope)
        elif isinstance(event, _Touch):
            if not state.is_free(event):
                return event
            if event.later:
                groups[-1].append(event)
            else:
                state.note(event)
        elif event.pending is None:
            groups.append([])
        else:
            while len(groups) - 1 > event.pending:
                for touch in groups.pop(0):
                    state.note(touch)
    return None
