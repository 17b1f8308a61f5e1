"""Target strings, the null target, and programs loaded from files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ProgramFileError, TargetError, UnsupportedOnTargetError, UnsupportedSyntaxError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@tw.jit
def double(x):
    return x + x


@pytest.mark.parametrize("target", ["gpu", "cpu:pentium", "interp:x86-64-v3", "null:pentium"])
def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(TargetError):
        double.lower(X).compile(target)


def test_a_folder_of_a_target_that_cannot_be_read_is_no_missing_target() -> None:
    """For lack of file descriptors, for once: the next call finds the target."""
    script = """
import resource
from tilewright.targets.base import target_named

most, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit))
try:
    target_named("cpu")
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, limit))
print(target_named("cpu")[0].name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Too many open files", "cpu"]


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
def test_null_compiles_for_any_machine_and_runs_nothing(machine: str) -> None:
    compiled = double.lower(X).compile(f"null:{machine}")
    assert "fadd" in compiled.ir("llvm")
    assert "loop_0" in compiled.asm()
    with pytest.raises(UnsupportedOnTargetError, match="runs none"):
        compiled(X)


def test_a_saved_program_is_loaded_and_runs(tmp_path: Path) -> None:
    double.lower(X).compile("cpu").save(str(tmp_path / "double.twp"))
    for path in (tmp_path / "double.twp", str(tmp_path / "double.twp")):
        np.testing.assert_array_equal(tw.load(path)(X), 2 * X)


def test_a_damaged_program_file_is_refused_with_the_users_line(tmp_path: Path) -> None:
    path = tmp_path / "double.twp"
    double.lower(X).compile("cpu").save(str(path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ProgramFileError, match=r"test_api_targets\.py"):
        tw.load(path)


def test_load_of_a_tile_belongs_into_a_kernel() -> None:
    with pytest.raises(UnsupportedSyntaxError, match=r"tw\.kernel"):
        tw.load(X, 0)
    with pytest.raises(FileNotFoundError):
        tw.load("nowhere.twp")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "grid:wormhole"])
def test_a_saved_program_names_inputs_as_its_function_does(tmp_path: Path, target: str) -> None:
    @tw.jit
    def scaled(weights: dict[str, tw.Array], x: tw.Array) -> tw.Array:
        return x * weights["scale"]

    path = str(tmp_path / "scaled.twp")
    scaled.lower({"scale": X[:1]}, X).compile(target).save(path)
    assert [spec.name for spec in tw.load(path).manifest.inputs] == ["weights['scale']", "x"]
