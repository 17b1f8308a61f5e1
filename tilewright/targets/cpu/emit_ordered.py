"""Print ordered operations: along one axis, over all lines next to each other."""

from __future__ import annotations

from tilewright.dialects import scheduled, tile
from tilewright.passes.vectors.ordered_accesses import Ordered
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.emit_arg_reduce import emit_arg_reduce
from tilewright.targets.cpu.emit_scan import emit_scan
from tilewright.targets.cpu.emit_sort import emit_sort
from tilewright.targets.cpu.emit_top_k import emit_top_k
from tilewright.targets.cpu.loops import static
from tilewright.targets.cpu.ordered_nest import OrderedNest


def emit_ordered(context: FunctionContext, nest: scheduled.NestOp, op: Ordered) -> None:
    """Append the code of a nest around an ordered operation at the builder's position."""
    ordered = OrderedNest.of(context, nest, op)
    if any(static(extent) == 0 for extent in ordered.extents):  # none of its elements is in an array
        return
    if isinstance(op, tile.ScanOp):
        emit_scan(ordered, op)
    elif isinstance(op, tile.ArgReduceOp):
        emit_arg_reduce(ordered, op)
    elif isinstance(op, tile.TopKOp):
        emit_top_k(ordered, op)
    else:
        emit_sort(ordered, op)
