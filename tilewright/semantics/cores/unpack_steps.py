"""What unpack does: it brings pages of queues to the source registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import cores
from tilewright.dialects.base import decode
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.expressions import Argument, Places, places_from, places_of
from tilewright.semantics.cores.queue_steps import needed_states
from tilewright.semantics.cores.queues import at
from tilewright.semantics.cores.registers import Operands
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.tile_formats import Array, decode_in_faces, to_tf32

UNITS = (cores.UNPACK_A, cores.UNPACK_B)
# Source registers that an operation may be ahead by.
_BANKS = 2
# What is made of the pages that an operation reads, in the order of its operands.
_Prepare = Callable[[list[Array]], tuple[Array, ...]]


def copy_steps(op: cores.CopyOp, names: Names) -> list[Step]:
    count, places = len(op.slots), places_of(op.at.data, len(op.slots), names(op.symbols))
    broadcast, transposes = op.broadcast.data, op.transpose is not None

    def prepare(pages: list[Array]) -> tuple[Array, ...]:
        (source,) = pages
        if transposes:
            source = source.reshape(-1, 2, 2, FACE, FACE).transpose(0, 2, 1, 4, 3).reshape(count, -1)
        return (repeated(source, broadcast),)

    return _steps(op, [op.queue], [places], count, count, False, prepare)


def binary_steps(op: cores.BinaryOp, names: Names) -> list[Step]:
    count, symbols = len(op.slots), names(op.symbols)
    places = [places_of(op.left_at.data, count, symbols), places_of(op.right_at.data, count, symbols)]
    broadcast = op.broadcast.data
    return _steps(
        op, [op.left, op.right], places, count, 2 * count, True, lambda pages: (pages[0], repeated(pages[1], broadcast))
    )


def matmul_steps(op: cores.MatmulOp, names: Names) -> list[Step]:
    rows, columns, depth = op.block_shape
    symbols = names(op.symbols)
    left = [r * decode(op.left_stride) + k for r in range(rows) for k in range(depth)]
    right = [k * decode(op.right_stride) + c for k in range(depth) for c in range(columns)]
    places = [places_from(op.left_at.data, left, symbols), places_from(op.right_at.data, right, symbols)]
    transposes = op.transpose is not None

    def prepare(pages: list[Array]) -> tuple[Array, ...]:
        return matrix(pages[0], rows, depth), matrix(pages[1], depth, columns, transposes)

    # A page of one operand stays while those of the other that it meets come by, the fewer of them again and again.
    moved = depth * (rows * columns + min(rows, columns))
    return _steps(op, [op.left, op.right], places, rows * columns * depth, moved, True, prepare)


def reduce_steps(op: cores.ReduceOp, names: Names) -> list[Step]:
    count: int = decode(op.pages)
    places = [places_of(op.at.data, count, names(op.symbols)), places_from(_FIRST, (0,), ())]
    return _steps(op, [op.queue, op.scaler], places, count, count + 1, True, lambda pages: (pages[0], pages[1]))


_FIRST = AffineMap(0, 0, (AffineExpr.constant(0),))


def _steps(
    op: cores.RegisterOp,
    sources: Sequence[SSAValue],
    places: Sequence[Places],
    pages: int,
    moved: int,
    cuts: bool,
    prepare: _Prepare,
) -> list[Step]:
    """Claim banks, unpack, and go on when math has come so far. `pages`: what math works on; `moved`: how many pages
    are unpacked for it."""
    begun: dict[Agent, Operands] = {}

    def claim(agent: Agent) -> Action:
        sources = agent.core.sources
        assert sources is not None
        return lambda: sources.claim(agent, op, pages)

    def unpack(agent: Agent) -> Action:
        world, queues = agent.world, [agent.queue(each) for each in sources]
        registers = agent.core.sources
        assert registers is not None
        states, checks = needed_states(op, UNITS), world.checks
        cycles = moved * sum(world.grid.unpack_cycles(q.format.page_bytes) for q in queues) / len(queues)
        cut = [cuts and queue.format.name == "f32" for queue in queues]

        def run(*given: Argument) -> None:
            check_states(agent, op, states)
            read: list[Array] = []
            for queue, place, argument, cutting in zip(queues, places, given, cut, strict=True):
                slots = queue.full_slots(agent, op, place.pages(argument))
                if checks:
                    queue.note_reads(agent, slots, agent.stamp(op))
                if queue.view is not None:
                    values = decode_in_faces(at(queue.view, slots), queue.format.name)
                    read.append(to_tf32(values) if cutting else values)
            began = agent.time
            agent.spend(cycles)
            first = began + (agent.time - began) / pages
            operands = Operands(op, pages, first, agent.time, prepare(read) if read else ())
            if checks:
                operands.known = agent.tell()
            begun[agent] = operands
            registers.give(operands)

        return run

    def finish(agent: Agent) -> Action:
        registers = agent.core.sources
        assert registers is not None
        return lambda: registers.finish(agent, op, begun[agent])

    arguments = ", ".join(place.argument for place in places)
    steps = [Step(claim, waits=True), Step(unpack, arguments, in_order=False)]
    return [*steps, Step(finish, waits=True)] if pages > _BANKS else steps


def check_states(agent: Agent, op: Operation, states: tuple[tuple[str, str], ...]) -> None:
    """Units are in the states that an operation needs."""
    for unit, state in states:
        found = agent.states.get(unit)
        if found != state:
            raise hazard(
                "unit-not-configured" if found is None else "unit-configured-otherwise",
                f"unit {unit} has to be configured for `{state}`, and is "
                + ("not configured" if found is None else f"for `{found}`"),
                agent,
                op,
            )
        if unit in agent.unused:
            agent.unused.remove(unit)
            if agent.used.get(unit) != state:
                agent.used[unit] = state
                agent.world.changes[unit] += 1


def repeated(pages: Array, broadcast: str) -> Array:
    """Pages, face by face, with the first row, column or element of each at all places."""
    if broadcast == cores.NONE:
        return pages
    faces = pages.reshape(-1, 2, 2, FACE, FACE)
    match broadcast:
        case cores.ROW:
            first = faces[:, :1, :, :1, :]
        case cores.COLUMN:
            first = faces[:, :, :1, :, :1]
        case _:
            first = faces[:, :1, :1, :1, :1]
    return np.broadcast_to(first, faces.shape).reshape(pages.shape)


def matrix(pages: Array, rows: int, columns: int, transposes: bool = False) -> Array:
    """The matrix of rows x columns pages, which are given face by face, each of them transposed or not."""
    faces = pages.reshape(rows, columns, 2, 2, FACE, FACE)
    order = (0, 3, 5, 1, 2, 4) if transposes else (0, 2, 4, 1, 3, 5)
    return faces.transpose(order).reshape(rows * TILE, columns * TILE)
