"""Where tile values may live on a kind of machine: the plug-ins of layout inference.

A space names the layouts worth considering for a value (`distributions`), and the atoms by which products can be done
(`atoms`). Everything else — which of them, and what moves between them — is the solver's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import LayoutError
from tilewright.layout import Iter, Layout, row_major
from tilewright.layout.catalogue import (
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    packed_panels_b,
    shared_matrix,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.operations import rename_axis
from tilewright.machines.machine import Machine
from tilewright.primitives import ArrayType

SHARED = "mem.shared"


@dataclass(frozen=True)
class Atom:
    """One way to do a product: the layouts that it wants of its operands and gives its accumulator, and its time."""

    name: str
    left: Layout
    right: Layout
    accumulator: Layout
    seconds: float

    def __str__(self) -> str:
        return self.name


class Space(Protocol):
    """What layout inference asks about a machine."""

    @property
    def machine(self) -> Machine: ...

    @property
    def private_axes(self) -> tuple[str, ...]:
        """The axes of one thread's own registers."""
        ...

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        """Layouts of registers that are good for streaming a tile whose dim `fastest` is contiguous in memory."""
        ...

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        """The ways to multiply tiles of these types, preferred ones first."""
        ...


def space_of(machine: Machine, warps: int = 4) -> Space:
    """The space of a machine, by the axes that it has."""
    if "lane" in machine.axes:
        return WarpSpace(machine, warps)
    return VectorSpace(machine)


def dealt(shape: Sequence[int], order: Sequence[int], holders: Sequence[tuple[str, int]], vector: int) -> Layout:
    """A tile dealt to holders: vectors of `vector` elements along the first dim of `order`, then each holder takes what
    is next, along `order`; the rest are registers. Holders without an element to take hold copies of nothing: the tile
    is padded to whole vectors."""
    left = list(shape)
    digits: list[list[Iter]] = [[] for _ in shape]

    def take(dim: int, extent: int, axis: str, stride: int) -> None:
        if extent > 1:
            digits[dim].insert(0, Iter(extent, stride, axis))
            left[dim] = -(-left[dim] // extent)

    vector = min(vector, _power_up(shape[order[0]])) if shape else 1
    if shape:
        take(order[0], vector, "reg", 1)
    registers = vector
    for axis, count in holders:
        stride = 1
        for dim in order:
            extent = min(count // stride, _power_up(left[dim]))
            take(dim, extent, axis, stride)
            stride *= max(1, extent)
    for dim in order:
        extent = left[dim]
        take(dim, extent, "reg", registers)
        registers *= max(1, extent)
    return Layout(tuple(shape), tuple(tuple(each) for each in digits))


def _power_up(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


@dataclass(frozen=True)
class WarpSpace:
    """Registers of the warps of one block, and its shared memory."""

    machine: Machine
    warps: int

    private_axes = ("reg",)

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        others = [dim for dim in reversed(range(type.rank)) if dim != fastest]
        orders = [[fastest, *others], [*others, fastest]] if others else [[fastest]]
        widest = max(1, 16 // max(1, type.dtype.itemsize))
        holders = (("lane", self.machine.axes["lane"]), ("warp", self.warps))
        for order in orders:
            yield dealt(type.shape, order, holders, widest)
        # A row to a warp or a lane: what reductions along the fastest dim like.
        yield dealt(type.shape, [*others, fastest] if others else [fastest], (holders[1], holders[0]), 1)

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        rows, depth = left.shape
        columns = right.shape[1]
        bits = 8 * max(left.dtype.itemsize, right.dtype.itemsize)
        seconds = 2.0 * rows * columns * depth / self._tensor_flops(bits)
        if bits in (8, 16) and self.warps == 4:
            yield from self._wgmma(left, right, accumulator, bits, seconds)
        if bits <= 32:
            yield from self._mma(left, right, accumulator, bits, 2 * seconds)
        yield from self._scalar(left, right, accumulator)

    def _wgmma(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, bits: int, seconds: float
    ) -> Iterator[Atom]:
        for swizzle in (128, 64, 32):
            try:
                right_shared = rename_axis(shared_matrix(right.shape, bits, swizzle), "mem", SHARED)
                accumulators = wgmma_accumulator(accumulator.shape)
                registers = wgmma_operand(left.shape, bits)
                yield Atom("wgmma, left in registers", registers, right_shared, accumulators, seconds)
                left_shared = rename_axis(shared_matrix(left.shape, bits, swizzle), "mem", SHARED)
                yield Atom(f"wgmma, swizzle {swizzle}", left_shared, right_shared, accumulators, seconds)
            except LayoutError:
                continue
            return

    def _mma(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, bits: int, seconds: float
    ) -> Iterator[Atom]:
        for across in ((self.warps, 1), (max(1, self.warps // 2), min(2, self.warps))):
            try:
                operands = mma_operand_a(left.shape, bits, across), mma_operand_b(right.shape, bits, across)
                accumulators = mma_accumulator(accumulator.shape, bits, across)
                yield Atom(f"mma.sync, {across[0]} x {across[1]} warps", *operands, accumulators, seconds)
            except LayoutError:
                continue

    def _scalar(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        """Multiply and add without tensor cores: operands in shared memory, any shape."""
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        layout = next(iter(self.distributions(accumulator, accumulator.rank - 1)))
        yield Atom(
            "multiply and add",
            row_major(left.shape, SHARED),
            row_major(right.shape, SHARED),
            layout,
            flops / self.machine.peak_flops(accumulator.dtype),
        )

    def _tensor_flops(self, bits: int) -> float:
        # Dense tensor-core rate of one multiprocessor: 4096 16-bit operations a cycle on Hopper (H100 whitepaper).
        return 4096.0 * 16 / bits * self.machine.clock_hertz


@dataclass(frozen=True)
class VectorSpace:
    """Vector registers of one core, and its caches."""

    machine: Machine

    private_axes = ("reg",)

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        holders = (("simd", self.machine.lanes(type.dtype)),)
        dims = list(reversed(range(type.rank)))
        for dim in [fastest, *(dim for dim in dims if dim != fastest)] if dims else []:
            yield dealt(type.shape, [dim, *(other for other in dims if other != dim)], holders, 1)

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        _, columns = self.machine.micro_tile(accumulator.dtype)
        yield Atom(
            f"micro-kernel, panels of {columns}",
            row_major(left.shape),
            packed_panels_b(right.shape, columns),
            row_major(accumulator.shape),
            flops / self.machine.peak_flops(accumulator.dtype),
        )
