"""A sample of the table of cases; `python -m tests.interop.stablehlo.suite` runs all."""

from __future__ import annotations

import collections

import pytest

pytest.importorskip("jax")

from tests.interop.stablehlo.cases import run_case
from tests.interop.stablehlo.table import all_cases
from tests.sampling import ALL

_EVERY = 1 if ALL else 17


def test_a_sample_of_the_table_is_as_jax_has_it() -> None:
    outcomes = [run_case(case) for case in all_cases()[::_EVERY]]
    assert len(outcomes) >= 40
    failed = [f"{o.name}: {o.state}: {o.reason}" for o in outcomes if o.state != "passed"]
    assert not failed, "\n".join(failed)
    covered = collections.Counter(name for o in outcomes for name in o.operations)
    assert len(covered) >= 32
