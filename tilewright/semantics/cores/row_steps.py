"""Steps of movers on row-major arrays, and how rows of tiles are laid out in pages of queues.

Accesses to an array stored by rows are counted in the pages of tiles that would contain its elements: an operation
moves full rows of such a page, up to the end of the array.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import ARRAY_WRITES, READS, Action, Agent
from tilewright.semantics.cores.device_array import poison_page
from tilewright.semantics.cores.expressions import Argument
from tilewright.semantics.cores.mover_steps import Move, Moves, mover
from tilewright.semantics.cores.queues import Queue, set_at, shifted
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.tile_formats import Array, Bytes


@dataclass(frozen=True)
class RowPart:
    """Rows of an array, counted over all its matrices, and which of their elements."""

    rows: range
    columns: range


def part_of(shape: Sequence[int], pages: Sequence[int]) -> RowPart:
    """The parts of an array in pages of adjacent tiles."""
    height, width = (*(1,) * (2 - len(shape)), *shape)[-2:]
    down, across = cores.page_grid(shape)[-2:]
    above, left = divmod(pages[0], across)
    matrix, row = divmod(above, down)
    rows = range(matrix * height + TILE * row, matrix * height + min(height, TILE * (row + 1)))
    return RowPart(rows, range(TILE * left, min(width, TILE * (left + len(pages)))))


def fetch_rows_steps(op: cores.FetchRowsOp, names: Names) -> list[Step]:
    moves = Moves(op, names)

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[op.array], agent.queue(op.queue)

        def fetch(*given: Argument) -> None:
            move = moves.move(memory.holders, given)
            slots = queue.free_slots(agent, op, move.all_places)
            if queue.view is not None:
                set_at(queue.view, slots, poison_page(queue.format))
            first = queue.back % queue.capacity
            if world.checks and move.missing:
                queue.note_writes(agent, shifted(move.missing, first), agent.stamp(op))
            if not move.pages:
                return
            if world.checks:
                stamp = own.begin(READS, op)
                queue.note_writes(agent, shifted(move.places, first), stamp)
                if memory.is_checked:
                    memory.note_reads(agent, move.pages, stamp)
            part = part_of(memory.array.shape, move.pages)
            if queue.view is not None:
                _inside(queue, move, first, part)[:] = _stored(memory.array.pages, queue, part)
            size = len(part.columns) * queue.format.bits // 8
            lands = world.transfer_with_array(own, memory, size, memory.holders.shares(part.rows), True)
            own.lands[READS] = max(own.lands[READS], lands)

        return fetch

    return [Step(make, moves.argument)]


def put_rows_steps(op: cores.PutRowsOp, names: Names) -> list[Step]:
    moves = Moves(op, names)

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[op.array], agent.queue(op.queue)

        def put(*given: Argument) -> None:
            move = moves.move(memory.holders, given)
            queue.full_slots(agent, op, move.all_places)
            if not move.pages:
                return
            first = queue.front % queue.capacity
            if world.checks:
                stamp = own.begin(ARRAY_WRITES, op)
                queue.note_reads(agent, shifted(move.places, first), stamp)
                memory.note_writes(agent, move.pages, stamp)
            part = part_of(memory.array.shape, move.pages)
            if queue.view is not None:
                _stored(memory.array.pages, queue, part)[:] = _inside(queue, move, first, part)
            size = len(part.columns) * queue.format.bits // 8
            lands = world.transfer_with_array(own, memory, size, memory.holders.shares(part.rows), False)
            own.lands[ARRAY_WRITES] = max(own.lands[ARRAY_WRITES], lands)

        return put

    return [Step(make, moves.argument)]


def _stored(rows: Bytes, queue: Queue, part: RowPart) -> Bytes:
    """The array's elements of a part."""
    size = queue.format.bits // 8
    return rows[part.rows.start : part.rows.stop, size * part.columns.start : size * part.columns.stop]


def _inside(queue: Queue, move: Move, first: int, part: RowPart) -> Bytes:
    """The queue memory of the part, in pages of 32 rows."""
    assert queue.view is not None
    places = move.all_places
    begin, size = min(places), queue.format.bits // 8
    rows = queue.view[first + begin : first + begin + len(places)].reshape(TILE, -1)
    left = TILE * size * (min(move.places) - begin)
    return rows[: len(part.rows), left : left + size * len(part.columns)]


# ---- in the thread that computes ------------------------------------------------------------------------------------


def tiles_of_rows(pages: Array) -> Array:
    """Tiles side by side, face by face, of as many pages that hold 32 rows."""
    rows = pages.reshape(2, FACE, -1, 2, FACE)
    return np.ascontiguousarray(rows.transpose(2, 0, 3, 1, 4)).reshape(pages.shape)


def rows_of_tiles(tiles: Array) -> Array:
    """32 rows in as many pages, of tiles side by side, which are given face by face."""
    faces = tiles.reshape(-1, 2, 2, FACE, FACE)
    return np.ascontiguousarray(faces.transpose(1, 3, 0, 2, 4)).reshape(tiles.shape)
