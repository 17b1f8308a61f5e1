"""Cut reductions of many elements to few results into parts, so that there is work for many threads.

Such a reduction becomes one in parts, which reads windows of the producers that it fuses with, followed by a reduction
over the parts. Their number depends on shapes alone, so that results do not depend on the number of threads.

Before:
    func.func @main(%x: tensor<2x131072xi32>) -> tensor<2xi32> {
      %z = array.reduce(%x) {fn = "add", axes = array<i64: 1>} : tensor<2xi32>
      func.return %z : tensor<2xi32>
    }
After:
    func.func @main(%x: tensor<2x131072xi32>) -> tensor<2xi32> {
      %parts = array.reduce(%x) {fn = "add", axes = array<i64: 1>, part = 8192 : index, part_axis = 1 : index}
        : tensor<16x2xi32>
      %z = array.reduce(%parts) {fn = "add", axes = array<i64: 0>} : tensor<2xi32>
      func.return %z : tensor<2xi32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.passes.array.fusion import describe
from tilewright.passes.array.split_sums import LEAST_PART, MOST_PARTS, parts_of, replace_by_parts
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# The most results, which are one tile, and the fewest elements of a reduction in parts.
FEW_RESULTS = 8
LEAST_REDUCED = 1 << 17
# Fewer equal parts than these are no work for many threads: parts of a multiple of so many elements then.
FEW_PARTS = 8
UNEQUAL_PART = 1024


@dataclass(frozen=True)
class ArraySplitReductionsPass:
    name: ClassVar[str] = "array-split-reductions"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ReduceOp):
                    _consider_reduction(unit, op)


def _consider_reduction(unit: Unit, op: array.ReduceOp) -> None:
    source = array_type(op.operands[0])
    axes: Sequence[int] = op.axes
    if math.prod(source.shape[d] for d in axes) < LEAST_REDUCED:
        return
    subject = f"{describe([op])} at {where(op)}"
    parts, why = _split_reduction(op)
    decision = "as a whole" if parts == 1 else f"{parts} parts"
    unit.remarks.append(Remark(ArraySplitReductionsPass.name, subject, decision, why))


def _split_reduction(op: array.ReduceOp) -> tuple[int, str]:
    """Divide a reduction into parts: their number and why, or 1 and why not."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    axes = op.axes
    reduced = math.prod(source.shape[d] for d in axes)
    if result.size > FEW_RESULTS:
        return 1, f"{result.size} results are work for many threads"
    if result.dtype != result.dtype.compute:
        return 1, f"parts of {result.dtype} would be rounded"
    # Windows of the outermost dimension are runs of memory.
    longest = max(axes, key=lambda d: source.shape[d])
    axis = next((d for d in axes if source.shape[d] >= MOST_PARTS * MOST_PARTS), longest)
    size = source.shape[axis]
    part = _part_of(size, least=max(1, LEAST_PART * size // reduced))
    if part >= size:
        return 1, f"no parts of at least {LEAST_PART} elements"
    parts = -(-size // part)
    shape = tuple(n for d, n in enumerate(source.shape) if d not in axes)
    partial = array.ReduceOp(
        arguments=op.operands,
        fn=op.fn,
        axes=axes,
        part=part,
        part_axis=axis,
        outputs=[tensor(ArrayType((parts, *shape), result.dtype))],
    )
    replace_by_parts(op, partial, op.fn, result)
    return parts, "long sums with few results"


def _part_of(size: int, least: int) -> int:
    """How much of a dim is a part. Parts are equal where enough of them can be; else the last one is shorter, and the
    others are whole tiles."""
    parts = parts_of(size, least)
    if parts >= FEW_PARTS or size < MOST_PARTS * UNEQUAL_PART:
        return size // parts
    return -(-size // (MOST_PARTS * UNEQUAL_PART)) * UNEQUAL_PART
