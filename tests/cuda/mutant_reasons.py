"""Why a mutant of a schedule is in order, where a rule knows it: each rule argues from what the operations mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TypeVar

from xdsl.ir import Block, Operation, SSAValue

from tests.cuda.mutant_edits import count_of, kernel_of, map_of, neighbour, region_of, role_of
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.passes.warps.copying_role import COPIES

# Said twice, these say nothing more.
_IDEMPOTENT = (
    *(scheduled.BarrierOp, scheduled.WaitOp, asynchronous.FenceOp, asynchronous.AwaitOp, scheduled.MmaWaitOp),
    tensor_memory.TensorFenceOp,
    asynchronous.StoreWaitOp,
    scheduled.SetRegistersOp,
)
FINDS_NOTHING = "no copy is under way"
SAID_LATER = "the same warps say it later"
_FENCED_AGAIN = "fenced again before the next product"
# An arrival tells what its warp has done. A copy that it has begun is none of that, but is told by its own barrier, and
# neither of the two waits.
_OF_OTHER_BARRIERS = "a copy that is begun is told by its own barrier only"
T = TypeVar("T", bound=Operation)
_WAITS = (asynchronous.AwaitOp, asynchronous.StoreWaitOp)
_COUNTS_COPIES = (scheduled.CopyOp, scheduled.CommitOp, scheduled.WaitOp)


def why_leaving_out_is_harmless(op: Operation) -> str:
    if _is_fenced_again(op):
        return _FENCED_AGAIN
    if isinstance(op, scheduled.SetRegistersOp) and _takes_more(op):
        return "goes on with the registers that it has"
    if is_said_later(op):
        return SAID_LATER
    return FINDS_NOTHING if finds_nothing(op) else ""


def why_repeating_is_harmless(op: Operation) -> str:
    if isinstance(op, _IDEMPOTENT):
        return "says the same again"
    # Groups without copies are newer than those with copies that they follow.
    return "waits for more" if isinstance(op, scheduled.CommitOp) else ""


def why_moving_is_harmless(op: Operation, other: Operation, forwards: bool) -> str:
    """Why `op` may be moved past `other`."""
    if finds_nothing(op) or finds_nothing(other):
        return FINDS_NOTHING
    if _is_fenced_again(op) or _is_fenced_again(other):
        return _FENCED_AGAIN
    if isinstance(op if forwards else other, tensor_memory.TensorFreeOp):
        return "given back later"
    if reason := _why_the_order_of_two_is_free(op, other, forwards):
        return reason
    for moved, passed, down in ((op, other, forwards), (other, op, not forwards)):
        if isinstance(moved, asynchronous.ArriveOp) and isinstance(passed, scheduled.BarrierOp | tile.StoreOp) and down:
            return "says later that a stage is empty"
        if isinstance(moved, tensor_memory.MmaCommitOp) and isinstance(passed, tile.StoreOp) and down:
            return "says later that products have been done"
        stores = any(isinstance(each, asynchronous.TensorStoreOp) for each in passed.walk())
        if isinstance(moved, asynchronous.StoreWaitOp) and not down and not stores:
            return "waits sooner"
        if isinstance(moved, scheduled.CommitOp) and not isinstance(passed, _COUNTS_COPIES):
            return "" if any(isinstance(each, _COUNTS_COPIES) for each in passed.walk()) else "the same groups"
        if isinstance(moved, scheduled.CommitOp) and isinstance(passed, scheduled.CopyOp) and down:
            return "waits for more"
    return ""


def _why_the_order_of_two_is_free(op: Operation, other: Operation, forwards: bool) -> str:
    kinds = {type(op), type(other)}
    if kinds == {asynchronous.ExpectOp, asynchronous.TensorCopyOp} and _barrier(op) is not _barrier(other):
        return _OF_OTHER_BARRIERS
    if kinds == {scheduled.WaitOp, scheduled.CopyOp}:
        return "the copy is in no group yet"
    if kinds == {scheduled.WaitOp, scheduled.BarrierOp} and _is_left_alone(op if forwards else other):
        return "nobody touches what it waits for"
    if kinds == {asynchronous.StoreWaitOp, scheduled.MmaWaitOp}:
        return "each waits for something else"
    if kinds == {asynchronous.ArriveOp, scheduled.MmaWaitOp} and _is_the_last_to_a_pair(op, other):
        return "behind the last trip nothing is copied again"
    if kinds == {asynchronous.ArriveOp, tensor_memory.TensorLoadOp} and _is_for_copies(op, other):
        return "a load from tensor memory reads no stage"
    if any(kinds == {wait, tensor_memory.TensorFenceOp} for wait in _WAITS) and _fences_before(op, other):
        return "a wait tells nobody of tensor memory"
    if kinds == {asynchronous.AwaitOp, tensor_memory.TensorPutOp} and _is_for_what_is_copied(op, other):
        return "nothing is copied to tensor memory"
    if kinds == {asynchronous.MbarrierOp, scheduled.BarrierOp} and _is_made_before_another(op, other):
        return "made before another barrier of those that use it"
    if kinds == {scheduled.BarrierOp} and _scopes(op, other) == {scheduled.EVERY_ROLE, scheduled.CLUSTER}:
        return "all come to both"
    return ""


def _one_of(kind: type[T], ops: Sequence[Operation]) -> T:
    return next(op for op in ops if isinstance(op, kind))


def _is_the_last_to_a_pair(*ops: Operation) -> bool:
    """Whether blocks that share what they copy say for the last time that they have read it."""
    arrives = _one_of(asynchronous.ArriveOp, ops)
    return arrives.everywhere and isinstance(arrives.parent_op(), scheduled.ParallelOp)


def _is_for_copies(*ops: Operation) -> bool:
    """Whether only a role that copies waits for an arrival."""
    users = [use.operation for use in _one_of(asynchronous.ArriveOp, ops).mbarrier.uses]
    roles = {role_of(each) for each in users if isinstance(each, asynchronous.AwaitOp)}
    return all(isinstance(role, scheduled.RoleOp) and role.role == COPIES for role in roles)


def _is_for_what_is_copied(*ops: Operation) -> bool:
    """Whether a wait is for copies alone."""
    users = [use.operation for use in _one_of(asynchronous.AwaitOp, ops).mbarrier.uses]
    return all(
        isinstance(each, asynchronous.AwaitOp | asynchronous.ExpectOp | asynchronous.TensorCopyOp) for each in users
    )


def _fences_before(*ops: Operation) -> bool:
    return _one_of(tensor_memory.TensorFenceOp, ops).side == tensor_memory.BEFORE


def _is_made_before_another(*ops: Operation) -> bool:
    """Whether barriers in memory are for no role, and a barrier of the block lies between that they do not pass and
    their first use."""
    made, barrier = _one_of(asynchronous.MbarrierOp, ops), _one_of(scheduled.BarrierOp, ops)
    users = [use.operation for use in made.result.uses]
    block = region_of(made).body.block
    if barrier.scope != scheduled.EVERY_ROLE or any(role_of(user) is not None for user in users):
        return False
    behind = list(block.ops)[max(map(block.get_operation_index, (made, barrier))) + 1 :]
    first = next(at for at, op in enumerate(behind) if any(each in users for each in op.walk()))
    return any(isinstance(op, scheduled.BarrierOp) and op.scope == scheduled.BLOCK for op in behind[:first])


def is_said_later(op: Operation) -> bool:
    """Whether what an operation waits for is told by what the next one waits for: the same warps arrive there later."""
    behind = op.next_op
    if not isinstance(op, asynchronous.AwaitOp) or not isinstance(behind, asynchronous.AwaitOp):
        return False
    users = [use.operation for use in op.mbarrier.uses]
    return op.mbarrier is behind.mbarrier and not any(isinstance(each, tensor_memory.MmaCommitOp) for each in users)


def _scopes(*ops: Operation) -> set[str]:
    return {op.scope for op in ops if isinstance(op, scheduled.BarrierOp)}


def _takes_more(op: scheduled.SetRegistersOp) -> bool:
    """Whether there are more registers then than at the beginning."""
    begin = region_of(op).registers
    return begin is not None and op.count > begin


def finds_nothing(op: Operation) -> bool:
    """Whether a wait is behind a loop whose waits leave only groups for trips that there are not, which are empty."""
    if not isinstance(op, scheduled.WaitOp):
        return False
    loop = neighbour(op, forwards=False)
    if not isinstance(loop, tile.ForOp) or loop.end is not None:
        return False
    inner = list(loop.body.block.ops)
    copies = [each for each in inner if isinstance(each, scheduled.CopyOp)]
    pending = [each.pending for each in inner if isinstance(each, scheduled.WaitOp)]
    commits = [each for each in inner if isinstance(each, scheduled.CommitOp)]
    return len(commits) == 1 and len(pending) == 1 and all(_ahead(each) > pending[0] for each in copies)


def _is_fenced_again(op: Operation) -> bool:
    """Whether behind a fence the next product of the block comes behind another one, and a barrier."""
    if not isinstance(op, asynchronous.FenceOp):
        return False
    kinds: list[type] = []
    behind = op.next_op
    while behind is not None and not isinstance(behind, scheduled.MmaOp | tile.ForOp):
        kinds.append(type(behind))
        behind = behind.next_op
    if not isinstance(behind, scheduled.MmaOp) or asynchronous.FenceOp not in kinds:
        return False
    return scheduled.BarrierOp in kinds[kinds.index(asynchronous.FenceOp) :]


def _is_left_alone(op: Operation) -> bool:
    """Whether behind an operation there is nothing in the memory of rings any longer."""
    kernel, behind = kernel_of(op), op.next_op
    rings = [each for each in kernel.walk() if isinstance(each, scheduled.AllocOp) and each.stages is not None]
    while behind is not None:
        for each in behind.walk():
            if isinstance(each, scheduled.StageOp | scheduled.CopyOp):
                return False
            if isinstance(each, scheduled.AllocOp) and any(_overlap(each, ring) for ring in rings):
                return False
        behind = behind.next_op
    return isinstance(op.parent_op(), scheduled.ParallelOp)


def _overlap(one: scheduled.AllocOp, other: scheduled.AllocOp) -> bool:
    if one.offset_bytes is None or other.offset_bytes is None:
        return True
    first, second = (each.offset_bytes for each in (one, other))
    return first < second + other.bytes and second < first + one.bytes


def _ahead(op: scheduled.CopyOp) -> int:
    """How many trips later what a trip copies is used; none where copies do not end with the trips."""
    return 0 if op.trip is None else op.trip.eval([], [0] * len(op.symbols))[0]


def is_awaited_behind(op: scheduled.CopyOp) -> bool:
    """Whether all copies of a loop are waited for behind it."""
    loop = op.parent_op()
    assert loop is not None
    following = neighbour(loop, forwards=True)
    return isinstance(following, scheduled.WaitOp) and not following.pending


# ---- mutants that are ordered no less -------------------------------------------------------------------------------


def why_moving_only_waits(op: Operation, other: Operation, forwards: bool) -> str:
    """Why all that was ordered still is when `op` is moved past `other`.

    Of two neighbours the second comes first then. What was behind both, or before both, still is. Only that the first
    was before the second is lost: nobody else sees that where the second waits, which touches no memory and tells
    nobody anything, and where one of the two sets registers, which may wait and is in nobody's way. For products waits
    count: it means others where one is begun between.
    """
    first, second = (op, other) if forwards else (other, op)
    if isinstance(first, scheduled.SetRegistersOp) or isinstance(second, scheduled.SetRegistersOp):
        return "its registers are nobody else's"
    begins = any(isinstance(each, scheduled.MmaOp) for each in first.walk())
    is_wait = isinstance(second, asynchronous.AwaitOp) or (isinstance(second, scheduled.MmaWaitOp) and not begins)
    return "waits sooner" if is_wait else ""


def why_the_next_only_waits(op: Operation) -> str:
    """Why a wait for the next barrier of several waits for no less: all arrivals are of the same warps, which come to
    one barrier after the other, so that who knows of the later arrival knows of the one before."""
    if not isinstance(op, asynchronous.AwaitOp) or op.symbols:
        return ""
    is_last = map_of(op, "number").eval([], [])[0] == count_of(op) - 1
    return "" if is_last or not _arrive_in_turn(_barrier(op)) else "waits for the arrival that follows"


def _arrive_in_turn(barriers: SSAValue) -> bool:
    """Whether one role arrives at barriers by turns, beginning with the first, and nothing else completes phases."""
    users = [use.operation for use in barriers.uses if not isinstance(use.operation, asynchronous.AwaitOp)]
    if not users or any(not isinstance(user, asynchronous.ArriveOp) or user.trip is not None for user in users):
        return False
    roles = {role_of(user) for user in users}
    if len(roles) > 1:
        return False
    (role,) = roles
    block = region_of(users[0]).body.block if role is None else role.regions[0].block
    numbers = list(_numbers_of_arrivals(block, barriers, {}))
    turns = cycle(range(count_of(users[0])))
    return None not in numbers and all(number == turn for number, turn in zip(numbers, turns, strict=False))


def _numbers_of_arrivals(block: Block, barriers: SSAValue, trips: Mapping[SSAValue, int]) -> Iterator[int | None]:
    """At which of some barriers the warps that run a block arrive, in order; None where that is not known."""
    for op in block.ops:
        match op:
            case asynchronous.ArriveOp() if op.mbarrier is barriers:
                symbols = [trips.get(symbol) for symbol in op.symbols]
                known = [symbol for symbol in symbols if symbol is not None]
                yield map_of(op, "number").eval([], known)[0] if len(known) == len(symbols) else None
            case tile.ForOp():
                body = op.body.block
                for trip in range(op.trips):
                    yield from _numbers_of_arrivals(body, barriers, {**trips, body.args[0]: trip})
                    if op.end is not None:
                        yield None
            case scheduled.RoleOp():
                pass
            case _ if any(isinstance(each, asynchronous.ArriveOp) and each.mbarrier is barriers for each in op.walk()):
                yield None
            case _:
                pass


def _barrier(op: Operation) -> SSAValue:
    assert isinstance(op, asynchronous.ExpectOp | asynchronous.AwaitOp | asynchronous.TensorCopyOp)
    return op.mbarrier
