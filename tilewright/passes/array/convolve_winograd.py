"""Convolutions with fewer multiplications: a matmul of transformed tiles of the image with transformed weights, for
each of 16 elements of a tile (Winograd, "Arithmetic complexity of computations", 1980; F(2x2, 3x3) of Lavin and Gray,
"Fast algorithms for convolutional neural networks", 2016).

Two by two results of a window of three by three are computed from four by four elements of the image, with 16
multiplications for each channel instead of 36. The transforms add, subtract and halve. An error is small next to the
largest products of a tile, and what is not finite in one element makes all results of its tiles so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from xdsl.ir import SSAValue

from tilewright.cost.vectors.convolutions import Convolution
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.passes.array.array_simplify import computed
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType

_T = TypeVar("_T")
# Elements of a tile of the image, and of the results, along each of two dims.
TILE, RESULTS = 4, 2


class WinogradWriter(msgspec.Struct):
    """Writes one convolution, with channels last."""

    unit: Unit
    values: PermutedValues
    op: array.ConvolveOp
    sizes: Convolution

    def write(self) -> None:
        left, right = self._tiles(), self._weights()
        dtype = array_type(self.op.results[0]).dtype
        products = self._add(array.contract([left, right], (2,), (1,), dtype, (0,), (0,)))
        self.values.replace(self.op, self._results(products), (0, 3, 1, 2))

    def _tiles(self) -> SSAValue:
        """(16, tiles, channels): the transformed tiles of the image."""
        sizes, (rows, columns) = self.sizes, self._counts
        image = self.values.transposed(self.op, self.op.operands[0], (0, 2, 3, 1))
        ends = [RESULTS * n + TILE - RESULTS for n in (rows, columns)]
        high = tuple(end - low - n for end, low, n in zip(ends, sizes.low, sizes.image, strict=True))
        image = self.values.add_padding(self.op, image, (0, *sizes.low, 0), (0, *high, 0))
        elements = [[self._element(image, row, column) for column in range(TILE)] for row in range(TILE)]

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            return [
                self._map("subtract", a[0], a[2]),
                self._map("add", a[1], a[2]),
                self._map("subtract", a[2], a[1]),
                self._map("subtract", a[1], a[3]),
            ]

        joined = self._joined([each for row in _both_ways(transformed, elements) for each in row], 0)
        return self._reshaped(joined, (TILE**2, sizes.batch * rows * columns, sizes.channels))

    def _weights(self) -> SSAValue:
        """(16, channels, results): the transformed weights; known ones are transformed now."""
        weights, sizes = self.op.operands[1], self.sizes
        shape = (TILE**2, sizes.channels, sizes.results)
        if isinstance(weights.owner, array.ConstantOp):
            return computed(self.unit, self.op, [weights], lambda known: _transformed_weights(known[0]).reshape(shape))
        # A reshape is read from memory: the transforms read rows of weights that are stored in this order.
        order = self.values.transposed(self.op, weights, (2, 3, 1, 0))
        flat = self._reshaped(order, (9, sizes.channels * sizes.results))
        half = self._splat(0.5, (1, sizes.channels * sizes.results))
        rows = [self._sliced(flat, (n, 0), (n + 1, sizes.channels * sizes.results)) for n in range(9)]

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            outer = self._map("add", a[0], a[2])
            sums = [self._map("multiply", self._map(fn, outer, a[1]), half) for fn in ("add", "subtract")]
            return [a[0], *sums, a[2]]

        taps = _both_ways(transformed, [rows[n : n + 3] for n in (0, 3, 6)])
        return self._reshaped(self._joined([each for row in taps for each in row], 0), shape)

    def _results(self, products: SSAValue) -> SSAValue:
        """(N, *positions, results) of products (16, tiles, results)."""
        sizes, (rows, columns) = self.sizes, self._counts
        tiles = self._reshaped(products, (TILE**2, sizes.batch, rows, columns, sizes.results))
        shape = array_type(tiles).shape
        each = [self._sliced(tiles, (n, 0, 0, 0, 0), (n + 1, *shape[1:])) for n in range(TILE**2)]

        def transformed(a: Sequence[SSAValue]) -> list[SSAValue]:
            return [
                self._map("add", self._map("add", a[0], a[1]), a[2]),
                self._map("subtract", self._map("subtract", a[1], a[2]), a[3]),
            ]

        pairs = _both_ways(transformed, [each[n : n + TILE] for n in range(0, TILE**2, TILE)])
        apart = (sizes.batch, rows, 1, columns, 1, sizes.results)
        lines = [self._joined([self._reshaped(value, apart) for value in row], 4) for row in pairs]
        whole = (sizes.batch, RESULTS * rows, RESULTS * columns, sizes.results)
        image = self._reshaped(self._joined(lines, 2), whole)
        return self._sliced(image, (0, 0, 0, 0), (sizes.batch, *sizes.positions, sizes.results))

    @property
    def _counts(self) -> tuple[int, int]:
        """Tiles along both dims of the image."""
        first, second = self.sizes.tiles
        return first, second

    def _element(self, image: SSAValue, row: int, column: int) -> SSAValue:
        """(1, N, rows, columns, channels): the element at a place of every tile."""
        sizes, (rows, columns) = self.sizes, self._counts
        ends = (row + RESULTS * (rows - 1) + 1, column + RESULTS * (columns - 1) + 1)
        found = self._sliced(image, (0, row, column, 0), (sizes.batch, *ends, sizes.channels), (1, RESULTS, RESULTS, 1))
        return self._reshaped(found, (1, *array_type(found).shape))

    def _joined(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        shape = list(array_type(values[0]).shape)
        shape[axis] *= len(values)
        type = tensor(ArrayType(tuple(shape), array_type(values[0]).dtype))
        return self._add(array.ConcatOp(arguments=list(values), axis=axis, outputs=[type]))

    def _sliced(
        self, value: SSAValue, starts: tuple[int, ...], limits: tuple[int, ...], strides: tuple[int, ...] = ()
    ) -> SSAValue:
        if (*starts, *limits) == (*[0] * len(starts), *array_type(value).shape) and not strides:
            return value
        steps = strides or (1,) * len(starts)
        return self._add(array.SliceOp(arguments=[value], starts=starts, limits=limits, strides=steps))

    def _splat(self, number: float, shape: tuple[int, ...]) -> SSAValue:
        type = ArrayType(shape, array_type(self.op.operands[1]).dtype)
        return self._add(array.ConstantOp(value=number, resource="", outputs=[tensor(type)]))

    def _map(self, fn: str, *values: SSAValue) -> SSAValue:
        return self._add(array.MapOp(arguments=list(values), fn=fn))

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return self.values.add_reshape(self.op, value, shape)

    def _add(self, made: array.ArrayOp) -> SSAValue:
        return self.values.add(self.op, made)


def _both_ways(transformed: Callable[[Sequence[_T]], list[_T]], elements: Sequence[Sequence[_T]]) -> list[list[_T]]:
    """Rows of a square whose columns, then rows, are transformed."""
    columns = [transformed(column) for column in zip(*elements, strict=True)]
    return [transformed(row) for row in zip(*columns, strict=True)]


def _transformed_weights(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(4, 4, channels, results) of (results, channels, 3, 3), rounded once."""
    matrix = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    return np.einsum("ai,bj,ocij->abco", matrix, matrix, weights.astype(np.float64), optimize=True).astype(
        weights.dtype
    )
