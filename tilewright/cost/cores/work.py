"""Cycles that single operations of a program for a grid of cores take in each unit of a core.

The numbers are those that the simulator counts: `tests/cores/test_core_model.py` holds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright import ops
from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import MATH, PACK, PARTS, UNPACK
from tilewright.semantics.cores.element_steps import element_of
from tilewright.semantics.cores.holders import Holders, holders_of
from tilewright.semantics.tile import evaluate_map

# Which agent sets the state of which unit.
AGENTS = {
    cores.UNPACK_A: UNPACK,
    cores.UNPACK_B: UNPACK,
    cores.MATRIX: MATH,
    cores.VECTOR: MATH,
    cores.PACK: PACK,
    cores.EDGES: PACK,
}
# The kind of what sets states.
CONFIGURES = "configures"
# The kind of the matrix unit.
MATMULS = "matmuls"


@dataclass(frozen=True)
class ComputeWork:
    """One run of an operation of the compute thread: cycles of unpack, math and pack, and `pages`, the number that the
    matrix unit takes in one after another, 0 without it. `tiles`: the count of this kind."""

    kind: str
    tiles: int = 0
    unpack: float = 0.0
    math: float = 0.0
    pack: float = 0.0
    pages: int = 0

    def of(self, agent: str) -> float:
        """Cycles of `unpack`, `math` or `pack`."""
        return {UNPACK: self.unpack, MATH: self.math, PACK: self.pack}[agent]


def compute_work(op: Operation, grid: CoreGrid) -> ComputeWork | None:
    """The cycles of an operation; None if it takes none, or if they depend on earlier ones."""
    match op:
        case cores.ConfigureOp():
            cycles = {agent: grid.configure_cycles if AGENTS[op.unit] == agent else 0.0 for agent in PARTS}
            return ComputeWork(CONFIGURES, 1, cycles[UNPACK], cycles[MATH], cycles[PACK])
        case cores.UntilizeOp():
            count = len(op.slots)
            return ComputeWork("untilizes", count, pack=grid.pack_rows_cycles(_page_bytes(op.queue)) * count)
        case cores.PackOp():
            count = len(op.slots)
            return ComputeWork("packs", count, pack=grid.pack_cycles(_page_bytes(op.queue)) * count)
        case cores.MapOp():
            cost = ops.MOVE if op.fn == "fill" else ops.FUNCTIONS[op.fn].cost
            return _vector(cost, cost, op, grid)
        case cores.CastOp():
            return _vector("casts", ops.ALU, op, grid)
        case cores.FoldOp():
            return _vector("folds", ops.ALU, op, grid)
        case cores.TilizeOp():
            count, unpack = len(op.slots), grid.unpack_rows_cycles(_page_bytes(op.queue))
            return ComputeWork("tilizes", count, unpack * count, grid.copy_cycles * count, pages=count)
        case cores.CopyOp() | cores.BinaryOp() | cores.MatmulOp() | cores.ReduceOp():
            return _matrix(op, grid)
        case _:
            return None


def _vector(kind: str, cost: str, op: cores.RegisterOp, grid: CoreGrid) -> ComputeWork:
    count = len(op.slots)
    return ComputeWork(f"vector {kind}", count, math=grid.vector_tile_cycles(cost) * count)


def _matrix(op: Operation, grid: CoreGrid) -> ComputeWork:
    """Pages are unpacked and worked on: `moved` is how many are unpacked."""
    match op:
        case cores.CopyOp():
            kind, pages, each, moved, queues = "copies", len(op.slots), grid.copy_cycles, len(op.slots), [op.queue]
        case cores.BinaryOp():
            multiplies = op.fn == "multiply"
            kind = "products of elements" if multiplies else "sums and differences"
            each = grid.multiply_cycles if multiplies else grid.matrix_cycles
            pages, moved, queues = len(op.slots), 2 * len(op.slots), [op.left, op.right]
        case cores.MatmulOp():
            rows, columns, depth = op.block_shape
            kind, pages, each = MATMULS, rows * columns * depth, grid.multiply_cycles
            # A page of one operand stays while those of the other that it meets come by.
            moved, queues = depth * (rows * columns + min(rows, columns)), [op.left, op.right]
        case cores.ReduceOp():
            pages = op.pages
            kind, each, moved, queues = "reductions", grid.reduce_cycles, pages + 1, [op.queue, op.scaler]
        case _:
            raise TypeError(op.name)
    page = sum(grid.unpack_cycles(_page_bytes(queue)) for queue in queues) / len(queues)
    return ComputeWork(kind, pages, unpack=moved * page, math=pages * each, pages=pages)


def _page_bytes(queue: SSAValue) -> int:
    return cores.queue_type(queue).tile_format.page_bytes


# ---- movers ---------------------------------------------------------------------------------------------------------


def pages_inside(op: cores.PagesOp, symbols: Sequence[int]) -> list[int]:
    """Which of the pages that an operation names the array has."""
    inside, page = np.ones(prod(op.shape), bool), np.zeros(prod(op.shape), np.int64)
    grid = cores.page_grid(tile.ref_type(op.array).shape)
    for coordinate, size in zip(evaluate_map(op.map, op.shape, symbols), grid, strict=True):
        flat = coordinate.reshape(-1)
        inside &= (flat >= 0) & (flat < size)
        page = page * size + flat
    return page[inside].tolist()


def array_holders(ref: SSAValue, grid: CoreGrid) -> Holders:
    """The memory that holds the pages of an array, by its type."""
    return holders_of(tile.ref_type(ref).shape, cores.stored_pages(ref).placement, grid)


def elements_beyond(op: cores.PadOp, symbols: Sequence[int]) -> int:
    """How many elements of the pages that an operation names are outside of the array."""
    shape = tile.ref_type(op.array).shape
    sizes = (*(1,) * (2 - len(shape)), *shape)
    coordinates = [each.reshape(-1) for each in evaluate_map(op.map, op.shape, symbols)]
    valid = np.ones(prod(op.shape), np.int64)
    for coordinate, size in zip(coordinates[:-2], sizes[:-2], strict=True):
        valid *= (coordinate >= 0) & (coordinate < size)
    for coordinate, size, side in zip(coordinates[-2:], sizes[-2:], op.sides, strict=True):
        if not side:
            valid *= TILE
            continue
        valid *= np.where(coordinate < 0, 0, np.clip(size - TILE * coordinate, 0, TILE))
    return int((TILE * TILE - valid).sum())


@dataclass(frozen=True)
class ElementRuns:
    """Elements of an array that are moved, and in how many pieces they are laid out in its memory."""

    elements: int
    runs: int


def element_runs(op: cores.ElementsOp, symbols: Sequence[int]) -> ElementRuns:
    """The runs of elements that an operation moves; coordinates that are in queues count as 0."""
    shape = tile.ref_type(op.array).shape
    given = [*symbols, *(0 for _ in op.indices)]
    coordinates = [each.reshape(-1) for each in evaluate_map(op.map, op.lanes, given)]
    inside = np.ones(prod(op.lanes), bool)
    for coordinate, size in zip(coordinates, shape, strict=True):
        inside &= (coordinate >= 0) & (coordinate < size)
    nothing = np.zeros(int(inside.sum()), np.int64)
    chosen = [nothing] * (2 - len(shape)) + [coordinate[inside] for coordinate in coordinates]
    if not nothing.size:
        return ElementRuns(0, 0)
    page = nothing
    pages = [*chosen[:-2], chosen[-2] // TILE, chosen[-1] // TILE]
    for coordinate, size in zip(pages, cores.page_grid(shape), strict=True):
        page = page * size + coordinate
    place = page * TILE * TILE + element_of(chosen[-2] % TILE, chosen[-1] % TILE)
    return ElementRuns(nothing.size, 1 + int((np.diff(place) != 1).sum()))
