"""Matmuls on a grid of cores, block by block of the tile registers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.cost.cores.tiles import product_blocks
from tilewright.dialects import cores
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times
from tilewright.passes.cores.sections import Held, step
from tilewright.passes.cores.threads import Threads


@dataclass(frozen=True)
class Product:
    """Tiles that are multiplied. The pages of a right operand that `is_transposed` are in column-major order, and each
    is transposed as it is read. Results are added to those of `start`; with a `counter` to what the pages of the
    results' queue hold, from its second trip on."""

    left: Held
    right: Held
    is_transposed: bool
    start: Held | None
    counter: AffineExpr | None

    @property
    def counts(self) -> tuple[int, int, int]:
        """Pages along rows, columns and depth."""
        _, rows, depth = self.left.counts
        return rows, self.right.counts[1 if self.is_transposed else 2], depth


def emit_product(threads: Threads, product: Product, queue: SSAValue, registers: int) -> None:
    """Multiply block by block of results that the registers have room for."""
    rows, columns, _ = product.counts
    blocks = product_blocks(rows, columns, registers)
    for first_row, height, high in runs(rows, blocks.rows):
        for first_column, width, wide in runs(columns, blocks.columns):
            loops = [threads.open_loop(n, roles=[cores.COMPUTE]) if n > 1 else ZERO for n in (high, wide)]
            row, column = plus(times(loops[0], height), first_row), plus(times(loops[1], width), first_column)
            _emit_block(threads, product, queue, (row, column), (height, width))
            for count in (wide, high):
                if count > 1:
                    threads.close()
    if product.counter is not None:
        # What else is packed in the loop replaces what is there.
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [ZERO])})


def runs(extent: int, size: int) -> list[tuple[int, int, int]]:
    """The first page, the size and the number of blocks along an extent: of whole ones, and of what is left."""
    whole, left = divmod(extent, size)
    return [(0, size, whole)] * (whole > 0) + [(whole * size, left, 1)] * (left > 0)


def _emit_block(
    threads: Threads, product: Product, queue: SSAValue, first: tuple[AffineExpr, AffineExpr], size: tuple[int, int]
) -> None:
    (row, column), (height, width) = first, size
    _, columns, depth = product.counts
    place = AffineExpr.dimension(0)
    page = plus(times(plus(row, divided(place, width)), columns), plus(column, remainder(place, width)))
    where = {"slot": 0, "count": height * width}
    step(threads, cores.ACQUIRE)
    if product.start is not None:
        maps = {"at": (1, [plus(page, product.start.first)])}
        threads.add(cores.COMPUTE, cores.CopyOp, [product.start.queue], {**where, "broadcast": cores.NONE}, maps)
    attributes = {**where, "block": (height, width, depth), "left_stride": depth, "right_stride": columns}
    if product.is_transposed:
        attributes["transpose"] = True
    maps = {
        "left_at": (0, [plus(times(row, depth), product.left.first)]),
        "right_at": (0, [plus(column, product.right.first)]),
    }
    threads.add(cores.COMPUTE, cores.MatmulOp, [product.left.queue, product.right.queue], attributes, maps)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    if product.counter is not None:
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [product.counter])})
    threads.add(cores.COMPUTE, cores.PackOp, [queue], where, {"at": (1, [page])})
    step(threads, cores.RELEASE)
