"""Sort the halves of one long line by themselves, on two threads, and merge them.

Halves are the rows of a reshaped array; the second sort knows that its line is two sorted runs. One element after all
others makes lengths even.
Before loops are fused: what computes the elements goes into the sort of the halves.

Before:
    func.func @main(%x: tensor<65536xf32>) -> tensor<65536xf32> {
      %z = array.sort(%x) {axis = 0 : index, descending = false} : tensor<65536xf32>
      func.return %z : tensor<65536xf32>
    }
After:
    func.func @main(%x: tensor<65536xf32>) -> tensor<65536xf32> {
      %halves = array.reshape(%x) : tensor<2x32768xf32>
      %runs = array.sort(%halves) {axis = 1 : index, descending = false} : tensor<2x32768xf32>
      %line = array.reshape(%runs) : tensor<65536xf32>
      %z = array.sort(%line) {axis = 0 : index, descending = false, runs = 2 : index} : tensor<65536xf32>
      func.return %z : tensor<65536xf32>
    }
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dtypes import DType
from tilewright.passes.array.array_move_reshapes import viewed_as
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# Shorter lines are sorted in less time than a launch and a merge save.
LEAST_ELEMENTS = 16384
# Floats of which some value comes behind all others in either order.
_WITH_LAST = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)


class ArraySplitSortsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-split-sorts"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.SortOp)]:
                if _is_long_line(op):
                    reason = f"one line of {array_type(op.operands[0]).size} elements"
                    unit.remarks.append(Remark(self.name, f"sort at {where(op)}", "of halves, then merged", reason))
                    _split(op)


def _is_long_line(op: array.SortOp) -> bool:
    """Whether a sort is of one long line, of elements alone."""
    type = array_type(op.operands[0])
    if len(op.operands) > 1 or op.runs > 1 or not type.shape[op.axis] == type.size >= LEAST_ELEMENTS:
        return False
    return type.size % 2 == 0 or type.dtype in _WITH_LAST or not type.dtype.is_float


def _split(op: array.SortOp) -> None:
    type = array_type(op.results[0])
    count, even = type.size, type.size + type.size % 2
    line = viewed_as(op.operands[0], (count,), op)
    if even > count:
        line = _with_last(op, line)
    runs = _sorted(op, viewed_as(line, (2, even // 2), op), axis=1, runs=1)
    merged = _sorted(op, viewed_as(runs, (even,), op), axis=0, runs=2)
    if even > count:
        outputs = [tensor(ArrayType((count,), type.dtype))]
        first = array.SliceOp(arguments=[merged], starts=(0,), limits=(count,), strides=(1,), outputs=outputs)
        insert_like(op, first)
        merged = first.results[0]
    op.results[0].replace_all_uses_with(viewed_as(merged, type.shape, op))
    erase(op)


def _sorted(op: array.SortOp, value: SSAValue, axis: int, runs: int) -> SSAValue:
    made = array.SortOp(arguments=[value], axis=axis, descending=op.descending, runs=runs, outputs=[value.type])
    insert_like(op, made)
    return made.results[0]


def _with_last(op: array.SortOp, line: SSAValue) -> SSAValue:
    """A line with an element that a sort puts after all others."""
    type = array_type(line)
    last = array.ConstantOp(
        value=_last(type.dtype, op.descending), resource="", outputs=[tensor(ArrayType((), type.dtype))]
    )
    insert_like(op, last)
    outputs = [tensor(ArrayType((type.size + 1,), type.dtype))]
    padded = array.PadOp(arguments=[line, last.results[0]], low=(0,), high=(1,), interior=(0,), outputs=outputs)
    insert_like(op, padded)
    return padded.results[0]


def _last(dtype: DType, descending: bool) -> float | int | bool:
    """NaN come last, and first of a descending sort."""
    if dtype.is_float and not descending:
        return math.nan
    return dtype.lowest if descending else dtype.highest
