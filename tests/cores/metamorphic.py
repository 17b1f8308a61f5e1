"""Other forms of a program that have to give the same: deeper queues, one mover, and other numbers beyond arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation
from xdsl.rewriter import Rewriter

from tilewright.dialects import cores, tile
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, run_program

Tensor = np.ndarray[Any, Any]
MACHINE = load("wormhole")


def run_bits(
    kernel: tile.KernelOp, inputs: Sequence[Tensor], seed: int = 0, padding: float | None = None
) -> list[Tensor]:
    """The results of a kernel, as bytes, with some number beyond its arguments, or there with what shows."""
    pending = iter(inputs)
    arrays: list[DeviceArray] = []
    for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
        type = tile.ref_type(ref)
        by_rows = cores.is_by_rows(ref)
        if effect == tile.OUT:
            arrays.append(DeviceArray.undefined(type.shape, type.dtype, by_rows=by_rows))
        else:
            arrays.append(DeviceArray.from_numpy(next(pending), padding=padding, by_rows=by_rows))
    run_program(kernel, arrays, MACHINE, seed=seed)
    found = zip(arrays, kernel.effects, strict=True)
    return [np.ascontiguousarray(each.to_numpy()).view(np.uint8) for each, effect in found if effect != tile.IN]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def depends_on_padding(kernel: tile.KernelOp, inputs: Sequence[Tensor]) -> bool:
    """Whether what is beyond the edges of an argument shows in a result."""
    poisoned = run_bits(kernel, inputs)
    return not all(same(poisoned, run_bits(kernel, inputs, padding=padding)) for padding in (0.0, 3.0, -1e30))


def with_depth(kernel: tile.KernelOp, factor: int) -> tile.KernelOp:
    """All queues so many times as deep, one behind another in memory."""
    made = kernel.clone()
    for queue in [op for op in made.walk() if isinstance(op, cores.QueueOp)]:
        type = cores.queue_type(queue.result)
        queue.properties.pop("address_bytes", None)
        Rewriter.replace_value_with_new_type(queue.result, type.resized(factor * type.pages))
    return made


def with_one_mover(kernel: tile.KernelOp) -> tile.KernelOp:
    """The reader does what the writer did, too: behind its own, and trip by trip where both have a loop of as many."""
    made = kernel.clone()
    threads = {op.role: op for op in made.walk() if isinstance(op, cores.ThreadOp)}
    if {cores.READER, cores.WRITER} <= threads.keys():
        writer = threads[cores.WRITER]
        _merge(threads[cores.READER].body.block, writer.body.block)
        writer.detach()
        writer.erase()
    return made


def _merge(block: Block, other: Block) -> None:
    loop, other_loop = _only_loop(block), _only_loop(other)
    if loop is None or other_loop is None or _trips(loop) != _trips(other_loop):
        _append(block, _steps(other))
        return
    before = [*_steps(other)][: [*_steps(other)].index(other_loop)]
    behind = [*_steps(other)][len(before) + 1 :]
    for op in before:
        op.detach()
        block.insert_op_before(op, loop)
    other_loop.body.block.args[0].replace_all_uses_with(loop.body.block.args[0])
    _merge(loop.body.block, other_loop.body.block)
    _append(block, behind)


def _steps(block: Block) -> list[Operation]:
    return [op for op in block.ops if not isinstance(op, cores.EndOp | tile.YieldOp)]


def _append(block: Block, ops: Sequence[Operation]) -> None:
    end = block.last_op
    assert end is not None
    for op in ops:
        op.detach()
        block.insert_op_before(op, end)


def _only_loop(block: Block) -> tile.ForOp | None:
    loops = [op for op in block.ops if isinstance(op, tile.ForOp)]
    return loops[0] if len(loops) == 1 else None


def _trips(loop: tile.ForOp) -> tuple[object, ...]:
    return loop.trips, loop.end, tuple(loop.symbols)


def forms_of(kernel: tile.KernelOp, depths: Sequence[int] = (1, 2, 3, 4)) -> Iterator[tuple[str, tile.KernelOp]]:
    """The program with deeper queues, with two movers and with one."""
    for depth in depths:
        deeper = with_depth(kernel, depth)
        yield f"depth {depth}", deeper
        yield f"depth {depth}, one mover", with_one_mover(deeper)
