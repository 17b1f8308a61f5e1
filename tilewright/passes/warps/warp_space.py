"""The layout space of warps: registers of the warps of a thread block, shared memory, matrix instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt

from tilewright.dialects import tile
from tilewright.dtypes import by_name
from tilewright.errors import LayoutError
from tilewright.layout import Layout, row_major
from tilewright.layout.catalogue import shared_matrix
from tilewright.layout.catalogue.fragments import group_fragments, warp_fragments
from tilewright.layout.operations import rename_axis
from tilewright.machines.machine import AtomFamily, Machine, MatrixAtom
from tilewright.passes.layouts.layout_spaces import Atom, dealt
from tilewright.primitives import ArrayType

SHARED = "mem.shared"
# How warps multiply other than by the families of a machine: by single warps with operands rounded to tf32, and without
# tensor cores.
TF32, SCALAR = "tf32", "multiply and add"


def warp_families(machine: Machine) -> tuple[str, ...]:
    """The families of a machine whose instructions single warps execute."""
    return tuple(family.name for family in machine.families if family.warps == 1)


def all_families(machine: Machine) -> tuple[str, ...]:
    """All ways in which the warps of a machine multiply."""
    by_registers = (family.with_left_in_registers for family in machine.families if family.left_from_registers)
    return (*(family.name for family in machine.families), *by_registers, TF32, SCALAR)


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
    """Registers of the warps of one block, and its shared memory. `families`: the ways in which they may multiply,
    which are names of families, those with the left operand in registers, `TF32` and `SCALAR`."""

    machine: Machine
    warps: int
    families: tuple[str, ...]

    @property
    def limits(self) -> Mapping[str, int]:
        return {"reg": 4 * self.machine.axes["reg"], SHARED: self.machine.memory_of(SHARED).bytes}

    @property
    def streams(self) -> bool:
        return False

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
        types = left.dtype, right.dtype, accumulator.dtype
        for family, instruction in self.machine.families_of(*types).items():
            if family.asynchronous and family.name in self.families and self.warps % family.warps == 0:
                yield from self._by_groups(left, right, accumulator, family, instruction)
        exact = self.machine.warp_atom_of(*types)
        if exact is not None and exact.name in self.families:
            flops_per_second = exact.flops_per_cycle * self.machine.clock_hertz
            yield from self._by_warps(left, right, accumulator, bits, 2.0 * rows * columns * depth / flops_per_second)
        elif bits <= 32 and TF32 in self.families:
            yield from self._by_warps(left, right, accumulator, bits, 2 * seconds)
        if SCALAR in self.families:
            yield from self._scalar(left, right, accumulator)

    def _by_groups(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, family: AtomFamily, instruction: MatrixAtom
    ) -> Iterator[Atom]:
        """Each group of warps has some of the rows or, where sums come from tensor memory, some of the columns. The
        right operand of 16 bits runs along either dim, others along the depth."""
        bits, groups = left.dtype.bits, self.warps // family.warps
        rows, columns = accumulator.shape
        seconds = 2.0 * prod(left.shape) * columns / (instruction.flops_per_cycle * self.machine.clock_hertz)
        if not _is_of_instructions(rows, columns, groups, family, instruction):
            return
        fragments = group_fragments(family.name)
        try:
            right_shared = matrix_buffer(right.shape, bits, 1 if bits == 16 else 0)
            left_shared = matrix_buffer(left.shape, bits, 1)
            accumulators = fragments.accumulator(accumulator.shape, groups)
            if fragments.left is not None and family.with_left_in_registers in self.families:
                registers = fragments.left(left.shape, bits, groups)
                yield Atom(
                    family.with_left_in_registers, registers, right_shared, accumulators, seconds, asynchronous=True
                )
            yield Atom(family.by_groups(groups), left_shared, right_shared, accumulators, seconds, asynchronous=True)
        except LayoutError:
            return

    def _by_warps(
        self, left: ArrayType, right: ArrayType, accumulator: ArrayType, bits: int, seconds: float
    ) -> Iterator[Atom]:
        family = next(family for family in self.machine.families if family.warps == 1)
        fragments = warp_fragments(family.name)
        splits = [(self.warps >> n, 1 << n) for n in range(self.warps.bit_length())]
        for across in splits:
            try:
                operands = fragments.left(left.shape, bits, across), fragments.right(right.shape, bits, across)
                accumulators = fragments.accumulator(accumulator.shape, bits, across)
                yield Atom(family.by_warps(across), *operands, accumulators, seconds)
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


def _is_of_instructions(rows: int, columns: int, groups: int, family: AtomFamily, instruction: MatrixAtom) -> bool:
    """Whether a tile is made of whole instructions, shared by groups of warps."""
    if family.sums_in_tensor_memory:  # one accumulator, whose columns are shared
        return rows == instruction.rows and columns % instruction.columns == 0 and columns % groups == 0
    return rows % (groups * instruction.rows) == 0 and columns % instruction.columns == 0
