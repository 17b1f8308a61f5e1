"""Register blocks of matrix products: which there are, and how long a product takes with one."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# How much of what runs beside the longest stream still shows. With it the order of blocks of 1 to 4 vectors is the
# measured one, on an AVX-512 server with 512-bit and with 256-bit vectors, products of 256 to 1024 a side.
EXPOSED = 0.1


@dataclass(frozen=True)
class RegisterBlock:
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


def product_seconds(rows: int, columns: int, depth: int, block: RegisterBlock, machine: Machine) -> float:
    """A product of whole blocks on one core, its operands near: multiplications, loads and the latency of the
    accumulators overlap, and what a matrix lacks of a whole block is computed all the same."""
    height = even_split(rows, block.rows)
    accumulators = height * block.vectors
    multiplies = accumulators / machine.vector.fma_per_cycle
    loads = (height + block.vectors) * machine.cycles["move"]
    streams = (multiplies, loads, machine.vector.fma_latency_cycles)
    cycles = max(streams) + EXPOSED * (sum(streams) - max(streams))
    blocks = -(-rows // height) * -(-columns // block.columns)
    return blocks * depth * cycles / machine.clock_hertz


def best_block(rows: int, columns: int, depth: int, dtype: DType, machine: Machine) -> RegisterBlock:
    """The block with which a product is quickest."""
    return min(register_blocks(dtype, machine), key=lambda block: product_seconds(rows, columns, depth, block, machine))


def even_split(size: int, target: int, multiple: int = 1) -> int:
    """The block size near `target` that cuts `size` into equal blocks, rounded up to `multiple`."""
    blocks = max(1, -(-size // target))
    block = -(-size // blocks)
    return -(-block // multiple) * multiple
