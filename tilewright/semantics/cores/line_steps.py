"""Steps of movers along the rows of a tile: scans and sorts, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2, prod
from typing import Any

import numpy as np

from tilewright.dialects import cores
from tilewright.semantics.array import PRIMITIVES
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.element_steps import lanes_in_pages
from tilewright.semantics.cores.queues import at, set_at
from tilewright.semantics.cores.steps import Step
from tilewright.semantics.cores.tile_formats import Array, decode_in_faces, encode_in_faces


def scan_steps(op: cores.ScanOp) -> list[Step]:
    attributes = {"fn": op.fn, "axis": _axis(op), "reverse": bool(op.reverse)}

    def scanned(tiles: Sequence[Array]) -> list[Array]:
        return [np.asarray(PRIMITIVES["scan"](tiles, attributes))]

    return _steps(op, 1, scanned)


def sort_steps(op: cores.SortOp) -> list[Step]:
    """Sorted by merging: each element moves as often as halves of a line have halves."""
    attributes = {"axis": _axis(op), "descending": bool(op.descending)}

    def in_order(tiles: Sequence[Array]) -> list[Array]:
        return list(PRIMITIVES["sort"](tiles, attributes))

    return _steps(op, merges(op.lanes[_axis(op)]), in_order)


def merges(length: int) -> int:
    """How often all elements of a line are moved, by merging twice as many at a time, and copied first."""
    return 1 + (ceil(log2(length)) if length > 1 else 0)


def _axis(op: cores.LinesOp) -> int:
    return op.axis


def _steps(op: cores.LinesOp, times: int, result_of: Callable[[Sequence[Array]], list[Array]]) -> list[Step]:
    """`times`: how often each element is moved."""
    lanes: Any = np.indices(op.lanes).reshape(len(op.lanes), prod(op.lanes))
    places = lanes_in_pages(lanes, op.lanes, op.rows, op.columns)

    def make(agent: Agent) -> Action:
        world = agent.world
        sources, queues = [agent.queue(q) for q in op.sources], [agent.queue(q) for q in op.queues]

        def go_through() -> None:
            taken = [queue.full_slots(agent, op, range(places.count)) for queue in sources]
            given = [queue.free_slots(agent, op, range(places.count)) for queue in queues]
            if world.checks:
                stamp = agent.stamp(op)
                for queue, slots in zip(sources, taken, strict=True):
                    queue.note_reads(agent, slots, stamp)
                for queue, slots in zip(queues, given, strict=True):
                    queue.note_writes(agent, slots, stamp)
            agent.spend(world.grid.element_cycles * times * len(places.pages) * len(sources))
            views = [queue.view for queue in sources]
            tiles: list[Array] = []
            for queue, view, slots in zip(sources, views, taken, strict=True):
                if view is None:
                    return
                values = decode_in_faces(at(view, slots), queue.format.name)
                tiles.append(values[places.pages, places.elements].reshape(op.lanes))
            for queue, slots, result in zip(queues, given, result_of(tiles), strict=True):
                if queue.view is None:
                    return
                values = decode_in_faces(at(queue.view, slots), queue.format.name)
                values[places.pages, places.elements] = result.reshape(-1)
                set_at(queue.view, slots, encode_in_faces(values, queue.format.name))

        return go_through

    return [Step(make)]
