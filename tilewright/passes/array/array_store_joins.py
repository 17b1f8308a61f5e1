"""Store concatenations of short rows before what computes expensive functions of them.

A loop over a concatenation is cut where an operand ends, so that each vector is of one operand: sixteen operands of one
column each take sixteen vectors for a row of one. A copy is as quick, but functions are computed in all lanes. The
concatenation is a kernel of its own where that is predicted to take longer than to store the row and read it again.
After very many operands are split, before loops are fused, which would take the concatenation in.

Before:
    func.func @main(%x: tensor<4096x3xf32>, %y: tensor<4096x5xf32>) -> tensor<4096x16xf32> {
      %row = array.concat(%x, %y, %x, %y) {axis = 1 : index} : tensor<4096x16xf32>
      %z = array.map(%row) {fn = "tanh"} : tensor<4096x16xf32>
      func.return %z : tensor<4096x16xf32>
    }
After:
    func.func @main(%x: tensor<4096x3xf32>, %y: tensor<4096x5xf32>) -> tensor<4096x16xf32> {
      %row = array.fused(%x, %y) {kind = "loop", why = "short rows of expensive functions"} do {
      ^bb0(%x1: tensor<4096x3xf32>, %y1: tensor<4096x5xf32>):
        %r = array.concat(%x1, %y1, %x1, %y1) {axis = 1 : index} : tensor<4096x16xf32>
        array.yield(%r)
      } : tensor<4096x16xf32>
      %z = array.map(%row) {fn = "tanh"} : tensor<4096x16xf32>
      func.return %z : tensor<4096x16xf32>
    }
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
from xdsl.ir import Operation

from tilewright import dtypes
from tilewright.cost.vectors.kernel import function_seconds
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.machines.machine import Machine
from tilewright.passes.array.fusion import ELEMENTWISE, inline_closure, make_group, results_through, users
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# How many times as long as storing and reading a row the functions of lanes without elements take, at least. Measured
# for 3 to 16 operands of 1 to 12 columns, f32, f16 and i32: two kernels take 0.1 to 0.8 of the time above it.
_LEAST_GAIN = 1.5
# Cycles in which a vector of narrow floats becomes f32 and is rounded again, for each function.
_NARROW_CYCLES = 6.0
_WHY = "short rows of expensive functions"


class ArrayStoreJoinsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-store-joins"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.ConcatOp)]:
                if _gain(op, unit.machine) >= _LEAST_GAIN:
                    make_group(block, {op, *inline_closure(op.operands, block)}, "loop", _WHY)
                    unit.remarks.append(Remark(self.name, f"concat at {where(op)}", "stored", _WHY))


def _gain(op: array.ConcatOp, machine: Machine) -> float:
    """The time of functions of lanes without elements, by that of storing the concatenation and reading it again."""
    type = array_type(op.results[0])
    lanes = machine.lanes(_computed(type).dtype)
    inner = math.prod(type.shape[op.axis + 1 :])
    runs = [array_type(each).shape[op.axis] * inner for each in op.operands]
    row = sum(runs)
    if not row or row in SHUFFLED_STRIDES:
        return 0.0
    lost = sum(-(-run // lanes) for run in runs) - -(-row // lanes)
    idle = ArrayType((type.size // row, lost, lanes), type.dtype)
    seconds = sum(_seconds(each, idle, machine) for each in _follow(op))
    moved = 2 * type.size * type.dtype.itemsize
    return seconds * machine.memory("dram").bytes_per_second / moved


def _follow(op: array.ConcatOp) -> dict[array.MapOp, None]:
    """The functions of each element of a concatenation that would be in its loop."""
    values = results_through(op.results[0], ELEMENTWISE)
    shape = array_type(op.results[0]).shape
    found = [user for value in values for user in users(value)]
    return {each: None for each in found if isinstance(each, array.MapOp) and _has_shape(each, shape)}


def _has_shape(op: Operation, shape: tuple[int, ...]) -> bool:
    return array_type(op.results[0]).shape == shape


def _seconds(op: array.MapOp, idle: ArrayType, machine: Machine) -> float:
    own = array_type(op.operands[-1])
    type = ArrayType(idle.shape, _computed(own).dtype)
    seconds = function_seconds(op.fn, type, machine)
    if type.dtype == own.dtype:
        return seconds
    return seconds + type.size / machine.lanes(type.dtype) * _NARROW_CYCLES / machine.clock_hertz


def _computed(type: ArrayType) -> ArrayType:
    """The type in which functions of narrow floats are computed."""
    is_narrow = type.dtype.is_float and type.dtype.itemsize < dtypes.f32.itemsize
    return ArrayType(type.shape, dtypes.f32 if is_narrow else type.dtype)
