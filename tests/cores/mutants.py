"""Mistakes planted by rule in programs for grids of cores: are they seen?

`python -m tests.cores.mutants` plants each mistake in each program of `SUBJECTS`, and prints how many were caught, by
what, and each mutant that was not with the reason why it is in order, if there is one. A mutant is an edit of a clone:
an operation that synchronises, configures or moves data is left out, repeated or moved past its neighbour; each number
of pages, of a semaphore, of trips and of registers, each depth and address of a queue and each result of a map is
another one.

A mutant is caught by the verifier of the dialect, by what is proven without a run, or by the run, which finds a hazard
or gives another result. `mutant_reasons` proves that one that is not caught is in order. Where that says so, nothing
else may say that it is wrong: one of the two is.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import AffineMapAttr, IntegerAttr
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from tests.cores.mutant_edits import (
    MOVES,
    SYNCHRONISES,
    Edit,
    added,
    at_address,
    flipped,
    leave_out,
    move,
    neighbour,
    of_pages,
    put,
    repeat,
    shifted,
    with_argument,
    with_text,
)
from tests.cores.mutant_reasons import Reasons
from tests.cores.mutant_subjects import MACHINE, SUBJECTS, Subject, Tensor, program_of
from tilewright.dialects import cores, tile
from tilewright.dialects.fields import decode, encode
from tilewright.semantics.cores import check_program
from tilewright.semantics.hazards import CoreHazard

VERIFIER, PROOF, RUN, RESULT = "verifier", "proof", "run", "another result"
_MOVER_COUNTS = (cores.MulticastOp, cores.SendOp)
_VALUES = (cores.SemaphoreSetOp, cores.SemaphoreIncrementOp, cores.SemaphoreWaitOp)


@dataclass(frozen=True)
class Mutant:
    """An edit of operation number `number` of a kernel, in the order of the text."""

    rule: str
    number: int
    edit: Edit

    def operation(self, kernel: tile.KernelOp) -> Operation:
        """The one that is edited."""
        return list(kernel.walk())[self.number]

    def planted(self, kernel: tile.KernelOp) -> tile.KernelOp:
        """A clone with the mistake."""
        clone = kernel.clone()
        self.edit(self.operation(clone))
        return clone


@dataclass(frozen=True)
class Pair:
    """Two mutants of two operations at once."""

    one: Mutant
    other: Mutant

    @property
    def rule(self) -> str:
        return f"{self.one.rule}, and {self.other.number}, {self.other.rule}"

    def operation(self, kernel: tile.KernelOp) -> Operation:
        return self.one.operation(kernel)

    def planted(self, kernel: tile.KernelOp) -> tile.KernelOp:
        clone = kernel.clone()
        first, second = self.one.operation(clone), self.other.operation(clone)
        self.one.edit(first)
        self.other.edit(second)
        return clone


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: what caught it and of which kind it is, or empty. `reason`: why it is in order."""

    mutant: Mutant | Pair
    op: str
    by: str = ""
    kind: str = ""
    reason: str = ""

    @property
    def is_missed(self) -> bool:
        return not self.by and not self.reason

    @property
    def is_wronged(self) -> bool:
        """Whether what is in order was taken for a mistake."""
        return bool(self.by and self.reason)


# ---- the rules ------------------------------------------------------------------------------------------------------


def mutants_of(kernel: tile.KernelOp) -> Iterator[Mutant]:
    """All mutants of a kernel."""
    program = program_of(kernel)
    for number, op in enumerate(kernel.walk()):
        for rule, edit in _edits(program, op):
            yield Mutant(rule, number, edit)


def _edits(program: cores.ProgramOp, op: Operation) -> Iterator[tuple[str, Edit]]:
    if isinstance(op, SYNCHRONISES + MOVES):
        yield "left out", leave_out
        yield "repeated", repeat
        yield from _moves(op)
    match op:
        case cores.QueueOp():
            yield from _places(program, op)
        case cores.SemaphoreOp():
            yield from _counts(op, "initial")
        case cores.ThreadOp() if op.noc is not None:
            yield "on the other network", _on_the_other_network
        case tile.ForOp():
            yield from _counts(op, "trips")
        case cores.QueueStepOp() | cores.ReduceOp():
            yield from _counts(op, "pages")
        case cores.ConfigureOp():
            yield from _states(program, op)
        case cores.ScanOp():
            yield "the other way round", flipped("reverse")
        case cores.SortOp():
            yield "the other way round", flipped("descending")
        case _ if isinstance(op, _MOVER_COUNTS):
            yield from _counts(op, "pages")
        case _ if isinstance(op, _VALUES):
            yield from _counts(op, "value")
        case _:
            pass
    yield from _registers(op)
    yield from _forms(op)


def _forms(op: Operation) -> Iterator[tuple[str, Edit]]:
    """Other results of maps, and other broadcasts."""
    for name, value in op.properties.items():
        if isinstance(value, AffineMapAttr):
            for i in range(len(value.data.results)):
                for by in (1, -1):
                    yield f"{name}[{i}] {by:+}", shifted(name, i, by)
    for other in cores.BROADCASTS if "broadcast" in op.properties else ():
        if other != decode(op.properties["broadcast"]):
            yield f"broadcast {other}", with_text("broadcast", other)


def _on_the_other_network(op: Operation) -> None:
    put(op, "noc", encode(1 - decode(op.properties["noc"])))


def _moves(op: Operation) -> Iterator[tuple[str, Edit]]:
    if neighbour(op, True) is not None:
        yield "moved down", lambda each: move(each, True)
    before = neighbour(op, False)
    # Where the one before is moved down, that is the same.
    if before is not None and not isinstance(before, SYNCHRONISES + MOVES):
        yield "moved up", lambda each: move(each, False)


def _counts(op: Operation, name: str) -> Iterator[tuple[str, Edit]]:
    value = op.properties[name]
    assert isinstance(value, IntegerAttr)
    lowest = 1 if name in ("pages", "trips") else 0
    for by in (1, -1):
        if value.value.data + by >= lowest:
            yield f"{name} {by:+}", added(name, by)


def _places(program: cores.ProgramOp, op: cores.QueueOp) -> Iterator[tuple[str, Edit]]:
    """Other depths and addresses of a queue."""
    pages = cores.queue_type(op.result).pages
    for depth in sorted({pages + 1, pages - 1, pages // 2} - {0}):
        yield f"of {depth} pages", of_pages(depth)
    assert op.address_bytes is not None
    address = op.address_bytes
    yield "misaligned", at_address(address + 8)
    yield "a step further", at_address(address + 16)
    yield "a page before", at_address(address - cores.queue_type(op.result).tile_format.page_bytes)
    for other in program.queues:
        if other is not op and other.address_bytes is not None:
            yield "where another one is", at_address(other.address_bytes)
            return


def _states(program: cores.ProgramOp, op: cores.ConfigureOp) -> Iterator[tuple[str, Edit]]:
    """States that the unit has elsewhere, and one that nothing needs."""
    ops = [each for each in program.body.walk() if isinstance(each, cores.ConfigureOp)]
    states = {each.state for each in ops if each.unit == op.unit} - {op.state}
    for state in [*sorted(states), "something else"]:
        yield f"for `{state}`", with_text("state", state)


def _registers(op: Operation) -> Iterator[tuple[str, Edit]]:
    for name in ("slot", "source"):
        if isinstance(op.properties.get(name), IntegerAttr):
            yield from _counts(op, name)
    if isinstance(op, cores.MapOp):
        for i, argument in enumerate(op.operand_numbers):
            for by in (1, -1):
                if argument >= 0 and argument + by >= 0:
                    yield f"argument {i} {by:+}", with_argument(i, by)


# ---- judging --------------------------------------------------------------------------------------------------------


def judge(
    subject: Subject,
    mutant: Mutant | Pair,
    expected: Sequence[Tensor],
    seeds: Sequence[int],
    reasons: Reasons,
    proves: bool = True,
) -> Verdict:
    """Whether a mutant is seen. Without what `proves`, the run is alone."""
    number = mutant.number if isinstance(mutant, Mutant) else mutant.one.number
    name = f"{mutant.operation(subject.kernel).name} {number}"
    kernel = mutant.planted(subject.kernel)
    try:
        kernel.verify()
    except VerifyException as error:
        return Verdict(mutant, name, VERIFIER, str(error))
    by, kind = _found(subject, kernel, expected, seeds, proves)
    alike = subject.why_alike(mutant.operation(subject.kernel), mutant.rule)
    return Verdict(mutant, name, by, kind, reasons.why_in_order(program_of(kernel)) or alike)


def _found(
    subject: Subject, kernel: tile.KernelOp, expected: Sequence[Tensor], seeds: Sequence[int], proves: bool
) -> tuple[str, str]:
    """What finds that a program is wrong, and what it says."""
    try:
        if proves:
            check_program(program_of(kernel), MACHINE)
    except CoreHazard as error:
        return PROOF, error.kind
    try:
        for seed in seeds:
            got = subject.run(kernel, seed)
            if not all(_is_same(*pair) for pair in zip(got, expected, strict=True)):
                return RESULT, ""
    except CoreHazard as error:
        return RUN, error.kind
    return "", ""


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.tobytes() == other.tobytes()


def verdicts(
    subject: Subject, seeds: Sequence[int], *, sample: int = 0, pairs: int = 0, proves: bool = True, seed: int = 0
) -> Iterator[Verdict]:
    """Those of all mutants of a program, or of a sample of them, or of so many pairs, which are drawn."""
    expected, reasons = subject.expected(), Reasons(program_of(subject.kernel), MACHINE)
    draw = random.Random(seed)
    mutants: list[Mutant | Pair] = [*mutants_of(subject.kernel)]
    if sample:
        mutants = draw.sample(mutants, min(sample, len(mutants)))
    if pairs:
        mutants = [*_pairs(subject, draw, pairs)]
    for mutant in mutants:
        yield judge(subject, mutant, expected, seeds, reasons, proves)


def _pairs(subject: Subject, draw: random.Random, count: int) -> Iterator[Pair]:
    """Pairs of mutants, most of them of what does nothing wrong alone: what is wrong alone is caught anyway."""
    reasons = Reasons(program_of(subject.kernel), MACHINE)
    all_mutants = list(mutants_of(subject.kernel))
    harmless = [m for m in all_mutants if reasons.why_in_order(program_of(m.planted(subject.kernel)))]
    for number in range(count):
        one, other = draw.choice(harmless), draw.choice(harmless if number % 2 else all_mutants)
        if one.number != other.number:
            yield Pair(one, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--subject", default="", help="only programs with this in their name")
    parser.add_argument("--run-alone", action="store_true", help="without what is proven before the run")
    parser.add_argument("--pairs", type=int, default=0, help="two mistakes at once, so many for each program")
    parser.add_argument("--all", action="store_true", help="print what was caught and why, too")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for make in SUBJECTS:
        subject = make()
        if given.subject not in subject.name:
            continue
        found = list(verdicts(subject, range(given.seeds), pairs=given.pairs, proves=not given.run_alone))
        counts = counted(found)
        total += counts
        print(f"{subject.name}: {_line(counts)}", flush=True)
        for each in found:
            if given.all or not each.by or each.is_wronged:
                what = f"{each.by} {each.kind}" if each.by else each.reason or "MISSED"
                print(f"    {each.op}, {each.mutant.rule}: {what}{' THOUGH IN ORDER' if each.is_wronged else ''}")
    print(f"all: {_line(total)}")
    wrong = total["mutants"] - total["in order"]
    print(f"{100 * (1 - total['missed'] / max(1, wrong)):.2f} % of {wrong} that are not in order are caught")


def counted(found: Sequence[Verdict]) -> Counter[str]:
    """How many mutants there were, what caught them, and how many are in order."""
    counts: Counter[str] = Counter({"mutants": len(found)})
    for each in found:
        counts[each.by or ("in order" if each.reason else "missed")] += 1
    return counts


def _line(counts: Counter[str]) -> str:
    names = (VERIFIER, PROOF, RUN, RESULT, "in order", "missed")
    return f"{counts['mutants']} mutants: " + ", ".join(f"{counts[name]} {name}" for name in names)


if __name__ == "__main__":
    main()
