"""The definition of the `scheduled` operations, and the interpreter of scheduled kernels.

Worker buffers are poisoned at the start of every point of a parallel region, so that a value carried from one point to
the next by accident shows; points run in a seeded random order, or in one that keeps that of the last dimension. What
the warps of a block do to its buffers is checked as well: `block_memory.py`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright import dtypes, ops
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, decode, layout_text
from tilewright.semantics.block_memory import BlockMemory, Buffer, Ring, warps_of
from tilewright.semantics.tile import Interpreter as TileInterpreter
from tilewright.semantics.tile import Tensor, Values, dot, evaluate_map, load, poison


class Interpreter(TileInterpreter):
    """Runs scheduled kernels. Buffers are NumPy arrays indexed logically; layouts do not change what they hold."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._memory = BlockMemory()
        self._warps = 1

    def run_scheduled(self, kernel: tile.KernelOp, arrays: Sequence[Tensor]) -> None:
        """Run a scheduled kernel on its refs, written in place."""
        values: Values = dict(zip(kernel.refs, arrays, strict=True))
        self.run_block(kernel.body.block, values)

    def run_block(self, block: Block, values: Values) -> list[Any]:
        if isinstance(block.last_op, scheduled.EndOp):
            for op in block.ops:
                if not isinstance(op, scheduled.EndOp):
                    with np.errstate(all="ignore"):
                        values.update(zip(op.results, self.run_op(op, values), strict=True))
            return []
        return super().run_block(block, values)

    def run_op(self, op: Operation, values: Values) -> Sequence[Any]:
        if isinstance(op, scheduled.AllocOp):
            type = tile.ref_type(op.result)
            return [self._memory.buffer(op) if type.space.data == scheduled.BLOCK else poison(type.shape, type.dtype)]
        if isinstance(op, scheduled.StageOp):
            (number,) = evaluate_map(op.map.data, (), [values[s] for s in op.symbols])
            ring: Ring = values[op.ring]
            return [ring.stage(int(number))]
        if isinstance(op, tile.LoadOp) and isinstance(values[op.source], Buffer):
            return [self._load(op, values)]
        if isinstance(op, tile.StoreOp) and isinstance(values[op.destination], Buffer):
            self._store(op, values)
            return []
        if isinstance(op, scheduled.CopyOp | scheduled.CommitOp | scheduled.WaitOp):
            self._run_copies(op, values)
            return []
        if isinstance(op, scheduled.ParallelOp):
            self._run_parallel(op, values)
            return []
        if isinstance(op, scheduled.NestOp):
            self.run_block(op.body.block, values)
            return []
        if isinstance(op, scheduled.BarrierOp):
            if op.scope.data != scheduled.WARP:  # warps are not taken apart
                self._memory.barrier()
            return []
        if isinstance(op, scheduled.TermsOp):
            return [_terms(op, values[op.source])]
        if isinstance(op, scheduled.MmaOp):
            return [self._mma(op, values)]
        if isinstance(op, scheduled.DotOp):
            _run_dot(op, values)
            return []
        return super().run_op(op, values)

    def _run_parallel(self, op: scheduled.ParallelOp, values: Values) -> None:
        points = list(itertools.product(*(range(n) for n in op.shape)))
        self._random.shuffle(points)
        if op.in_order is not None:
            points.sort(key=lambda point: point[-1])
        self._warps = 1 if op.warps is None else int(op.warps.value.data)
        for point in points:
            inner = values | dict(zip(op.body.block.args, point, strict=True))
            self._memory = BlockMemory()
            self.run_block(op.body.block, inner)
            self._memory.end()

    # ---- buffers of a block -----------------------------------------------------------------------------------------

    def _load(self, op: tile.LoadOp, values: Values) -> Tensor:
        buffer: Buffer = values[op.source]
        type = array_type(op.result)
        at, inside = _places(op.map.data, type.shape, buffer, [values[s] for s in op.symbols])
        result = poison(type.shape, type.dtype)
        if op.fill is not None:
            result[...] = decode(op.fill)
        holders, _ = warps_of(layout_text(op.result), type.shape, self._warps)
        result[inside] = self._memory.load(buffer, at, holders[inside], named(op, values))
        return result

    def _store(self, op: tile.StoreOp, values: Values) -> None:
        buffer: Buffer = values[op.destination]
        value: Tensor = values[op.value]
        at, inside = _places(op.map.data, value.shape, buffer, [values[s] for s in op.symbols])
        _, storing = warps_of(layout_text(op.value), value.shape, self._warps)
        self._memory.store(buffer, at, value[inside], storing[inside], named(op, values))

    def _mma(self, op: scheduled.MmaOp, values: Values) -> Tensor:
        """Operands in buffers are read by the warps that hold the fragment, or else by any."""

        def operand(value: Tensor | Buffer, fragment: str) -> Tensor:
            if not isinstance(value, Buffer):
                return value
            shape: tuple[int, ...] = value.places.shape
            holders, _ = warps_of(fragment, shape, self._warps)
            return self._memory.load(value, tuple(np.indices(shape)), holders, named(op, values))

        left, right = (
            _rounded(o, operand(values[o], fragment))
            for o, fragment in zip((op.left, op.right), op.fragments, strict=True)
        )
        return dot(left, right, values[op.accumulator])

    def _run_copies(self, op: Operation, values: Values) -> None:
        if isinstance(op, scheduled.CommitOp):
            self._memory.commit()
        elif isinstance(op, scheduled.WaitOp):
            self._memory.wait(int(op.pending.value.data))
        elif isinstance(op, scheduled.CopyOp):
            symbols = [values[s] for s in op.symbols]
            if op.trip is not None and op.trips is not None:
                (trip,) = evaluate_map(op.trip.data, (), symbols)
                if int(trip) >= int(op.trips.value.data):
                    return
            buffer: Buffer = values[op.destination]
            type = array_type(tile.ref_type(op.destination).array)
            _, copying = warps_of(op.layout.data, type.shape, self._warps)
            brought = load(values[op.source], op.map.data, type, symbols, 0)
            self._memory.copy(buffer, brought, copying, named(op, values))


def named(op: Operation, values: Values) -> str:
    """An operation, and the trip of the loops around it."""
    trips: list[str] = []
    around = op.parent_op()
    while around is not None:
        if isinstance(around, tile.ForOp):
            trips.insert(0, str(values[around.body.block.args[0]]))
        around = around.parent_op()
    return f"`{op.name}`" + (f" of trip {', '.join(trips)}" if trips else "")


def _places(
    map: AffineMap, shape: Sequence[int], buffer: Buffer, symbols: Sequence[Any]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The coordinates in a buffer of the elements of a tile that are in it, and which they are."""
    coordinates = evaluate_map(map, shape, symbols)
    inside = np.ones(tuple(shape), bool)
    for coordinate, size in zip(coordinates, buffer.places.shape, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    return tuple(coordinate[inside] for coordinate in coordinates), inside


def _rounded(operand: SSAValue, value: Tensor) -> Tensor:
    """An operand as a product multiplies it."""
    type = array_type(operand.type.array if isinstance(operand.type, tile.RefType) else operand)
    return ops.cast(value, type.dtype) if type.dtype == dtypes.tf32 else value


def _terms(op: scheduled.TermsOp, value: Tensor) -> Tensor:
    """The value and identities."""
    type = array_type(op.result)
    identity = ops.FUNCTIONS[op.fn.data].identity
    result = np.full(type.shape, 0 if identity is None else identity(type.dtype), value.dtype)
    result[0] = value
    return result


def _run_dot(op: scheduled.DotOp, values: Values) -> None:
    rows, columns, depth = op.shape
    left, right, acc = (values[o] for o in (op.left, op.right, op.accumulator))
    symbols = [values[s] for s in op.symbols]
    if op.depth_limit is not None and op.depth_map is not None:
        (start,) = evaluate_map(op.depth_map.data, (), symbols)
        depth = max(0, min(depth, int(op.depth_limit.value.data) - int(start)))
    window = np.zeros((rows, columns), acc.dtype)
    a = _read(left, op.left_map.data, (rows, depth), symbols)
    b = _read(right, op.right_map.data, (depth // op.group, columns), symbols)
    if op.group > 1:
        words = np.ascontiguousarray(b.T).view(left.dtype)
        b = words.reshape(columns, depth).T
    window[...] = np.matmul(a.astype(acc.dtype), b.astype(acc.dtype))
    if op.accumulator_map is not None:
        _write(acc, op.accumulator_map.data, window, symbols)
        return
    acc[:rows, :columns] = acc[:rows, :columns] + window if op.accumulate.value.data else window


def _write(target: Tensor, map: Any, value: Tensor, symbols: Sequence[Any]) -> None:
    coordinates = [np.broadcast_to(c, value.shape) for c in evaluate_map(map, value.shape, symbols)]
    inside = np.ones(value.shape, bool)
    for coordinate, size in zip(coordinates, target.shape, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    target[tuple(c[inside] for c in coordinates)] = value[inside]


def _read(source: Tensor, map: Any, shape: tuple[int, ...], symbols: Sequence[Any]) -> Tensor:
    coordinates = evaluate_map(map, shape, symbols)
    inside = np.ones(shape, bool)
    for coordinate, size in zip(coordinates, source.shape, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    result = np.zeros(shape, source.dtype)
    result[inside] = source[tuple(c[inside] for c in coordinates)]
    return result


def run_call(kernel: tile.KernelOp, inputs: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """Run a scheduled kernel as `array.call` does."""
    pending = iter(inputs)
    arrays: list[Tensor] = []
    results: list[Tensor] = []
    for ref, effect in zip(kernel.refs, kernel.effect_names, strict=True):
        type = tile.ref_type(ref)
        given = poison(type.shape, type.dtype) if effect == tile.OUT else next(pending)
        array = given.copy() if effect == tile.INOUT else given
        arrays.append(array)
        if effect != tile.IN:
            results.append(array)
    Interpreter(seed).run_scheduled(kernel, arrays)
    return results
