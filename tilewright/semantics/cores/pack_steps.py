"""Steps of pack: it copies tile registers to pages of queues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import FACE
from tilewright.machines.core_grid import CoreGrid
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.expressions import Argument, places_of, python
from tilewright.semantics.cores.math_steps import registers_of
from tilewright.semantics.cores.registers import FLOATS, SIGNED, UNSIGNED
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.row_steps import rows_of_tiles
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.tile_formats import Array
from tilewright.semantics.cores.units import needed_states, needs_of, use

UNITS = (cores.PACK, cores.EDGES)
# A state of pack, which `accumulate` sets, and what it is while that is on.
ACCUMULATES, ON = "accumulates", "on"


def accumulate_steps(op: cores.AccumulateOp, names: Names) -> list[Step]:
    def make(agent: Agent) -> Action:
        unit, cycles = agent.unit(ACCUMULATES), agent.world.grid.configure_cycles

        def accumulate(condition: int) -> None:
            state = ON if condition else ""
            if (unit.state or "") != state:
                agent.spend(cycles)
            unit.state = state

        return accumulate

    return [Step(make, python(op.map.results[0], (), names(op.symbols)), in_order=False)]


def pack_steps(op: cores.PackOp, names: Names) -> list[Step]:
    return _steps(op, names, edged, CoreGrid.pack_cycles)


def untilize_steps(op: cores.UntilizeOp, names: Names) -> list[Step]:
    return _steps(op, names, lambda tiles, _: rows_of_tiles(tiles), CoreGrid.pack_rows_cycles)


def _steps(
    op: cores.PackingOp,
    names: Names,
    packed: Callable[[Array, str | None], Array],
    page_cycles: Callable[[CoreGrid, int], float],
) -> list[Step]:
    """`packed`: what is made of tiles, by the state of what is packed of them; `page_cycles`: what each takes."""
    count = len(op.slots)
    places, registers = places_of(op.at, count, names(op.symbols)), slice(op.slots.start, op.slots.stop)
    value, states, numbers = op.queue, needed_states(op, UNITS), tuple(op.slots)

    def make(agent: Agent) -> Action:
        world, queue, tile_registers = agent.world, agent.queue(value), registers_of(agent)
        format, checks, needs = queue.format, world.checks, needs_of(agent, states)
        edges, accumulates = agent.unit(cores.EDGES), agent.unit(ACCUMULATES)
        cycles = page_cycles(world.grid, format.page_bytes) * count
        kind = {"i32": SIGNED, "u32": UNSIGNED}.get(format.dtype, FLOATS)

        def pack(given: Argument) -> None:
            use(agent, op, needs)
            half = tile_registers.of_pack(agent, op, registers)
            slots = queue.free_slots(agent, op, places.pages(given))
            adds = accumulates.state == ON
            if adds and checks and format.exponent_bytes:
                text = f"packs to pages of {format.name}, and adds to what they hold"
                raise hazard("accumulate-onto-blocks", text, agent, op)
            if adds and checks and not all(queue.filled[slot] for slot in slots):
                raise hazard(
                    "accumulate-onto-unwritten",
                    f"adds to a page of queue {queue.name} that was not written since it was reserved",
                    agent,
                    op,
                )
            if checks:
                queue.note_writes(agent, slots, agent.stamp(op))
            agent.spend(cycles)
            world.tile_operations += count
            if queue.view is None:
                return
            for slot in numbers:
                if (half.kinds[slot] == FLOATS) != (kind == FLOATS):
                    raise hazard(
                        "register-of-other-type",
                        f"register {slot} holds {half.kinds[slot]}, and is packed to pages of {format.name}",
                        agent,
                        op,
                    )
            values = packed(half.read(registers, kind), edges.state)
            queue.write(slots, queue.read(slots) + values if adds else values)

        return pack

    return [Step(make, places.argument, in_order=False)]


def edged(values: Array, edges: str | None) -> Array:
    """The packed elements if pack is configured for the results of a reduction: all others become zeros."""
    if edges not in (cores.ROW, cores.COLUMN, cores.SCALAR):
        return values
    faces = values.reshape(-1, 2, 2, FACE, FACE)
    kept = np.zeros_like(faces)
    rows = slice(None) if edges == cores.ROW else slice(1)
    columns = slice(None) if edges == cores.COLUMN else slice(1)
    kept[:, rows, columns, rows, columns] = faces[:, rows, columns, rows, columns]
    return kept.reshape(values.shape)
