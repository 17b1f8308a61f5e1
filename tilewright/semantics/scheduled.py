"""The definition of the `scheduled` operations, and the interpreter of scheduled kernels.

Worker buffers are poisoned at the start of every point of a parallel region, so that a value carried from one point to
the next by accident shows; points run in a seeded random order, or in one that keeps that of the last dimension. The
roles of a block run concurrently in a seeded order, and what warps, copies and matmuls do to its buffers is checked:
`block_run.py`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation
from xdsl.ir.affine import AffineMap

from tilewright import ops
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, layout_text
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.semantics.hazards import HazardError
from tilewright.semantics.places import inside_of, named
from tilewright.semantics.tile import Interpreter as TileInterpreter
from tilewright.semantics.tile import Tensor, Values, evaluate_map, evaluate_number, load, poison
from tilewright.semantics.warps import products
from tilewright.semantics.warps.block_memory import Buffer, Ring, warps_of
from tilewright.semantics.warps.block_run import BlockPlan, BlockRun, cluster_of
from tilewright.semantics.warps.cluster import Cluster
from tilewright.semantics.warps.mbarriers import Mbarrier, Mbarriers


class Interpreter(TileInterpreter):
    """Runs scheduled kernels. Buffers are NumPy arrays indexed logically; layouts do not change what they hold.

    `shared_bytes`: how much memory a block may have; None for any.
    """

    def __init__(self, seed: int = 0, shared_bytes: int | None = None) -> None:
        self._random = random.Random(seed)
        self._shared_bytes = shared_bytes
        self._cluster: Cluster | None = None

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
        if isinstance(op, scheduled.ParallelOp):
            self._run_parallel(op, values)
            return []
        if isinstance(op, scheduled.NestOp):
            self.run_block(op.body.block, values)
            return []
        if isinstance(op, scheduled.RecordOp):
            return []  # what is recorded is a matter of the machine
        if isinstance(op, scheduled.TermsOp):
            return [_terms(op, values[op.source])]
        if isinstance(op, scheduled.DotOp):
            _run_dot(op, values)
            return []
        if isinstance(op, scheduled.ViewOp):
            return [np.ascontiguousarray(values[op.source]).view(tile.ref_type(op.result).dtype.numpy)]
        if isinstance(op, scheduled.AllocOp) and tile.ref_type(op.result).space.data != scheduled.BLOCK:
            type = tile.ref_type(op.result)
            return [poison(type.shape, type.dtype)]
        if self._cluster is not None:
            done = self._run_in_block(op, values, self._cluster.current)
            if done is not None:
                return done
        elif isinstance(op, scheduled.BarrierOp):
            return []
        return super().run_op(op, values)

    def _run_parallel(self, op: scheduled.ParallelOp, values: Values) -> None:
        plan = BlockPlan(op)
        if self._shared_bytes is not None and plan.memory.end_bytes > self._shared_bytes:
            raise HazardError(f"a block has {plan.memory.end_bytes} bytes of memory, of {self._shared_bytes}")
        points = list(itertools.product(*(range(n) for n in op.shape)))
        clusters = [points[first : first + plan.cluster] for first in range(0, len(points), plan.cluster)]
        self._random.shuffle(clusters)
        if op.in_order:
            clusters.sort(key=lambda together: together[0][-1])
        for together in clusters:
            inner = [values | dict(zip(op.body.block.args, point, strict=True)) for point in together]
            self._cluster = cluster_of(plan, self._random)
            self._cluster.run([partial(self.run_block, op.body.block, each) for each in inner])
        self._cluster = None

    # ---- in a block of warps ----------------------------------------------------------------------------------------

    def _run_in_block(self, op: Operation, values: Values, block: BlockRun) -> Sequence[Any] | None:
        """The results of an operation of a block; None for those that are defined for tiles."""
        products.check_uses(op, values, block)
        return self._run_of_block(op, values, block) if _is_of_block(type(op)) else None

    def _run_of_block(self, op: Operation, values: Values, block: BlockRun) -> Sequence[Any] | None:
        """Run an operation that blocks of warps may define."""
        if isinstance(op, scheduled.AllocOp):
            return [block.memory.buffer(op)]
        if isinstance(op, scheduled.StageOp):
            ring: Ring = values[op.ring]
            return [ring.stage(_number(op.map, op, values))]
        if isinstance(op, tile.LoadOp) and isinstance(values[op.source], Buffer):
            return [_load(op, values, block)]
        if isinstance(op, tile.StoreOp) and isinstance(values[op.destination], Buffer):
            _store(op, values, block)
            return []
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            block.arrays.touch(op, block.agent, [values[s] for s in op.symbols], named(op, values))
            return None
        if isinstance(op, scheduled.MmaOp):
            return [products.multiply(op, values, block)]
        if isinstance(op, scheduled.MmaWaitOp):
            return [products.wait(op, values, block)]
        if isinstance(op, asynchronous.MbarrierOp):
            return [block.make_mbarriers(op, named(op, values))]
        if isinstance(op, tensor_memory.TensorAllocOp):
            return [block.tensor_alloc(op, named(op, values))]
        if isinstance(op, tensor_memory.TensorStageOp):
            return [values[op.tensor].stage(_number(op.map, op, values))]
        if isinstance(op, tensor_memory.TensorPartOp):
            return [values[op.tensor].part(op)]
        if isinstance(op, tensor_memory.TensorLoadOp):
            return [values[op.source].load(block.agent, op, named(op, values))]
        if isinstance(op, scheduled.RoleOp):
            inner = dict(values)
            block.begin_role(op, lambda: self.run_block(op.body.block, inner))
            return []
        return [] if _run_order(op, values, block) else None


_DIALECTS_OF_BLOCKS = {each.__name__ for each in (scheduled, asynchronous, tensor_memory)}


@lru_cache(maxsize=1024)
def _is_of_block(kind: type[Operation]) -> bool:
    """Whether a block of warps defines operations of a kind: those of its own dialects, loads and stores."""
    return kind.__module__ in _DIALECTS_OF_BLOCKS or issubclass(kind, tile.LoadOp | tile.StoreOp)


def _run_order(op: Operation, values: Values, block: BlockRun) -> bool:
    """Copies, and what orders what threads do; false for other operations."""
    match op:
        case scheduled.BarrierOp():
            block.barrier(op.scope, named(op, values))
        case scheduled.CopyOp():
            _copy(op, values, block)
        case scheduled.CommitOp():
            block.memory.commit(block.agent)
        case scheduled.WaitOp():
            block.wait_for_copies(op.pending)
        case asynchronous.FenceOp():
            block.fence()
        case asynchronous.ArriveOp():
            _arrive(op, values, block)
        case asynchronous.ExpectOp():
            block.expect(_mbarrier(op, values), op.bytes, named(op, values))
        case asynchronous.AwaitOp():
            block.wait_for(_mbarrier(op, values), _number(op.phase, op, values), named(op, values))
        case asynchronous.TensorCopyOp():
            _tensor_copy(op, values, block)
        case asynchronous.TensorStoreOp():
            held = block.tensor_store(values[op.source], named(op, values))
            _write(values[op.destination], op.map, held, [values[s] for s in op.symbols])
        case asynchronous.StoreWaitOp():
            block.wait_for_stores()
        case scheduled.SetRegistersOp():
            block.set_registers(op.count, named(op, values))
        case _:
            return _run_on_tensor_memory(op, values, block)
    return True


def _run_on_tensor_memory(op: Operation, values: Values, block: BlockRun) -> bool:
    """Matmuls there, and what orders them; false for other operations."""
    match op:
        case tensor_memory.TensorMmaOp():
            products.multiply_to_tensor_memory(op, values, _number(op.adds, op, values) > 0, block)
        case tensor_memory.MmaCommitOp() if op.everywhere:
            block.mma_commit_everywhere(*_mbarrier_everywhere(op, values), named(op, values))
        case tensor_memory.MmaCommitOp():
            block.mma_commit(_mbarrier(op, values), named(op, values))
        case tensor_memory.TensorFenceOp():
            block.tensor_fence(op.side)
        case tensor_memory.TensorPutOp():
            values[op.destination].put(block.agent, op, values[op.value], named(op, values))
        case tensor_memory.TensorFreeOp():
            block.tensor_free(values[op.tensor], named(op, values))
        case _:
            return False
    return True


def _arrive(op: asynchronous.ArriveOp, values: Values, block: BlockRun) -> None:
    if op.trip is not None and _number(op.trip, op, values) < 0:
        return
    if not op.everywhere:
        block.arrive(_mbarrier(op, values), named(op, values))
    else:
        block.arrive_everywhere(*_mbarrier_everywhere(op, values), named(op, values))


def _tensor_copy(op: asynchronous.TensorCopyOp, values: Values, block: BlockRun) -> None:
    buffer, who = values[op.destination], named(op, values)
    brought = ops.cast(_brought(op, values), tile.ref_type(op.destination).dtype)
    if op.parts is None:
        block.tensor_copy(buffer, brought, _mbarrier(op, values), who)
    else:
        block.multicast(buffer, brought, op.parts[1], *_mbarrier_everywhere(op, values), who)


def _number(map: AffineMap, op: Any, values: Values) -> int:
    return evaluate_number(map, [values[s] for s in op.symbols])


_Everywhere = asynchronous.ArriveOp | asynchronous.TensorCopyOp | tensor_memory.MmaCommitOp


def _mbarrier(op: _Everywhere | asynchronous.ExpectOp | asynchronous.AwaitOp, values: Values) -> Mbarrier:
    barriers: Mbarriers = values[op.mbarrier]
    return barriers.number(_number(op.number, op, values))


def _mbarrier_everywhere(op: _Everywhere, values: Values) -> tuple[asynchronous.MbarrierOp, int]:
    """The mbarriers of each block of a cluster, and the index of one of them."""
    made = op.mbarrier.owner
    assert isinstance(made, asynchronous.MbarrierOp)
    return made, _number(op.number, op, values)


def _load(op: tile.LoadOp, values: Values, block: BlockRun) -> Tensor:
    buffer: Buffer = values[op.source]
    type = array_type(op.result)
    at, inside = inside_of(op.map, type.shape, buffer.places.shape, [values[s] for s in op.symbols])
    result = poison(type.shape, type.dtype)
    if op.fill is not None:
        result[...] = op.fill
    holders, _ = warps_of(layout_text(op.result), type.shape, block.agent.warps)
    result[inside] = block.memory.load(block.agent, buffer, at, holders[inside], named(op, values))
    return result


def _store(op: tile.StoreOp, values: Values, block: BlockRun) -> None:
    buffer: Buffer = values[op.destination]
    value: Tensor = values[op.value]
    at, inside = inside_of(op.map, value.shape, buffer.places.shape, [values[s] for s in op.symbols])
    _, storing = warps_of(layout_text(op.value), value.shape, block.agent.warps)
    block.memory.store(block.agent, buffer, at, value[inside], storing[inside], named(op, values))


def _copy(op: scheduled.CopyOp, values: Values, block: BlockRun) -> None:
    if op.trip is not None and op.trips is not None and _number(op.trip, op, values) >= op.trips:
        return
    buffer: Buffer = values[op.destination]
    _, copying = warps_of(op.layout, buffer.places.shape, block.agent.warps)
    block.memory.copy(block.agent, buffer, _brought(op, values), copying, named(op, values))


def _brought(op: scheduled.CopyOp | asynchronous.TensorCopyOp, values: Values) -> Tensor:
    """The window of an array that a copy copies, with zeros outside of it."""
    type = array_type(tile.ref_type(op.destination).array)
    return load(values[op.source], op.map, type, [values[s] for s in op.symbols], 0)


def _terms(op: scheduled.TermsOp, value: Tensor) -> Tensor:
    """The value and identities."""
    type = array_type(op.result)
    identity = ops.FUNCTIONS[op.fn].identity
    result = np.full(type.shape, 0 if identity is None else identity(type.dtype), value.dtype)
    result[0] = value
    return result


def _run_dot(op: scheduled.DotOp, values: Values) -> None:
    rows, columns, depth = op.shape
    left, right, acc = (values[o] for o in (op.left, op.right, op.accumulator))
    symbols = [values[s] for s in op.symbols]
    if op.depth_limit is not None and op.depth_map is not None:
        start = evaluate_number(op.depth_map, symbols)
        depth = max(0, min(depth, op.depth_limit - start))
    if op.is_split:
        window = _product_of_parts(op, left, right, symbols)
        if op.accumulator_map is not None:
            _write(acc, op.accumulator_map, window, symbols)
            return
        part = acc[: window.shape[0], : window.shape[1]]
        part[...] = part + window if op.accumulate else window
        return
    window = np.zeros((rows, columns), acc.dtype)
    a = _read(left, op.left_map, (rows, depth, *op.outer_steps), symbols)
    b = _read(right, op.right_map, (-(-depth // op.group), columns, *op.outer_steps), symbols)
    if op.outer_steps:
        a, b = a.reshape(rows, -1), np.moveaxis(b, 1, -1).reshape(-1, columns)
    if op.group > 1:
        words = np.ascontiguousarray(b.T).view(left.dtype)
        b = words.reshape(columns, -1)[:, :depth].T
    window[...] = np.matmul(a.astype(acc.dtype), b.astype(acc.dtype))
    if op.accumulator_map is not None:
        _write(acc, op.accumulator_map, window, symbols)
        return
    acc[:rows, :columns] = acc[:rows, :columns] + window if op.accumulate else window


def _product_of_parts(op: scheduled.DotOp, left: Tensor, right: Tensor, symbols: Sequence[Any]) -> Tensor:
    """The sum of the matmuls of two parts that count, each part being the upper half of an f32; of the columns, those
    whose panels are there."""
    rows, columns, depth = op.shape
    words, (count, scale) = right.shape[-2], op.parts_and_scale
    steps = depth // (2 * words)
    first = int(evaluate_map(op.right_map, (1, 1), symbols)[-2].item())
    panels = min(-(-columns // op.micro_tile[1]), right.shape[-6] - first)
    if left.dtype == np.float32:
        numbers = _read(left, op.left_map, (rows, depth), symbols) * np.float32(2.0**scale)
        a = np.stack(_parts(numbers, count)).reshape(count, rows, steps, 2 * words)
    else:
        blocks = _blocks(left, op.left_map, (-(-rows // left.shape[-2]), steps), symbols)
        a = np.moveaxis(_upper_halves(blocks, -1), (2, 0, 3, 1), (0, 1, 2, 3))
        a = a.reshape(count, -1, steps, 2 * words)
    b = _blocks(right, op.right_map, (panels, steps), symbols)
    b = _upper_halves(np.moveaxis(b, 3, 4).reshape(*b.shape[:3], b.shape[4], op.micro_tile[1]), -2)
    total = np.zeros((a.shape[1], panels * op.micro_tile[1]), np.float32)
    for p, q in itertools.product(range(count), range(count)):
        if p + q < count:
            total += np.einsum("rsk,bskc->rbc", a[p], b[:, :, q]).reshape(total.shape)
    return total[:rows, :columns] * np.float32(2.0 ** (-2 * scale))


def _parts(numbers: Tensor, count: int) -> list[Tensor]:
    """Numbers of 8 bits whose sum is f32 ones: the first rounded to nearest, the others not rounded."""
    found: list[Tensor] = []
    for part in range(count):
        bits = numbers.view(np.uint32) + np.uint32(0x8000 if part == 0 else 0)
        found.append((bits & np.uint32(0xFFFF0000)).view(np.float32))
        numbers = numbers - found[-1]
    return found


def _upper_halves(words: Tensor, axis: int) -> Tensor:
    """The two numbers that each word holds the upper halves of, the second ones after the first ones."""
    return np.concatenate([words << np.uint32(16), words & np.uint32(0xFFFF0000)], axis=axis).view(np.float32)


def _blocks(operand: Tensor, map: Any, shape: tuple[int, int], symbols: Sequence[Any]) -> Tensor:
    """The blocks of an operand in parts that a matmul reads."""
    coordinates = [np.broadcast_to(c, shape) for c in evaluate_map(map, shape, symbols)]
    return operand[tuple(coordinates)]


def _write(target: Tensor, map: Any, value: Tensor, symbols: Sequence[Any]) -> None:
    at, inside = inside_of(map, value.shape, target.shape, symbols)
    target[at] = value[inside]


def _read(source: Tensor, map: Any, shape: tuple[int, ...], symbols: Sequence[Any]) -> Tensor:
    at, inside = inside_of(map, shape, source.shape, symbols)
    result = np.zeros(shape, source.dtype)
    result[inside] = source[at]
    return result


def run_call(
    kernel: tile.KernelOp, inputs: Sequence[Tensor], seed: int = 0, shared_bytes: int | None = None
) -> list[Tensor]:
    """Run a scheduled kernel as `array.call` does, by blocks that have so many bytes of memory.

    Raises:
        HazardError: the parts of a block get in each other's way, or need more memory.
    """
    pending = iter(inputs)
    arrays: list[Tensor] = []
    results: list[Tensor] = []
    for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
        type = tile.ref_type(ref)
        given = poison(type.shape, type.dtype) if effect == tile.OUT else next(pending)
        array = given.copy() if effect == tile.INOUT else given
        arrays.append(array)
        if effect != tile.IN:
            results.append(array)
    Interpreter(seed, shared_bytes).run_scheduled(kernel, arrays)
    return results
