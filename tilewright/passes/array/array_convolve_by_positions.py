"""Rewrite convolutions with few positions as a matmul for each position.

The gradient of a convolution's weights is a convolution whose window is as large as the image, of which the result has
few positions. Each of them is a contraction of part of the image with the weights, over channels and the window.
Machines whose vectors run along the last dim have better forms unless there is one position, or several groups of
several channels.

Before (sm_90a):
    func.func @main(%x: tensor<16x8x7xf32>, %w: tensor<32x8x6xf32>) -> tensor<16x32x2xf32> {
      %y = array.convolve(%x, %w) {strides = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>,
        dilation = array<i64: 1>, groups = 1 : i64} : tensor<16x32x2xf32>
      func.return %y : tensor<16x32x2xf32>
    }
After:
    func.func @main(%x: tensor<16x8x7xf32>, %w: tensor<32x8x6xf32>) -> tensor<16x32x2xf32> {
      %0 = array.reshape(%w) : tensor<1x32x8x6xf32>
      %1 = array.slice(%x) {starts = array<i64: 0, 0, 0>, limits = array<i64: 16, 8, 6>, strides = array<i64: 1,
        1, 1>} : tensor<16x8x6xf32>
      %2 = array.reshape(%1) : tensor<16x1x8x6xf32>
      %3 = array.contract(%2, %0) {left_batch = array<i64: 1>, right_batch = array<i64: 0>, left_contract =
        array<i64: 2, 3>, right_contract = array<i64: 2, 3>} : tensor<1x16x32xf32>
      %4 = array.transpose(%3) {permutation = array<i64: 1, 0, 2>} : tensor<16x1x32xf32>
      %5 = array.reshape(%4) : tensor<16x32x1xf32>
      %6 = array.slice(%x) {starts = array<i64: 0, 0, 1>, limits = array<i64: 16, 8, 7>, strides = array<i64: 1,
        1, 1>} : tensor<16x8x6xf32>
      %7 = array.reshape(%6) : tensor<16x1x8x6xf32>
      %8 = array.contract(%7, %0) {left_batch = array<i64: 1>, right_batch = array<i64: 0>, left_contract =
        array<i64: 2, 3>, right_contract = array<i64: 2, 3>} : tensor<1x16x32xf32>
      %9 = array.transpose(%8) {permutation = array<i64: 1, 0, 2>} : tensor<16x1x32xf32>
      %10 = array.reshape(%9) : tensor<16x32x1xf32>
      %y = array.concat(%5, %10) {axis = 2 : index} : tensor<16x32x2xf32>
      func.return %y : tensor<16x32x2xf32>
    }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, SSAValue

from tilewright.cost.vectors.convolutions import MOST_TAPS
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.passes.base import Remark, Unit, blocks_of, where

# More positions are a convolution that a kernel computes.
_MOST_POSITIONS = 25


class ArrayConvolveByPositionsPass(msgspec.Struct, frozen=True):
    """`leaves_images`: convolutions of several positions stay but where groups have several channels."""

    name: ClassVar[str] = "array-convolve-by-positions"
    leaves_images: bool = False

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ConvolveOp) and self._has_few_positions(op):
                    unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", "matmuls", _why(op)))
                    _write(block, op)

    def _has_few_positions(self, op: array.ConvolveOp) -> bool:
        positions = math.prod(array_type(op.results[0]).shape[2:])
        window = math.prod(array_type(op.operands[1]).shape[2:])
        if not 0 < positions < window or positions > _MOST_POSITIONS:
            return False
        return not self.leaves_images or positions == 1 or (op.groups > 1 and not _sums_vectors(op))


def _sums_vectors(op: array.ConvolveOp) -> bool:
    """Whether each channel has weights of its own, which are vectors of channels or of a row's positions."""
    results, channels, *window = array_type(op.operands[1]).shape
    return (results, channels) == (op.groups, 1) and math.prod(window) <= MOST_TAPS


def _why(op: array.ConvolveOp) -> str:
    positions = math.prod(array_type(op.results[0]).shape[2:])
    return f"{positions} positions under a window of {math.prod(array_type(op.operands[1]).shape[2:])}"


def _write(block: Block, op: array.ConvolveOp) -> None:
    values = PermutedValues(block)
    image, weights = op.operands
    result = array_type(op.results[0])
    positions = result.shape[2:]
    rank, groups = len(positions), op.groups
    padded = values.add_padding(op, image, (0, 0, *op.low), (0, 0, *op.high))
    batch, channels = array_type(image).shape[0], array_type(image).shape[1] // groups
    results, window = array_type(weights).shape[0] // groups, array_type(weights).shape[2:]
    depth = math.prod(window)
    right = values.add_reshape(op, weights, (groups, results, channels, depth))
    found: list[SSAValue] = []
    for place in itertools.product(*map(range, positions)):
        seen = _seen(values, op, padded, place)
        left = values.add_reshape(op, seen, (batch, groups, channels, depth))
        product = array.contract([left, right], (2, 3), (2, 3), result.dtype, (1,), (0,))  # (groups, batch, results)
        turned = array.TransposeOp(arguments=[values.add(op, product)], permutation=(1, 0, 2))
        found.append(values.add_reshape(op, values.add(op, turned), (batch, groups * results, 1)))
    whole = found[0] if len(found) == 1 else values.add(op, array.ConcatOp(arguments=found, axis=2))
    values.replace(op, values.add_reshape(op, whole, result.shape), tuple(range(2 + rank)))


def _seen(values: PermutedValues, op: array.ConvolveOp, image: SSAValue, place: Sequence[int]) -> SSAValue:
    """The elements of the padded image under the window at one position."""
    shape, window = array_type(image).shape, array_type(op.operands[1]).shape[2:]
    starts = tuple(at * stride for at, stride in zip(place, op.strides, strict=True))
    ends = tuple(s + (n - 1) * d + 1 for s, n, d in zip(starts, window, op.dilation, strict=True))
    if not any(starts) and ends == shape[2:] and set(op.dilation) == {1}:
        return image
    made = array.SliceOp(
        arguments=[image],
        starts=(0, 0, *starts),
        limits=(*shape[:2], *ends),
        strides=(1, 1, *op.dilation),
    )
    return values.add(op, made)
