"""Padding that a mover stores beyond the edges of an array, in pages that it loaded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.arrays import ArrayMemory
from tilewright.semantics.cores.expressions import Argument, numbers_of
from tilewright.semantics.cores.mover_steps import mover
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.tile_formats import Array, encode
from tilewright.semantics.cores.tile_formats import decode as decoded


def pad_steps(op: cores.PadOp, names: Names) -> list[Step]:
    """Pages that reach beyond the array are worked out once for each position of the window."""
    symbols = names(op.symbols)
    coordinates = [numbers_of(op.map, i, op.shape, symbols) for i in range(len(op.map.results))]
    at = numbers_of(op.at, 0, op.shape, symbols)
    fill = float(op.fill)
    known: dict[tuple[int, ...], list[tuple[int, Array]]] = {}

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[op.array], agent.queue(op.queue)

        def pad(*given: Argument) -> None:
            key = tuple(each if isinstance(each, int) else tuple(each) for each in given)
            found = known.get(key)  # pyright: ignore[reportArgumentType, reportCallIssue]
            if found is None:
                places = [
                    np.broadcast_to(np.asarray(n.all(g)), prod(op.shape))
                    for n, g in zip((*coordinates, at), given, strict=True)
                ]
                found = known[key] = _beyond(memory, op.sides, places[:-1], places[-1])  # pyright: ignore[reportArgumentType]
            if not found:
                return
            slots = queue.free_slots(agent, op, [place for place, _ in found])
            if world.checks:
                stamp = agent.stamp(op)
                queue.note_reads(own, slots, stamp)
                queue.note_writes(own, slots, stamp)
            elements = sum(int(beyond.sum()) for _, beyond in found)
            agent.spend(world.grid.fill_cycles * elements * queue.format.bits / 32)
            if queue.view is None:
                return
            for slot, (_, beyond) in zip(slots, found, strict=True):
                values = decoded(queue.view[slot], queue.format.name).copy()
                values[beyond] = fill
                queue.view[slot] = encode(values, queue.format.name)

        return pad

    return [Step(make, ", ".join(each.argument for each in (*coordinates, at)))]


def _beyond(
    memory: ArrayMemory, sides: tuple[bool, bool], coordinates: Sequence[Array], at: Array
) -> list[tuple[int, Array]]:
    """Places in a queue of pages that reach beyond an array, and which of their elements do on some sides of it."""
    shape = memory.array.shape
    sizes = (*(1,) * (2 - len(shape)), *shape)
    found: list[tuple[int, Array]] = []
    for number, place in enumerate(at.tolist()):
        own = [int(each[number]) for each in coordinates]
        outside = any(not 0 <= c < size for c, size in zip(own[:-2], sizes[:-2], strict=True))
        rows, columns = (
            ((np.arange(TILE) + c * TILE >= size) | (c < 0)) & side
            for c, size, side in zip(own[-2:], sizes[-2:], sides, strict=True)
        )
        beyond = rows[:, None] | columns[None, :] | outside
        if beyond.any():
            found.append((int(place), beyond))
    return found
