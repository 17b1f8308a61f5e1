"""The architecture as the tree has it: no branch on a machine where all machines meet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.machines.machine import Model, load, names

PACKAGE = Path(__file__).parents[2] / "tilewright"
SHARED = [PACKAGE / "passes" / folder for folder in ("array", "kernels", "layouts")]
BRANCH = re.compile(r"\bhas_warps\b|\bmachine\.grid\b|\bif target\b|\.target ==|\bmachine\.model\b")
# The one place that maps an execution model to its planner.
LOOKUP = PACKAGE / "passes" / "kernels" / "planners.py"


def shared_files() -> list[Path]:
    found = [path for folder in SHARED for path in sorted(folder.glob("*.py"))]
    return [*found, *sorted((PACKAGE / "cost").glob("*.py"))]


@pytest.mark.parametrize("path", shared_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shared_file_does_not_branch_on_the_machine(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if BRANCH.search(line)]
    assert len(lines) == (1 if path == LOOKUP else 0), lines


def test_the_pattern_finds_branches() -> None:
    for line in ("if machine.has_warps:", "x = unit.machine.grid", "if target == 'cpu':", "match machine.model:"):
        assert BRANCH.search(line)


@pytest.mark.parametrize("name", names())
def test_a_machine_has_an_execution_model(name: str) -> None:
    machine = load(name)
    assert ("lane" in machine.axes) == (machine.model == Model.WARPS)
    assert ("simd" in machine.axes) == (machine.model == Model.VECTORS)
    assert (machine.grid is not None) == (machine.model == Model.CORES)
