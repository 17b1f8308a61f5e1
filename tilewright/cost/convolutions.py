"""How long a convolution takes on a machine with vectors, with channels last and with channels first.

With channels last it is one product of windows with weights, whose depth is a row of the window, or, where each channel
has weights of its own, as many multiplications and additions of vectors of channels as the window has positions. With
channels first it is a product for each row of the result and each position of the window, of weights with a row of the
image that is copied first. Both are counted as `tilewright.cost.products` counts products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.cost.products import Product, Right, best_schedule
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# Sums of more positions than this are not written out.
MOST_TAPS = 128
# Instructions for each vector of a position: two are loaded, multiplied and added.
_LOADS_PER_TAP = 2
_LOADS_PER_CYCLE = 2


@dataclass(frozen=True)
class Convolution:
    """(N, C, *image) with (O, C / groups, *window), giving (N, O, *positions), added up in `dtype`. `operand_bytes`:
    of an element of the image. `is_known`: the weights are known when the program is compiled."""

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
    operand_bytes: int
    is_known: bool
    is_padded: bool

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has weights of its own, for one result, in a window that is written out."""
        taps = math.prod(self.window)
        return 1 < self.groups == self.channels == self.results and taps <= MOST_TAPS

    def channels_last_seconds(self, machine: Machine, threads: int, *, moves: bool) -> float:
        """With channels last; `moves`: the image lies channels first and is transposed before."""
        image_bytes = self.batch * self.channels * math.prod(self.image) * self.operand_bytes
        passes = 2 * (moves + self.is_padded)
        moved_s = passes * image_bytes / machine.memory("l3").bytes_per_second
        if self.is_depthwise:
            return moved_s + self._by_channel_seconds(machine) / threads
        each = self.channels // self.groups
        row = self.window[-1] if self.dilation[-1] == 1 and self.groups == 1 else 1
        steps = math.prod(self.window) // row
        has_no_window = math.prod(self.window) * math.prod(self.strides) * self.groups == 1
        rows = math.prod(self.positions) if has_no_window else self.positions[-1]
        return moved_s + self._product_seconds(rows, self.results // self.groups, each * row, steps, machine, threads)

    def channels_first_seconds(self, machine: Machine, threads: int) -> float:
        """With channels first."""
        each = self.channels // self.groups
        return self._product_seconds(
            self.results // self.groups, self.positions[-1], each, math.prod(self.window), machine, threads, Right.ALONE
        )

    def _by_channel_seconds(self, machine: Machine) -> float:
        vectors = self.batch * math.prod(self.positions) * -(-self.channels // machine.lanes(self.dtype))
        cycles = vectors * math.prod(self.window) * _LOADS_PER_TAP / _LOADS_PER_CYCLE
        return cycles / machine.clock_hertz

    def _product_seconds(
        self, rows: int, columns: int, depth: int, steps: int, machine: Machine, threads: int, right: Right | None = None
    ) -> float:
        """Of products with results of `rows` x `columns`, each in `steps` of `depth`."""
        results = self.batch * math.prod(self.positions) * self.results
        choice = right or (Right.READY if self.is_known else Right.TOGETHER)
        product = Product(
            rows,
            columns,
            depth,
            self.dtype,
            batches=max(1, steps * results // (rows * columns)),
            choices=(choice,),
            copies_left=right is not None,
            buffered=True,
        )
        return best_schedule(product, machine, threads).seconds
