"""Layout spaces: the candidate layouts of tiles on each kind of machine, plug-ins of layout inference.

A space names the layouts worth considering for a value (`distributions`), and the atoms by which matmuls can be done
(`atoms`). Everything else — which of them, and what moves between them — is the solver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod, sqrt
from typing import Protocol

from tilewright.cost.tiles import even_split
from tilewright.cost.vectors.products import tile_seconds
from tilewright.cost.vectors.register_blocks import micro_kernel_name, register_blocks
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
from tilewright.errors import LayoutError, TargetError
from tilewright.layout import Iter, Layout, row_major
from tilewright.layout.catalogue import (
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    packed_panels_b,
    register_block,
    shared_matrix,
    spread_rows,
    tcgen05_registers,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.dims import static
from tilewright.layout.iters import fuse_digits, weighted
from tilewright.layout.operations import product, rename_axis
from tilewright.machines.machine import Machine, MatrixAtom, Model
from tilewright.primitives import ArrayType

SHARED = "mem.shared"
# How warps multiply: in tensor memory (`TCGEN05`), asynchronously by warpgroups, with operands in buffers (`WGMMA`) or
# the left one in registers, by single warps (`MMA`), by those with operands rounded to tf32, and without tensor cores.
TF32, SCALAR = "tf32", "multiply and add"
FAMILIES = (TCGEN05, WGMMA, WGMMA_REGISTERS, MMA, TF32, SCALAR)


@dataclass(frozen=True)
class Atom:
    """One way to do a matmul: the layouts that it wants of its operands and gives its accumulator, and its time.
    `block` is the part of the accumulator that a micro-kernel keeps in registers, `instruction` what multiplies
    matrices for it. One that is `asked` for is for matmuls that name it, no others."""

    name: str
    left: Layout
    right: Layout
    accumulator: Layout
    seconds: float
    block: Layout | None = None
    instruction: MatrixAtom | None = None
    asked: bool = False

    def __str__(self) -> str:
        return self.name


class Space(Protocol):
    """Queries of layout inference to a machine."""

    @property
    def machine(self) -> Machine: ...

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes of the registers of a thread (`reg`) and of memories that the tiles of a kernel share, where they are
        what counts."""
        ...

    @property
    def packs_arrays(self) -> bool:
        """Whether a right operand that is a window of an array is read there, the array being packed once."""
        ...

    def accepts(self, type: ArrayType, layout: Layout) -> bool:
        """Whether a tile can be in such a layout where something is computed."""
        ...

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        """Layouts of registers that are good for streaming a tile whose dim `fastest` is contiguous in memory."""
        ...

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        """The ways to multiply tiles of these types, preferred ones first."""
        ...


def has_layouts(machine: Machine) -> bool:
    """Whether layouts of tiles are inferred for a machine: it computes in lanes or in vectors."""
    return machine.model != Model.CORES


def space_of(machine: Machine, warps: int = 4, families: Sequence[str] = FAMILIES) -> Space:
    """The space of a machine, by the axes that it has; `families` are the kinds of matmuls that warps may do.

    Raises:
        TargetError: the machine computes neither in lanes nor in vectors.
    """
    match machine.model:
        case Model.WARPS:
            return WarpSpace(machine, warps, tuple(families))
        case Model.VECTORS:
            return VectorSpace(machine)
        case Model.CORES:
            raise TargetError(
                f"layouts of tiles are not inferred for {machine.name}: it has the axes {', '.join(machine.axes)}",
                help="choose a machine with lanes or vectors, such as sm_90a or x86-64-v4",
            )


def dealt(
    shape: Sequence[int],
    order: Sequence[int],
    holders: Sequence[tuple[str, int]],
    vector: int,
    uncut: tuple[str, int] | None = None,
) -> Layout:
    """A tile dealt to holders: vectors of `vector` elements along the first dim of `order`, then each holder takes what
    is next, along `order`; the rest are registers. Holders without an element to take hold copies of nothing: the tile
    is padded to whole vectors. `uncut`: a holder and the dim of which it takes nothing."""
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
            if uncut == (axis, dim):
                continue
            extent = min(count // stride, _power_up(left[dim]))
            take(dim, extent, axis, stride)
            stride *= max(1, extent)
    for dim in order:
        extent = left[dim]
        take(dim, extent, "reg", registers)
        registers *= max(1, extent)
    return Layout(tuple(shape), tuple(tuple(each) for each in digits))


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


def _power_up(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


@dataclass(frozen=True)
class WarpSpace:
    """Registers of the warps of one block, and its shared memory."""

    machine: Machine
    warps: int
    families: tuple[str, ...] = FAMILIES

    packs_arrays = False

    @property
    def limits(self) -> Mapping[str, int]:
        return {"reg": 4 * self.machine.axes["reg"], SHARED: self.machine.memory_of(SHARED).bytes}

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
        # Dense tensor-core rate of one multiprocessor: 4096 16-bit operations a cycle on Hopper (H100 whitepaper).
        return 4096.0 * 16 / bits * self.machine.clock_hertz


def _by_warpgroups(layout: Callable[[Sequence[int]], Layout], shape: Sequence[int], groups: int) -> Layout:
    """Rows shared by some warpgroups, those of each in a layout."""
    rows, columns = shape
    outer = Layout((groups, 1), ((Iter(groups, 1, "warp"),) if groups > 1 else (), ()))
    return product(outer, layout((rows // groups, columns)))


@dataclass(frozen=True)
class VectorSpace:
    """Vector registers of one core, and its caches."""

    machine: Machine

    packs_arrays = True

    @property
    def limits(self) -> Mapping[str, int]:
        # Tiles stream through registers a vector at a time: what is kept is in the caches, which have no edge.
        return {}

    def accepts(self, type: ArrayType, layout: Layout) -> bool:
        """Whether vectors run along one dim. A replicated result of a reduction is stored and loaded again in
        vectors."""
        digits = [(weight, d) for own in layout.shard for weight, d in weighted(fuse_digits(own)) if d.axis == "simd"]
        if any(copy.axis == "simd" for copy in layout.replica) or len(digits) > 1:
            return False
        lanes = prod(static(digit.extent) for _, digit in digits)
        return all(weight == digit.stride == 1 for weight, digit in digits) and lanes <= self.machine.lanes(type.dtype)

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        dims = list(reversed(range(type.rank)))
        for dim in [fastest, *(dim for dim in dims if dim != fastest)] if dims else []:
            holder = ("simd", min(self.machine.lanes(type.dtype), _power_up(type.shape[dim])))
            yield dealt(type.shape, [dim, *(other for other in dims if other != dim)], (holder,), 1)

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        rows, depth = left.shape
        dtype = accumulator.dtype
        instruction = self.machine.matrix_atom(left.dtype, right.dtype, dtype, depth)
        if instruction is not None:
            yield self._matrix(left, right, accumulator, instruction)
            return
        parts = self.machine.split_atom(left.dtype, right.dtype, dtype)
        if parts is not None and depth % parts.depth == 0:
            yield self._matrix(left, right, accumulator, parts)
        line = max(1, self.machine.memories[0].line_bytes // dtype.compute.itemsize)
        for block in register_blocks(dtype, self.machine):
            height = even_split(rows, block.rows)
            yield Atom(
                micro_kernel_name(rows, block),
                spread_rows(left.shape, line),
                packed_panels_b(right.shape, block.columns),
                row_major(accumulator.shape),
                tile_seconds(rows, right.shape[1], depth, block, dtype, self.machine),
                register_block((height, block.columns), block.lanes),
            )

    def _matrix(self, left: ArrayType, right: ArrayType, accumulator: ArrayType, instruction: MatrixAtom) -> Atom:
        """2 x 2 accumulators of a matrix instruction: each operand that is loaded is used twice."""
        height, width = 2 * instruction.rows, 2 * instruction.columns
        blocks = -(-left.shape[0] // height) * -(-right.shape[1] // width)
        steps = 4 * blocks * -(-left.shape[1] // instruction.depth)
        return Atom(
            instruction.name if instruction.parts > 1 else f"{instruction.name}, {height} x {width}",
            row_major(left.shape),
            packed_panels_b(right.shape, width, instruction.group),
            row_major(accumulator.shape),
            steps * instruction.cycles / self.machine.clock_hertz,
            register_block((height, width), instruction.columns),
            instruction,
            instruction.parts > 1,
        )
