"""Convolutions of images with channels first: a matmul of the weights with the image's windows, which are copied to
columns, and sums over the window where each channel has weights of its own."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright.cost.vectors.convolutions import Convolution
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.passes.array.permuted_values import PermutedValues
from tilewright.primitives import ArrayType


@dataclass
class ChannelsFirstWriter:
    """Writes one convolution with channels first."""

    values: PermutedValues
    op: array.ConvolveOp
    sizes: Convolution

    def write_product(self) -> None:
        """A matmul for each group, whose left operand is the weights in the order in which they are stored."""
        sizes, rank = self.sizes, len(self.sizes.window)
        results = sizes.results // sizes.groups
        columns = self._image_columns() if sizes.is_whole else self._window_columns()
        depth = array_type(columns).shape[1]
        weights = self._reshaped(self.op.operands[1], (sizes.groups, results, depth))
        dtype = array_type(self.op.results[0]).dtype
        product = self._add(array.contract([weights, columns], (2,), (1,), dtype, (0,), (0,)))
        apart = self._reshaped(product, (sizes.results, sizes.batch, *sizes.positions))
        self.values.replace(self.op, self._batch_moved(apart), tuple(range(2 + rank)))

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

    def _image_columns(self) -> SSAValue:
        """(groups, channels, N, positions): the image itself."""
        sizes = self.sizes
        channels, places = sizes.channels // sizes.groups, math.prod(sizes.positions)
        image = self._reshaped(self._image(), (sizes.batch, sizes.groups, channels, places))
        return self._batch_moved(image, 2)

    def _window_columns(self) -> SSAValue:
        """(groups, channels and window, N and positions), in memory."""
        sizes, rank = self.sizes, len(self.sizes.window)
        image = self._padded(self._image())
        shape = array_type(image).shape
        pitches = [math.prod(shape[d + 3 :]) for d in range(rank)]
        steps = [n * p for gaps in (sizes.dilation, sizes.strides) for n, p in zip(gaps, pitches, strict=True)]
        flat = self._reshaped(image, (*shape[:2], math.prod(shape[2:])))
        sizes_of_windows = (*sizes.window, *sizes.positions)
        windows = self._add(array.UnfoldOp(arguments=[flat], axis=2, sizes=sizes_of_windows, steps=tuple(steps)))
        depth = math.prod(sizes.window) * sizes.channels // sizes.groups
        columns = sizes.batch * math.prod(sizes.positions)
        return self._reshaped(self._batch_moved(windows, 1 + rank), (sizes.groups, depth, columns))

    def _batch_moved(self, value: SSAValue, count: int = 1) -> SSAValue:
        """Move the first dim of a value after the next `count` dims."""
        rank = array_type(value).rank
        order = (*range(1, 1 + count), 0, *range(1 + count, rank))
        return self._permuted(value, order)

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
        type = array_type(image)
        if not any((*low, *high)):
            return image
        zero = self._add(array.ConstantOp(value=0, resource="", outputs=[tensor(ArrayType((), type.dtype))]))
        return self._add(
            array.PadOp(arguments=[image, zero], low=(0, 0, *low), high=(0, 0, *high), interior=(0,) * type.rank)
        )

    def _zeros(self, image: SSAValue) -> SSAValue:
        shape = (*array_type(image).shape[:2], *self.sizes.positions)
        wide = tensor(ArrayType(shape, array_type(image).dtype))
        return self._add(array.ConstantOp(value=0, resource="", outputs=[wide]))

    def _summable(self, value: SSAValue) -> SSAValue:
        return self._cast(value, self.sizes.dtype)

    def _cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        type = array_type(value)
        if type.dtype == dtype:
            return value
        return self._add(array.CastOp(arguments=[value], outputs=[tensor(ArrayType(type.shape, dtype))]))

    def _reshaped(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        type = array_type(value)
        if type.shape == shape:
            return value
        return self._add(array.ReshapeOp(arguments=[value], outputs=[tensor(ArrayType(shape, type.dtype))]))

    def _add(self, made: array.ArrayOp) -> SSAValue:
        return self.values.add(self.op, made)
