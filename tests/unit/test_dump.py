"""What the options `dump_dir` and `debug` show of a program being compiled, also when it is in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import OptionError

X = np.ones(8, np.float32)


def test_every_phase_is_written(tmp_path: Path) -> None:
    def doubled(x):
        return x + x

    tw.jit(doubled)(X)
    with tw.options(dump_dir=tmp_path / "out"):
        tw.jit(doubled)(X)
    (folder,) = (tmp_path / "out").iterdir()
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(found) == ["1.array.mlir", "2.tile.mlir", "3.scheduled.mlir", "4.llvm.ll", "5.assembly.s"]
    assert "array.map" in found["1.array.mlir"]
    assert "scheduled.nest" in found["3.scheduled.mlir"]
    assert "fadd" in found["4.llvm.ll"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with tw.options(dump_dir=tmp_path / "file" / "out"), pytest.raises(OptionError, match="dump_dir"):
        tw.jit(lambda x: x * 3)(X)


def test_debug_shows_the_phases_of_a_cached_program(capfd: pytest.CaptureFixture[str]) -> None:
    def tripled(x):
        return x * 3.0

    tw.jit(tripled)(X)
    with tw.options(debug=5):
        tw.jit(tripled)(X)
    assert "scheduled.nest" in capfd.readouterr().err
