"""What is wrong in a schedule is seen by the executor of schedules: all mistakes of some kernels that rules plant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.ir import Operation

from tests.cuda.mutant_subjects import (
    Subject,
    array_subjects,
    attention,
    chain_subjects,
    convolution_subjects,
    layer_norm,
    product,
    program_subjects,
    role_subjects,
    shared_registers_subjects,
    softmax,
)
from tests.cuda.schedule_mutants import mutants_of, verdicts
from tests.cuda.test_pipeline import Given
from tests.emulators.ptx.errors import SharedRace
from tilewright.dialects import scheduled, tile
from tilewright.semantics.hazards import RaceError

# The rest is left to `python -m tests.cuda.schedule_mutants`.
KERNELS: dict[str, Callable[[], list[Subject]]] = {
    "roles and arrays": lambda: [*role_subjects(), *array_subjects()],
    "shared registers": shared_registers_subjects,
    "product on sm_80": lambda: program_subjects(product, "sm_80"),
    "softmax on sm_90a": lambda: program_subjects(softmax, "sm_90a"),
    "layer norm on sm_90a": lambda: program_subjects(layer_norm, "sm_90a"),
    "convolution by warpgroups": convolution_subjects,
    "attention by warpgroups": chain_subjects,
    "attention on sm_90a": lambda: program_subjects(attention, "sm_90a"),
}


# Of those with many mistakes a part will do here.
EVERY = {"attention by warpgroups": 3, "attention on sm_90a": 2}


@pytest.mark.parametrize("name", KERNELS)
def test_mistakes_are_seen_and_nothing_else(name: str) -> None:
    judged = [
        (subject.name, each) for subject in KERNELS[name]() for each in verdicts(subject, range(2), EVERY.get(name, 1))
    ]
    assert sum(bool(each.caught) for _, each in judged) > 20
    assert [(kernel, each.op, each.mutant.rule) for kernel, each in judged if each.is_missed] == []
    assert [(kernel, each.op, each.mutant.rule, each.caught) for kernel, each in judged if each.is_wronged] == []


# What no order of a product that is copied ahead forgives, in its loop.
FATAL = {
    (scheduled.WaitOp, "left out"),
    (scheduled.WaitOp, "one more pending"),
    (scheduled.BarrierOp, "left out"),
    (scheduled.AllocOp, "the last stage is the first"),
}


@pytest.mark.parametrize("stages", [2, 3])
def test_the_emulator_sees_races_too(stages: int) -> None:
    given = Given(stages=stages)
    unit = given.unit()
    (kernel,) = unit.kernels()
    subject = Subject("product", kernel, given.arrays(), unit.machine)

    def is_fatal(op: Operation, rule: str) -> bool:
        return (type(op), rule) in FATAL and (
            isinstance(op, scheduled.AllocOp) or isinstance(op.parent_op(), tile.ForOp)
        )

    planted = [each for each in mutants_of(kernel) if is_fatal(each.operation(kernel), each.rule)]
    assert len(planted) == 5
    for mutant in planted:
        with pytest.raises(RaceError, match=r"where `scheduled\.copy`|since the last barrier"):
            subject.run(mutant.planted(kernel), 0)
        with pytest.raises(SharedRace):
            subject.emulate(mutant.planted(kernel), unit.machine)
