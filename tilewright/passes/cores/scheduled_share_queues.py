"""Pop pages after their last use, and merge queues with disjoint lifetimes.

A core has few queues, and little memory for them. Pages are popped after the last operation that reads them. Two queues
between the same threads, of the same format and size, are merged if the last page of one is popped before the first
page of the other is pushed.

Before (wormhole):
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        %b = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.reserve(%b) {pages = 1 : index}
          cores.fetch(%x, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%b) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.wait(%b) {pages = 1 : index}
          cores.put(%out, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%b) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects import cores
from tilewright.dialects.rewriting import erase, in_block
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_rules import location_of


class ScheduledShareQueuesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-share-queues"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                # What a mover writes it still reads until a barrier: its pops stay where they are.
                if isinstance(op, cores.ThreadOp) and op.computes:
                    _give_back_early(op)
            for op in list(kernel.walk()):
                if isinstance(op, cores.ProgramOp):
                    _share(op)
                    _check_count(kernel.sym_name, op, unit.machine.core_grid)


def _give_back_early(thread: cores.ThreadOp) -> None:
    """Each pop comes after the last operation before it that has to do with its queue."""
    for op in list(thread.body.walk()):
        if not isinstance(op, cores.PopOp):
            continue
        last = op.prev_op
        while last is not None and not _uses(last, op.queue):
            last = last.prev_op
        block = op.parent_block()
        if last is not None and block is not None and last is not op.prev_op:
            op.detach()
            block.insert_op_after(op, last)


def _uses(op: Operation, queue: SSAValue) -> bool:
    return any(queue in inner.operands for inner in op.walk())


@dataclass(frozen=True)
class _Life:
    """The uses of a queue: the threads that fill and empty it, and in each thread the first and the last operation of
    the one block whose operations, or what is in them, are all that use it."""

    queue: cores.QueueOp
    ends: tuple[str, str]
    blocks: dict[str, tuple[Block, int, int]]


def _share(program: cores.ProgramOp) -> None:
    """Queues in the order of their first use; each takes the first of those before it that is free by then."""
    lives = [life for queue in program.queues if (life := _life_of(queue)) is not None]
    passes = [each for queue in program.queues if (each := _passed_on(queue)) is not None]
    kept: list[list[_Life]] = []
    for life in sorted(lives, key=_first):
        home = next((each for each in kept if all(_may_share(other, life, passes) for other in each)), None)
        if home is None:
            kept.append([life])
            continue
        passes += [_given_back(other, life) for other in home]
        home.append(life)
        _merge(home[0].queue, life.queue)


def _merge(kept: cores.QueueOp, other: cores.QueueOp) -> None:
    """Replace a queue by one of as many pages of the same format. It has no layout if theirs differ."""
    type = cores.queue_type(kept.result)
    if type != other.result.type:
        Rewriter.replace_value_with_new_type(kept.result, type.without_layout)
    other.result.replace_all_uses_with(kept.result)
    erase(other)


def _pages(queue: cores.QueueOp) -> tuple[str, int]:
    """The format and number of a queue's pages."""
    type = cores.queue_type(queue.result)
    return type.format.data, type.pages


@dataclass(frozen=True)
class _Passed:
    """An order of two threads: in each block, the last operation that one completes before the other continues, and the
    first operation of the other that waits for it."""

    ends: tuple[str, str]
    done: dict[Block, int]
    needed: dict[Block, int]


def _passed_on(queue: cores.QueueOp) -> _Passed | None:
    """How what empties a queue depends on what fills it; None where one thread does both, in its own order."""
    users = [use.operation for use in queue.result.uses]
    pushes = [op for op in users if isinstance(op, cores.PushOp)]
    waits = [op for op in users if isinstance(op, cores.WaitOp)]
    fills, empties = ({cores.thread_of(op).role for op in ops} for ops in (pushes, waits))
    if len(fills) != 1 or len(empties) != 1 or fills == empties:
        return None
    done: dict[Block, int] = {}
    needed: dict[Block, int] = {}
    for block, place in (each for op in pushes for each in _places(op)):
        done[block] = max(place, done.get(block, place))
    for block, place in (each for op in waits for each in _places(op)):
        needed[block] = min(place, needed.get(block, place))
    return _Passed((fills.pop(), empties.pop()), done, needed)


def _places(op: Operation) -> Iterator[tuple[Block, int]]:
    """The index of an operation, or of its ancestor, in each of the blocks around it."""
    inner: Operation | None = op
    while inner is not None and not isinstance(inner, cores.ThreadOp):
        block = inner.parent_block()
        if block is not None:
            yield block, block.get_operation_index(inner)
        inner = inner.parent_op()


def _given_back(first: _Life, second: _Life) -> _Passed:
    """The order that merging two queues adds: the thread that fills the second one waits until the pages of the first
    one are popped."""
    fills, empties = first.ends
    emptied, _, last = first.blocks[empties]
    filled, begins, _ = second.blocks[fills]
    return _Passed((empties, fills), {emptied: last}, {filled: begins})


def _first(life: _Life) -> int:
    return min(first for _, first, _ in life.blocks.values())


def _life_of(queue: cores.QueueOp) -> _Life | None:
    """The life of a queue that is empty whenever its block begins and ends; None for others, such as one that carries
    a tile from trip to trip of a loop."""
    by_role: dict[str, list[Operation]] = {}
    for use in queue.result.uses:
        by_role.setdefault(cores.thread_of(use.operation).role, []).append(use.operation)
    blocks: dict[str, tuple[Block, int, int]] = {}
    for role, users in by_role.items():
        steps = [user for user in users if isinstance(user, cores.QueueStepOp)]
        homes = {user.parent_block() for user in steps}
        block = next(iter(homes), None)
        if len(homes) != 1 or block is None or any(not _is_within(user, block) for user in users):
            return None
        order = {op: position for position, op in enumerate(block.ops)}
        places = [order[in_block(user, block)] for user in users]
        blocks[role] = block, min(places), max(places)
    steps = [use.operation for use in queue.result.uses if isinstance(use.operation, cores.QueueStepOp)]
    kinds = [type(step) for step in steps]
    once = all(kinds.count(kind) == 1 for kind in (cores.ReserveOp, cores.PushOp, cores.WaitOp, cores.PopOp))
    same = len({step.count for step in steps}) == 1
    if not once or not same:
        return None
    roles = [cores.thread_of(steps[kinds.index(kind)]).role for kind in (cores.PushOp, cores.PopOp)]
    return _Life(queue, (roles[0], roles[1]), blocks)


def _is_within(op: Operation, block: Block) -> bool:
    parent: Operation | None = op
    while parent is not None:
        if parent.parent_block() is block:
            return True
        parent = parent.parent_op()
    return False


def _may_share(first: _Life, second: _Life, passes: Sequence[_Passed]) -> bool:
    """Whether a queue's pages have all left before another one's come, in each of the same threads, and leave without
    what is done after these have come."""
    if _pages(first.queue) != _pages(second.queue) or first.ends != second.ends:
        return False
    counts = {
        step.count
        for life in (first, second)
        for use in life.queue.result.uses
        if isinstance(step := use.operation, cores.QueueStepOp)
    }
    if len(counts) != 1:
        return False
    if first.blocks.keys() != second.blocks.keys():
        return False
    for role, (block, _, last) in first.blocks.items():
        other, begins, _ = second.blocks[role]
        if other is not block or begins <= last:
            return False
    return not _waits_for_itself(first, second, passes)


def _waits_for_itself(first: _Life, second: _Life, passes: Sequence[_Passed]) -> bool:
    """Whether a queue's pages leave only after something that is done when there is room for another one's."""
    fills, empties = first.ends
    blocks = {role: block for role, (block, _, _) in first.blocks.items()}
    # From which place on each thread waits for room, or for a thread that does.
    held = {fills: second.blocks[fills][1]}
    changed = True
    while changed:
        changed = False
        for each in passes:
            by, to = each.ends
            if by not in blocks or to not in blocks:
                continue
            done, needed = each.done.get(blocks[by]), each.needed.get(blocks[to])
            if done is None or needed is None or by not in held or done < held[by]:
                continue
            if to not in held or needed < held[to]:
                held[to], changed = needed, True
    return empties in held and held[empties] < first.blocks[empties][2]


def _check_count(name: str, program: cores.ProgramOp, grid: CoreGrid) -> None:
    if len(program.queues) > grid.queues:
        error = UnsupportedOnTargetError(
            f"`{name}` needs {len(program.queues)} queues of each core, which has {grid.queues}",
            help="make several kernels of it",
        )
        error.location = location_of(program.queues[0])
        raise error
