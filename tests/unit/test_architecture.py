"""The architecture as the tree has it: no branch on a machine where all machines meet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.machines.machine import Model, load, names
from tilewright.targets.base import built_in, target_named

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


# ---- the vendor's names ---------------------------------------------------------------------------------------------

VENDOR = re.compile(r"cuda|ptx|wgmma|nvidia|tcgen05", re.IGNORECASE)
# Where they belong: the target and its runtime, the layouts of its instructions, and the command line.
OF_THE_VENDOR = ("targets/cuda", "runtime/cuda", "machines", "layout/catalogue", "cli")
# The public face hands over arrays on its devices, and program files hold its code.
MOST_FILES = 8
# An example in the docstring of a pass prints atoms by the names in a machine file.
EXAMPLES = re.compile(r"^(Before( \(.*\))?|After):\n(    .*\n|\n)+", re.MULTILINE)


def names_the_vendor(text: str) -> bool:
    return VENDOR.search(EXAMPLES.sub("", text)) is not None


def test_few_files_name_the_vendor() -> None:
    paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    elsewhere = [path for path in paths if not path.startswith(OF_THE_VENDOR)]
    found = [path for path in elsewhere if names_the_vendor((PACKAGE / path).read_text())]
    assert len(found) <= MOST_FILES, found
    assert not [path for path in found if path.startswith(("passes/", "cost/", "semantics/", "dialects/", "layout/"))]


def test_examples_of_passes_may_show_atoms_and_nothing_else_may() -> None:
    example = 'Lower.\n\nBefore (sm_90a):\n    mma {atom = "wgmma"}\n\n    x\nAfter:\n    mma {atom = "wgmma"}\n"""\n'
    assert not names_the_vendor(example)
    assert names_the_vendor(f"{example}FAMILY = 'wgmma'\n")
    assert names_the_vendor("# PTX ISA\n")


def test_folders_of_targets_are_found() -> None:
    manifests = [path.parent.name for path in PACKAGE.glob("targets/*/__init__.py") if "TARGET = " in path.read_text()]
    assert sorted(manifests) == list(built_in())
    assert all(target_named(name)[0].name == name for name in manifests)


# ---- tests of passes ------------------------------------------------------------------------------------------------

PASSES = PACKAGE / "passes"
TESTS = Path(__file__).parents[1] / "passes"


def modules_of_passes() -> list[Path]:
    found = sorted(PASSES.rglob("*.py"))
    stated = re.compile(r"^class \w+Pass\(", re.MULTILINE)
    return [path.relative_to(PASSES) for path in found if stated.search(path.read_text())]


def test_passes_are_found() -> None:
    folders = {path.parent.as_posix() for path in modules_of_passes()}
    assert folders == {".", "array", "kernels", "vectors", "warps", "cores"}


@pytest.mark.parametrize("module", modules_of_passes(), ids=lambda path: path.stem)
def test_a_pass_is_tested_in_a_file_of_its_name(module: Path) -> None:
    path = TESTS / module.with_name(f"test_{module.name}")
    assert path.is_file()
    assert re.search(r"^def test_", path.read_text(), re.MULTILINE)


# ---- machine files --------------------------------------------------------------------------------------------------


def test_files_are_found_by_what_they_state() -> None:
    machines = [load(name) for name in names()]
    for target, architecture in {(machine.target, machine.architecture) for machine in machines}:
        of_target = [machine.name for machine in machines if machine.target == target]
        assert names(target=target) == of_target
        both = [name for name in of_target if load(name).architecture == architecture]
        assert names(target=target, architecture=architecture) == both
    assert names(target="cp") == []
