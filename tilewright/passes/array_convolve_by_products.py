"""Convolve by a product of weights with shifted rows, where a machine multiplies what it copies by itself.

The image is laid out with channels last and with its padding, and its positions are one dimension: what lies one window
position further is then so many positions further, whatever the row. So a convolution is a product of weights with
rows of positions, contracted over the window's positions and the channels, whose windows are boxes of an array. It has
results for positions between the image's rows, too, of which nothing is kept. A kernel lays out the image, and another
one takes the results; that is done where both and the product are predicted to take less time than to multiply row by
row, from registers. Windows of one position may have any stride, others have none.

Before:
    func.func @main(%x: tensor<2x64x14x14xbf16>, %w: tensor<512x64x3x3xbf16>) -> tensor<2x512x14x14xbf16> {
      %y = array.convolve(%x, %w) {strides = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>,
        dilation = array<i64: 1, 1>, groups = 1 : index} : tensor<2x512x14x14xbf16>
      func.return %y : tensor<2x512x14x14xbf16>
    }
After:
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
        rows = _Rows.of(op, unit.machine)
        if rows is None or not is_multiplied_by_warps(op, unit.machine):
            return
        as_it_is, by_products = warp_product_seconds(row_product(op, unit.machine), unit.machine), rows.seconds
        why = f"{microseconds(by_products)}, row by row {microseconds(as_it_is)}"
        is_worth_it = by_products * _WORTH <= as_it_is
        decision = "a product of rows of positions" if is_worth_it else "row by row"
        unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", decision, why))
        if is_worth_it:
            _Writer(unit, block, op, rows).write()


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class _Rows:
    """How an image lies as rows of channels. `sizes`: its spatial dims with padding, of which the first has some rows
    more at the end; `channels`: with zeros behind them; `positions`: how many results each channel has; `steps`: how
    many positions lie between neighbours along each spatial dim."""

    machine: Machine
    image: ArrayType
    weights: ArrayType
    result: ArrayType
    dilation: tuple[int, ...]
    sizes: tuple[int, ...]
    channels: int
    positions: int

    @staticmethod
    def of(op: array.ConvolveOp, machine: Machine) -> _Rows | None:
        """None where no instruction multiplies what the machine copies, or rows do not lie so."""
        image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
        a, window = op.attributes_of(), array_type(op.operands[1]).shape[2:]
        if 0 in (*image.shape, *weights.shape, *result.shape) or a["groups"] != 1 or min(*a["low"], *a["high"]) < 0:
            return None
        if any(isinstance(value.owner, Operation) and is_splat(value.owner) for value in op.operands):
            return None
        types = weights.dtype, image.dtype, accumulator_of(result.dtype)
        if all(machine.atom_of(family, *types) is None for family in (WGMMA, TCGEN05)):
            return None
        if math.prod(window) > 1 and math.prod(a["strides"]) > 1:
            return None
        padded = [n + low + high for n, low, high in zip(image.shape[2:], a["low"], a["high"], strict=True)]
        sizes = list(result.shape[2:]) if math.prod(window) == 1 else padded
        rows = _Rows(machine, image, weights, result, tuple(a["dilation"]), tuple(sizes), 0, 0)
        last = sum((n - 1) * step for n, step in zip(result.shape[2:], rows.steps, strict=True))
        positions = _up(last + 1, TENSOR_COPY_BYTES // min(TENSOR_COPY_BYTES, result.dtype.itemsize))
        beyond = positions + sum((n - 1) * step for n, step in zip(window, rows.shifts, strict=True))
        sizes[0] += -(-max(0, beyond - math.prod(sizes)) // rows.steps[0])
        channels = _up(image.shape[1], TENSOR_COPY_BYTES // image.dtype.itemsize)
        return _Rows(machine, image, weights, result, rows.dilation, tuple(sizes), channels, positions)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(math.prod(self.sizes[dim + 1 :]) for dim in range(len(self.sizes)))

    @property
    def shifts(self) -> tuple[int, ...]:
        """How many positions lie between neighbours along each dim of the window."""
        return tuple(step * apart for step, apart in zip(self.steps, self.dilation, strict=True))

    @property
    def seconds(self) -> float:
        """The predicted time of the product, of the kernel that lays out the image and of the one that takes the
        results, each of which is read and written."""
        product = WarpProduct(
            self.result.shape[1],
            self.positions,
            self.channels,
            self.weights.dtype,
            accumulator_of(self.result.dtype),
            self.image.shape[0],
            TENSOR_COPY_BYTES,
            right=self.image.dtype,
            trips=math.prod(self.weights.shape[2:]),
        )
        rows = self.image.shape[0] * math.prod(self.sizes) * self.channels
        results = self.image.shape[0] * self.result.shape[1] * self.positions
        moved = (self.image.size + rows) * self.image.dtype.itemsize
        moved += (results + self.result.size) * self.result.dtype.itemsize
        far = self.machine.memories[-1]
        beside = 2 * self.machine.fork_join_s + moved / (far.bytes_per_second * self.machine.cores)
        return warp_product_seconds(product, self.machine) + beside


@dataclass
class _Writer:
    """`added`: what has been written for the kernel that comes next."""

    unit: Unit
    block: Block
    op: array.ConvolveOp
    rows: _Rows
    added: list[Operation] = field(default_factory=list[Operation])

    def write(self) -> None:
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
        if math.prod(type.shape[2:]) == 1 and not missing:
            return self._view("reshape", weights, shape=tuple(type.shape[dim] for dim in order))
        none = (0,) * type.rank
        return self._padded(self._add("transpose", [weights], permutation=order), none, (*none[1:], missing))

    def _image(self) -> SSAValue:
        """(N, *sizes, channels) with the padding."""
        a, rank = self.op.attributes_of(), self.rows.image.rank
        none = (0,) * rank
        missing = self.rows.channels - self.rows.image.shape[1]
        value = self._add("transpose", [self.op.operands[0]], permutation=(0, *range(2, rank), 1))
        value = self._padded(value, (0, *a["low"], 0), (0, *a["high"], missing))
        if math.prod(a["strides"]) > 1:
            limits = array_type(value).shape
            value = self._add("slice", [value], starts=none, limits=limits, strides=(1, *a["strides"], 1))
        more = self.rows.sizes[0] - array_type(value).shape[1]
        return self._padded(value, none, (0, more, *none[2:]))

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
