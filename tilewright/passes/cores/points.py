"""Assignment of grid points to cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir.affine import AffineExpr

from tilewright.cost.cores.tiles import Split
from tilewright.dialects import tile
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times
from tilewright.passes.cores.page_windows import Sum, linear
from tilewright.passes.cores.threads import CORE_COLUMN, CORE_ROW


@dataclass(eq=False)
class PointLoop:
    """A loop of each core over its points: at most `trips`, and before trip `end`."""

    trips: int
    end: AffineExpr | None = None
    counter: AffineExpr = ZERO


@dataclass
class Dealt:
    """`cores`: rows and columns of the cores that have points. `loops`: those of a core. `dims`: of each dim of the
    grid, the loop along it (None: it has one point), how many points a core has along it, and which of a core's
    coordinates counts them; or with `line`, how many points there are of which each core has some in a row. `parts`:
    rows and columns of cores that share each point."""

    shape: tuple[int, ...]
    cores: tuple[int, int]
    loops: list[PointLoop]
    dims: dict[int, tuple[PointLoop | None, int, AffineExpr]] = field(
        default_factory=dict[int, tuple[PointLoop | None, int, AffineExpr]]
    )
    line: int = 0
    parts: tuple[int, int] = (1, 1)

    def indices(self) -> list[AffineExpr]:
        """The coordinates of the point that a core is at."""
        if self.line:
            counter = self.loops[0].counter if self.loops else ZERO
            number = plus(times(self._core(), self.line), counter)
            found: list[AffineExpr] = []
            below = 1
            for position in reversed(range(len(self.shape))):
                size = self.shape[position]
                own = divided(number, below)
                outermost = prod(self.shape[:position]) == 1
                found.insert(0, ZERO if size == 1 else own if outermost else remainder(own, size))
                below *= size
            return found
        found = []
        for dim in range(len(self.shape)):
            loop, each, core = self.dims[dim]
            found.append(plus(times(core, each), ZERO if loop is None else loop.counter))
        return found

    def _core(self) -> AffineExpr:
        rows, columns = self.parts
        row, column = divided(AffineExpr.symbol(CORE_ROW), rows), divided(AffineExpr.symbol(CORE_COLUMN), columns)
        return plus(times(row, self.cores[1] // columns), column)


def deal_points(kernel: tile.KernelOp, grid: CoreGrid, split: Split | None = None) -> Dealt:
    """Assign grid points to cores. Points of a matmul are dealt by rows and columns of cores, so that cores of a row
    or column read the same operand; other points are dealt in sequence. Cores that share a point each have one part
    of it."""
    shape = kernel.grid
    if split is not None:
        cores = split.points[0] * split.parts[0], split.points[1] * split.parts[1]
        return Dealt(shape, cores, [], line=1, parts=split.parts)
    # What is printed or asserted is so for points that there are.
    has_marks = any(isinstance(op, tile.PrintOp | tile.AssertOp) for op in kernel.walk())
    has_product = any(isinstance(op, tile.DotOp) for op in kernel.walk())
    if has_product and not has_marks:
        dealt = _by_rows_and_columns(kernel, grid)
        if dealt is not None:
            return dealt
    outermost = next((dim for dim, size in enumerate(shape) if size > 1), 0)
    is_even = has_product and not has_marks and _stores_nothing_beyond(kernel, outermost)
    return _in_a_line(shape, grid, is_even)


def _stores_nothing_beyond(kernel: tile.KernelOp, dim: int) -> bool:
    """Whether what points beyond the last one along a dim of the grid would store is outside of its arrays."""
    return all(_is_beyond(op, kernel, dim) for op in kernel.walk() if isinstance(op, tile.StoreOp))


def _is_beyond(op: tile.StoreOp, kernel: tile.KernelOp, dim: int) -> bool:
    """Whether an index as large as the grid is along a dim leads a store beyond its array."""
    if not kernel.grid:
        return True
    for expression, size in zip(op.map.results, tile.ref_type(op.destination).shape, strict=True):
        total = linear(expression)
        if total is None or any(factor < 0 for _, factor in (*total.dims, *total.symbols)) or total.constant < 0:
            continue
        own = sum(factor for place, factor in total.symbols if op.symbols[place] is kernel.indices[dim])
        if own * kernel.grid[dim] + total.constant >= size and _is_counted(op, total):
            return True
    return False


def _is_counted(op: tile.StoreOp, total: Sum) -> bool:
    """Whether a sum has places in it that are counted, and none that tiles hold."""
    return all(isinstance(op.symbols[place].type, IndexType) for place, factor in total.symbols if factor)


def _in_a_line(shape: tuple[int, ...], grid: CoreGrid, is_even: bool) -> Dealt:
    """Deal points in sequence. If `is_even`, all cores have the same number of points, with empty ones after the last
    point: their cores still take part in steps that all cores do together."""
    points = prod(shape)
    each = -(-points // (grid.rows * grid.columns))
    used = -(-points // max(1, each))
    rows, columns = _rows_and_columns(used, grid)
    core = plus(times(AffineExpr.symbol(CORE_ROW), columns), AffineExpr.symbol(CORE_COLUMN))
    loops: list[PointLoop] = []
    if is_even and each > 1:
        loops.append(PointLoop(each))
    elif not is_even and (each > 1 or rows * columns * each != points):
        left = plus(AffineExpr.constant(points), times(core, -each))
        loops.append(PointLoop(each, None if rows * columns * each == points else left))
    return Dealt(shape, (rows, columns), loops, line=max(1, each))


def _rows_and_columns(used: int, grid: CoreGrid) -> tuple[int, int]:
    """Rows and columns of as many cores as are used, or of a few more: those have no points, but fill what they fetch
    beyond the arrays."""
    shapes = [(-(-used // columns), columns) for columns in range(min(used, grid.columns), 0, -1)]
    return min((shape for shape in shapes if shape[0] <= grid.rows), key=prod)


def _by_rows_and_columns(kernel: tile.KernelOp, grid: CoreGrid) -> Dealt | None:
    """The last two dims of more than one point along rows and columns of cores; None where that leaves half of the
    cores without any that a line would use, or what is beyond the last points would be stored."""
    shape = kernel.grid
    wide = [d for d, size in enumerate(shape) if size > 1]
    if len(wide) < 2:
        return None
    first, second = wide[-2:]
    each = [-(-shape[first] // grid.rows), -(-shape[second] // grid.columns)]
    counts = [-(-shape[d] // n) for d, n in zip((first, second), each, strict=True)]
    others = prod(shape[d] for d in wide[:-2])
    if 2 * counts[0] * counts[1] <= min(grid.rows * grid.columns, prod(shape)) and others > 1:
        return None
    for d, count, points in zip((first, second), counts, each, strict=True):
        if count * points > shape[d] and not _stores_nothing_beyond(kernel, d):
            return None
    dealt = Dealt(shape, (counts[0], counts[1]), [])
    roots = {first: AffineExpr.symbol(CORE_ROW), second: AffineExpr.symbol(CORE_COLUMN)}
    for dim, size in enumerate(shape):
        points = size if dim not in roots else each[(first, second).index(dim)]
        core = roots.get(dim, ZERO)
        # Cores at the edge go on beyond the last point, where nothing is: they take part in what their row and column
        # do together, and take no more time than the others.
        loop = None
        if points > 1:
            loop = PointLoop(points)
            dealt.loops.append(loop)
        dealt.dims[dim] = (loop, points if dim in roots else 1, core)
    return dealt
