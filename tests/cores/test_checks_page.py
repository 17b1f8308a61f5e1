"""docs/reference/grid-checks.md says of each behaviour where it is checked, and what it names is caught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.cores import mutant_subjects, programs
from tests.cores import test_hazards as hazards
from tests.cores.behaviours import BEHAVIOURS, PAGE, page
from tests.cores.broken_programs import OTHER_KINDS, Broken, on_cores
from tests.cores.metamorphic import depends_on_padding, forms_of, run_bits, same
from tests.cores.mutant_subjects import Subject
from tilewright.dialects import tile
from tilewright.semantics.cores.reports import KINDS

PROGRAMS = [(each.number, program) for each in BEHAVIOURS for program in each.programs]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.cores.behaviours"


def test_all_behaviours_are_listed_with_two_programs() -> None:
    assert [each.number for each in BEHAVIOURS] == list(range(1, 36))
    assert all(len(each.programs) >= 2 for each in BEHAVIOURS)
    names = [(number, program.name) for number, program in PROGRAMS]
    assert len({*names}) == len(names)
    kinds = {program.kind for _, program in PROGRAMS}
    assert kinds <= {*KINDS, *OTHER_KINDS}


@pytest.mark.parametrize(
    ("number", "program"), PROGRAMS, ids=lambda each: each.name if isinstance(each, Broken) else ""
)
def test_what_is_broken_is_caught(number: int, program: Broken) -> None:
    assert program.found() == program.kind


# ---- programs that are right are not --------------------------------------------------------------------------------


def test_edge_cores_may_be_idle() -> None:
    kernel = hazards.of_rows()
    on_cores(3, 1)(kernel)
    hazards.run(kernel)


@pytest.mark.parametrize("make", [mutant_subjects.edges, mutant_subjects.normalised], ids=lambda make: make.__name__)
def test_what_is_compiled_does_not_depend_on_padding(make: Callable[[], Subject]) -> None:
    subject = make()
    assert not depends_on_padding(subject.kernel, subject.arrays)


def _elementwise() -> tuple[tile.KernelOp, list[np.ndarray]]:
    return programs.elementwise(4, 2, 2, rows=2), [mutant_subjects.numbers((64, 128), seed) for seed in range(2)]


def _product() -> tuple[tile.KernelOp, list[np.ndarray]]:
    return programs.single_core_matmul(2, 3, 1), [mutant_subjects.numbers(shape) for shape in ((64, 96), (96, 32))]


def _of(make: Callable[[], Subject]) -> Callable[[], tuple[tile.KernelOp, list[np.ndarray]]]:
    def given() -> tuple[tile.KernelOp, list[np.ndarray]]:
        subject = make()
        return subject.kernel, [*subject.arrays]

    given.__name__ = make.__name__
    return given


FORMS = [_elementwise, _product, *map(_of, mutant_subjects.SUBJECTS)]


@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
def test_all_forms_of_a_program_give_the_same(make: Callable[[], tuple[tile.KernelOp, list[np.ndarray]]]) -> None:
    """Queues of 1 to 4 times the depth, with two movers and with one."""
    kernel, inputs = make()
    wanted = run_bits(kernel, inputs)
    for seed, (name, form) in enumerate(forms_of(kernel)):
        form.verify()
        assert same(run_bits(form, inputs, seed), wanted), name
