from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import FUNCTIONS, CommandLine


@pytest.fixture
def tilewright(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    return CommandLine(capsys, tmp_path / "cache")


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path
