"""What math does: it takes what was unpacked, and computes in the tile registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tilewright import dtypes, ops
from tilewright.dialects import cores
from tilewright.dialects.base import decode
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.functions import evaluate
from tilewright.semantics.cores.queue_steps import needed_states
from tilewright.semantics.cores.registers import FLOATS, SIGNED, UNSIGNED, Half, Registers, never_written
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.steps import Step
from tilewright.semantics.cores.unpack_steps import check_states
from tilewright.semantics.tile_formats import Array

UNITS = (cores.MATRIX, cores.VECTOR)
_BINARY: dict[str, Callable[..., Any]] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
# What an operation of the matrix unit does with registers: the half, which of them, and what was unpacked.
_Compute = Callable[[Agent, Half, slice, tuple[Array, ...]], None]


def registers_steps(op: cores.RegistersOp) -> list[Step]:
    """A step of the protocol between math and pack."""

    def make(agent: Agent) -> Action:
        registers, checks = registers_of(agent), agent.world.checks
        match op.step.data:
            case cores.ACQUIRE:
                return lambda: registers.acquire(agent, op, checks)
            case cores.COMMIT:
                return lambda: registers.commit(agent, op, checks)
            case cores.WAIT:
                return lambda: registers.wait(agent, op, checks)
            case _:
                return lambda: registers.release(agent, op, checks)

    return [Step(make, waits=op.step.data in (cores.ACQUIRE, cores.WAIT))]


def registers_of(agent: Agent) -> Registers:
    assert agent.core.registers is not None
    return agent.core.registers


# ---- the matrix unit ------------------------------------------------------------------------------------------------


def copy_steps(op: cores.CopyOp) -> list[Step]:
    def compute(agent: Agent, half: Half, slots: slice, data: tuple[Array, ...]) -> None:
        half.write(slots, kind_of(data[0]), data[0])

    return _matrix_steps(op, len(op.slots), lambda agent: agent.world.grid.copy_cycles, compute)


def binary_steps(op: cores.BinaryOp) -> list[Step]:
    function, accumulates = _BINARY[op.fn.data], op.accumulates is not None
    multiplies = op.fn.data == "multiply"

    def cycles(agent: Agent) -> float:
        return agent.world.grid.multiply_cycles if multiplies else agent.world.grid.matrix_cycles

    def compute(agent: Agent, half: Half, slots: slice, data: tuple[Array, ...]) -> None:
        result = function(*data)
        if accumulates:
            _add(agent, op, half, slots, result)
        else:
            half.write(slots, kind_of(result), result)

    return _matrix_steps(op, len(op.slots), cycles, compute)


def matmul_steps(op: cores.MatmulOp) -> list[Step]:
    rows, columns, depth = op.block_shape

    def compute(agent: Agent, half: Half, slots: slice, data: tuple[Array, ...]) -> None:
        product = np.matmul(*data).reshape(rows, 2, FACE, columns, 2, FACE)
        faces = product.transpose(0, 3, 1, 4, 2, 5).reshape(rows * columns, -1)
        _add(agent, op, half, slots, faces)

    return _matrix_steps(op, rows * columns * depth, lambda agent: agent.world.grid.multiply_cycles, compute)


def reduce_steps(op: cores.ReduceOp) -> list[Step]:
    adds, along = op.fn.data == "add", op.along.data

    def compute(agent: Agent, half: Half, slots: slice, data: tuple[Array, ...]) -> None:
        faces = data[0].reshape(-1, 2, 2, FACE, FACE)
        reduced = _summed(faces, data[1], along) if adds else _largest(faces, along)
        result = np.full((2, 2, FACE, FACE), np.nan, np.float32)
        result[_PLACES[along]] = reduced
        result = result.reshape(1, -1)
        if half.kinds[slots.start] is not None:
            held = _floats(agent, op, half, slots)
            result = held + result if adds else np.maximum(held, result)
        half.write(slots, FLOATS, result)

    return _matrix_steps(op, decode(op.pages), lambda agent: agent.world.grid.reduce_cycles, compute)


# Where results of a reduction are, by faces: in the first column, the first row, or the first element.
_PLACES: dict[str, tuple[int | slice, ...]] = {
    cores.ROW: (slice(None), 0, slice(None), 0),
    cores.COLUMN: (0, slice(None), 0, slice(None)),
    cores.SCALAR: (0, 0, 0, 0),
}


def _summed(faces: Array, scaler: Array, along: str) -> Array:
    """The sum over pages, multiplied by the first row of the scaler: by its columns, or for a sum of columns by its
    rows' place."""
    factors = scaler.reshape(2, 2, FACE, FACE)[0, :, 0, :]
    if along == cores.COLUMN:
        return (faces * factors[None, :, None, :, None]).sum(axis=(0, 1, 3))
    rows = (faces * factors[None, None, :, None, :]).sum(axis=(0, 2, 4))
    return rows if along == cores.ROW else rows.sum()


def _largest(faces: Array, along: str) -> Array:
    axes = {cores.ROW: (0, 2, 4), cores.COLUMN: (0, 1, 3), cores.SCALAR: None}[along]
    return faces.max(axis=axes)


def _add(agent: Agent, op: Operation, half: Half, slots: slice, values: Array) -> None:
    """Add to registers; those that were not written hold zeros."""
    kinds = half.kinds[slots]
    if all(kind is None for kind in kinds):
        half.write(slots, kind_of(values), values)
        return
    for slot in range(slots.start, slots.stop):
        if half.kinds[slot] is None:
            half.write(slice(slot, slot + 1), FLOATS, np.zeros(TILE * TILE, np.float32))
    half.write(slots, FLOATS, _floats(agent, op, half, slots) + values)


def _floats(agent: Agent, op: Operation, half: Half, slots: slice) -> Array:
    _check_kind(agent, op, half, slots, FLOATS)
    return half.read(slots, FLOATS)


def _matrix_steps(op: cores.RegisterOp, tiles: int, cycles: Callable[[Agent], float], compute: _Compute) -> list[Step]:
    """Wait for what was unpacked, and compute with it."""
    slots = slice(op.slots.start, op.slots.stop)

    def wait(agent: Agent) -> Action:
        sources = agent.core.sources
        assert sources is not None
        return lambda: sources.await_operands(agent, op)

    def run(agent: Agent) -> Action:
        world, registers, sources = agent.world, registers_of(agent), agent.core.sources
        assert sources is not None
        states, all_cycles, checks = needed_states(op, UNITS), tiles * cycles(agent), world.checks

        def work() -> None:
            check_states(agent, op, states)
            half = registers.of_math(agent, op, slots)
            operands = sources.take(agent, all_cycles, checks)
            world.tile_operations += tiles
            if operands.data:
                compute(agent, half, slots, operands.data)
            else:
                half.mark(slots, FLOATS)

        return work

    return [Step(wait, waits=True), Step(run, in_order=False)]


# ---- the vector unit ------------------------------------------------------------------------------------------------


def map_steps(op: cores.MapOp) -> list[Step]:
    name, count, first = op.fn.data, len(op.slots), op.slots.start
    dtype = dtypes.by_name(op.dtype.data)
    numbers: list[float] = [decode(number) for number in op.numbers.data]
    given = op.operand_numbers
    slots = slice(first, first + count)
    cost = ops.MOVE if name == "fill" else ops.FUNCTIONS[name].cost
    kind = _KINDS.get(dtype.name, FLOATS)
    reads = [slice(n, n + count) for n in given if n >= 0]

    def make(agent: Agent) -> Action:
        world, registers = agent.world, registers_of(agent)
        cycles, states = world.grid.vector_tile_cycles(cost) * count, needed_states(op, UNITS)

        def work() -> None:
            check_states(agent, op, states)
            half = registers.of_math(agent, op, slots)
            for each in reads:
                registers.of_math(agent, op, each)
                _check_kind(agent, op, half, each, kind)
            agent.spend(cycles)
            world.tile_operations += count
            if not world.values:
                half.mark(slots, kind)
                return
            operands = [half.read(slice(n, n + count), kind) if n >= 0 else np.asarray(numbers[-1 - n]) for n in given]
            half.write(slots, kind, evaluate(name, operands, dtype))

        return work

    return [Step(make, in_order=False)]


def cast_steps(op: cores.CastOp) -> list[Step]:
    count, first, source = len(op.slots), op.slots.start, decode(op.source)
    slots, read = slice(first, first + count), slice(source, source + count)
    before, after = dtypes.by_name(op.from_type.data), dtypes.by_name(op.to_type.data)
    kind, new_kind = _KINDS.get(before.name, FLOATS), _KINDS.get(after.name, FLOATS)

    def make(agent: Agent) -> Action:
        world, registers = agent.world, registers_of(agent)
        cycles, states = world.grid.vector_tile_cycles(ops.ALU) * count, needed_states(op, UNITS)

        def work() -> None:
            check_states(agent, op, states)
            half = registers.of_math(agent, op, slots)
            registers.of_math(agent, op, read)
            _check_kind(agent, op, half, read, kind)
            agent.spend(cycles)
            world.tile_operations += count
            if not world.values:
                half.mark(slots, new_kind)
                return
            if op.bits is not None:
                half.write(slots, new_kind, half.read(read, new_kind))
                return
            result = ops.cast(half.read(read, kind).astype(before.numpy), after)
            half.write(slots, new_kind, result.astype(np.float32) if new_kind == FLOATS else result)

        return work

    return [Step(make, in_order=False)]


def fold_steps(op: cores.FoldOp) -> list[Step]:
    slots, along = slice(op.slots.start, op.slots.stop), op.along.data
    kind = _KINDS.get(op.dtype.data, FLOATS)
    function: Any = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[op.fn.data]

    def make(agent: Agent) -> Action:
        world, registers = agent.world, registers_of(agent)
        # Each step of a tree over 32 places is one operation on half of them.
        cycles = world.grid.vector_tile_cycles(ops.ALU) * len(op.slots)
        states = needed_states(op, UNITS)

        def work() -> None:
            check_states(agent, op, states)
            half = registers.of_math(agent, op, slots)
            _check_kind(agent, op, half, slots, kind)
            agent.spend(cycles)
            world.tile_operations += len(op.slots)
            if not world.values:
                return
            held = half.read(slots, kind)
            faces = held.reshape(-1, 2, 2, FACE, FACE)
            result = np.full_like(faces, np.nan if kind == FLOATS else np.iinfo(held.dtype).max)
            if along == cores.ROW:
                result[:, :, 0, :, 0] = function.reduce(function.reduce(faces, axis=4), axis=2)
            else:
                result[:, 0, :, 0, :] = function.reduce(function.reduce(faces, axis=3), axis=1)
            half.write(slots, kind, result.reshape(held.shape))

        return work

    return [Step(make, in_order=False)]


# What a register holds, of types that are no floats.
_KINDS = {"i32": SIGNED, "u32": UNSIGNED}


def kind_of(values: Array) -> str:
    return {"i": SIGNED, "u": UNSIGNED}.get(values.dtype.kind, FLOATS)


def _check_kind(agent: Agent, op: Operation, half: Half, slots: slice, kind: str) -> None:
    """Registers were written, and hold what an operation takes them for."""
    for slot in range(slots.start, slots.stop):
        held = half.kinds[slot]
        if held is None:
            raise never_written(slot, agent, op)
        if (held == FLOATS) != (kind == FLOATS) and agent.world.values:
            raise hazard("register-of-other-type", f"register {slot} holds {held}, and is taken for {kind}", agent, op)
