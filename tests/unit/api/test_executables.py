"""Every target's executable has all members of the protocol `Executable`."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import UnsupportedOnTargetError
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.program_file import ProgramFile
from tilewright.runtime.shared_constants import keep_in_memory
from tilewright.targets.base import Executable, built_in

PACKAGE = Path(tw.__file__).parent
CHIPS = {"cuda": "cuda:sm_90a"}
X = np.arange(8, dtype=np.float32)


def executable(target: str) -> Executable:
    with tw.options(cache=False):
        return tw.jit(lambda x: x + 1).lower(X).compile(CHIPS.get(target, target)).executable


@pytest.mark.parametrize("target", built_in())
def test_members_of_the_protocol(target: str) -> None:
    found = executable(target)
    wanted = {name for name in vars(Executable) if not name.startswith("_")}
    assert wanted >= {"program", "link", "settled", "cache_state", "unit", "cost", "profile", "explain", "save"}
    assert wanted <= set(dir(found))
    assert found.cache_state == "off"
    assert found.unit.main.sym_name.data == "main"


@pytest.mark.parametrize("target", ["cpu", "null", "cuda", "grid"])
def test_programs_are_linked(target: str) -> None:
    found = executable(target)
    assert isinstance(found.program, ProgramFile)
    assert isinstance(found.link(keep_in_memory), ProgramFile)


@pytest.mark.parametrize("target", ["interp"])
def test_targets_without_program_files_refuse(target: str) -> None:
    found = executable(target)
    with pytest.raises(UnsupportedOnTargetError, match="no program files"):
        _ = found.program
    with pytest.raises(UnsupportedOnTargetError, match="no program files"):
        found.link(keep_in_memory)


@pytest.mark.parametrize("target", built_in())
def test_only_native_calls_are_settled(target: str) -> None:
    found = executable(target)
    options, function = found.settled
    assert options is None
    assert function(X) is MISMATCH
    if target == "cpu":
        found(X)
        np.testing.assert_array_equal(found.settled[1](X), X + 1)


@pytest.mark.parametrize("folder", ["api", "cli", "driver"])
def test_members_are_not_looked_up_by_strings(folder: str) -> None:
    """Only names that Python or the user defines: `__name__`, `EXAMPLE_ARGUMENTS`."""
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                name = node.args[1].value if isinstance(node.args[1], ast.Constant) else "__variable__"
                assert name.startswith("__") or name.isupper(), f"{path}:{node.lineno}: {name}"
