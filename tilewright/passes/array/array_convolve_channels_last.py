"""Choose the order of dims of convolutions, for machines whose vectors run along the last dim of an array.

A convolution is a matmul of image windows with the weights. With channels last, the channels of a window's row are
contiguous in both operands: the windows are a view of the padded image, which the matmul reads in place. A depthwise
convolution fills vectors with channels instead, and its sum over the window's positions is unrolled. Later operations
keep channels last as well, up to the first one that needs the program's order of dims. If the window is as large as the
image, as in gradients of weights, images are the last dim instead, and rows or columns of a matmul.

With channels first, nothing is transposed. Small images are copied window by window to the columns of a matmul, which
reads the weights once, in the order in which they are stored. Few results, as of groups, are rows of a matmul with a
view of the padded image, in which an element of the window is a shift. A depthwise convolution fills vectors with the
positions of a row. Any other becomes a matmul per row of the result. Windows of three by three of f32 can have fewer
multiplications, by transforms of tiles of the image (`convolve_winograd.py`). The pass takes the choice of the least
predicted time.

Before:
    func.func @main(%x: tensor<1x16x32x34xf32>, %w: tensor<16x16x3x3xf32>) -> tensor<1x16x15x16xf32> {
      %y = array.convolve(%x, %w) {strides = array<i64: 2, 2>, low = array<i64: 0, 0>, high = array<i64: 0, 0>,
        dilation = array<i64: 1, 1>, groups = 1 : i64} : tensor<1x16x15x16xf32>
      %z = array.map(%y) {fn = "exp"} : tensor<1x16x15x16xf32>
      func.return %z : tensor<1x16x15x16xf32>
    }
After:
    func.func @main(%x: tensor<1x16x32x34xf32>, %w: tensor<16x16x3x3xf32>) -> tensor<1x16x15x16xf32> {
      %0 = array.transpose(%x) {permutation = array<i64: 0, 2, 3, 1>} : tensor<1x32x34x16xf32>
      %1 = array.transpose(%w) {permutation = array<i64: 2, 3, 1, 0>} : tensor<3x3x16x16xf32>
      %2 = array.reshape(%1) : tensor<3x48x16xf32>
      %3 = array.reshape(%0) : tensor<1x17408xf32>
      %4 = array.unfold(%3) {axis = 1 : index, sizes = array<i64: 15, 16, 3, 48>,
        steps = array<i64: 1088, 32, 544, 1>} : tensor<1x15x16x3x48xf32>
      %5 = array.contract(%4, %2) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 3, 4>,
        right_contract = array<i64: 0, 1>} : tensor<1x15x16x16xf32>
      %6 = array.map(%5) {fn = "exp"} : tensor<1x15x16x16xf32>
      %z = array.transpose(%6) {permutation = array<i64: 0, 3, 1, 2>} : tensor<1x16x15x16xf32>
      func.return %z : tensor<1x16x15x16xf32>
    }
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright import dtypes
from tilewright.cost.vectors.convolutions import Convolution
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.passes.array.array_simplify import computed, drop_unused
from tilewright.passes.array.convolve_channels_first import ChannelsFirstWriter
from tilewright.passes.array.convolve_winograd import WinogradWriter
from tilewright.passes.array.fusion import users
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.kernels.contract_facts import accumulator_of
from tilewright.primitives import ArrayType


class ArrayConvolveChannelsLastPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-convolve-channels-last"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            values, followed = PermutedValues(block), _before_others(block)
            for op in list(block.ops):
                if isinstance(op, array.ConvolveOp):
                    self._decide(unit, values, op, op in followed)
                else:
                    values.sink(op)
            if values.known:
                drop_unused(block)

    def _decide(self, unit: Unit, values: PermutedValues, op: array.ConvolveOp, is_followed: bool) -> None:
        sizes, machine = _sizes_of(op), unit.machine
        if 0 in (*sizes.positions, *sizes.window, sizes.batch, sizes.channels, sizes.results):
            return
        image_s = sizes.moved_seconds(machine, sizes.image, sizes.channels)
        result_s = sizes.moved_seconds(machine, sizes.positions, sizes.results)
        # The image comes as the convolution before has left it, and the next one will have channels last.
        last_s = (op.operands[0] not in values.known) * image_s + (not is_followed) * result_s
        first_s = (op.operands[0] in values.known) * image_s + is_followed * result_s
        writer, ordered = _Writer(unit, values, op, sizes), ChannelsFirstWriter(values, op, sizes)
        fewer = WinogradWriter(unit, values, op, sizes)
        is_f32 = all(array_type(value).dtype == dtypes.f32 for value in (*op.operands, op.results[0]))
        unless_f32_s = 0.0 if is_f32 else math.inf
        choices: dict[str, tuple[float, Callable[[], None]]] = {
            "channels last": (last_s + sizes.channels_last_seconds(machine), writer.write),
            "images last": (sizes.images_last_seconds(machine), writer.write_images_last),
            "images last, as columns": (sizes.image_columns_seconds(machine), writer.write_image_columns),
            "channels first": (first_s + sizes.channels_first_seconds(machine), lambda: None),
            "windows as columns": (first_s + sizes.windows_seconds(machine), lambda: ordered.write_product(machine)),
            "shifted rows": (first_s + sizes.shifted_rows_seconds(machine), ordered.write_shifted_rows),
            "fewer multiplications": (unless_f32_s + last_s + sizes.winograd_seconds(machine), fewer.write),
            "fewer multiplications, images last": (
                unless_f32_s + sizes.winograd_gradient_seconds(machine),
                fewer.write_gradient,
            ),
            "rows of channels": (first_s + sizes.taps_seconds(machine), lambda: ordered.write_taps(machine)),
        }
        decision, *others = sorted(choices, key=lambda name: choices[name][0])
        possible = [f"{name} {microseconds(choices[name][0])}" for name in others if choices[name][0] < math.inf]
        why = ", ".join([microseconds(choices[decision][0]), *possible])
        unit.remarks.append(Remark(self.name, f"convolve at {where(op)}", decision, why))
        choices[decision][1]()


def _before_others(block: Block) -> set[Operation]:
    """The operations of a block whose results a convolution is computed from."""
    found: set[Operation] = set()
    for op in reversed(list(block.ops)):
        if any(isinstance(u, array.ConvolveOp) or u in found for r in op.results for u in users(r)):
            found.add(op)
    return found


def _sizes_of(op: array.ConvolveOp) -> Convolution:
    image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
    return Convolution(
        batch=image.shape[0],
        channels=image.shape[1],
        results=weights.shape[0],
        groups=op.groups,
        image=image.shape[2:],
        window=weights.shape[2:],
        positions=result.shape[2:],
        strides=op.strides,
        dilation=op.dilation,
        low=op.low,
        dtype=accumulator_of(result.dtype),
        is_known=isinstance(op.operands[1].owner, array.ConstantOp),
    )


class _Writer(msgspec.Struct):
    """Writes one convolution, with channels or with images last."""

    unit: Unit
    values: PermutedValues
    op: array.ConvolveOp
    sizes: Convolution

    def write(self) -> None:
        rank = array_type(self.op.operands[0]).rank
        image = self._padded(self.values.transposed(self.op, self.op.operands[0], (0, *range(2, rank), 1)))
        result = self._by_channel(image) if self.sizes.is_depthwise else self._product(image)
        self.values.replace(self.op, result, (0, rank - 1, *range(1, rank - 1)))

    def write_images_last(self) -> None:
        """A matmul for each of few positions, summed over a window as large as the image, and over channels: the rows
        of its left operand are of one image each, as where a gradient of weights is computed, whose images are channels
        and whose channels are images."""
        sizes, rank = self.sizes, len(self.sizes.window)
        order = (1, *range(2, 2 + rank), 0)
        image = self._padded(self.values.transposed(self.op, self.op.operands[0], order))
        weights = self.values.transposed(self.op, self.op.operands[1], order)
        shape = array_type(image).shape
        pitches = [math.prod(shape[d + 2 : -1]) for d in range(rank)]
        steps = [n * p for gaps in (sizes.strides, sizes.dilation) for n, p in zip(gaps, pitches, strict=True)]
        flat = self._reshaped(image, (shape[0], math.prod(shape[1:-1]), shape[-1]))
        windows = self._add(
            array.UnfoldOp(arguments=[flat], axis=1, sizes=(*sizes.positions, *sizes.window), steps=tuple(steps))
        )
        summed = (0, *range(1 + rank, 1 + 2 * rank))
        product = self._contract(windows, weights, summed, range(1 + rank))
        self.values.replace(self.op, product, (rank, rank + 1, *range(rank)))

    def write_image_columns(self) -> None:
        """One matmul of the weights, as they are stored, with a view of the padded image, whose columns are images at
        each position."""
        sizes, rank = self.sizes, len(self.sizes.window)
        image = self._padded(self.values.transposed(self.op, self.op.operands[0], (1, *range(2, 2 + rank), 0)))
        shape = array_type(image).shape
        pitches = [math.prod(shape[d + 2 :]) for d in range(rank)]
        steps = [n * p for gaps in (sizes.dilation, sizes.strides) for n, p in zip(gaps, pitches, strict=True)]
        columns = (*sizes.positions, sizes.batch)
        if sizes.strides[-1] == 1:
            # Images at one position and the next lie side by side.
            steps.pop()
            columns = (*sizes.positions[:-1], sizes.positions[-1] * sizes.batch)
        flat = self._reshaped(image, (shape[0], math.prod(shape[1:])))
        windows = self._add(
            array.UnfoldOp(arguments=[flat], axis=1, sizes=(*sizes.window, *columns), steps=(*steps, 1))
        )
        product = self._contract(self.op.operands[1], windows, range(1, 2 + rank), range(1 + rank))
        split = self._reshaped(product, (sizes.results, *sizes.positions, sizes.batch))
        self.values.replace(self.op, split, (1 + rank, 0, *range(1, 1 + rank)))

    def _add(self, made: array.ArrayOp) -> SSAValue:
        return self.values.add(self.op, made)

    def _cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self.values.add_cast(self.op, value, dtype)

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return self.values.add_reshape(self.op, value, shape)

    def _padded(self, image: SSAValue) -> SSAValue:
        """The image with zeros around it."""
        return self.values.add_padding(self.op, image, (0, *self.op.low, 0), (0, *self.op.high, 0))

    def _ordered(self, permutation: Sequence[int], split: tuple[int, ...], shape: tuple[int, ...]) -> SSAValue:
        """The weights, with dims of `split` sizes, in another order and shape; known ones are laid out now."""
        weights = self.op.operands[1]
        if isinstance(weights.owner, array.ConstantOp):
            return computed(
                self.unit,
                self.op,
                [weights],
                lambda known: np.ascontiguousarray(known[0].reshape(split).transpose(permutation)).reshape(shape),
            )
        value = self._add(array.TransposeOp(arguments=[self._reshaped(weights, split)], permutation=tuple(permutation)))
        return self._reshaped(value, shape)

    # ---- products ---------------------------------------------------------------------------------------------------

    def _product(self, image: SSAValue) -> SSAValue:
        """(N, *positions, O) of a padded image."""
        sizes, rank = self.sizes, len(self.sizes.window)
        if sizes.groups > 1:
            return self._grouped_product(image)
        # Channels and a row of the window lie side by side, unless the window has holes.
        row = (sizes.channels,) if sizes.dilation[-1] > 1 else ()
        tail = row or (sizes.window[-1] * sizes.channels,)
        depth = (*sizes.window[: rank if row else -1], *tail)
        order = (*range(2, 2 + rank), 1, 0)
        weights = self._ordered(order, array_type(self.op.operands[1]).shape, (*depth, sizes.results))
        windows = self._windows(image, depth, (1,))
        return self._contract(windows, weights, range(1 + rank, 1 + rank + len(depth)), range(len(depth)))

    def _grouped_product(self, image: SSAValue) -> SSAValue:
        """Grouped convolution as a batch of matmuls, one for each group of channels."""
        sizes, rank = self.sizes, len(self.sizes.window)
        channels, results = sizes.channels // sizes.groups, sizes.results // sizes.groups
        order = (0, *range(3, 3 + rank), 2, 1)
        split = (sizes.groups, results, channels, *sizes.window)
        weights = self._ordered(order, split, (sizes.groups, *sizes.window, channels, results))
        windows = self._windows(image, (*sizes.window, sizes.groups, channels), (channels, 1))
        group = 1 + 2 * rank
        summed = (*range(1 + rank, group), group + 1)
        product = self._contract(windows, weights, summed, range(1, 2 + rank), (group,), (0,))
        product = self._add(array.TransposeOp(arguments=[product], permutation=(*range(1, 2 + rank), 0, 2 + rank)))
        return self._reshaped(product, (sizes.batch, *sizes.positions, sizes.results))

    def _contract(
        self,
        left: SSAValue,
        right: SSAValue,
        left_contract: Sequence[int],
        right_contract: Sequence[int],
        left_batch: tuple[int, ...] = (),
        right_batch: tuple[int, ...] = (),
    ) -> SSAValue:
        dtype = array_type(self.op.results[0]).dtype
        return self._add(array.contract([left, right], left_contract, right_contract, dtype, left_batch, right_batch))

    def _windows(self, image: SSAValue, depth: tuple[int, ...], last_steps: tuple[int, ...]) -> SSAValue:
        """(N, *positions, *depth) of a padded image: the window's dims, those without holes as one with the channels,
        which `last_steps` are the steps of."""
        sizes, rank = self.sizes, len(self.sizes.window)
        shape = array_type(image).shape
        pitches = [math.prod(shape[d + 2 :]) for d in range(rank)]
        if math.prod(sizes.window) * math.prod(sizes.strides) == 1 and sizes.groups == 1:
            return self._reshaped(image, (sizes.batch, *sizes.positions, *depth))
        moves = tuple(s * p for s, p in zip(sizes.strides, pitches, strict=True))
        shifts = tuple(d * p for d, p in zip(sizes.dilation, pitches, strict=True))
        steps = (*moves, *shifts[: len(depth) - len(last_steps)], *last_steps)
        flat = self._reshaped(image, (sizes.batch, math.prod(shape[1:])))
        return self._add(array.UnfoldOp(arguments=[flat], axis=1, sizes=(*sizes.positions, *depth), steps=steps))

    # ---- channels that have weights of their own --------------------------------------------------------------------

    def _by_channel(self, image: SSAValue) -> SSAValue:
        """(N, *positions, C) of a padded image: a sum over the window's positions."""
        sizes, rank = self.sizes, len(self.sizes.window)
        result = array_type(self.op.results[0]).dtype
        taps = math.prod(sizes.window)
        order = (*range(2, 2 + rank), 1, 0)
        weights = self._ordered(order, array_type(self.op.operands[1]).shape, (taps, sizes.results))
        terms: list[SSAValue] = []
        for tap, place in enumerate(itertools.product(*map(range, sizes.window))):
            factors = self._add(
                array.SliceOp(arguments=[weights], starts=(tap, 0), limits=(tap + 1, sizes.results), strides=(1, 1))
            )
            terms.append(
                self._add(array.MapOp(arguments=[self._seen(image, place), self._everywhere(factors)], fn="multiply"))
            )
        total = functools.reduce(lambda sum, term: self._add(array.MapOp(arguments=[sum, term], fn="add")), terms)
        return self._cast(total, result)

    def _seen(self, image: SSAValue, place: tuple[int, ...]) -> SSAValue:
        """The elements under one window position, for each result, in the accumulator's type."""
        sizes, shape = self.sizes, array_type(image).shape
        first = tuple(p * d for p, d in zip(place, sizes.dilation, strict=True))
        ends = tuple(f + (n - 1) * s + 1 for f, n, s in zip(first, sizes.positions, sizes.strides, strict=True))
        starts, limits = (0, *first, 0), (shape[0], *ends, shape[-1])
        return self._summable(
            self._add(array.SliceOp(arguments=[image], starts=starts, limits=limits, strides=(1, *sizes.strides, 1)))
        )

    def _everywhere(self, factors: SSAValue) -> SSAValue:
        shape = (self.sizes.batch, *self.sizes.positions, self.sizes.results)
        row = self._reshaped(self._summable(factors), (self.sizes.results,))
        wide = tensor(ArrayType(shape, array_type(row).dtype))
        return self._add(array.BroadcastOp(arguments=[row], axes=(len(shape) - 1,), outputs=[wide]))

    def _summable(self, value: SSAValue) -> SSAValue:
        dtype = self.sizes.dtype
        return self._cast(value, dtype)
