"""Steps of unpack: it copies pages of queues to the source registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.expressions import Argument, Places, places_from, places_of
from tilewright.semantics.cores.registers import Operands, Sources
from tilewright.semantics.cores.row_steps import tiles_of_rows
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.tile_formats import Array, to_tf32
from tilewright.semantics.cores.units import needed_states, needs_of, use

UNITS = (cores.UNPACK_A, cores.UNPACK_B)
# Source registers that an operation may be ahead by.
_BANKS = 2
# What is made of the pages that an operation reads, in the order of its operands.
_Prepare = Callable[[list[Array]], tuple[Array, ...]]


def copy_steps(op: cores.CopyOp, names: Names) -> list[Step]:
    count, places = len(op.slots), places_of(op.at, len(op.slots), names(op.symbols))
    broadcast, transposes = op.broadcast, op.transpose

    def prepare(pages: list[Array]) -> tuple[Array, ...]:
        (source,) = pages
        if transposes:
            source = source.reshape(-1, 2, 2, FACE, FACE).transpose(0, 2, 1, 4, 3).reshape(count, -1)
        return (repeated(source, broadcast),)

    return _steps(op, [op.queue], [places], count, count, False, prepare)


def tilize_steps(op: cores.TilizeOp, names: Names) -> list[Step]:
    count, places = len(op.slots), places_of(op.at, len(op.slots), names(op.symbols))
    return _steps(
        op,
        [op.queue],
        [places],
        count,
        count,
        False,
        lambda pages: (tiles_of_rows(pages[0]),),
        CoreGrid.unpack_rows_cycles,
    )


def binary_steps(op: cores.BinaryOp, names: Names) -> list[Step]:
    count, symbols = len(op.slots), names(op.symbols)
    places = [places_of(op.left_at, count, symbols), places_of(op.right_at, count, symbols)]
    broadcast = op.broadcast
    return _steps(
        op, [op.left, op.right], places, count, 2 * count, True, lambda pages: (pages[0], repeated(pages[1], broadcast))
    )


def matmul_steps(op: cores.MatmulOp, names: Names) -> list[Step]:
    rows, columns, depth = op.block_shape
    symbols = names(op.symbols)
    left = [r * op.left_stride + k for r in range(rows) for k in range(depth)]
    right = [k * op.right_stride + c for k in range(depth) for c in range(columns)]
    places = [places_from(op.left_at, left, symbols), places_from(op.right_at, right, symbols)]
    transposes = op.transpose

    def prepare(pages: list[Array]) -> tuple[Array, ...]:
        return matrix(pages[0], rows, depth), matrix(pages[1], depth, columns, transposes)

    # A page of one operand stays while those of the other that it meets come by, the fewer of them again and again.
    moved = depth * (rows * columns + min(rows, columns))
    return _steps(op, [op.left, op.right], places, rows * columns * depth, moved, True, prepare)


def reduce_steps(op: cores.ReduceOp, names: Names) -> list[Step]:
    count: int = op.pages
    places = [places_of(op.at, count, names(op.symbols)), places_from(_FIRST, (0,), ())]
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
    page_cycles: Callable[[CoreGrid, int], float] = CoreGrid.unpack_cycles,
) -> list[Step]:
    """Claim banks, unpack, and continue when math has come so far. `pages`: what math works on; `moved`: how many pages
    are unpacked for it, each of which takes `page_cycles`."""
    states = needed_states(op, UNITS)

    def unpack(agent: Agent) -> Action:
        world, registers, spend = agent.world, sources_of(agent), agent.spend
        checks, needs = world.checks, needs_of(agent, states)
        read = [_Reading(agent, op, value, place, cuts) for value, place in zip(sources, places, strict=True)]
        cycles = moved * sum(page_cycles(world.grid, each.queue.format.page_bytes) for each in read) / len(read)

        def run(*given: Argument) -> None:
            use(agent, op, needs)
            data = [each.values(at) for each, at in zip(read, given, strict=True)]
            began = agent.time
            spend(cycles)
            spent = agent.time - began
            time = agent.time = max(agent.time, registers.others_free + spent * (pages - 1) / pages)
            known = agent.tell() if checks else None
            values = prepare(data) if world.values else ()
            registers.give(Operands(pages, began + spent / pages, time, values, known))

        return run

    arguments = ", ".join(place.argument for place in places)
    claim = Step(lambda agent: partial(sources_of(agent).claim, agent, op, pages), waits=True)
    finish = Step(lambda agent: partial(sources_of(agent).finish, agent, op), waits=True)
    steps = [claim, Step(unpack, arguments, in_order=False)]
    return [*steps, finish] if pages > _BANKS else steps


class _Reading:
    """A queue that an operation of a thread reads, and which pages of it. `cuts`: whether numbers of f32 are cut off,
    as the matrix unit does."""

    def __init__(self, agent: Agent, op: Operation, value: SSAValue, places: Places, cuts: bool) -> None:
        self.queue = agent.queue(value)
        self._agent, self._op, self._pages = agent, op, places.pages
        self._checks, self._has_values = agent.world.checks, agent.world.values
        self._cuts = cuts and self.queue.format.name == "f32"

    def values(self, given: Argument) -> Array:
        """The elements that are read, face by face; nothing if values are not computed."""
        queue, agent = self.queue, self._agent
        slots = queue.full_slots(agent, self._op, self._pages(given))
        if self._checks:
            queue.note_reads(agent, slots, agent.stamp(self._op))
        if not self._has_values:
            return _NOTHING
        values = queue.read(slots)
        return to_tf32(values) if self._cuts else values


_NOTHING: Array = np.zeros(0, np.float32)


def sources_of(agent: Agent) -> Sources:
    assert agent.core.sources is not None
    return agent.core.sources


def repeated(pages: Array, broadcast: str) -> Array:
    """Pages, face by face, with the first row, column or element of each at all positions."""
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
