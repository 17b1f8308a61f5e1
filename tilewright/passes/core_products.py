"""Products on a grid of cores, block by block of the tile registers."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.cost.core_tiles import product_block
from tilewright.dialects import cores
from tilewright.passes.core_sections import Held, step
from tilewright.passes.core_threads import ZERO, Threads, divided, plus, remainder, times


def emit_product(
    threads: Threads,
    left: Held,
    right: Held,
    turned: bool,
    start: Held | None,
    queue: SSAValue,
    registers: int,
    counter: AffineExpr | None,
) -> None:
    """Multiply tiles block by block of results that the registers have room for; pages of a right operand that is
    `turned` are transposed. With a counter, results are added to what the pages hold from its second trip on."""
    _, rows, depth = left.counts
    columns = right.counts[1] if turned else right.counts[2]
    height, width = product_block(rows, columns, registers)
    loops: list[AffineExpr] = []
    for extent, size in ((rows, height), (columns, width)):
        loops.append(threads.open_loop(extent // size, roles=[cores.COMPUTE]) if extent > size else ZERO)
    row, column = times(loops[0], height), times(loops[1], width)
    place = AffineExpr.dimension(0)
    page = plus(times(plus(row, divided(place, width)), columns), plus(column, remainder(place, width)))
    where = {"slot": 0, "count": height * width}
    step(threads, cores.ACQUIRE)
    if start is not None:
        maps = {"at": (1, [plus(page, start.first)])}
        threads.add(cores.COMPUTE, cores.CopyOp, [start.queue], {**where, "broadcast": cores.NONE}, maps)
    attributes = {**where, "block": (height, width, depth), "left_stride": depth, "right_stride": columns}
    if turned:
        attributes["transpose"] = True
    maps = {
        "left_at": (0, [plus(times(row, depth), left.first)]),
        "right_at": (0, [plus(column, right.first)]),
    }
    threads.add(cores.COMPUTE, cores.MatmulOp, [left.queue, right.queue], attributes, maps)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    if counter is not None:
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [counter])})
    threads.add(cores.COMPUTE, cores.PackOp, [queue], where, {"at": (1, [page])})
    step(threads, cores.RELEASE)
    for extent, size in ((columns, width), (rows, height)):
        if extent > size:
            threads.close()
    if counter is not None:
        # What else is packed in the loop replaces what is there.
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [ZERO])})
