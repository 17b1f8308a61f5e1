"""The layout space of warps: registers of the warps of a thread block, shared memory, matrix instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod, sqrt

from tilewright.cost.warps.products import (
    MMA,
    TCGEN05,
    WARPGROUP,
    WGMMA,
    WGMMA_REGISTERS,
    mma_name,
    tcgen05_name,
    wgmma_name,
)
from tilewright.dialects import tile
from tilewright.dtypes import by_name
from tilewright.errors import LayoutError
from tilewright.layout import Iter, Layout, row_major
from tilewright.layout.catalogue import (
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    shared_matrix,
    tcgen05_registers,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.operations import product, rename_axis
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.layouts.layout_spaces import Atom, dealt
from tilewright.primitives import ArrayType

SHARED = "mem.shared"
# How warps multiply: in tensor memory (`TCGEN05`), asynchronously by warpgroups, with operands in buffers (`WGMMA`) or
# the left one in registers, by single warps (`MMA`), by those with operands rounded to tf32, and without tensor cores.
TF32, SCALAR = "tf32", "multiply and add"
FAMILIES = (TCGEN05, WGMMA, WGMMA_REGISTERS, MMA, TF32, SCALAR)


def matrix_buffer(shape: Sequence[int], bits: int, contiguous_dim: int) -> Layout:
    """The buffer of an operand that warpgroups read, as the machine copies it: lines along a dim, of the widest swizzle
    that they are made of, and one line's width after the other.

    Raises:
        LayoutError: its lines are not made of 32 bytes, or there are not 8 of them.
    """
    line_bytes = shape[contiguous_dim] * bits // 8
    swizzle = next((span for span in (128, 64, 32) if line_bytes % span == 0), None)
    if swizzle is None:
        raise LayoutError(f"lines of {line_bytes} bytes are not made of 32", help="use longer rows")
    layout = shared_matrix(shape, bits, swizzle, contiguous_dim=contiguous_dim, slowest_dim=contiguous_dim)
    return rename_axis(layout, "mem", SHARED)


@dataclass(frozen=True)
class WarpSpace:
    """Registers of the warps of one block, and its shared memory."""

    machine: Machine
    warps: int
    families: tuple[str, ...] = FAMILIES

    @property
    def limits(self) -> Mapping[str, int]:
        return {"reg": 4 * self.machine.axes["reg"], SHARED: self.machine.memory_of(SHARED).bytes}

    def reads_in_place(self, op: tile.DotOp, columns: int) -> bool:
        return False

    def accepts(self, type: ArrayType, layout: Layout) -> bool:
        return True

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
        tcgen05 = self.machine.atom_of(TCGEN05, left.dtype, right.dtype, accumulator.dtype)
        if TCGEN05 in self.families and tcgen05 is not None and self.warps % WARPGROUP == 0:
            yield from self._tcgen05(left, right, accumulator, tcgen05)
        wgmma = self.machine.atom_of(WGMMA, left.dtype, right.dtype, accumulator.dtype)
        if WGMMA in self.families and wgmma is not None and self.warps % WARPGROUP == 0:
            yield from self._wgmma(left, right, accumulator, wgmma)
        exact = self.machine.atom_of(MMA, left.dtype, right.dtype, accumulator.dtype)
        if MMA in self.families and exact is not None:
            flops_per_second = exact.flops_per_cycle * self.machine.clock_hertz
            yield from self._mma(left, right, accumulator, bits, 2.0 * rows * columns * depth / flops_per_second)
        elif bits <= 32 and TF32 in self.families:
            yield from self._mma(left, right, accumulator, bits, 2 * seconds)
        if SCALAR in self.families:
            yield from self._scalar(left, right, accumulator)

    def _tcgen05(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, instruction: MatrixAtom
    ) -> Iterator[Atom]:
        """Each warpgroup takes some of the columns out of tensor memory. Operands of other than 16 bits run along the
        depth (PTX ISA, tcgen05.mma, transposes)."""
        bits, groups = left.dtype.bits, self.warps // WARPGROUP
        rows, columns = accumulator.shape
        seconds = 2.0 * prod(left.shape) * columns / (instruction.flops_per_cycle * self.machine.clock_hertz)
        if rows != instruction.rows or columns % instruction.columns or columns % groups:
            return
        try:
            right_shared = matrix_buffer(right.shape, bits, 1 if bits == 16 else 0)
            left_shared = matrix_buffer(left.shape, bits, 1)
        except LayoutError:
            return
        outer = Layout((1, groups), ((), (Iter(groups, 1, "warp"),) if groups > 1 else ()))
        accumulators = product(outer, tcgen05_registers((rows, columns // groups), "32x32b"))
        yield Atom(tcgen05_name(groups), left_shared, right_shared, accumulators, seconds)

    def _wgmma(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, instruction: MatrixAtom
    ) -> Iterator[Atom]:
        """Each warpgroup some of the rows. Operands of 8 bits run along the depth (PTX ISA, wgmma, transposes)."""
        bits, groups = left.dtype.bits, self.warps // WARPGROUP
        seconds = 2.0 * prod(left.shape) * right.shape[1] / (instruction.flops_per_cycle * self.machine.clock_hertz)
        if left.shape[0] % (groups * instruction.rows) or right.shape[1] % instruction.columns:
            return
        try:
            right_shared = matrix_buffer(right.shape, bits, 1 if bits == 16 else 0)
            left_shared = matrix_buffer(left.shape, bits, 1)
            accumulators = _by_warpgroups(wgmma_accumulator, accumulator.shape, groups)
            if WGMMA_REGISTERS in self.families:
                registers = _by_warpgroups(partial(wgmma_operand, bits=bits), left.shape, groups)
                yield Atom(WGMMA_REGISTERS, registers, right_shared, accumulators, seconds)
            yield Atom(wgmma_name(groups), left_shared, right_shared, accumulators, seconds)
        except LayoutError:
            return

    def _mma(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, bits: int, seconds: float
    ) -> Iterator[Atom]:
        splits = [(self.warps >> n, 1 << n) for n in range(self.warps.bit_length())]
        for across in splits:
            try:
                operands = mma_operand_a(left.shape, bits, across), mma_operand_b(right.shape, bits, across)
                accumulators = mma_accumulator(accumulator.shape, bits, across)
                yield Atom(mma_name(across), *operands, accumulators, seconds)
            except LayoutError:
                continue

    def _scalar(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        """Multiply and add without tensor cores: operands in shared memory, any shape. Each step of the depth a warp
        reads as many lines as a thread has rows and columns."""
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        results = max(1, prod(accumulator.shape) // (self.warps * self.machine.axes["lane"]))
        lines = self.warps * left.shape[1] * 2 * ceil(sqrt(results))
        memory = self.machine.memory_of(SHARED)
        layout = next(iter(self.distributions(accumulator, accumulator.rank - 1)))
        yield Atom(
            SCALAR,
            row_major(left.shape, SHARED),
            row_major(right.shape, SHARED),
            layout,
            flops / self.machine.peak_flops(accumulator.dtype) + lines * memory.line_bytes / memory.bytes_per_second,
        )

    def _tensor_flops(self, bits: int) -> float:
        """The dense rate of one multiprocessor for operands of so many bits, from that for 16 bits."""
        halves = [atom.flops_per_cycle for atom in self.machine.matrix_atoms if by_name(atom.left).bits == 16]
        return max(halves) * 16 / bits * self.machine.clock_hertz


def _by_warpgroups(layout: Callable[[Sequence[int]], Layout], shape: Sequence[int], groups: int) -> Layout:
    """Rows shared by some warpgroups, those of each in a layout."""
    rows, columns = shape
    outer = Layout((groups, 1), ((Iter(groups, 1, "warp"),) if groups > 1 else (), ()))
    return product(outer, layout((rows // groups, columns)))
