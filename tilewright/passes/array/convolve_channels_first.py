"""Convolutions of images with channels first: a matmul of the weights with the image's windows, which are copied to
columns, and sums over the window where each channel has weights of its own."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright.cost.vectors.convolutions import Convolution
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.primitives import ArrayType


class ChannelsFirstWriter(msgspec.Struct):
    """Writes one convolution with channels first."""

    values: PermutedValues
    op: array.ConvolveOp
    sizes: Convolution

    def write_product(self, machine: Machine) -> None:
        """A matmul for each group, whose left operand is the weights in the order in which they are stored."""
        merges = self.sizes.merges_batch(machine)
        product = self._merged_product() if merges else self._product_of_images()
        self.values.replace(self.op, product, tuple(range(2 + len(self.sizes.window))))

    def write_shifted_rows(self) -> None:
        """A matmul for each image and group whose right operand is a view of the padded image: its positions are one
        dim, and an element of the window is so many positions further, whatever the row. It has results for positions
        between the image's rows, too, which nothing reads."""
        sizes, rank = self.sizes, len(self.sizes.window)
        # Rows of weights are read as they are, so both operands have the type that is added up in.
        image = self._padded(self._summable(self._image()))
        shape = array_type(image).shape
        pitches = tuple(math.prod(shape[d + 3 :]) for d in range(rank))
        count = 1 + sum((n - 1) * p for n, p in zip(sizes.positions, pitches, strict=True))
        channels = sizes.channels // sizes.groups
        flat = self._reshaped(image, (sizes.batch, sizes.groups, channels, math.prod(shape[2:])))
        shifts = (*(n * p for n, p in zip(sizes.dilation, pitches, strict=True)), 1)
        windows = self._add(array.UnfoldOp(arguments=[flat], axis=3, sizes=(*sizes.window, count), steps=shifts))
        rows = self._weights_of_images((channels, *sizes.window), self._summable(self.op.operands[1]))
        summed = (*range(4, 4 + rank), 3), (*range(3, 3 + rank), 2)
        product = self._add(array.contract([rows, windows], *summed, sizes.dtype, (0, 1), (0, 1)))
        flat = self._reshaped(product, (sizes.batch, sizes.results, count))
        apart = self._add(array.UnfoldOp(arguments=[flat], axis=2, sizes=sizes.positions, steps=pitches))
        self.values.replace(self.op, self._cast(apart, self._dtype), tuple(range(2 + rank)))

    def write_taps(self, machine: Machine) -> None:
        """A sum over the window's positions."""
        sizes, rank = self.sizes, len(self.sizes.window)
        cuts = sizes.cuts_image(machine)
        image = self._image() if cuts else self._padded(self._image())
        terms: list[SSAValue] = []
        for place in itertools.product(*map(range, sizes.window)):
            seen = self._summable(self._seen_inside(image, place) if cuts else self._seen(image, place))
            terms.append(self._add(array.MapOp(arguments=[seen, self._factors(place)], fn="multiply")))
        total = functools.reduce(lambda sum, term: self._add(array.MapOp(arguments=[sum, term], fn="add")), terms)
        result = self._cast(total, array_type(self.op.results[0]).dtype)
        self.values.replace(self.op, result, tuple(range(2 + rank)))

    # ---- matmuls ----------------------------------------------------------------------------------------------------

    def _merged_product(self) -> SSAValue:
        """The windows of all images are columns side by side."""
        sizes, rank = self.sizes, len(self.sizes.window)
        windows = self._permuted(self._windows(), (*range(1, 2 + rank), 0, *range(2 + rank, 2 + 2 * rank)))
        columns = self._reshaped(windows, (sizes.groups, self._depth, sizes.batch * math.prod(sizes.positions)))
        weights = self._reshaped(self.op.operands[1], (sizes.groups, self._results, self._depth))
        product = self._add(array.contract([weights, columns], (2,), (1,), self._dtype, (0,), (0,)))
        apart = self._reshaped(product, (sizes.results, sizes.batch, *sizes.positions))
        return self._permuted(apart, (1, 0, *range(2, 2 + rank)))

    def _product_of_images(self) -> SSAValue:
        """A matmul for each image, with the same weights."""
        sizes, places = self.sizes, math.prod(self.sizes.positions)
        windows = self._image() if sizes.is_whole else self._windows()
        columns = self._reshaped(windows, (sizes.batch, sizes.groups, self._depth, places))
        operands = [self._weights_of_images((self._depth,), self.op.operands[1]), columns]
        product = self._add(array.contract(operands, (3,), (2,), self._dtype, (0, 1), (0, 1)))
        return self._reshaped(product, array_type(self.op.results[0]).shape)

    def _weights_of_images(self, depth: tuple[int, ...], weights: SSAValue) -> SSAValue:
        """(N, groups, results, *depth): the weights as they are stored, the same for each image."""
        shape = (self.sizes.batch, self.sizes.groups, self._results, *depth)
        if self.sizes.batch == 1:
            return self._reshaped(weights, shape)
        weights = self._reshaped(weights, shape[1:])
        return self._add(array.UnfoldOp(arguments=[weights], axis=0, sizes=shape[:2], steps=(0, 1)))

    def _windows(self) -> SSAValue:
        """(N, channels, window, positions) of the padded image."""
        sizes, rank = self.sizes, len(self.sizes.window)
        image = self._padded(self._image())
        shape = array_type(image).shape
        pitches = [math.prod(shape[d + 3 :]) for d in range(rank)]
        steps = [n * p for gaps in (sizes.dilation, sizes.strides) for n, p in zip(gaps, pitches, strict=True)]
        flat = self._reshaped(image, (*shape[:2], math.prod(shape[2:])))
        sizes_of_windows = (*sizes.window, *sizes.positions)
        return self._add(array.UnfoldOp(arguments=[flat], axis=2, sizes=sizes_of_windows, steps=tuple(steps)))

    @property
    def _results(self) -> int:
        return self.sizes.results // self.sizes.groups

    @property
    def _depth(self) -> int:
        return math.prod(self.sizes.window) * self.sizes.channels // self.sizes.groups

    @property
    def _dtype(self) -> DType:
        return array_type(self.op.results[0]).dtype

    # ---- sums over the window ---------------------------------------------------------------------------------------

    def _seen(self, image: SSAValue, place: tuple[int, ...]) -> SSAValue:
        """The elements of a padded image under one window position, for each result."""
        sizes = self.sizes
        first = tuple(p * d for p, d in zip(place, sizes.dilation, strict=True))
        return self._sliced(image, first, sizes.positions)

    def _seen_inside(self, image: SSAValue, place: tuple[int, ...]) -> SSAValue:
        """The elements of an image that is not padded, and zeros for results whose window position is outside of it."""
        sizes = self.sizes
        inside = [sizes.positions_inside(dim, tap) for dim, tap in enumerate(place)]
        first = tuple(
            start * sizes.strides[dim] + place[dim] * sizes.dilation[dim] - sizes.low[dim]
            for dim, (start, _) in enumerate(inside)
        )
        counts = tuple(end - start for start, end in inside)
        before = tuple(start for start, _ in inside)
        after = tuple(n - end for n, (_, end) in zip(sizes.positions, inside, strict=True))
        if 0 in counts:
            return self._zeros(image)
        return self._between_zeros(self._sliced(image, first, counts), before, after)

    def _sliced(self, image: SSAValue, first: Sequence[int], counts: Sequence[int]) -> SSAValue:
        """So many elements of each dim of an image, a stride apart, from the first ones on."""
        strides, shape = self.sizes.strides, array_type(image).shape
        limits = (f + (n - 1) * s + 1 for f, n, s in zip(first, counts, strides, strict=True))
        return self._add(
            array.SliceOp(
                arguments=[image], starts=(0, 0, *first), limits=(*shape[:2], *limits), strides=(1, 1, *strides)
            )
        )

    def _factors(self, place: tuple[int, ...]) -> SSAValue:
        """The weights of one window position, for each result."""
        sizes = self.sizes
        starts, limits = (0, 0, *place), (sizes.results, 1, *(p + 1 for p in place))
        weights = self._add(
            array.SliceOp(arguments=[self.op.operands[1]], starts=starts, limits=limits, strides=(1,) * len(starts))
        )
        each = self._summable(self._reshaped(weights, (sizes.results,)))
        wide = tensor(ArrayType((sizes.batch, sizes.results, *sizes.positions), sizes.dtype))
        return self._add(array.BroadcastOp(arguments=[each], axes=(1,), outputs=[wide]))

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _image(self) -> SSAValue:
        return self._permuted(self.op.operands[0], tuple(range(2 + len(self.sizes.window))))

    def _permuted(self, value: SSAValue, order: tuple[int, ...]) -> SSAValue:
        return self.values.transposed(self.op, value, order)

    def _padded(self, image: SSAValue) -> SSAValue:
        return self._between_zeros(image, self.op.low, self.op.high)

    def _between_zeros(self, image: SSAValue, low: Sequence[int], high: Sequence[int]) -> SSAValue:
        """An image with so many zeros around it."""
        return self.values.add_padding(self.op, image, (0, 0, *low), (0, 0, *high))

    def _zeros(self, image: SSAValue) -> SSAValue:
        shape = (*array_type(image).shape[:2], *self.sizes.positions)
        wide = tensor(ArrayType(shape, array_type(image).dtype))
        return self._add(array.ConstantOp(value=0, resource="", outputs=[wide]))

    def _summable(self, value: SSAValue) -> SSAValue:
        return self._cast(value, self.sizes.dtype)

    def _cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self.values.add_cast(self.op, value, dtype)

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        return self.values.add_reshape(self.op, value, shape)

    def _add(self, made: array.ArrayOp) -> SSAValue:
        return self.values.add(self.op, made)
