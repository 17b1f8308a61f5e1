"""Mistakes planted by rule in what brings order into schedules: does the executor of schedules see them?

`python -m tests.cuda.schedule_mutants` plants each mistake in each kernel of `KERNELS`, runs it, and prints what was
caught and each mutant that was not. A mutant is an edit of a clone of the kernel: an operation that synchronises is
left out, repeated, moved past its neighbour or given another number, or changes places with one of another role; rings
lose a stage. One that still is a schedule in order, which only waits for more or for the same, is none of the mistakes:
`Mutant.harmless` is the reason, where the rule knows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntegerAttr, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.exceptions import VerifyException

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.errors import CompilerBug
from tilewright.primitives import ArrayType
from tilewright.semantics.scheduled import run_call

Tensor = np.ndarray[Any, Any]
Edit = Callable[[Operation], None]

SYNCHRONISES = (
    scheduled.BarrierOp,
    scheduled.CommitOp,
    scheduled.WaitOp,
    scheduled.FenceOp,
    scheduled.ArriveOp,
    scheduled.ExpectOp,
    scheduled.AwaitOp,
    scheduled.MmaWaitOp,
)
# Said twice, these say nothing more.
_IDEMPOTENT = (scheduled.BarrierOp, scheduled.WaitOp, scheduled.FenceOp, scheduled.AwaitOp, scheduled.MmaWaitOp)
_COUNTS_COPIES = (scheduled.CopyOp, scheduled.CommitOp, scheduled.WaitOp)
_USES_BARRIERS = (scheduled.ArriveOp, scheduled.ExpectOp, scheduled.AwaitOp, scheduled.TensorCopyOp)
_SWAPPED = (scheduled.ArriveOp, scheduled.ExpectOp, scheduled.AwaitOp)


@dataclass(frozen=True)
class Mutant:
    """An edit of operation number `number` of a kernel, in the order of the text."""

    rule: str
    number: int
    edit: Edit
    harmless: str = ""


@dataclass(frozen=True)
class Subject:
    """A kernel and what it is called with."""

    name: str
    kernel: tile.KernelOp
    arrays: Sequence[Tensor]

    def run(self, kernel: tile.KernelOp, seed: int) -> list[Tensor]:
        return run_call(kernel, self.arrays, seed)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: why it was caught, or empty."""

    mutant: Mutant
    op: str
    caught: str


# ---- the rules ------------------------------------------------------------------------------------------------------


def mutants_of(kernel: tile.KernelOp) -> Iterator[Mutant]:
    """All mutants of a kernel."""
    ops = list(kernel.walk())
    for number, op in enumerate(ops):
        for mutant in _of_operation(op, number):
            yield mutant
    yield from _exchanged(ops)


def _of_operation(op: Operation, number: int) -> Iterator[Mutant]:
    if isinstance(op, SYNCHRONISES):
        yield Mutant("left out", number, _leave_out)
        yield Mutant("repeated", number, _repeat, _why_repeating_is_harmless(op))
        if (other := _neighbour(op, forwards=True)) is not None:
            yield Mutant("moved down", number, lambda each: _move(each, forwards=True), _why_harmless(op, other, True))
        if (other := _neighbour(op, forwards=False)) is not None:
            yield Mutant("moved up", number, lambda each: _move(each, forwards=False), _why_harmless(op, other, False))
    for rule, edit, harmless in _numbers(op):
        yield Mutant(rule, number, edit, harmless)


def _numbers(op: Operation) -> Iterator[tuple[str, Edit, str]]:
    """Other numbers in an operation."""
    match op:
        case scheduled.BarrierOp():
            narrower = {scheduled.EVERY_ROLE: scheduled.BLOCK, scheduled.BLOCK: scheduled.WARP}.get(op.scope.data)
            if narrower:
                yield f"of a {narrower}", lambda each: _put(each, "scope", StringAttr(narrower)), ""
        case scheduled.WaitOp() | scheduled.MmaWaitOp():
            yield "one more pending", _added("pending", 1), ""
            if op.pending.value.data:
                yield "one fewer pending", _added("pending", -1), "waits for more"
        case scheduled.CopyOp() if op.trips is not None:
            yield "a trip too few", _added("trips", -1), ""
            yield "a trip too many", _added("trips", 1), ""
        case scheduled.ExpectOp():
            for bytes in (1, -1, int(op.bytes.value.data), -(int(op.bytes.value.data) // 2)):
                yield f"{bytes} bytes more", _added("bytes", bytes), ""
        case scheduled.MbarrierOp():
            yield "one arrival more", _added("arrivals", 1), ""
            if op.arrivals.value.data > 1:
                yield "one arrival fewer", _added("arrivals", -1), ""
            if op.count.value.data > 1:
                yield "one barrier fewer", _with_a_barrier_fewer, ""
                yield "the last barrier is the first", _share_a_barrier, ""
        case scheduled.AllocOp() if op.stages is not None:
            yield "the last stage is the first", _share_a_stage, ""
            if op.count > 2:
                yield "one stage fewer", _added("stages", -1), ""
        case _:
            pass
    if isinstance(op, scheduled.AwaitOp):
        for phases in (1, -1):
            yield f"phase {phases:+}", lambda each, by=phases: _shift(each, "phase", by), ""
    if isinstance(op, scheduled.ArriveOp) and op.trip is not None:
        for trips in (1, -1):
            yield f"trip {trips:+}", lambda each, by=trips: _shift(each, "trip", by), ""
    if isinstance(op, _USES_BARRIERS):
        count = _count(op)
        if count > 1:
            yield "the next barrier", lambda each: _shift(each, "number", 1, count), ""
        others = [each for each in _barriers(op) if each is not op.mbarrier.owner]
        for other in range(len(others)):
            yield f"other barriers {other}", lambda each, at=other: _take_others(each, at), ""


def _exchanged(ops: Sequence[Operation]) -> Iterator[Mutant]:
    """Operations of two roles that change places."""
    for number, op in enumerate(ops):
        for later, other in enumerate(ops):
            apart = later - number
            if apart > 0 and all(isinstance(each, _SWAPPED) for each in (op, other)) and _role(op) is not _role(other):
                yield Mutant(f"changes places with {other.name}", number, lambda each, by=apart: _exchange(each, by))


# ---- mutants that are in order --------------------------------------------------------------------------------------


def _why_repeating_is_harmless(op: Operation) -> str:
    if isinstance(op, _IDEMPOTENT):
        return "says the same again"
    # Groups without copies are newer than those with copies that they follow.
    return "waits for more" if isinstance(op, scheduled.CommitOp) else ""


def _why_harmless(op: Operation, other: Operation, forwards: bool) -> str:
    """Why `op` may be moved past `other`."""
    for moved, passed, down in ((op, other, forwards), (other, op, not forwards)):
        if isinstance(moved, scheduled.CommitOp) and not isinstance(passed, _COUNTS_COPIES):
            return "" if any(isinstance(each, _COUNTS_COPIES) for each in passed.walk()) else "the same groups"
        if isinstance(moved, scheduled.CommitOp) and isinstance(passed, scheduled.CopyOp) and down:
            return "waits for more"
    return ""


# ---- edits ----------------------------------------------------------------------------------------------------------


def _leave_out(op: Operation) -> None:
    if isinstance(op, scheduled.MmaWaitOp):
        op.result.replace_all_uses_with(op.accumulator)
    op.detach()
    op.erase()


def _repeat(op: Operation) -> None:
    block = op.parent_block()
    assert block is not None
    if not isinstance(op, scheduled.MmaWaitOp):
        block.insert_op_after(op.clone(), op)
        return
    before = op.clone()
    block.insert_op_before(before, op)
    op.operands[0] = before.result


def _move(op: Operation, forwards: bool) -> None:
    other = _neighbour(op, forwards)
    block = op.parent_block()
    assert other is not None
    assert block is not None
    op.detach()
    if forwards:
        block.insert_op_after(op, other)
    else:
        block.insert_op_before(op, other)


def _neighbour(op: Operation, forwards: bool) -> Operation | None:
    """The next operation that touches memory or synchronises; None where there is none, or values are in the way."""
    other = op.next_op if forwards else op.prev_op
    while other is not None and not _matters(other):
        if _needs(other, op) or _needs(op, other):
            return None
        other = other.next_op if forwards else other.prev_op
    if other is None or _needs(other, op) or _needs(op, other):
        return None
    return other


def _matters(op: Operation) -> bool:
    inner = [each for each in op.walk() if not isinstance(each, tile.YieldOp | scheduled.EndOp)]
    return any(
        isinstance(each, (*SYNCHRONISES, *_USES_BARRIERS, scheduled.CopyOp, scheduled.MmaOp, scheduled.MbarrierOp))
        or any(_is_of_a_block(operand) for operand in each.operands if isinstance(each, tile.LoadOp | tile.StoreOp))
        for each in inner
    )


def _is_of_a_block(value: SSAValue) -> bool:
    return isinstance(value.type, tile.RefType) and value.type.space.data == scheduled.BLOCK


def _needs(user: Operation, op: Operation) -> bool:
    results = list(op.results)
    return any(operand in results for each in user.walk() for operand in each.operands)


def _put(op: Operation, name: str, attribute: Any) -> None:
    op.properties[name] = attribute


def _added(name: str, by: int) -> Edit:
    def edit(op: Operation) -> None:
        given = op.properties[name]
        assert isinstance(given, IntegerAttr)
        op.properties[name] = IntegerAttr(given.value.data + by, IndexType())

    return edit


def _shift(op: Operation, name: str, by: int, modulus: int | None = None) -> None:
    map = _map(op, name)
    (result,) = map.results
    shifted = result + by
    _put_map(op, name, map, shifted if modulus is None else shifted % modulus)


def _map(op: Operation, name: str) -> AffineMap:
    given = op.properties[name]
    assert isinstance(given, AffineMapAttr)
    return given.data


def _put_map(op: Operation, name: str, map: AffineMap, result: AffineExpr) -> None:
    op.properties[name] = AffineMapAttr(AffineMap(map.num_dims, map.num_symbols, (result,)))


def _with_a_barrier_fewer(op: Operation) -> None:
    assert isinstance(op, scheduled.MbarrierOp)
    count, block = int(op.count.value.data) - 1, op.parent_block()
    assert block is not None
    attributes = {"count": count, "arrivals": int(op.arrivals.value.data)}
    fewer = scheduled.MbarrierOp.make([], attributes, [tile.ref(ArrayType((count,), dtypes.i64), scheduled.BLOCK)])
    block.insert_op_before(fewer, op)
    op.result.replace_all_uses_with(fewer.result)
    _leave_out(op)


def _share_a_barrier(op: Operation) -> None:
    assert isinstance(op, scheduled.MbarrierOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "number", int(op.count.value.data) - 1)


def _share_a_stage(op: Operation) -> None:
    """All stages are numbered as before, but the last has the first's place."""
    assert isinstance(op, scheduled.AllocOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "map", op.count - 1)


def _modulo(op: Operation, name: str, modulus: int) -> None:
    map = _map(op, name)
    (result,) = map.results
    _put_map(op, name, map, result % modulus)


def _take_others(op: Operation, at: int) -> None:
    others = [each for each in _barriers(op) if each is not op.operands[_barrier_operand(op)].owner]
    op.operands[_barrier_operand(op)] = others[at].result


def _barrier_operand(op: Operation) -> int:
    return 2 if isinstance(op, scheduled.TensorCopyOp) else 0


def _exchange(op: Operation, apart: int) -> None:
    """Each takes the other's place, and the trip of the loop there."""
    ops = list(_kernel(op).walk())
    other = ops[ops.index(op) + apart]
    for each, place in ((op, other), (other, op)):
        block = place.parent_block()
        assert block is not None
        new = each.clone()
        for number, operand in enumerate(new.operands):
            if not isinstance(operand.type, tile.RefType):
                new.operands[number] = block.args[0] if block.args else operand
        block.insert_op_before(new, place)
    for each in (op, other):
        _leave_out(each)


# ---- where an operation is ------------------------------------------------------------------------------------------


def _kernel(op: Operation) -> tile.KernelOp:
    around: Operation | None = op
    while not isinstance(around, tile.KernelOp):
        assert around is not None
        around = around.parent_op()
    return around


def _role(op: Operation) -> Operation | None:
    around = op.parent_op()
    while around is not None and not isinstance(around, scheduled.RoleOp):
        around = around.parent_op()
    return around


def _barriers(op: Operation) -> list[scheduled.MbarrierOp]:
    return [each for each in _kernel(op).walk() if isinstance(each, scheduled.MbarrierOp)]


def _count(op: Any) -> int:
    return int(op.mbarrier.owner.count.value.data)


# ---- judging --------------------------------------------------------------------------------------------------------


def judge(subject: Subject, mutant: Mutant, expected: Sequence[Tensor], seeds: Sequence[int]) -> Verdict:
    """Whether the executor sees a mutant: it complains, or the result is another one."""
    kernel = subject.kernel.clone()
    op = list(kernel.walk())[mutant.number]
    name = f"{op.name} {mutant.number}"
    try:
        mutant.edit(op)
        kernel.verify()
        for seed in seeds:
            got = subject.run(kernel, seed)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(got, expected, strict=True)):
                return Verdict(mutant, name, "another result")
    except (CompilerBug, VerifyException) as error:
        return Verdict(mutant, name, f"{type(error).__name__}: {error}")
    return Verdict(mutant, name, "")


def verdicts(subject: Subject, seeds: Sequence[int]) -> Iterator[Verdict]:
    """Those of all mutants of a kernel.

    Raises:
        AssertionError: the kernel itself does not give the same for all seeds.
    """
    expected = subject.run(subject.kernel, seeds[0])
    for seed in seeds[1:]:
        for got, wanted in zip(subject.run(subject.kernel, seed), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    for mutant in mutants_of(subject.kernel):
        yield judge(subject, mutant, expected, seeds)
