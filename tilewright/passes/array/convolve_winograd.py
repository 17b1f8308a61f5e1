"""Convolutions with fewer multiplications: a matmul of transformed tiles of the image with transformed weights, for
each of 16 elements of a tile (Winograd, "Arithmetic complexity of computations", 1980; F(2x2, 3x3) of Lavin and Gray,
"Fast algorithms for convolutional neural networks", 2016).

Two by two results of a window of three by three are computed from four by four elements of the image, with 16
multiplications for each channel instead of 36. The transforms add, subtract and halve. An error is small next to the
largest terms of a tile, and what is not finite in one element makes all results of its tiles so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from xdsl.ir import SSAValue

from tilewright.cost.vectors.convolutions import Convolution
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.passes.array.array_simplify import Tensor, computed
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType

# Elements of a tile of the image, and of the results, along each of two dims.
TILE, RESULTS = 4, 2


class WinogradWriter(msgspec.Struct):
    """Writes one convolution, or the gradient of one by its weights, with channels last."""

    unit: Unit
    values: PermutedValues
    op: array.ConvolveOp
    sizes: Convolution

    def write(self) -> None:
        tiles, weights = self._tiles((0, 2, 3, 1), self.sizes.tiles), self._weights()
        products = self._add(array.contract([tiles, weights], (2,), (1,), self._dtype, (0,), (0,)))
        self.values.replace(self.op, self._results(products), (0, 3, 1, 2))

    def write_gradient(self) -> None:
        """The gradient by weights, whose window is the gradient of the results, and whose channels are images: tiles of
        both are multiplied, and summed over all tiles (the transpose of each transform, in the other direction)."""
        sizes, order = self.sizes, (1, 2, 3, 0)
        tiles, given = self._tiles(order, sizes.window_tiles), self._given_tiles(order)
        products = self._add(array.contract([tiles, given], (1,), (1,), self._dtype, (0,), (0,)))
        taps = self._reshaped(products, (TILE, TILE, sizes.batch * sizes.results))
        for axis in (0, 1):
            a = [self._taken(taps, axis, n, 1) for n in range(TILE)]
            half = self._splat(0.5, array_type(a[0]).shape)
            middle, apart = (self._map("multiply", self._map(fn, a[1], a[2]), half) for fn in ("add", "subtract"))
            taps = self._joined([self._map("add", a[0], middle), apart, self._map("add", middle, a[3])], axis)
        self.values.replace(self.op, self._reshaped(taps, (3, 3, sizes.batch, sizes.results)), (2, 3, 0, 1))

    def _tiles(self, order: tuple[int, ...], counts: tuple[int, ...]) -> SSAValue:
        """The transformed tiles of the image."""

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            return [
                self._map("subtract", a[0], a[2]),
                self._map("add", a[1], a[2]),
                self._map("subtract", a[2], a[1]),
                self._map("subtract", a[1], a[3]),
            ]

        return self._tiled(self.op.operands[0], order, self.sizes.low, counts, TILE, transformed)

    def _given_tiles(self, order: tuple[int, ...]) -> SSAValue:
        """The transformed tiles of the gradient of the results."""

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            return [a[0], *(self._map(fn, *a) for fn in ("add", "subtract")), self._map("negative", a[1])]

        return self._tiled(self.op.operands[1], order, (0, 0), self.sizes.window_tiles, RESULTS, transformed)

    def _tiled(
        self,
        value: SSAValue,
        order: tuple[int, ...],
        low: tuple[int, ...],
        counts: tuple[int, ...],
        size: int,
        transformed: Callable[[Sequence[SSAValue]], list[SSAValue]],
    ) -> SSAValue:
        """(16, tiles, channels): tiles of `size` by `size` elements, so many along each dim, of a value that is (N,
        rows, columns, channels) in this order, with so many zeros before it. Rows are transformed first."""
        value = self.values.transposed(self.op, value, order)
        batch, *extents, channels = array_type(value).shape
        ends = [RESULTS * (n - 1) + size for n in counts]
        high = tuple(end - before - n for end, before, n in zip(ends, low, extents, strict=True))
        value = self.values.add_padding(self.op, value, (0, *low, 0), (0, *high, 0))
        value = self._reshaped(value, (1, 1, *array_type(value).shape))
        for axis, count in enumerate(counts):
            elements = [self._taken(value, axis + 3, n, RESULTS * (count - 1) + 1, RESULTS) for n in range(size)]
            value = self._joined(transformed(elements), axis)
        return self._reshaped(value, (TILE**2, batch * math.prod(counts), channels))

    @property
    def _dtype(self) -> DType:
        return array_type(self.op.results[0]).dtype

    def _weights(self) -> SSAValue:
        """(16, channels, results): the transformed weights; known ones are transformed now."""
        weights, sizes = self.op.operands[1], self.sizes
        shape = (TILE**2, sizes.channels, sizes.results)
        if isinstance(weights.owner, array.ConstantOp):
            return computed(self.unit, self.op, [weights], lambda known: _transformed_weights(known[0]).reshape(shape))
        # Reversed taps, as in gradients of images, are taken in the other order.
        order = (0, 1, 2)
        if isinstance(weights.owner, array.ReverseOp) and sorted(weights.owner.axes) == [2, 3]:
            weights, order = weights.owner.operands[0], (2, 1, 0)
        # A reshape is read from memory: the transforms read rows of weights that are stored in this order.
        stored = self.values.transposed(self.op, weights, (2, 3, 1, 0))
        taps = self._reshaped(stored, (9, sizes.channels * sizes.results))
        half = self._splat(0.5, (1, sizes.channels * sizes.results))

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            sums = [self._map("add", self._map(fn, a[0], a[1]), a[2]) for fn in ("add", "subtract")]
            return [a[0], *(self._map("multiply", each, half) for each in sums), a[2]]

        columns = [transformed([self._taken(taps, 0, 3 * row + column, 1) for row in order]) for column in order]
        rows = [transformed(row) for row in zip(*columns, strict=True)]
        return self._reshaped(self._joined([each for row in rows for each in row], 0), shape)

    def _results(self, products: SSAValue) -> SSAValue:
        """(N, *positions, results) of what the matmuls give, (16, tiles, results)."""
        sizes, (rows, columns) = self.sizes, self.sizes.tiles
        tiles = self._reshaped(products, (TILE, TILE, sizes.batch, rows, 1, columns, 1, sizes.results))
        for axis in (0, 1):
            a = [self._taken(tiles, axis, n, 1) for n in range(TILE)]
            sums = [
                self._map("add", self._map("add", a[0], a[1]), a[2]),
                self._map("subtract", self._map("subtract", a[1], a[2]), a[3]),
            ]
            tiles = self._joined(sums, 4 + 2 * axis)
        image = self._reshaped(tiles, (sizes.batch, RESULTS * rows, RESULTS * columns, sizes.results))
        for axis, count in enumerate(sizes.positions, start=1):
            if array_type(image).shape[axis] != count:
                image = self._taken(image, axis, 0, count)
        return image

    def _taken(self, value: SSAValue, axis: int, start: int, length: int, step: int = 1) -> SSAValue:
        """A part of a value along an axis."""
        shape = array_type(value).shape
        starts = tuple(start if n == axis else 0 for n in range(len(shape)))
        limits = tuple(start + length if n == axis else size for n, size in enumerate(shape))
        strides = tuple(step if n == axis else 1 for n in range(len(shape)))
        return self._add(array.SliceOp(arguments=[value], starts=starts, limits=limits, strides=strides))

    def _joined(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        shape = list(array_type(values[0]).shape)
        shape[axis] *= len(values)
        type = tensor(ArrayType(tuple(shape), array_type(values[0]).dtype))
        return self._add(array.ConcatOp(arguments=list(values), axis=axis, outputs=[type]))

    def _splat(self, number: float, shape: tuple[int, ...]) -> SSAValue:
        type = ArrayType(shape, array_type(self.op.operands[1]).dtype)
        return self._add(array.ConstantOp(value=number, resource="", outputs=[tensor(type)]))

    def _map(self, fn: str, *values: SSAValue) -> SSAValue:
        return self._add(array.MapOp(arguments=list(values), fn=fn))

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return self.values.add_reshape(self.op, value, shape)

    def _add(self, made: array.ArrayOp) -> SSAValue:
        return self.values.add(self.op, made)


def _transformed_weights(weights: Tensor) -> Tensor:
    """(16, channels * results) of (results, channels, 3, 3), rounded once."""
    matrix = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    taps = weights.astype(np.float64).transpose(2, 3, 1, 0).reshape(9, -1)
    return (np.kron(matrix, matrix) @ taps).astype(weights.dtype)
