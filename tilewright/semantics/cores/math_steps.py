"""Steps of math: it reads the source registers, and computes in the tile registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tilewright import dtypes, ops
from tilewright.dialects import cores
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.functions import function_of
from tilewright.semantics.cores.registers import FLOATS, SIGNED, UNSIGNED, Half, Registers, never_written
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.steps import Step
from tilewright.semantics.cores.tile_formats import Array
from tilewright.semantics.cores.units import needed_states, needs_of, use
from tilewright.semantics.cores.unpack_steps import sources_of

UNITS = (cores.MATRIX, cores.VECTOR)
_BINARY: dict[str, Callable[..., Any]] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
# What an operation of the matrix unit does with registers: the half, which of them, and what was unpacked.
_Compute = Callable[[Agent, Half, slice, tuple[Array, ...]], None]


def registers_steps(op: cores.RegistersOp) -> list[Step]:
    """A step of the protocol between math and pack."""

    step = op.step

    def make(agent: Agent) -> Action:
        registers, checks = registers_of(agent), agent.world.checks
        match step:
            case cores.ACQUIRE:
                return partial(registers.acquire, agent, op)
            case cores.COMMIT:
                return partial(registers.commit, agent, op, checks)
            case cores.WAIT:
                return partial(registers.wait, agent, op)
            case _:
                return partial(registers.release, agent, op, checks)

    return [Step(make, waits=step in (cores.ACQUIRE, cores.WAIT))]


def registers_of(agent: Agent) -> Registers:
    assert agent.core.registers is not None
    return agent.core.registers


# ---- the matrix unit ------------------------------------------------------------------------------------------------


def copy_steps(op: cores.CopyOp | cores.TilizeOp) -> list[Step]:
    def compute(agent: Agent, half: Half, slots: slice, data: tuple[Array, ...]) -> None:
        half.write(slots, kind_of(data[0]), data[0])

    return _matrix_steps(op, len(op.slots), lambda agent: agent.world.grid.copy_cycles, compute)


def binary_steps(op: cores.BinaryOp) -> list[Step]:
    function, accumulates = _BINARY[op.fn], op.accumulates
    multiplies = op.fn == "multiply"

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
    adds, along = op.fn == "add", op.along

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

    return _matrix_steps(op, op.pages, lambda agent: agent.world.grid.reduce_cycles, compute)


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
    slots, states = slice(op.slots.start, op.slots.stop), needed_states(op, UNITS)

    def run(agent: Agent) -> Action:
        world, registers, sources = agent.world, registers_of(agent), sources_of(agent)
        needs, all_cycles = needs_of(agent, states), tiles * cycles(agent)

        def work() -> None:
            use(agent, op, needs)
            half = registers.of_math(agent, op, slots)
            data = sources.take(agent, all_cycles)
            world.tile_operations += tiles
            if data:
                compute(agent, half, slots, data)
            else:
                half.mark(slots, FLOATS)

        return work

    wait = Step(lambda agent: partial(sources_of(agent).await_operands, agent, op), waits=True)
    return [wait, Step(run, in_order=False)]


# ---- the vector unit ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Vector:
    """An operation of the vector unit: registers that it reads, as what, and that it writes, as what; what it costs for
    one tile; and what computes it in a half, made once for each half."""

    op: cores.RegisterOp
    reads: list[slice]
    kind: str
    writes: slice
    new_kind: str
    cost: str
    compute: Callable[[Half], Callable[[], None]]

    def steps(self) -> list[Step]:
        op, writes, new_kind, count = self.op, self.writes, self.new_kind, len(self.op.slots)
        states = needed_states(op, UNITS)
        all_reads = tuple(slot for each in self.reads for slot in range(each.start, each.stop))

        def make(agent: Agent) -> Action:
            world, registers, spend, needs = agent.world, registers_of(agent), agent.spend, needs_of(agent, states)
            cycles = world.grid.vector_tile_cycles(self.cost) * count
            computes = {half: self.compute(half) for half in registers.halves} if world.values else {}
            fits = all(each.stop <= registers.capacity for each in self.reads)

            def work() -> None:
                use(agent, op, needs)
                half = registers.of_math(agent, op, writes)
                if not fits or not half.holds(all_reads, self.kind):
                    self._check_reads(agent, registers)
                spend(cycles)
                world.tile_operations += count
                if computes:
                    computes[half]()
                half.mark(writes, new_kind)

            return work

        return [Step(make, in_order=False)]

    def _check_reads(self, agent: Agent, registers: Registers) -> None:
        for each in self.reads:
            half = registers.of_math(agent, self.op, each)
            _check_kind(agent, self.op, half, each, self.kind)


def map_steps(op: cores.MapOp) -> list[Step]:
    count, first = len(op.slots), op.slots.start
    name, dtype = op.fn, dtypes.by_name(op.dtype)
    function, kind = function_of(name, dtype), _KINDS.get(dtype.name, FLOATS)
    numbers = [np.asarray(number).astype(dtype.numpy) for number in op.numbers]
    given, slots = op.operand_numbers, slice(first, first + count)

    def compute(half: Half) -> Callable[[], None]:
        operands = [half.read(slice(n, n + count), kind) if n >= 0 else numbers[-1 - n] for n in given]
        target = half.read(slots, kind)
        return lambda: half.store(target, function(*operands), kind)

    reads = [slice(n, n + count) for n in given if n >= 0]
    cost = ops.MOVE if name == "fill" else ops.FUNCTIONS[name].cost
    return _Vector(op, reads, kind, slots, kind, cost, compute).steps()


def cast_steps(op: cores.CastOp) -> list[Step]:
    count, first, source = len(op.slots), op.slots.start, op.source
    slots, read = slice(first, first + count), slice(source, source + count)
    before, after = dtypes.by_name(op.from_type), dtypes.by_name(op.to_type)
    kind, new_kind = _KINDS.get(before.name, FLOATS), _KINDS.get(after.name, FLOATS)

    def compute(half: Half) -> Callable[[], None]:
        operand, target = half.read(read, kind), half.read(slots, new_kind)
        same_bits = half.read(read, new_kind)

        def taken() -> None:
            half.store(target, same_bits, new_kind)

        def cast() -> None:
            result = ops.cast(operand.astype(before.numpy), after)
            half.store(target, result.astype(np.float32) if new_kind == FLOATS else result, new_kind)

        return cast if not op.bits else taken

    return _Vector(op, [read], kind, slots, new_kind, ops.ALU, compute).steps()


def fold_steps(op: cores.FoldOp) -> list[Step]:
    """Each step of a tree over 32 places is one operation on half of them."""
    slots, along = slice(op.slots.start, op.slots.stop), op.along
    kind = _KINDS.get(op.dtype, FLOATS)
    function: Any = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[op.fn]

    def compute(half: Half) -> Callable[[], None]:
        held = half.read(slots, kind)
        faces = held.reshape(-1, 2, 2, FACE, FACE)
        blank = np.nan if kind == FLOATS else np.iinfo(held.dtype).max

        def fold() -> None:
            result = np.full_like(faces, blank)
            if along == cores.ROW:
                result[:, :, 0, :, 0] = function.reduce(function.reduce(faces, axis=4), axis=2)
            else:
                result[:, 0, :, 0, :] = function.reduce(function.reduce(faces, axis=3), axis=1)
            half.store(held, result.reshape(held.shape), kind)

        return fold

    return _Vector(op, [slots], kind, slots, kind, ops.ALU, compute).steps()


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
