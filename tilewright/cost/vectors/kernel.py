"""Predicted time of scheduled kernels on one core: arithmetic by cost class, matmuls at FMA peak, memory by bytes."""

from __future__ import annotations

import math

import msgspec
from xdsl.ir import Block, Operation
from xdsl.ir.affine import AffineDimExpr

from tilewright import dtypes, ops
from tilewright.cost.program import Cost
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine
from tilewright.primitives import ArrayType

# Fraction of the FMA peak that the micro-kernels reach on large blocks.
PRODUCT_EFFICIENCY = 0.85


class Work(msgspec.Struct, frozen=True):
    """Work of a piece of code: seconds of arithmetic, bytes of arrays touched, floating-point operations."""

    compute_s: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.compute_s + other.compute_s, self.bytes + other.bytes, self.flops + other.flops)

    def times(self, count: float) -> Work:
        return Work(self.compute_s * count, self.bytes * count, self.flops * count)

    def seconds(self, machine: Machine, memory: str = "l3") -> float:
        """Time on one core when compute and memory overlap."""
        return max(self.compute_s, self.bytes / machine.memory(memory).bytes_per_second)

    def cost(self, machine: Machine, memory: str = "l3") -> Cost:
        """The time on one core and its parts: kernels are parts of one native call, so nothing is launched."""
        memory_s = self.bytes / machine.memory(memory).bytes_per_second
        return Cost.of(self.compute_s, memory_s, bytes=self.bytes, flops=self.flops)


def block_work(block: Block, machine: Machine) -> Work:
    """Work of one run of a block."""
    total = Work()
    for op in block.ops:
        total += _op_work(op, machine)
    return total


def _op_work(op: Operation, machine: Machine) -> Work:
    if isinstance(op, scheduled.ParallelOp):
        return block_work(op.body.block, machine).times(math.prod(op.shape))
    if isinstance(op, tile.ForOp):
        return block_work(op.body.block, machine).times(op.trips)
    if isinstance(op, tile.IfOp):
        if op.likely:
            return block_work(op.then.block, machine)
        return block_work(op.then.block, machine) + block_work(op.otherwise.block, machine)
    if isinstance(op, scheduled.DotOp):
        return _dot_work(op, machine)
    if isinstance(op, scheduled.NestOp):
        total = Work()
        for inner in op.body.block.ops:
            total += _tile_work(inner, machine)
        return total
    return Work()


def _dot_work(op: scheduled.DotOp, machine: Machine) -> Work:
    rows, columns, depth = op.shape
    steps = math.prod(op.outer_steps)
    flops = 2.0 * rows * columns * depth * steps
    left, dtype = (tile.ref_type(ref).dtype for ref in (op.left, op.accumulator))
    words = machine.word_atom(left, left, dtype)
    peak = machine.peak_flops(dtype) if words is None else words.flops_per_cycle * machine.clock_hertz
    moved = 0.0
    # All steps read about the same part of the right operand.
    for ref, elements in ((op.left, rows * depth * steps), (op.right, depth * columns)):
        type = tile.ref_type(ref)
        moved += 0.0 if type.space.data else float(elements * type.dtype.itemsize)
    return Work(flops / (peak * PRODUCT_EFFICIENCY), moved, flops)


def _tile_work(op: Operation, machine: Machine) -> Work:
    if isinstance(op, tile.LoadOp | tile.StoreOp):
        value, ref = (op.result, op.source) if isinstance(op, tile.LoadOp) else (op.value, op.destination)
        type = array_type(value)
        vectors = type.size / machine.lanes(type.dtype)
        moved = 0.0 if tile.ref_type(ref).space.data else type.size * _element_bytes(op, machine)
        return Work(vectors * machine.cycles["move"] / machine.clock_hertz, moved, 0.0)
    if isinstance(op, tile.MapOp | tile.ReduceOp):
        type = array_type(op.operands[-1])
        flops = float(type.size) if type.dtype.is_float else 0.0
        return Work(function_seconds(op.fn, type, machine), 0.0, flops)
    if isinstance(op, tile.SortOp | tile.ScanOp | tile.ArgReduceOp | tile.TopKOp):
        type = array_type(op.operands[0])
        return Work(_ordered_cycles(op, type, machine) / machine.clock_hertz, 0.0, float(type.size))
    return Work()


def _element_bytes(op: tile.LoadOp | tile.StoreOp, machine: Machine) -> float:
    """Bytes that move for each element: a line of memory where neighbours are as far apart or are gathered."""
    array = tile.ref_type(op.source if isinstance(op, tile.LoadOp) else op.destination)
    item, line = array.dtype.itemsize, machine.memory("l2").line_bytes
    if not array.shape or array.shape[-1] * item < line:
        return item
    along_rows = any(isinstance(part, AffineDimExpr) for part in op.map.results[-1].dfs())
    return item if along_rows or array_type(op.result if isinstance(op, tile.LoadOp) else op.value).size == 1 else line


def function_seconds(fn: str, type: ArrayType, machine: Machine) -> float:
    """The time of a function of each element of an array, its last operand's type given, in registers."""
    cycles = machine.cycles[ops.FUNCTIONS[fn].cost] * (1.5 if type.dtype == dtypes.f64 else 1.0)
    return type.size / machine.lanes(type.dtype) * cycles / machine.clock_hertz


def _ordered_cycles(
    op: tile.SortOp | tile.ScanOp | tile.ArgReduceOp | tile.TopKOp, type: ArrayType, machine: Machine
) -> float:
    """Cycles of an operation along an axis: steps that each vector goes through, and what each line ends with."""
    axis = type.rank - 1 if isinstance(op, tile.TopKOp) else op.axis
    length = max(1, type.shape[axis])
    lines = type.size / length
    lanes = machine.lanes(type.dtype.compute)
    step = machine.cycles["shuffle"] + machine.cycles["alu"]
    if isinstance(op, tile.ScanOp):
        steps = 1.0 + math.log2(lanes) if axis == type.rank - 1 else 1.0
        return type.size / lanes * steps * step
    if isinstance(op, tile.ArgReduceOp):
        ends = lines if axis == type.rank - 1 else lines / lanes
        return type.size / lanes * 2 * step + ends * math.log2(lanes) * step
    if isinstance(op, tile.TopKOp):
        kept = min(length, 2 * max(lanes * lanes, op.k))
        return type.size / lanes * 2 * step + lines * _network_cycles(kept, lanes / 2, step)
    return lines * _network_cycles(length, lanes / 2, step)


def _network_cycles(count: float, lanes: float, step: float) -> float:
    """A bitonic network's."""
    levels = math.log2(max(2, count))
    return max(1.0, count / lanes) * levels * (levels + 1) / 2 * step
