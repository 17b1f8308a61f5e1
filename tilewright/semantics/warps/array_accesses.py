"""Race detection on arrays that a block writes: accesses of its warps must be ordered.

An element that one thread writes and another one touches needs something between that orders them (`clocks.py`); what a
thread does itself it does in order. Of a tile with copies in several lanes it is unspecified which of them reads.
Blocks are not compared with each other, and what the machine copies by itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, layout_text
from tilewright.layout import Layout
from tilewright.layout.queries import has_copies
from tilewright.records import dataclass
from tilewright.semantics.hazards import RaceError
from tilewright.semantics.places import inside_of
from tilewright.semantics.warps.agents import Agent
from tilewright.semantics.warps.block_memory import coordinates_on, warps_of
from tilewright.semantics.warps.clocks import Clocks

Tensor = np.ndarray[Any, Any]
# A lane that is no other: of a tile without a layout, or of copies in several lanes.
_SOME_LANE = -1
# Warps have as many lanes, or more.
_LANES = 32


def written_arrays(region: scheduled.ParallelOp) -> frozenset[SSAValue]:
    """The arrays that a region's blocks of warps store to, and touch in more than that one operation, or in a loop."""
    if region.warps is None:
        return frozenset()
    touched: dict[SSAValue, int] = {}
    stored: set[SSAValue] = set()
    for op in region.body.block.walk():
        if not isinstance(op, tile.LoadOp | tile.StoreOp):
            continue
        ref = op.destination if isinstance(op, tile.StoreOp) else op.source
        if tile.ref_type(ref).space.data == "":
            touched[ref] = touched.get(ref, 0) + (1 if op.parent_op() is region else 2)
            stored |= {ref} if isinstance(op, tile.StoreOp) else set()
    return frozenset(ref for ref in stored if touched[ref] > 1)


@dataclass
class _Elements:
    """Of each element of an array the last write (warp, clock, lane, name) and the last read of each warp."""

    writer: Tensor
    written: Tensor
    writing_lane: Tensor
    written_by: Tensor
    reads: Tensor
    reading_lane: Tensor

    @staticmethod
    def of(size: int, warps: int) -> _Elements:
        flat = [np.zeros(size, np.int32) for _ in range(4)]
        return _Elements(*flat, *(np.zeros((warps, size), np.int32) for _ in range(2)))


class ArrayAccesses:
    """`arrays`: those that are looked at."""

    def __init__(self, arrays: frozenset[SSAValue], clocks: Clocks) -> None:
        self._arrays = arrays
        self._clocks = clocks
        self._elements: dict[SSAValue, _Elements] = {}
        self._names = [""]

    def touch(self, op: tile.LoadOp | tile.StoreOp, agent: Agent, symbols: Sequence[Any], who: str) -> None:
        """A role loads or stores a tile.

        Raises:
            RaceError: another thread wrote there, or reads what is written, and nothing is between.
        """
        is_store = isinstance(op, tile.StoreOp)
        ref, value = (op.destination, op.value) if isinstance(op, tile.StoreOp) else (op.source, op.result)
        if ref not in self._arrays:
            return
        type, shape = tile.ref_type(ref), array_type(value).shape
        if ref not in self._elements:
            self._elements[ref] = _Elements.of(int(np.prod(type.shape)), self._clocks.warps)
        at, inside = inside_of(op.map, shape, type.shape, symbols)
        places = np.ravel_multi_index(at, type.shape) if type.shape else np.zeros(int(inside.sum()), np.int64)
        lanes = _lanes(layout_text(value), shape, is_store)[inside]
        for row, mine in _rows(layout_text(value), shape, agent, is_store):
            chosen = mine[inside]
            if chosen.any():
                self._touch(self._elements[ref], row, places[chosen], lanes[chosen], is_store, who)

    def _touch(self, held: _Elements, row: int, places: Tensor, lanes: Tensor, is_store: bool, who: str) -> None:
        seen, now = self._clocks.seen[row], self._clocks.now[row]
        does = f"{who} writes" if is_store else f"{who} reads"
        writer = held.writer[places]
        own = (writer == row) & (held.writing_lane[places] == lanes) & (lanes != _SOME_LANE)
        late = (held.written[places] > seen[writer]) & ~own
        self._check(late, held, places, f"{does} what {{}} wrote")
        if not is_store:
            again = held.reads[row, places] > seen[row]
            held.reading_lane[row, places] = np.where(
                again & (held.reading_lane[row, places] != lanes), _SOME_LANE, lanes
            )
            held.reads[row, places] = now
            return
        for other in range(self._clocks.warps):
            own = (other == row) & (held.reading_lane[other, places] == lanes) & (lanes != _SOME_LANE)
            late = (held.reads[other, places] > seen[other]) & ~own
            if late.any():
                raise RaceError(f"{who} writes what another thread read in an array since the last barrier")
        held.writer[places], held.written[places], held.writing_lane[places] = row, now, lanes
        self._names.append(who)
        held.written_by[places] = len(self._names) - 1

    def _check(self, late: Tensor, held: _Elements, places: Tensor, message: str) -> None:
        if late.any():
            other = self._names[int(held.written_by[places[int(np.argmax(late))]])]
            raise RaceError(message.format(other) + " in an array since the last barrier")


def _lanes(layout: str, shape: tuple[int, ...], is_store: bool) -> Tensor:
    """The lane that touches each element of a tile."""
    if not layout or (not is_store and has_copies(Layout.parse(layout), "lane", _LANES)):
        return np.full(shape, _SOME_LANE)
    return coordinates_on("lane", layout, shape)


def _rows(layout: str, shape: tuple[int, ...], agent: Agent, is_store: bool) -> Iterator[tuple[int, Tensor]]:
    """The warps of a role, and which elements of a tile each of them touches."""
    if not layout:
        rows = [agent.rows[-1]] if is_store else agent.said_rows
        yield from ((row, np.ones(shape, bool)) for row in rows)
        return
    masks = warps_of(layout, shape, agent.warps)[1 if is_store else 0]
    for bit, row in enumerate(agent.said_rows):
        yield row, (masks & (np.uint64(1) << np.uint64(bit))) != 0
