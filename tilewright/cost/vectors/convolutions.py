"""How long a convolution takes on a machine with vectors, with channels last, with images last and with channels first.

With channels last it is a matmul of windows with weights for each row of the result, in steps whose depth is a row of
the window, or, where each channel has weights of its own, as many multiplications and additions of vectors of channels
as the window has positions. With channels first it is a matmul of weights with rows of the image, which are copied
first, for each row of the result and each position of the window. Both are counted in cycles of one core; the constants
were set by hand after 28 convolutions on an AVX-512 server, from one channel to 64, and only state which is faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# Sums of more positions than this are not written out.
MOST_TAPS = 128
# Results of a step are read and written; nothing but products keeps the units busy for so much of the time.
_STEP_CYCLES, _PRODUCT_SHARE = 7, 1 / 1.3
# The same of products of weights with rows of the image.
_ROW_PRODUCT_SHARE = 0.45
# Rows of an image that are copied between bounds, and each vector of them.
_ROW_CYCLES, _VECTOR_CYCLES = 45, 10
# An element that is moved to another place among dims, of the image or of weights.
_MOVED_CYCLES = 2
# Vectors of the image, and of weights, that are loaded in a cycle, two for each position of a window.
_TAPS_PER_CYCLE = 1


@dataclass(frozen=True)
class Convolution:
    """(N, C, *image) with (O, C / groups, *window), giving (N, O, *positions), added up in `dtype`. `is_known`: the
    weights are known when the program is compiled."""

    batch: int
    channels: int
    results: int
    groups: int
    image: tuple[int, ...]
    window: tuple[int, ...]
    positions: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: DType
    is_known: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has weights of its own, for one result, in a window that is written out."""
        taps = math.prod(self.window)
        return 1 < self.groups == self.channels == self.results and taps <= MOST_TAPS

    def moved_seconds(self, machine: Machine, sizes: tuple[int, ...], channels: int) -> float:
        """To move an image, or results, of `sizes` from one order of dims to the other."""
        return _MOVED_CYCLES * self.batch * channels * math.prod(sizes) / machine.clock_hertz

    def channels_last_seconds(self, machine: Machine) -> float:
        """With channels last, of an image that is so."""
        lanes, taps = machine.lanes(self.dtype), math.prod(self.window)
        moved = 0 if self.is_known else self.results * self.channels // self.groups * taps
        places = self.batch * math.prod(self.positions)
        if self.is_depthwise:
            cycles = places * -(-self.channels // lanes) * taps / _TAPS_PER_CYCLE
            return (cycles + _MOVED_CYCLES * moved) / machine.clock_hertz
        vectors = self.groups * places * -(-self.results // (self.groups * lanes))
        is_row = self.dilation[-1] == 1 and self.groups == 1
        steps = taps // self.window[-1] if is_row else taps
        products = vectors * taps * (self.channels // self.groups) / machine.vector.fma_per_cycle
        cycles = (products + _STEP_CYCLES * steps * vectors) / _PRODUCT_SHARE
        rows = 1 if taps * math.prod(self.strides) == 1 else self.batch * math.prod(self.positions[:-1])
        return (cycles + _MOVED_CYCLES * moved) / machine.clock_hertz + self._weights_seconds(machine, rows)

    def _weights_seconds(self, machine: Machine, times: int) -> float:
        """To read the weights so many times, which the second-level cache may not hold."""
        nbytes = self.results * self.channels // self.groups * math.prod(self.window) * self.dtype.itemsize
        near = machine.memory("l2")
        memory = near if nbytes <= near.bytes / 2 else machine.memory("l3")
        return times * nbytes / memory.bytes_per_second

    def images_last_seconds(self, machine: Machine) -> float:
        """With images last, and a matmul for each position, whose rows are of one image each and are copied: of images
        and weights that are stored in any layout."""
        if self.groups > 1 or math.prod(self.window) <= math.prod(self.positions):
            return math.inf
        columns = -(-self.results // machine.lanes(self.dtype))
        rows, depth = math.prod(self.positions) * self.batch, math.prod(self.window) * self.channels
        products = rows * columns * depth / machine.vector.fma_per_cycle
        stepping = _STEP_CYCLES * rows * columns * depth / self.window[-1]
        moved = self.channels * (self.batch * math.prod(self.image) + self.results * math.prod(self.window))
        cycles = (products + stepping) / _PRODUCT_SHARE + rows * depth + _MOVED_CYCLES * moved
        return cycles / machine.clock_hertz

    def channels_first_seconds(self, machine: Machine) -> float:
        """With channels first, of an image that is so."""
        vectors = -(-self.positions[-1] // machine.lanes(self.dtype))
        depth = math.prod(self.window) * self.channels // self.groups
        rows = self.groups * self.batch * math.prod(self.positions[:-1]) * depth
        products = rows * vectors * (self.results // self.groups) / machine.vector.fma_per_cycle
        cycles = products / _ROW_PRODUCT_SHARE + rows * (_ROW_CYCLES + vectors * _VECTOR_CYCLES)
        return cycles / machine.clock_hertz
