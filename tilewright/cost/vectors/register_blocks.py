"""Register blocks of matmuls: which there are, and how long a matmul takes with one."""

from __future__ import annotations

import msgspec

from tilewright.cost.tiles import even_split
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine, MatrixAtom

# How much of what runs beside the longest stream still shows. With it the order of blocks of 1 to 4 vectors is the
# measured one, on an AVX-512 server with 512-bit and with 256-bit vectors, products of 256 to 1024 a side.
EXPOSED = 0.53


class RegisterBlock(msgspec.Struct, frozen=True):
    """`rows` x `vectors` accumulators, each a vector of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def register_blocks(dtype: DType, machine: Machine) -> tuple[RegisterBlock, ...]:
    """The blocks that a machine has registers for, preferred ones first: as many rows as leave room for the vectors of
    the right operand, a spread element of the left, and one register in sixteen for loading ahead (without it the
    register allocator keeps an accumulator in memory)."""
    free = machine.vector.registers * 15 // 16 - 1
    found = (RegisterBlock((free - n) // n, n, machine.lanes(dtype)) for n in (2, 3, 4, 1))
    return tuple(block for block in found if block.rows > 0)


def micro_kernel_name(rows: int, block: RegisterBlock, words: MatrixAtom | None = None) -> str:
    """The name of the micro-kernel of a tile of some rows, which are cut evenly; of the one that multiplies `words`."""
    name = "micro-kernel" if words is None else f"{words.name} micro-kernel"
    return f"{name}, {even_split(rows, block.rows)} x {block.columns}"


def product_seconds(rows: int, columns: int, depth: int, block: RegisterBlock, machine: Machine) -> float:
    """A matmul of blocks of rows and whole blocks of columns on one core, its operands near: multiplications, loads and
    the latency of the accumulators overlap."""
    height = even_split(rows, block.rows)
    whole, rest = divmod(rows, height)
    cycles = whole * _step_cycles(height, block.vectors, machine) + (
        _step_cycles(rest, block.vectors, machine) if rest else 0.0
    )
    return -(-columns // block.columns) * depth * cycles / machine.clock_hertz


def _step_cycles(rows: int, vectors: int, machine: Machine) -> float:
    """Cycles of one step along the depth."""
    multiplies = rows * vectors / machine.vector.fma_per_cycle
    loads = (rows + vectors) * machine.cycles["move"]
    streams = (multiplies, loads, machine.vector.fma_latency_cycles)
    return max(streams) + EXPOSED * (sum(streams) - max(streams))
