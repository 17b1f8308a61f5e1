"""Predicted time of a scheduled kernel on a GPU: its blocks in waves over the SMs, and its arrays at DRAM bandwidth.

The model is a roofline: it knows neither latency nor stalls. Each array is moved once. The end of a loop is evaluated
for the block indices that it depends on; a loop whose end depends on anything else counts in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from statistics import fmean

from xdsl.ir import Block, Operation, SSAValue

from tilewright import dtypes, ops
from tilewright.cost.program import Cost
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled.tensor_memory import TensorMmaOp
from tilewright.machines.machine import Machine
from tilewright.primitives import ArrayType
from tilewright.records import dataclass

# Blocks for which the trips of loops are evaluated: all of a persistent kernel, evenly spaced ones of a larger grid.
_SAMPLES = 1024

Indices = Mapping[SSAValue, int]


@dataclass(frozen=True)
class Work:
    """Arithmetic of a piece of code: seconds of one SM, and floating-point operations."""

    seconds: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.seconds + other.seconds, self.flops + other.flops)

    def times(self, count: float) -> Work:
        return Work(self.seconds * count, self.flops * count)


def kernel_cost(kernel: tile.KernelOp, machine: Machine) -> Cost:
    """The cost of one launch."""
    compute_s, flops = 0.0, 0.0
    for op in kernel.body.block.ops:
        if isinstance(op, scheduled.ParallelOp):
            blocks = prod(op.shape)
            of_a_block = _mean_work(op, machine)
            compute_s += of_a_block.seconds * ceil(blocks / machine.cores)
            flops += of_a_block.flops * blocks
    moved = [
        array_type(tile.ref_type(ref).array).nbytes * (2 if effect == tile.INOUT else 1)
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True)
    ]
    bandwidth = machine.memory("dram").bytes_per_second * machine.cores
    return Cost.of(compute_s, sum(moved) / bandwidth, machine.fork_join_s, float(sum(moved)), flops)


def _mean_work(op: scheduled.ParallelOp, machine: Machine) -> Work:
    """The arithmetic of a block, on average of the samples."""
    blocks = prod(op.shape)
    samples = range(0, blocks, ceil(blocks / _SAMPLES)) if _depends_on(op) else range(min(blocks, 1))
    works = [_block_work(op.body.block, machine, _indices(op, number)) for number in samples]
    return Work(fmean(w.seconds for w in works), fmean(w.flops for w in works)) if works else Work()


def _depends_on(op: scheduled.ParallelOp) -> bool:
    """Whether the end of a loop depends on the index of the block."""
    return any(set(loop.symbols) & set(op.body.block.args) for loop in op.walk() if isinstance(loop, tile.ForOp))


def _indices(op: scheduled.ParallelOp, number: int) -> Indices:
    """The coordinates of a block by its number, the last dimension fastest."""
    found: dict[SSAValue, int] = {}
    for argument, extent in reversed(list(zip(op.body.block.args, op.shape, strict=True))):
        number, found[argument] = divmod(number, extent)
    return found


def _block_work(block: Block, machine: Machine, indices: Indices) -> Work:
    total = Work()
    for op in block.ops:
        total += _op_work(op, machine, indices)
    return total


def _op_work(op: Operation, machine: Machine, indices: Indices) -> Work:
    if isinstance(op, tile.ForOp):
        return _block_work(op.body.block, machine, indices).times(_trips(op, indices))
    if isinstance(op, tile.IfOp):
        return _block_work(op.then.block, machine, indices) + _block_work(op.otherwise.block, machine, indices)
    if isinstance(op, scheduled.RoleOp):
        return _block_work(op.body.block, machine, indices)
    if isinstance(op, scheduled.MmaOp | TensorMmaOp | tile.DotOp):
        return _mma_work(op, machine)
    if isinstance(op, tile.MapOp | tile.ReduceOp):
        return _vector_work(op, machine)
    return Work()


def _trips(op: tile.ForOp, indices: Indices) -> int:
    trips = op.trips
    if op.end is None or not all(symbol in indices for symbol in op.symbols):
        return trips
    (end,) = op.end.eval([], [indices[symbol] for symbol in op.symbols])
    return max(0, min(trips, end))


def _mma_work(op: scheduled.MmaOp | TensorMmaOp | tile.DotOp, machine: Machine) -> Work:
    left, right, accumulator = (_contents(each) for each in (op.left, op.right, op.accumulator))
    flops = 2.0 * left.shape[0] * right.shape[1] * left.shape[1]
    family = "" if op.atom is None else op.atom.partition(",")[0]
    atom = machine.atom_of(family, left.dtype, right.dtype, accumulator.dtype)
    if atom is not None:
        return Work(flops / (atom.flops_per_cycle * machine.clock_hertz), flops)
    operands = "tf32" if left.dtype == dtypes.f32 and family else left.dtype.name
    rate = machine.matrix_peak_flops(operands) if family else None
    return Work(flops / (rate or machine.peak_flops(accumulator.dtype)), flops)


def _contents(value: SSAValue) -> ArrayType:
    """The type of a tile, or of the contents of a buffer."""
    return array_type(value.type.array if isinstance(value.type, tile.RefType) else value)


def _vector_work(op: tile.MapOp | tile.ReduceOp, machine: Machine) -> Work:
    type = array_type(op.operands[-1])
    cycles = machine.cycles[ops.FUNCTIONS[op.fn].cost]
    return Work(type.size / machine.lanes(type.dtype) * cycles / machine.clock_hertz, float(type.size))
