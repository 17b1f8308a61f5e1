"""Rewrite convolutions as matmuls of the weights with shifted rows, for machines with tensor copies and asynchronous
MMAs.

The image is laid out with channels last and with its padding, and its positions are one dimension: what is one window
position further is then so many positions further, whatever the row. So a convolution is a matmul of weights with rows
of positions, contracted over the window's positions and the channels, whose windows are boxes of an array. It has
results for positions between the image's rows, too, of which nothing is kept. A kernel lays out the image, and another
one takes the results; that is done where both and the matmul are predicted to take less time than to multiply row by
row, from registers. With strides, the positions between two results are channels of one.

Before (sm_90a):
    func.func @main(%x: tensor<8x256x20x20xbf16>, %w: tensor<256x256x3x3xbf16>) -> tensor<8x256x20x20xbf16> {
      %y = array.convolve(%x, %w) {strides = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>,
        dilation = array<i64: 1, 1>, groups = 1 : i64} : tensor<8x256x20x20xbf16>
      func.return %y : tensor<8x256x20x20xbf16>
    }
After:
    builtin.module {
      func.func @main(%0: tensor<8x256x20x20xbf16>, %1: tensor<256x256x3x3xbf16>) -> tensor<8x256x20x20xbf16> {
        %2 = array.fused(%1) {kind = "loop", why = "weights with channels last"} do {
        ^bb0(%3: tensor<256x256x3x3xbf16>):
          %4 = array.transpose(%3) {permutation = array<i64: 0, 2, 3, 1>} : tensor<256x3x3x256xbf16>
          array.yield(%4)
        } : tensor<256x3x3x256xbf16>
        %3 = array.fused(%0) {kind = "loop", why = "image with channels last"} do {
        ^bb0(%4: tensor<8x256x20x20xbf16>):
          %5 = array.constant() {value = 0 : index, resource = ""} : tensor<bf16>
          %6 = array.pad(%4, %5) {low = array<i64: 0, 0, 1, 1>, high = array<i64: 0, 0, 2, 1>, interior = array<i64:
            0, 0, 0, 0>} : tensor<8x256x23x22xbf16>
          %7 = array.transpose(%6) {permutation = array<i64: 0, 2, 3, 1>} : tensor<8x23x22x256xbf16>
          array.yield(%7)
        } : tensor<8x23x22x256xbf16>
        %4 = array.reshape(%3) : tensor<8x506x256xbf16>
        %5 = array.unfold(%4) {axis = 1 : index, sizes = array<i64: 440, 3, 3>, steps = array<i64: 1, 22, 1>} :
          tensor<8x440x3x3x256xbf16>
        %6 = array.contract(%2, %5) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64:
          1, 2, 3>, right_contract = array<i64: 2, 3, 4>} : tensor<256x8x440xbf16>
        %7 = array.unfold(%6) {axis = 2 : index, sizes = array<i64: 20, 20>, steps = array<i64: 22, 1>} :
          tensor<256x8x20x20xbf16>
        %8 = array.transpose(%7) {permutation = array<i64: 1, 0, 2, 3>} : tensor<8x256x20x20xbf16>
        func.return %8 : tensor<8x256x20x20xbf16>
      }
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.cost.warps.products import warp_product_seconds
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase
from tilewright.machines.machine import Machine
from tilewright.passes.array.array_simplify import computed
from tilewright.passes.array.fusion import is_splat, make_group
from tilewright.passes.array.position_rows import PositionRows
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.kernels.contract_facts import accumulator_of
from tilewright.passes.kernels.warp_products import is_multiplied_by_warps, row_product
from tilewright.primitives import ArrayType

# How much longer the convolution must take as it is: the prediction is no surer, and more kernels have to be compiled.
_WORTH = 1.25


class ArrayConvolveByProductsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-convolve-by-products"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ConvolveOp):
                    self._decide(unit, block, op)

    def _decide(self, unit: Unit, block: Block, op: array.ConvolveOp) -> None:
        if not _can_be_a_product(op, unit.machine):
            return
        rows = PositionRows.of(op)
        as_it_is, by_products = (
            warp_product_seconds(row_product(op, unit.machine), unit.machine),
            rows.seconds(unit.machine),
        )
        is_worth_it = by_products * _WORTH <= as_it_is
        decision = "a matmul over rows of positions" if is_worth_it else "row by row"
        why = f"{microseconds(by_products)}, row by row {microseconds(as_it_is)}"
        unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", decision, why))
        if is_worth_it:
            _Writer(unit, block, op, rows).write()


def _can_be_a_product(op: array.ConvolveOp, machine: Machine) -> bool:
    """Whether an instruction multiplies what the machine copies, of one group of channels; a window that moves by
    strides has no gaps."""
    image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
    types = (weights.dtype, image.dtype, accumulator_of(result.dtype))
    if not is_multiplied_by_warps(op, machine) or op.groups != 1 or min(*op.low, *op.high) < 0:
        return False
    if any(isinstance(value.owner, Operation) and is_splat(value.owner) for value in op.operands):
        return False
    is_copied = machine.group_atom_of(*types) is not None
    has_strides = math.prod(weights.shape[2:]) > 1 and math.prod(op.strides) > 1
    return is_copied and not (has_strides and math.prod(op.dilation) > 1)


class _Writer(msgspec.Struct):
    """`added`: what has been written for the kernel that comes next."""

    unit: Unit
    block: Block
    op: array.ConvolveOp
    rows: PositionRows
    added: list[Operation] = msgspec.field(default_factory=list[Operation])

    def write(self) -> None:
        """Put the kernels that lay out operands, the matmul and what takes its results in the convolution's place."""
        weights, for_weights = self._weights(), self._taken()
        image, for_image = self._image(), self._taken()
        rank = self.rows.image.rank
        operands = [weights, self._windows(image)]
        dtype = self.rows.result.dtype
        product = self._add(array.contract(operands, range(1, rank), range(2, rank + 1), dtype))
        results = self._add(
            array.UnfoldOp(arguments=[product], axis=2, sizes=self.rows.result.shape[2:], steps=self.rows.steps)
        )
        results = self._add(array.TransposeOp(arguments=[results], permutation=(1, 0, *range(2, rank))))
        self.op.results[0].replace_all_uses_with(results)
        for what, ops in (("weights", for_weights), ("image", for_image)):
            if ops:
                make_group(self.block, set(ops), "loop", f"{what} with channels last")
        erase(self.op)

    def _weights(self) -> SSAValue:
        """(O, *window, channels), known ones laid out now."""
        weights, rows = self.op.operands[1], self.rows
        shape = (rows.weights.shape[0], *rows.window, rows.channels)
        missing = [n * m - w for n, m, w in zip(rows.window, rows.merge, rows.weights.shape[2:], strict=True)]
        high = (0, rows.depth - rows.weights.shape[1], *missing)
        if isinstance(weights.owner, array.ConstantOp):
            padding = [(0, n) for n in high]
            split = [each for pair in zip(rows.window, rows.merge, strict=True) for each in pair]
            order = self._order()

            def compute(known: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
                padded = np.pad(known[0], padding)
                ordered = padded.reshape(*padded.shape[:2], *split).transpose(order)
                return np.ascontiguousarray(ordered).reshape(shape)

            return computed(self.unit, self.op, [weights], compute)
        value = self._channels_last(self._padded(weights, (0,) * len(high), high), rows.window)
        return self._reshaped(value, shape)

    def _image(self) -> SSAValue:
        """(N, positions, channels) with the padding."""
        rows, value = self.rows, self.op.operands[0]
        low, high = (0, 0, *rows.low), (0, 0, *self.op.high)
        if math.prod(rows.taken) > 1:
            value = self._padded(value, low, high)
            limits, low = array_type(value).shape, (0,) * len(low)
            value = self._add(array.SliceOp(arguments=[value], starts=low, limits=limits, strides=(1, 1, *rows.taken)))
        each = zip(rows.sizes, rows.merge, array_type(value).shape[2:], low[2:], strict=True)
        missing = [n * m - size - before for n, m, size, before in each]
        value = self._padded(value, low, (0, rows.depth - rows.image.shape[1], *missing))
        shape = (rows.image.shape[0], math.prod(rows.sizes), rows.channels)
        return self._reshaped(self._channels_last(value, rows.sizes), shape)

    def _channels_last(self, value: SSAValue, sizes: Sequence[int]) -> SSAValue:
        """Positions of `sizes` in front of those that are one with them, and of the channels."""
        merge = self.rows.merge
        if math.prod(merge) == 1:
            rank = array_type(value).rank
            return self._add(array.TransposeOp(arguments=[value], permutation=(0, *range(2, rank), 1)))
        for dim in reversed(range(len(merge))):
            split, steps = (sizes[dim], merge[dim]), (merge[dim], 1)
            value = self._add(array.UnfoldOp(arguments=[value], axis=2 + dim, sizes=split, steps=steps))
        return self._add(array.TransposeOp(arguments=[value], permutation=self._order()))

    def _order(self) -> tuple[int, ...]:
        """Of the first dim, channels and pairs of dims: first ones of pairs, second ones, channels."""
        dims = range(2, 2 + 2 * len(self.rows.merge))
        return (0, *dims[::2], *dims[1::2], 1)

    def _windows(self, image: SSAValue) -> SSAValue:
        """(N, positions, *window, channels) of an image that is laid out."""
        sizes, steps = (self.rows.positions, *self.rows.window), (1, *self.rows.shifts)
        return self._view(array.UnfoldOp(arguments=[image], axis=1, sizes=sizes, steps=steps))

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        type = array_type(value)
        if type.shape == shape:
            return value
        return self._view(array.ReshapeOp(arguments=[value], outputs=[tensor(ArrayType(shape, type.dtype))]))

    def _padded(self, value: SSAValue, low: tuple[int, ...], high: tuple[int, ...]) -> SSAValue:
        """A value with zeros around it."""
        if not any((*low, *high)):
            return value
        scalar = tensor(ArrayType((), array_type(value).dtype))
        zero = self._add(array.ConstantOp(value=0, resource="", outputs=[scalar]))
        return self._add(array.PadOp(arguments=[value, zero], low=low, high=high, interior=(0,) * len(low)))

    def _view(self, made: array.ArrayOp) -> SSAValue:
        """Add an operation that is free and belongs to no kernel."""
        result = self._add(made)
        self.added.pop()
        return result

    def _add(self, made: array.ArrayOp) -> SSAValue:
        made.location = self.op.location
        self.block.insert_op_before(made, self.op)
        self.added.append(made)
        return made.results[0]

    def _taken(self) -> list[Operation]:
        taken, self.added = self.added, []
        return taken
