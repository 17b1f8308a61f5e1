"""Programs that hunts found to be slow, from the corpus in the repository."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tilewright.cli.bench_suites.case import Case
from tilewright.cli.hunt.corpus import naming, programs
from tilewright.cli.hunt.program import Program
from tilewright.cli.hunt.worker import case_of

_QUICK = 3


def cases(quick: bool) -> tuple[Case, ...]:
    """All programs of the corpus; some, if `quick`.

    Raises:
        ArgumentError: there is no corpus, or a file is no program.
    """
    return tuple(_case(file, program) for file, program in islice(programs(), _QUICK if quick else None))


def _case(file: Path, program: Program) -> Case:
    with naming(file):
        return case_of(program, file.stem)
