"""How a convolution's image is as rows of channels, one after the other for all positions, and what a matmul of weights
with such rows takes.

    result[o, n, p] = sum over k, c of weights[o, k, c] * rows[n, p + k * shifts, c]

A position is `p = y * steps[0] + x * steps[1]` for a result at y, x. With strides, the positions that are between two
results are channels of one: a window of w positions becomes one of w / stride, rounded up, with zeros in the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tilewright.cost.warps.products import TENSOR_COPY_BYTES, WarpProduct, warp_product_seconds
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine
from tilewright.passes.kernels.contract_facts import accumulator_of
from tilewright.primitives import ArrayType


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _last(sizes: Sequence[int], steps: Sequence[int]) -> int:
    """The number of the last position of a box."""
    return sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))


class PositionRows(msgspec.Struct, frozen=True):
    """`merge`: how many positions along each spatial dim are one; `taken`: every how many-th is laid out, of windows of
    one. `sizes`: the spatial dims of what is laid out, with padding, of which the first has some rows more at the end;
    `depth`: the channels of a position, with zeros after them; `positions`: how many results each channel has."""

    image: ArrayType
    weights: ArrayType
    result: ArrayType
    knows_weights: bool
    low: tuple[int, ...]
    dilation: tuple[int, ...]
    merge: tuple[int, ...]
    taken: tuple[int, ...]
    sizes: tuple[int, ...]
    depth: int
    positions: int = 0

    @staticmethod
    def of(op: array.ConvolveOp) -> PositionRows:
        """Rows of channels, and of results, begin where the machine may copy them."""
        image, weights, result = (array_type(value) for value in (*op.operands, op.results[0]))
        window = weights.shape[2:]
        ones, strides = (1,) * len(window), op.strides
        merge, taken = (ones, strides) if math.prod(window) == 1 else (strides, ones)
        padded = [n + low + high for n, low, high in zip(image.shape[2:], op.low, op.high, strict=True)]
        each = zip(padded, window, merge, taken, result.shape[2:], strict=True)
        sizes = [max(out - 1 + -(-w // m), -(-n // (m * t))) for n, w, m, t, out in each]
        aligned = TENSOR_COPY_BYTES // image.dtype.itemsize
        depth = _up(image.shape[1], aligned // math.gcd(aligned, math.prod(merge)))
        is_known = isinstance(op.operands[1].owner, array.ConstantOp)
        rows = PositionRows(image, weights, result, is_known, op.low, op.dilation, merge, taken, tuple(sizes), depth)
        positions = _up(_last(result.shape[2:], rows.steps) + 1, TENSOR_COPY_BYTES // result.dtype.itemsize)
        missing = positions + _last(rows.window, rows.shifts) - math.prod(sizes)
        sizes[0] += -(-max(0, missing) // rows.steps[0])
        return replace(rows, sizes=tuple(sizes), positions=positions)

    @property
    def window(self) -> tuple[int, ...]:
        """Of merged positions."""
        return tuple(-(-w // m) for w, m in zip(self.weights.shape[2:], self.merge, strict=True))

    @property
    def channels(self) -> int:
        """Of a merged position."""
        return self.depth * math.prod(self.merge)

    @property
    def steps(self) -> tuple[int, ...]:
        """How many positions are between neighbours along each spatial dim."""
        return tuple(math.prod(self.sizes[dim + 1 :]) for dim in range(len(self.sizes)))

    @property
    def shifts(self) -> tuple[int, ...]:
        """The distance between adjacent window positions, along each dim."""
        return tuple(step * apart for step, apart in zip(self.steps, self.dilation, strict=True))

    def seconds(self, machine: Machine) -> float:
        """The predicted time of the matmul, of the kernels that lay out the image and weights that are not known and of
        the one that takes the results, each of which is read and written."""
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
            trips=math.prod(self.window),
        )
        rows = images * math.prod(self.sizes) * self.channels
        moved = (self.image.size + rows) * self.image.dtype.itemsize
        moved += (images * outputs * self.positions + self.result.size) * self.result.dtype.itemsize
        far, kernels = machine.memories[-1], 2 if self.knows_weights else 3
        beside = kernels * machine.fork_join_s + moved / (far.bytes_per_second * machine.cores)
        return warp_product_seconds(product, machine) + beside
