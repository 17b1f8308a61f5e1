"""What is wrong in a program of cores is seen, and nothing else: a sample of the mistakes that rules plant, and of
pairs of them. The rest is left to `python -m tests.cores.mutants`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cores import programs
from tests.cores.mutant_edits import MOVES, SYNCHRONISES
from tests.cores.mutant_reasons import DEPTH, PLACE, UNREAD, Reasons
from tests.cores.mutant_subjects import MACHINE, SUBJECTS, Subject, by_elements, edges, placed, program_of
from tests.cores.mutants import Verdict, mutants_of, verdicts
from tests.cores.order_graph import NoOrderError, order_of
from tests.cores.test_hazards import relayed
from tests.cores.traces import ProtocolError
from tilewright.dialects import cores, tile
from tilewright.semantics.cores.prepared import Prepared, prepared_for


def _wrong(found: list[Verdict]) -> list[tuple[str, str, str]]:
    return [(each.op, each.mutant.rule, each.kind) for each in found if each.is_missed or each.is_wronged]


@pytest.mark.parametrize("make", SUBJECTS, ids=lambda make: make.__name__)
def test_mistakes_are_seen_and_nothing_else(make: Callable[[], Subject]) -> None:
    found = list(verdicts(make(), range(2), sample=16, seed=1))
    assert sum(bool(each.by) for each in found) > 8
    assert _wrong(found) == []


@pytest.mark.parametrize("make", SUBJECTS[1:4], ids=lambda make: make.__name__)
def test_the_run_alone_sees_pairs_of_mistakes(make: Callable[[], Subject]) -> None:
    found = list(verdicts(make(), range(2), pairs=10, proves=False, seed=2))
    assert _wrong(found) == []


def test_every_operation_that_brings_order_is_changed() -> None:
    kinds: set[type] = set()
    for make in SUBJECTS:
        kernel = make().kernel
        ops = list(kernel.walk())
        mutants = list(mutants_of(kernel))
        for number, op in enumerate(ops):
            if isinstance(op, SYNCHRONISES + MOVES):
                rules = [mutant.rule for mutant in mutants if mutant.number == number]
                assert {"left out", "repeated"} <= {*rules}
                kinds.add(type(op))
        assert {m.number for m in mutants} >= {i for i, op in enumerate(ops) if isinstance(op, cores.QueueOp)}
    assert kinds == {*SYNCHRONISES, *MOVES}


def test_what_is_in_no_order_is_not_proven() -> None:
    """A page that may not have come; the same behind a barrier; and what waits in a circle."""
    with pytest.raises(NoOrderError, match="no order"):
        order_of(program_of(relayed(True)))
    order_of(program_of(relayed(False)))
    with pytest.raises(ProtocolError):
        order_of(program_of(programs.elementwise(8, 2, 3)))


def test_reasons_are_those_of_the_edit() -> None:
    kernel = placed(programs.elementwise(4))
    reasons = Reasons(program_of(kernel), MACHINE)
    last = [number for number, op in enumerate(kernel.walk()) if isinstance(op, cores.QueueOp)][-1]
    own = [mutant for mutant in mutants_of(kernel) if mutant.number == last]
    found = {mutant.rule: reasons.why_in_order(program_of(mutant.planted(kernel))) for mutant in own}
    assert found["of 3 pages"] == found["of 1 pages"] == DEPTH
    assert found["a step further"] == PLACE
    assert not found["misaligned"]
    assert not found["a page before"]


def test_only_coordinates_along_sides_that_are_not_filled_are_unread() -> None:
    kernel = edges().kernel
    reasons, ops = Reasons(program_of(kernel), MACHINE), list(kernel.walk())
    unread: set[str] = set()
    for mutant in mutants_of(kernel):
        op = ops[mutant.number]
        if not isinstance(op, cores.PadOp) or not mutant.rule.startswith("map["):
            continue
        is_filled = op.sides[int(mutant.rule[4])]
        assert reasons.why_in_order(program_of(mutant.planted(kernel))) == ("" if is_filled else UNREAD)
        unread |= set() if is_filled else {mutant.rule[:6]}
    assert unread == {"map[0]", "map[1]"}


@pytest.mark.parametrize("make", [edges, by_elements], ids=lambda make: make.__name__)
def test_a_program_is_prepared_anew_whatever_is_changed(make: Callable[[], Subject]) -> None:
    def prepared(kernel: tile.KernelOp) -> Prepared:
        assert MACHINE.grid is not None
        return prepared_for(kernel, program_of(kernel), MACHINE.grid, [None for _ in kernel.refs])

    kernel = make().kernel
    for mutant in mutants_of(kernel):
        clone = kernel.clone()
        before = prepared(clone)
        assert prepared(clone) is before
        mutant.edit(mutant.operation(clone))
        assert prepared(clone) is not before, mutant.rule
