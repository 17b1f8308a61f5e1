"""Convolve by a product of weights with shifted rows, where a machine multiplies what it copies by itself.

The image is laid out with channels last and with its padding, and its positions are one dimension: what lies one window
position further is then so many positions further, whatever the row. So a convolution is a product of weights with
rows of positions, contracted over the window's positions and the channels, whose windows are boxes of an array. It has
results for positions between the image's rows, too, of which nothing is kept. A kernel lays out the image, and another
one takes the results; that is done where both and the product are predicted to take less time than to multiply row by
row, from registers. Windows of one position may have any stride, others have none.

Before:
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
          %5 = array.transpose(%4) {permutation = array<i64: 0, 2, 3, 1>} : tensor<8x20x20x256xbf16>
          %6 = array.constant() {value = 0 : index, resource = ""} : tensor<bf16>
          %7 = array.pad(%5, %6) {low = array<i64: 0, 1, 1, 0>, high = array<i64: 0, 2, 1, 0>, interior = array<i64:
            0, 0, 0, 0>} : tensor<8x23x22x256xbf16>
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
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.cost.warp_products import TCGEN05, TENSOR_COPY_BYTES, WGMMA, WarpProduct, warp_product_seconds
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine
from tilewright.passes.array_simplify import captured, constant_value
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.contract_facts import accumulator_of
from tilewright.passes.fusion import is_splat, make_group
from tilewright.passes.lower_contract_group import is_multiplied_by_warps, row_product
from tilewright.primitives import ArrayType

# How much longer the convolution must take as it is: the prediction is no surer, and more kernels have to be compiled.
_WORTH = 1.25


@dataclass(frozen=True)
class ArrayConvolveByProductsPass:
    name: ClassVar[str] = "array-convolve-by-products"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ConvolveOp):
                    self._decide(unit, block, op)

    def _decide(self, unit: Unit, block: Block, op: array.ConvolveOp) -> None:
        if not _can_be_a_product(op, unit.machine):
            return
        rows = _Rows.of(op)
        as_it_is, by_products = (
            warp_product_seconds(row_product(op, unit.machine), unit.machine),
            rows.seconds(unit.machine),
        )
        is_worth_it = by_products * _WORTH <= as_it_is
        decision = "a product of rows of positions" if is_worth_it else "row by row"
        why = f"{microseconds(by_products)}, row by row {microseconds(as_it_is)}"
        unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", decision, why))
        if is_worth_it:
            _Writer(unit, block, op, rows).write()


def _can_be_a_product(op: array.ConvolveOp, machine: Machine) -> bool:
    """Whether an instruction multiplies what the machine copies, of one group of channels; neighbours in the window are
    as far apart wherever it lies."""
    image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
    a, types = op.attributes_of(), (weights.dtype, image.dtype, accumulator_of(result.dtype))
    if not is_multiplied_by_warps(op, machine) or a["groups"] != 1 or min(*a["low"], *a["high"]) < 0:
        return False
    if any(isinstance(value.owner, Operation) and is_splat(value.owner) for value in op.operands):
        return False
    is_copied = any(machine.atom_of(family, *types) is not None for family in (WGMMA, TCGEN05))
    return is_copied and (math.prod(weights.shape[2:]) == 1 or math.prod(a["strides"]) == 1)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _last(sizes: Sequence[int], steps: Sequence[int]) -> int:
    """The number of the last position of a box."""
    return sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))


@dataclass(frozen=True)
class _Rows:
    """How an image lies as rows of channels. `sizes`: its spatial dims with padding, of which the first has some rows
    more at the end; `channels`: with zeros behind them; `positions`: how many results each channel has."""

    image: ArrayType
    weights: ArrayType
    result: ArrayType
    dilation: tuple[int, ...]
    knows_weights: bool
    sizes: tuple[int, ...]
    channels: int = 0
    positions: int = 0

    @staticmethod
    def of(op: array.ConvolveOp) -> _Rows:
        """Rows of channels, and of results, begin where the machine may copy them."""
        image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
        a, window = op.attributes_of(), weights.shape[2:]
        sizes = [n + low + high for n, low, high in zip(image.shape[2:], a["low"], a["high"], strict=True)]
        if math.prod(window) == 1:  # what strides leave out is not laid out
            sizes = list(result.shape[2:])
        is_known = isinstance(op.operands[1].owner, array.ConstantOp)
        rows = _Rows(image, weights, result, tuple(a["dilation"]), is_known, tuple(sizes))
        positions = _up(_last(result.shape[2:], rows.steps) + 1, TENSOR_COPY_BYTES // result.dtype.itemsize)
        missing = positions + _last(window, rows.shifts) - math.prod(sizes)
        sizes[0] += -(-max(0, missing) // rows.steps[0])
        channels = _up(image.shape[1], TENSOR_COPY_BYTES // image.dtype.itemsize)
        return replace(rows, sizes=tuple(sizes), channels=channels, positions=positions)

    @property
    def steps(self) -> tuple[int, ...]:
        """How many positions lie between neighbours along each spatial dim."""
        return tuple(math.prod(self.sizes[dim + 1 :]) for dim in range(len(self.sizes)))

    @property
    def shifts(self) -> tuple[int, ...]:
        """The same along each dim of the window."""
        return tuple(step * apart for step, apart in zip(self.steps, self.dilation, strict=True))

    def seconds(self, machine: Machine) -> float:
        """The predicted time of the product, of the kernels that lay out the image and weights that are not known and
        of the one that takes the results, each of which is read and written."""
        images, outputs = self.image.shape[0], self.result.shape[1]
        product = WarpProduct(
            outputs,
            self.positions,
            self.channels,
            self.weights.dtype,
            accumulator_of(self.result.dtype),
            images,
            TENSOR_COPY_BYTES,
            right=self.image.dtype,
            trips=math.prod(self.weights.shape[2:]),
        )
        rows = images * math.prod(self.sizes) * self.channels
        moved = (self.image.size + rows) * self.image.dtype.itemsize
        moved += (images * outputs * self.positions + self.result.size) * self.result.dtype.itemsize
        far, kernels = machine.memories[-1], 2 if self.knows_weights else 3
        beside = kernels * machine.fork_join_s + moved / (far.bytes_per_second * machine.cores)
        return warp_product_seconds(product, machine) + beside


@dataclass
class _Writer:
    """`added`: what has been written for the kernel that comes next."""

    unit: Unit
    block: Block
    op: array.ConvolveOp
    rows: _Rows
    added: list[Operation] = field(default_factory=list[Operation])

    def write(self) -> None:
        """Put the kernels that lay out operands, the product and what takes its results in the convolution's place."""
        weights, for_weights = self._weights(), self._taken()
        image, for_image = self._image(), self._taken()
        rank = self.rows.image.rank
        product = self._add(
            "contract",
            [weights, self._windows(image)],
            left_batch=(),
            right_batch=(),
            left_contract=tuple(range(1, rank)),
            right_contract=tuple(range(2, rank + 1)),
            dtype=self.rows.result.dtype.name,
        )
        results = self._add("unfold", [product], axis=2, sizes=self.rows.result.shape[2:], steps=self.rows.steps)
        results = self._add("transpose", [results], permutation=(1, 0, *range(2, rank)))
        self.op.results[0].replace_all_uses_with(results)
        for what, ops in (("weights", for_weights), ("image", for_image)):
            if ops:
                make_group(self.block, set(ops), "loop", f"{what} with channels last")
        self.op.detach()
        self.op.erase()

    def _weights(self) -> SSAValue:
        """(O, *window, channels), known ones laid out now."""
        weights, type = self.op.operands[1], self.rows.weights
        order = (0, *range(2, type.rank), 1)
        missing = self.rows.channels - type.shape[1]
        if isinstance(weights.owner, array.ConstantOp):
            value = constant_value(self.unit, weights).transpose(order)
            padded = np.pad(value, [(0, 0)] * (type.rank - 1) + [(0, missing)])
            return captured(self.unit, self.op, np.ascontiguousarray(padded))
        none = (0,) * type.rank
        return self._padded(self._add("transpose", [weights], permutation=order), none, (*none[1:], missing))

    def _image(self) -> SSAValue:
        """(N, *sizes, channels) with the padding."""
        a, rank = self.op.attributes_of(), self.rows.image.rank
        low, high = (0, *a["low"], 0), [0, *a["high"], self.rows.channels - self.rows.image.shape[1]]
        value = self._add("transpose", [self.op.operands[0]], permutation=(0, *range(2, rank), 1))
        if math.prod(a["strides"]) == 1:
            high[1] = self.rows.sizes[0] - array_type(value).shape[1] - low[1]
            return self._padded(value, low, tuple(high))
        value = self._padded(value, low, tuple(high))
        limits, none = array_type(value).shape, (0,) * rank
        value = self._add("slice", [value], starts=none, limits=limits, strides=(1, *a["strides"], 1))
        return self._padded(value, none, (0, self.rows.sizes[0] - array_type(value).shape[1], *none[2:]))

    def _windows(self, image: SSAValue) -> SSAValue:
        """(N, positions, *window, channels) of an image that is laid out."""
        flat = (self.rows.image.shape[0], math.prod(self.rows.sizes), self.rows.channels)
        sizes = (self.rows.positions, *self.rows.weights.shape[2:])
        rows = self._view("reshape", image, shape=flat)
        return self._view("unfold", rows, axis=1, sizes=sizes, steps=(1, *self.rows.shifts))

    def _padded(self, value: SSAValue, low: tuple[int, ...], high: tuple[int, ...]) -> SSAValue:
        """A value with zeros around it."""
        if not any((*low, *high)):
            return value
        dtype = array_type(value).dtype.name
        zero = self._add("constant", [], value=0, resource="", shape=(), dtype=dtype)
        return self._add("pad", [value, zero], low=low, high=high, interior=(0,) * len(low))

    def _view(self, primitive: str, value: SSAValue, **attributes: Any) -> SSAValue:
        """What costs nothing, and belongs to no kernel."""
        result = self._add(primitive, [value], **attributes)
        self.added.pop()
        return result

    def _add(self, primitive: str, operands: list[SSAValue], **attributes: Any) -> SSAValue:
        made = array.build(primitive, operands, attributes)
        made.location = self.op.location
        self.block.insert_op_before(made, self.op)
        self.added.append(made)
        return made.results[0]

    def _taken(self) -> list[Operation]:
        taken, self.added = self.added, []
        return taken
