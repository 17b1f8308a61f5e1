"""Reorder a convolution's weights by window position, for MMA instructions.

A matmul is of all channels at one position of the window: of (O, C / groups, *window) it would read single elements
that are a window apart, of (*window, O, C / groups) it reads rows. Reordering them is a kernel of its own, made before
others are, so that its transpose is not taken into the convolution again.

Before (sm_90a):
    func.func @main(%x: tensor<1x16x8x32xbf16>, %w: tensor<16x16x3x3xbf16>) -> tensor<1x16x6x30xbf16> {
      %y = array.convolve(%x, %w) {strides = array<i64: 1, 1>, low = array<i64: 0, 0>, high = array<i64: 0, 0>,
        dilation = array<i64: 1, 1>, groups = 1 : i64} : tensor<1x16x6x30xbf16>
      func.return %y : tensor<1x16x6x30xbf16>
    }
After:
    func.func @main(%x: tensor<1x16x8x32xbf16>, %w: tensor<16x16x3x3xbf16>) -> tensor<1x16x6x30xbf16> {
      %rows = array.fused(%w) {kind = "loop", why = "weights by window position"} do {
      ^bb0(%w1: tensor<16x16x3x3xbf16>):
        %t = array.transpose(%w1) {permutation = array<i64: 2, 3, 0, 1>} : tensor<3x3x16x16xbf16>
        array.yield(%t)
      } : tensor<3x3x16x16xbf16>
      %weights = array.transpose(%rows) {permutation = array<i64: 2, 3, 0, 1>} : tensor<16x16x3x3xbf16>
      %y = array.convolve(%x, %weights) {strides = array<i64: 1, 1>, low = array<i64: 0, 0>, high = array<i64: 0, 0>,
        dilation = array<i64: 1, 1>, groups = 1 : i64} : tensor<1x16x6x30xbf16>
      func.return %y : tensor<1x16x6x30xbf16>
    }
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_simplify import computed
from tilewright.passes.array.fusion import inline_closure, is_splat, make_group
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.warp_products import is_multiplied_by_warps

_WHY = "weights by window position"


class ArrayOrderWeightsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-order-weights"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ConvolveOp) and _is_reordered(unit, op):
                    _reorder(unit, block, op)
                    unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", "reorder", _WHY))


def _is_reordered(unit: Unit, op: array.ConvolveOp) -> bool:
    """Windows of one position are in order as they are, and equal weights are nowhere."""
    weights = op.operands[1]
    if isinstance(weights.owner, Operation) and is_splat(weights.owner):
        return False
    return math.prod(array_type(weights).shape[2:]) > 1 and is_multiplied_by_warps(op, unit.machine)


def _reorder(unit: Unit, block: Block, op: array.ConvolveOp) -> None:
    """Weights that are known are reordered now, others by a kernel."""
    weights = op.operands[1]
    rank = array_type(weights).rank
    to_rows, back = (*range(2, rank), 0, 1), (rank - 2, rank - 1, *range(rank - 2))
    if isinstance(weights.owner, array.ConstantOp):
        rows = computed(unit, op, [weights], lambda known: np.ascontiguousarray(known[0].transpose(to_rows)))
        op.operands[1] = _transposed(block, op, rows, back)
        return
    rows = _transposed(block, op, weights, to_rows)
    op.operands[1] = _transposed(block, op, rows, back)
    make_group(block, set(inline_closure([rows], block)), "loop", _WHY)


def _transposed(block: Block, op: array.ConvolveOp, value: SSAValue, order: tuple[int, ...]) -> SSAValue:
    view = array.TransposeOp(arguments=[value], permutation=order)
    view.location = op.location
    block.insert_op_before(view, op)
    return view.results[0]
