"""What is wrong in a schedule is seen by the executor of schedules: all mistakes of some kernels that rules plant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cuda.schedule_mutants import (
    Subject,
    attention,
    layer_norm,
    product,
    program_subjects,
    role_subjects,
    softmax,
    verdicts,
)

# The rest is left to `python -m tests.cuda.schedule_mutants`.
KERNELS: dict[str, Callable[[], list[Subject]]] = {
    "roles": role_subjects,
    "product on sm_80": lambda: program_subjects(product, "sm_80"),
    "softmax on sm_90a": lambda: program_subjects(softmax, "sm_90a"),
    "layer norm on sm_90a": lambda: program_subjects(layer_norm, "sm_90a"),
    "attention on sm_90a": lambda: program_subjects(attention, "sm_90a"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_mistakes_are_seen_and_nothing_else(name: str) -> None:
    judged = [(subject.name, each) for subject in KERNELS[name]() for each in verdicts(subject, range(2))]
    assert sum(bool(each.caught) for _, each in judged) > 20
    assert [(kernel, each.op, each.mutant.rule) for kernel, each in judged if each.is_missed] == []
    assert [(kernel, each.op, each.mutant.rule, each.caught) for kernel, each in judged if each.is_wronged] == []
