"""Which pages of arrays the cores of a program move, and from which cores' memories they would best come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.placements import Numbers, Placement, page_matrix
from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE, LOCAL, CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.holders import holders_of
from tilewright.semantics.tile import Tensor, evaluate_map

# At so many places and pages of an operation it is looked which the array has.
_MOST_POINTS = 1 << 20


@dataclass(frozen=True)
class Access:
    """Pages of an array that cores read, or write: of each time that one is moved its number, and that of the core,
    counted along rows of the machine."""

    reads: bool
    page_bytes: int
    pages: Numbers
    cores: Numbers

    def cycles(self, shape: Sequence[int], placement: Placement | None, grid: CoreGrid) -> float:
        """How long the core and the memory that have most to do with it take, and what comes first is under way."""
        size, every = self.page_bytes, grid.rows * grid.columns
        holders = holders_of(shape, placement, grid)
        moved = np.bincount(self.cores, minlength=every)
        if holders.cores is None:
            kind = DRAM_READ if self.reads else DRAM_WRITE
            together = len(self.pages) * size * grid.clock_hertz / grid.dram_bytes_per_second
            busy = max(grid.occupancy_cycles(kind, size, int(moved.max(initial=0))), together)
            return busy + grid.latency_cycles(kind)
        held = np.asarray(holders.cores)[self.pages]
        is_own = held == self.cores
        own = np.bincount(self.cores[is_own], minlength=every)
        served = np.bincount(held[~is_own], minlength=every).max(initial=0)
        kind = CORE_READ if self.reads else CORE_WRITE
        cycles = own * grid.occupancy_cycles(LOCAL, size) + (moved - own) * grid.occupancy_cycles(kind, size)
        busy = max(float(cycles.max(initial=0)), float(served) * size / grid.network_bytes_per_cycle)
        return busy + grid.latency_cycles(LOCAL if is_own.all() else kind)

    def home(self, shape: Sequence[int], grid: CoreGrid) -> Placement | None:
        """The placement that stores each page on a core that moves it; None if no sharding does."""
        rows, columns = page_matrix(shape)
        first = np.full(rows * columns, -1)
        first[self.pages[::-1]] = self.cores[::-1]
        if (first < 0).any() or not first.size:
            return None
        table = first.reshape(rows, columns)
        shard = _run(table[:, 0]), _run(table[0])
        used = int(first.max()) // grid.columns + 1, int((first % grid.columns).max()) + 1
        for is_block in (False, True):
            found = Placement(shard, used, is_block)
            row, column = found.holders((rows, columns))
            if found.misfit((rows, columns)) is None and (row * grid.columns + column == first).all():
                return found
        return None


def _run(numbers: Numbers) -> int:
    """How often the first number comes before another one does."""
    differs = np.flatnonzero(numbers != numbers[0])
    return int(differs[0]) if differs.size else len(numbers)


def accesses_of(program: cores.ProgramOp, ref: SSAValue, grid: CoreGrid) -> list[Access] | None:
    """The accesses of a program to an array; None if they are unknown, or of single elements."""
    found: list[Access] = []
    shape = tile.ref_type(ref).shape
    for use in ref.uses:
        op = use.operation
        if isinstance(op, cores.ElementsOp):
            return None
        if not isinstance(op, cores.FetchOp | cores.PutOp):
            continue
        runs = _runs_of(op, program)
        if runs is None:
            return None
        pages, inside = np.zeros(runs.count * prod(op.shape), np.int64), np.ones(runs.count * prod(op.shape), bool)
        for coordinate, size in zip(runs.coordinates(op), cores.page_grid(shape), strict=True):
            flat = coordinate.reshape(-1)
            inside &= (flat >= 0) & (flat < size)
            pages = pages * size + flat
        row, column = (np.broadcast_to(each, (*op.shape, runs.count)).reshape(-1) for each in runs.places)
        bytes = cores.queue_type(op.queue).tile_format.page_bytes
        number = (row * grid.columns + column)[inside]
        found.append(Access(isinstance(op, cores.FetchOp), bytes, pages[inside], number))
    return found


@dataclass(frozen=True)
class _Runs:
    """The instances of an operation: row and column of the core, and values of the indices, for each."""

    places: tuple[Numbers, Numbers]
    numbers: dict[SSAValue, Tensor]

    @property
    def count(self) -> int:
        return len(self.places[0])

    def coordinates(self, op: cores.PagesOp) -> list[Tensor]:
        """Of pages: the operation's own dims, and one more, of the runs, which no map names."""
        shape, map = (*op.shape, self.count), op.map
        symbols = [self.numbers[symbol] for symbol in op.symbols]
        return list(evaluate_map(AffineMap(len(shape), map.num_symbols, map.results), shape, symbols))


def _runs_of(op: cores.PagesOp, program: cores.ProgramOp) -> _Runs | None:
    """Each position and trip where an operation runs, as loops end before and cores choose; None where there are very
    many."""
    around = [*_around(op)]
    loops = [each for each, _ in around if isinstance(each, tile.ForOp)]
    sizes = [*program.shape, *(loop.trips for loop in loops)]
    if prod(sizes) * prod(op.shape) > _MOST_POINTS:
        return None
    roots = [*program.body.block.args, *(loop.body.block.args[0] for loop in loops)]
    points: dict[SSAValue, Tensor] = dict(zip(roots, np.indices(sizes).reshape(len(sizes), -1), strict=True))
    runs = np.ones(prod(sizes), bool)
    for each, block in around:
        if isinstance(each, tile.ForOp):
            if each.end is not None:
                (end,) = evaluate_map(each.end, runs.shape, [points[symbol] for symbol in each.symbols])
                runs &= points[each.body.block.args[0]] < end
        else:
            (chosen,) = evaluate_map(each.map, runs.shape, [points[symbol] for symbol in each.symbols])
            runs &= (chosen == 0) == (block is each.then.block)
    kept = {symbol: numbers[runs] for symbol, numbers in points.items()}
    row, column = (kept[place] for place in program.body.block.args)
    return _Runs((row, column), kept)


def _around(op: Operation) -> Iterator[tuple[tile.ForOp | cores.IfOp, Block | None]]:
    """The loops and choices around an operation, outer ones first, and the block of each that it is in."""
    found: list[tuple[tile.ForOp | cores.IfOp, Block | None]] = []
    inner, parent = op.parent_block(), op.parent_op()
    while parent is not None:
        if isinstance(parent, tile.ForOp | cores.IfOp):
            found.insert(0, (parent, inner))
        inner, parent = parent.parent_block(), parent.parent_op()
    return iter(found)


# ---- operations that do not do the same on all cores ----------------------------------------------------------------


def loops_of(op: Operation) -> set[Operation | None]:
    """The operations whose regions define the index operands of an operation: loops and threads."""
    return {operand.owner.parent_op() for operand in op.operands if isinstance(operand.owner, Block)}


def clipped_operations(program: cores.ProgramOp) -> frozenset[Operation]:
    """Operations of movers that may reach beyond their arrays, move single elements, or pages that cores hold: what
    they move depends on where they are. So do those of rows that end within a tile."""
    return frozenset(op for op in program.body.walk() if _may_be_clipped(op, program))


def _may_be_clipped(op: Operation, program: cores.ProgramOp) -> bool:
    match op:
        case cores.PadOp():
            return True
        case cores.ElementsOp():
            return len(op.symbols) > 0
        case cores.RowsOp():
            height, width = (1, 1, *tile.ref_type(op.array).shape)[-2:]
            return height % TILE != 0 or width % TILE != 0 or not _is_inside(op, program)
        case cores.PagesOp():
            return cores.stored_pages(op.array).placement is not None or not _is_inside(op, program)
        case _:
            return False


def _is_inside(op: cores.PagesOp, program: cores.ProgramOp) -> bool:
    most: dict[SSAValue, int] = dict(zip(program.body.block.args, program.shape, strict=True))
    ranges: list[tuple[int, int]] = []
    for symbol in op.symbols:
        loop = symbol.owner.parent_op() if isinstance(symbol.owner, Block) else None
        trips: int = loop.trips if isinstance(loop, tile.ForOp) else most.get(symbol, 1)
        ranges.append((0, trips - 1))
    dims = [(0, extent - 1) for extent in op.shape]
    found = [_range(each, dims, ranges) for each in op.map.results]
    grid = cores.page_grid(tile.ref_type(op.array).shape)
    if all(low >= 0 and high < size for (low, high), size in zip(found, grid, strict=True)):
        return True
    return _is_inside_in_each_trip(op, program)


def _is_inside_in_each_trip(op: cores.PagesOp, program: cores.ProgramOp) -> bool:
    """Whether the array has all pages wherever the operation runs, as loops end before: by looking at each position and
    trip, unless there are very many."""
    runs = _runs_of(op, program)
    if runs is None:
        return False
    grid = cores.page_grid(tile.ref_type(op.array).shape)
    return all(((c >= 0) & (c < size)).all() for c, size in zip(runs.coordinates(op), grid, strict=True))


_Range = tuple[int, int]


def _range(expression: AffineExpr, dims: Sequence[_Range], symbols: Sequence[_Range]) -> _Range:
    """The least and the largest number that an expression may have."""
    match expression:
        case AffineConstantExpr():
            return expression.value, expression.value
        case AffineDimExpr():
            return dims[expression.position]
        case AffineSymExpr():
            return symbols[expression.position]
        case AffineBinaryOpExpr():
            left, right = (_range(each, dims, symbols) for each in (expression.lhs, expression.rhs))
            return _combined(expression.kind, left, right)
        case _:
            raise TypeError(f"an affine expression of no known kind: {expression}")


def _combined(kind: AffineBinaryOpKind, left: _Range, right: _Range) -> _Range:
    divisor = right[0]
    match kind:
        case AffineBinaryOpKind.Add:
            return left[0] + right[0], left[1] + right[1]
        case AffineBinaryOpKind.Mul:
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case AffineBinaryOpKind.FloorDiv:
            return left[0] // divisor, left[1] // divisor
        case AffineBinaryOpKind.Mod:
            same = left[0] // divisor == left[1] // divisor
            return (left[0] % divisor, left[1] % divisor) if same else (0, divisor - 1)
        case _:
            return -(-left[0] // divisor), -(-left[1] // divisor)
