"""A few cases of `python -m tests.cuda.sweep`, and what it says of results that are wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cuda import sweep
from tests.cuda.chips import Tensor, by_definition
from tests.cuda.sweep import RIGHT, WRONG, Case, all_cases, run_case
from tests.cuda.sweep_references import error_of, expected_of, inputs_of
from tilewright import dtypes
from tilewright.cli.bench_suites.cuda_static import CHIPS, forms
from tilewright.passes.base import Unit

QUICK = [("gemm i8, b.T", "edges", "sm_80"), ("gemm bf16", "small", "sm_100a"), ("row sum", "tiles", "sm_120a")]


@pytest.mark.parametrize(("name", "trial", "chip"), QUICK)
def test_cases_are_right(name: str, trial: str, chip: str) -> None:
    row = run_case(Case(chip, name, trial))
    assert (row.verdict, row.why, row.conflicts) == (RIGHT, "", 0)
    assert all(error is not None and error <= 1 for error in (row.executor_error, row.emulator_error))
    assert row.schedule == ("" if trial == "small" else "same")


def test_all_programs_are_run_on_all_chips_at_all_sizes() -> None:
    cases = all_cases(sweep.CHIPS)
    assert set(sweep.CHIPS) == set(CHIPS)
    assert len(cases) == len(set(cases)) == 4 * len(CHIPS) * len(forms())
    for case in cases:
        assert len(case.sizes) == len(case.form.sizes)
        assert case.form.types(*case.sizes)
    assert {each.text for each in all_cases(["sm_80"], "gemm i8, b.T ")} == {
        f"gemm i8, b.T {trial}, sm_80" for trial in ("tiles", "edges", "odd", "small")
    }


@pytest.mark.parametrize("name", [form.name for form in forms()])
def test_bounds_see_one_term_that_is_missing(name: str) -> None:
    """Results of inputs of which one number is left out are wrong somewhere."""
    (form,) = (each for each in forms() if each.name == name)
    types = form.types(*Case("sm_80", name, "edges").sizes)
    result = dtypes.i32 if "i8" in name else dtypes.f32 if name != "conv 3x3" else dtypes.bf16
    arrays = inputs_of(types)
    expected = expected_of(name, arrays, result)
    assert error_of(expected[0], expected) == 0
    # The last one is in the last column and step.
    arrays[-1].reshape(-1)[-1] = 0
    assert error_of(expected_of(name, arrays, result)[0], expected) > 1


def test_results_that_are_no_numbers_are_wrong() -> None:
    exact = np.ones(3)
    assert error_of(np.array([1.0, np.nan, 1.0]), (exact, 0.1 * exact)) == math.inf
    assert error_of(np.ones(2), (exact, exact)) == math.inf
    assert error_of(np.array([1, 2, 1]), (exact, np.zeros(3))) == math.inf


def test_rows_are_kept_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    given = ["--chips", "sm_90a", "--only", "transpose small", "--rows", str(path), "--json"]
    assert sweep.main(given) == 0
    row, found = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["name"], row["verdict"], row["other_conflicts"]) == ("transpose", RIGHT, 0)
    assert found == {"right": 1, "wrong": 0, "not run": 0}

    def no_emulator(*_: object) -> None:
        raise NotImplementedError("some.instruction")

    monkeypatch.setattr(sweep, "emulated_and_counted", no_emulator)
    assert sweep.main(given) == 0
    assert capsys.readouterr().out.splitlines() == ['{"right":1,"wrong":0,"not run":0}']
    assert sweep.main(given[:4]) == 0
    text = capsys.readouterr().out
    assert "some.instruction" in text
    assert text.endswith("0 right, 0 wrong, 1 not run\n")


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def half(unit: Unit, arrays: Sequence[Tensor]) -> list[Tensor]:
        return [each / 2 for each in by_definition(unit, arrays)]

    monkeypatch.setattr(sweep, "by_definition", half)
    assert sweep.main(["--chips", "sm_80", "--only", "row sum small"]) == 1
    assert f"{WRONG}; executor" in (text := capsys.readouterr().out)
    assert "the executor's result" in text
