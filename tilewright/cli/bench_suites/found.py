"""Programs that hunts found to be slow, from the corpus in the repository."""

from __future__ import annotations

from itertools import islice

from tilewright.cli.bench_suites.case import Case
from tilewright.cli.hunt.corpus import programs
from tilewright.cli.hunt.worker import case_of

_QUICK = 3


def cases(quick: bool) -> tuple[Case, ...]:
    """All programs of the corpus; some, if `quick`."""
    return tuple(case_of(program, name) for name, program in islice(programs(), _QUICK if quick else None))
