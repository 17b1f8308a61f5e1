"""Mistakes planted by rule in what brings order into schedules: does the executor of schedules see them?

`python -m tests.cuda.schedule_mutants` plants each mistake in each kernel of `all_subjects`, runs it, and prints how
many were caught, and each mutant that was not with the reason why it is in order, if there is one. A mutant is an edit
of a clone of the kernel: an operation that synchronises is left out, repeated, moved past its neighbour or given
another number, or changes places with one of another role; rings lose a stage. One that still is a schedule in order is
none of the mistakes: `mutant_reasons` argues why.

`Mutant.harmless`: why it is in order. `Mutant.only_waits`: why it is ordered no less than the kernel is, so that it can
go wrong only where somebody waits for ever, or for a phase that a barrier cannot tell from another. Neither depends on
whose turn it is: agents wait for nothing but phases, which nobody takes back, and the executor asks the clocks whether
a phase can be taken for another. So such a mutant is in order if it runs through; where it has a race or another
result, the reason is wrong, and so is the verdict.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation
from xdsl.ir.affine.affine_expr import AffineConstantExpr
from xdsl.utils.exceptions import VerifyException

from tests.cuda.mutant_edits import (
    SYNCHRONISES,
    USES_BARRIERS,
    Edit,
    added,
    barriers_of,
    count_of,
    exchange,
    have_trips_alike,
    leave_out,
    move,
    neighbour,
    put,
    repeat,
    role_of,
    share_a_barrier,
    share_a_stage,
    shift,
    take_away,
    take_others,
    with_a_barrier_fewer,
)
from tests.cuda.mutant_reasons import (
    FINDS_NOTHING,
    SAID_LATER,
    finds_nothing,
    is_awaited_behind,
    is_said_later,
    why_leaving_out_is_harmless,
    why_moving_is_harmless,
    why_moving_only_waits,
    why_repeating_is_harmless,
    why_the_next_only_waits,
)
from tests.cuda.mutant_subjects import Subject, Tensor, all_subjects
from tests.emulators.ptx.errors import SharedRace, TensorMemoryFault
from tests.sampling import ALL
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.errors import CompilerBug
from tilewright.semantics.hazards import DeadlockError, PhaseError

_SWAPPED = (asynchronous.ArriveOp, asynchronous.ExpectOp, asynchronous.AwaitOp, tensor_memory.MmaCommitOp)
# PTX ISA, setmaxnreg.
_FEWEST_REGISTERS = 24
_NEXT, _ALONE = "the next barrier", "for its own block"
_NARROWER = {
    scheduled.CLUSTER: scheduled.EVERY_ROLE,
    scheduled.EVERY_ROLE: scheduled.BLOCK,
    scheduled.BLOCK: scheduled.WARP,
}


@dataclass(frozen=True)
class Mutant:
    """An edit of operation number `number` of a kernel, in the order of the text."""

    rule: str
    number: int
    edit: Edit
    harmless: str = ""
    only_waits: str = ""

    def operation(self, kernel: tile.KernelOp) -> Operation:
        """The one that is edited."""
        return list(kernel.walk())[self.number]

    def planted(self, kernel: tile.KernelOp) -> tile.KernelOp:
        """A clone with the mistake."""
        clone = kernel.clone()
        self.edit(self.operation(clone))
        return clone


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: why it was caught, or empty. `is_stuck`: because somebody waits for ever, or for a phase
    that the barrier does not tell from another."""

    mutant: Mutant
    op: str
    caught: str
    is_stuck: bool = False

    @property
    def in_order(self) -> str:
        """Why a mutant that was not caught is in order; empty where nobody knows."""
        return "" if self.caught else self.mutant.harmless or self.mutant.only_waits

    @property
    def is_missed(self) -> bool:
        return not self.caught and not self.in_order

    @property
    def is_wronged(self) -> bool:
        """Whether what is in order was taken for a mistake."""
        is_excused = self.mutant.only_waits and self.is_stuck
        return bool(self.caught and (self.mutant.harmless or self.mutant.only_waits) and not is_excused)


# ---- the rules ------------------------------------------------------------------------------------------------------


def mutants_of(kernel: tile.KernelOp) -> Iterator[Mutant]:
    """All mutants of a kernel."""
    ops = list(kernel.walk())
    for number, op in enumerate(ops):
        yield from _of_operation(op, number)
    yield from _exchanged(ops)


def _of_operation(op: Operation, number: int) -> Iterator[Mutant]:
    if isinstance(op, SYNCHRONISES):
        yield Mutant("left out", number, leave_out, why_leaving_out_is_harmless(op))
        yield Mutant("repeated", number, repeat, why_repeating_is_harmless(op))
        yield from _moved(op, number)
    for rule, edit, harmless in _numbers(op):
        only_waits = {_NEXT: why_the_next_only_waits(op), _ALONE: "each block brings all of it for itself"}
        said_later = SAID_LATER if is_said_later(op) else ""
        yield Mutant(rule, number, edit, harmless, only_waits.get(rule, "") or said_later)


def _moved(op: Operation, number: int) -> Iterator[Mutant]:
    for forwards, rule in ((True, "moved down"), (False, "moved up")):
        if (other := neighbour(op, forwards)) is not None:
            reasons = why_moving_is_harmless(op, other, forwards), why_moving_only_waits(op, other, forwards)
            yield Mutant(rule, number, lambda each, forwards=forwards: move(each, forwards), *reasons)


def _numbers(op: Operation) -> Iterator[tuple[str, Edit, str]]:
    """Other numbers in an operation: a rule, its edit and why it is harmless."""
    match op:
        case scheduled.BarrierOp():
            if narrower := _NARROWER.get(op.scope):
                yield f"of a {narrower}", lambda each: put(each, "scope", StringAttr(narrower)), ""
        case scheduled.WaitOp() | scheduled.MmaWaitOp():
            yield "one more pending", added("pending", 1), FINDS_NOTHING if finds_nothing(op) else ""
            if op.pending:
                yield "one fewer pending", added("pending", -1), "waits for more"
        case scheduled.CopyOp() if op.trips is not None:
            yield "a trip too few", added("trips", -1), ""
            unused = "waits for a copy that nobody uses" if is_awaited_behind(op) else ""
            yield "a trip too many", added("trips", 1), unused
        case scheduled.AllocOp() if op.stages is not None:
            yield "the last stage is the first", share_a_stage, ""
            if op.count > 2:
                yield "one stage fewer", added("stages", -1), ""
        case scheduled.SetRegistersOp():
            yield "8 registers more", added("count", 8), ""
            is_less = op.count > _FEWEST_REGISTERS
            yield "8 registers fewer", added("count", -8), "asks for less than there is" if is_less else ""
        case asynchronous.MbarrierOp():
            yield from ((rule, edit, "") for rule, edit in _numbers_of_barriers(op))
        case tensor_memory.TensorMmaOp():
            for by in (1, -1):
                yield f"adds {by:+}", lambda each, by=by: shift(each, "adds", by), _why_it_adds_as_before(op, by)
        case tensor_memory.TensorFenceOp():
            other = tensor_memory.BEFORE if op.side == tensor_memory.AFTER else tensor_memory.AFTER
            yield f"{other} instead", lambda each: put(each, "side", StringAttr(other)), ""
        case _ if isinstance(op, USES_BARRIERS):
            yield from ((rule, edit, "") for rule, edit in _numbers_at_barriers(op))
        case _:
            pass


def _why_it_adds_as_before(op: tensor_memory.TensorMmaOp, by: int) -> str:
    """Whether a product that always adds, or never, does so with another number."""
    (number,) = op.adds.results
    if not isinstance(number, AffineConstantExpr):
        return ""
    return "adds as before" if (number.value > 0) == (number.value + by > 0) else ""


def _numbers_of_barriers(op: asynchronous.MbarrierOp) -> Iterator[tuple[str, Edit]]:
    yield "one arrival more", added("arrivals", 1)
    if op.arrivals > 1:
        yield "one arrival fewer", added("arrivals", -1)
    if op.count > 1:
        yield "one barrier fewer", with_a_barrier_fewer
        yield "the last barrier is the first", share_a_barrier


def _numbers_at_barriers(
    op: asynchronous.ArriveOp
    | asynchronous.ExpectOp
    | asynchronous.AwaitOp
    | asynchronous.TensorCopyOp
    | tensor_memory.MmaCommitOp,
) -> Iterator[tuple[str, Edit]]:
    if "everywhere" in op.properties:
        yield "in its own block", lambda each: take_away(each, "everywhere")
    if "multicast" in op.properties:
        yield _ALONE, lambda each: take_away(each, "multicast")
    if isinstance(op, asynchronous.ExpectOp):
        for by in (1, -1, op.bytes, -(op.bytes // 2)):
            yield f"{by:+} bytes", added("bytes", by)
    shifted = {asynchronous.AwaitOp: "phase", asynchronous.ArriveOp: "trip"}.get(type(op))
    if shifted in op.properties:
        for by in (1, -1):
            yield f"{shifted} {by:+}", lambda each, by=by: shift(each, shifted, by)
    count = count_of(op)
    if count > 1:
        yield _NEXT, lambda each: shift(each, "number", 1, count)
    for at in range(len(barriers_of(op)) - 1):
        yield f"other barriers, {at}", lambda each, at=at: take_others(each, at)


def _exchanged(ops: Sequence[Operation]) -> Iterator[Mutant]:
    """Operations of two roles that change places, where they differ."""
    swapped = [(number, op) for number, op in enumerate(ops) if isinstance(op, _SWAPPED)]
    for (number, op), (later, other) in combinations(swapped, 2):
        same = (op.mbarrier, op.properties) == (other.mbarrier, other.properties)
        if role_of(op) is not role_of(other) and not same and have_trips_alike(op, other):
            apart = later - number
            yield Mutant(f"changes places with {other.name}", number, lambda each, by=apart: exchange(each, by))


# ---- judging --------------------------------------------------------------------------------------------------------


def judge(subject: Subject, mutant: Mutant, expected: Sequence[Tensor], seeds: Sequence[int]) -> Verdict:
    """Whether a mutant is seen: the executor complains, or has another result, or the emulator sees a race or a
    fault in tensor memory."""
    name = f"{mutant.operation(subject.kernel).name} {mutant.number}"
    try:
        kernel = mutant.planted(subject.kernel)
        kernel.verify()
        for seed in seeds:
            got = subject.run(kernel, seed)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(got, expected, strict=True)):
                return Verdict(mutant, name, "another result")
        if not mutant.harmless and subject.machine is not None:
            subject.emulate(kernel, subject.machine)
    except (CompilerBug, VerifyException, SharedRace, TensorMemoryFault) as error:
        is_stuck = isinstance(error, DeadlockError | PhaseError)
        return Verdict(mutant, name, f"{type(error).__name__}: {error}", is_stuck)
    return Verdict(mutant, name, "")


def verdicts(subject: Subject, seeds: Sequence[int], every: int = 1) -> Iterator[Verdict]:
    """The verdicts on every `every`-th mutant of a kernel; on all mutants if `TW_TEST_ALL` is set.

    Raises:
        AssertionError: the kernel itself does not give the same for all seeds.
    """
    expected = subject.run(subject.kernel, seeds[0])
    for seed in seeds[1:]:
        for got, wanted in zip(subject.run(subject.kernel, seed), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    step = 1 if ALL else every
    for mutant in itertools.islice(mutants_of(subject.kernel), 0, None, step):
        yield judge(subject, mutant, expected, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", nargs="+", default=["sm_80", "sm_90a"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="print what was caught and why, too")
    given = parser.parse_args()
    total = caught = in_order = 0
    for subject in all_subjects(given.chips):
        found = list(verdicts(subject, range(given.seeds)))
        missed = sum(each.is_missed for each in found)
        counts = len(found), sum(bool(each.caught) for each in found), sum(bool(each.in_order) for each in found)
        total, caught, in_order = (had + more for had, more in zip((total, caught, in_order), counts, strict=True))
        made, seen, fine = counts
        print(f"{subject.name}: {made} mutants, {seen} caught, {fine} in order, {missed} missed", flush=True)
        for each in found:
            if given.all or not each.caught or each.is_wronged:
                what = each.in_order or each.caught or "MISSED"
                print(f"    {each.op}, {each.mutant.rule}: {what}{' THOUGH IN ORDER' if each.is_wronged else ''}")
    print(f"{total} mutants, {caught} caught, {in_order} in order, {total - caught - in_order} missed")


if __name__ == "__main__":
    main()
