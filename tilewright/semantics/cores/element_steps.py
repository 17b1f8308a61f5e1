"""Steps of movers element by element: numbers that depend on their position, and elements of arrays by coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import ARRAY_WRITES, Action, Agent, Mover
from tilewright.semantics.cores.arrays import ArrayMemory
from tilewright.semantics.cores.device_array import poison_number, poison_page
from tilewright.semantics.cores.expressions import Argument, Places, places_from
from tilewright.semantics.cores.mover_steps import mover
from tilewright.semantics.cores.queues import Queue, at, set_at
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.tile_formats import Array, decode_in_faces, encode, encode_in_faces
from tilewright.semantics.tile import evaluate_map

_ELEMENTS = TILE * TILE
_FIRST = AffineMap(0, 0, (AffineExpr.constant(0),))


def generate_steps(op: cores.GenerateOp, names: Names) -> list[Step]:
    symbols = names(op.symbols)
    count: int = op.count
    places = places_from(_FIRST, range(count), ())
    choice: list[float] | None = None if op.choice is None else list(op.choice)
    face_rows = op.face_rows
    rows, columns = op.stored_shape
    stored = (np.arange(TILE) < rows)[:, None] & (np.arange(TILE) < columns)

    def make(agent: Agent) -> Action:
        world, queue = agent.world, agent.queue(op.queue)
        cycles = world.grid.generate_cycles(op.elements, queue.format.bits, op.is_one_number)

        def generate(*given: int) -> None:
            slots = queue.free_slots(agent, op, places.pages(0))
            if world.checks:
                queue.note_writes(agent, slots, agent.stamp(op))
            agent.spend(cycles)
            if queue.view is None:
                return
            (numbers,) = evaluate_map(op.map, (TILE, TILE, count), given)
            values: Array = numbers.transpose(2, 0, 1)
            if choice is not None:
                values = np.where(values < choice[0], choice[1], choice[2])
            if face_rows:
                values = np.where((np.arange(TILE) % FACE == 0)[:, None], values, 0)
            if not stored.all():
                values = np.where(stored, values, poison_number(queue.format))
            set_at(queue.view, slots, encode(values, queue.format.name))

        return generate

    return [Step(make, ", ".join(symbols))]


@dataclass(frozen=True)
class TilePlaces:
    """Page indices and element indices of a tile's lanes, face by face."""

    pages: Array
    elements: Array
    count: int


def _tile_of(op: cores.ElementsOp) -> TilePlaces:
    lanes = np.indices(op.lanes).reshape(len(op.lanes), prod(op.lanes))
    return lanes_in_pages(lanes, op.lanes, op.rows, op.columns)


def lanes_in_pages(lanes: Array, shape: Sequence[int], rows: int, columns: int) -> TilePlaces:
    """Page and element indices of some lanes of a tile, by their coordinates."""
    outer = [d for d in range(len(shape)) if d not in (rows, columns)]
    page = np.zeros(lanes.shape[1], np.int64)
    for d in outer:
        page = page * shape[d] + lanes[d]
    places: list[Array] = []
    tiles = [1, 1]
    for i, d in enumerate((rows, columns)):
        along = np.zeros_like(page) if d < 0 else lanes[d]
        tiles[i] = 1 if d < 0 else -(-shape[d] // TILE)
        page = page * tiles[i] + along // TILE
        places.append(along % TILE)
    count = prod(shape[d] for d in outer) * tiles[0] * tiles[1]
    return TilePlaces(page, element_of(*places), count)


def element_of(row: Array, column: Array) -> Array:
    """Which element of a page, face by face, is at some rows and columns."""
    return (row // FACE * 2 + column // FACE) * FACE * FACE + row % FACE * FACE + column % FACE


def gather_steps(op: cores.GatherOp, names: Names) -> list[Step]:
    places, tile, symbols = _places(op, names)
    fill = None if op.fill is None else op.fill

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[op.array], agent.queue(op.queue)
        _check_format(agent, op, memory, queue)

        def gather(place: Argument, *given: int) -> None:
            slots = queue.free_slots(agent, op, places.pages(place))
            lanes = _lanes(agent, op, tile, given)
            pages, elements, inside = _of_array(memory, op, lanes)
            if world.checks:
                stamp = agent.stamp(op)
                queue.note_writes(agent, slots, stamp)
                if memory.is_checked:
                    memory.note_element_reads(agent, pages, elements, stamp)
            runs = _runs(pages, elements)
            size = memory.array.format.bits // 8
            lands = _transfer(own, memory, True, max(1, round(size * len(pages) / max(1, runs))), runs)
            agent.time = max(agent.time, lands)
            agent.spend(world.grid.element_cycles * len(tile.pages))
            if queue.view is None:
                return
            values = decode_in_faces(np.tile(poison_page(queue.format), (tile.count, 1)), queue.format.name)
            if fill is not None:
                values[...] = fill
            unique, index = np.unique(pages, return_inverse=True)
            read = decode_in_faces(memory.array.pages[unique], memory.array.format.name)
            values[tile.pages[inside], tile.elements[inside]] = read[index, elements]
            set_at(queue.view, slots, encode_in_faces(values, queue.format.name))

        return gather

    return [Step(make, ", ".join([places.argument, *symbols]), is_made_first=True)]


def _transfer(own: Mover, memory: ArrayMemory, reads: bool, bytes: int, count: int) -> float:
    """When so many pieces of an array have come. Which banks or cores hold them is not looked at."""
    kinds = (DRAM_READ, DRAM_WRITE) if memory.holders.in_dram else (CORE_READ, CORE_WRITE)
    return own.world.transfer(own, kinds[0] if reads else kinds[1], bytes, count, (), 0.0)


def scatter_steps(op: cores.ScatterOp, names: Names) -> list[Step]:
    places, tile, symbols = _places(op, names)

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[op.array], agent.queue(op.queue)
        _check_format(agent, op, memory, queue)

        def scatter(place: Argument, *given: int) -> None:
            slots = queue.full_slots(agent, op, places.pages(place))
            lanes = _lanes(agent, op, tile, given)
            pages, elements, inside = _of_array(memory, op, lanes)
            if world.checks:
                stamp = own.begin(ARRAY_WRITES, op)
                queue.note_reads(agent, slots, stamp)
                memory.note_element_writes(agent, pages, elements, stamp)
            runs = _runs(pages, elements)
            size = memory.array.format.bits // 8
            lands = _transfer(own, memory, False, max(1, round(size * len(pages) / max(1, runs))), runs)
            agent.spend(world.grid.issue_cycles * runs)
            own.lands[ARRAY_WRITES] = max(own.lands[ARRAY_WRITES], lands)
            if queue.view is None:
                return
            values = decode_in_faces(at(queue.view, slots), queue.format.name)
            unique, index = np.unique(pages, return_inverse=True)
            changed = decode_in_faces(memory.array.pages[unique], memory.array.format.name)
            changed[index, elements] = values[tile.pages[inside], tile.elements[inside]]
            memory.array.pages[unique] = encode_in_faces(changed, memory.array.format.name)

        return scatter

    return [Step(make, ", ".join([places.argument, *symbols]), is_made_first=True)]


def rearrange_steps(op: cores.RearrangeOp) -> list[Step]:
    extents: tuple[int, ...] = op.extents

    def tile_at(map: AffineMap, shape: Sequence[int], rows: int, columns: int) -> TilePlaces:
        points = evaluate_map(map, extents, ())
        lanes = np.array([each.reshape(-1) for each in points]).reshape(len(points), prod(extents))
        return lanes_in_pages(lanes, shape, rows, columns)

    source = tile_at(op.source_map, op.source_shape, op.source_rows, op.source_columns)
    target = tile_at(op.map, op.shape, op.rows, op.columns)

    def make(agent: Agent) -> Action:
        world, taken, queue = agent.world, agent.queue(op.source), agent.queue(op.queue)

        def rearrange() -> None:
            read = taken.full_slots(agent, op, range(source.count))
            slots = queue.free_slots(agent, op, range(target.count))
            if world.checks:
                stamp = agent.stamp(op)
                taken.note_reads(agent, read, stamp)
                queue.note_writes(agent, slots, stamp)
            agent.spend(world.grid.element_cycles * len(source.pages))
            if queue.view is None or taken.view is None:
                return
            kind = np.dtype(f"u{queue.format.bits // 8}")
            elements = at(taken.view, read).view(kind)
            first = slots[0]
            queue.view[first : slots[-1] + 1].view(kind)[target.pages, target.elements] = elements[
                source.pages, source.elements
            ]

        return rearrange

    return [Step(make)]


def _places(op: cores.ElementsOp, names: Names) -> tuple[Places, TilePlaces, list[str]]:
    tile, symbols = _tile_of(op), names(op.symbols)
    return places_from(op.at, range(tile.count), symbols), tile, symbols


def _check_format(agent: Agent, op: cores.ElementsOp, memory: ArrayMemory, queue: Queue) -> None:
    if memory.array.format.name != queue.format.name:
        raise hazard(
            "other-format",
            f"array {memory.name} has the format {memory.array.format.name}, queue {queue.name} {queue.format.name}",
            agent,
            op,
        )


def _lanes(agent: Agent, op: cores.ElementsOp, tile: TilePlaces, given: tuple[int, ...]) -> list[Array]:
    """The coordinates in the array of each lane."""
    symbols: list[Any] = [*given]
    for value in op.indices:
        queue = agent.queue(value)
        slots = queue.full_slots(agent, op, range(tile.count))
        if agent.world.checks:
            queue.note_reads(agent, slots, agent.stamp(op))
        if queue.view is None:
            symbols.append(np.zeros(op.lanes, np.int64))
            continue
        numbers = decode_in_faces(at(queue.view, slots), queue.format.name)
        symbols.append(numbers[tile.pages, tile.elements].astype(np.int64).reshape(op.lanes))
    return [each.reshape(-1) for each in evaluate_map(op.map, op.lanes, symbols)]


def _of_array(memory: ArrayMemory, op: cores.ElementsOp, lanes: list[Array]) -> tuple[Array, Array, Array]:
    """Pages of the array and elements of these for the lanes that are inside of it, and which lanes are."""
    shape = memory.array.shape
    inside = np.ones(prod(op.lanes), bool)
    for coordinate, size in zip(lanes, shape, strict=True):
        inside &= (coordinate >= 0) & (coordinate < size)
    chosen = [coordinate[inside] for coordinate in lanes]
    matrix = [np.zeros(int(inside.sum()), np.int64)] * (2 - len(shape)) + chosen
    coordinates = [*matrix[:-2], matrix[-2] // TILE, matrix[-1] // TILE]
    page = np.zeros_like(matrix[-1])
    for coordinate, size in zip(coordinates, memory.grid, strict=True):
        page = page * size + coordinate
    return page, element_of(matrix[-2] % TILE, matrix[-1] % TILE), inside


def _runs(pages: Array, elements: Array) -> int:
    """In how many pieces elements are laid out in memory, of those that come one after another."""
    if not pages.size:
        return 0
    place = pages * _ELEMENTS + elements
    return 1 + int((np.diff(place) != 1).sum())
