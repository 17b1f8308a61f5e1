"""The pages on JAX and StableHLO: one is as its generator writes it, the samples of the other run."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop.stablehlo.page import MISSING, MISSING_CHLO, PAGE, page
from tilewright.interop.stablehlo.registry import find

_HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "jax.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_of_operations_is_current() -> None:
    assert PAGE.read_text() == page()


def test_what_is_said_to_be_missing_is() -> None:
    assert not [name for names in MISSING.values() for name in names.split() if find(f"stablehlo.{name}")]
    assert not [name for names in MISSING_CHLO.values() for name in names.split() if find(f"chlo.{name}")]


def test_the_samples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "jax_page"}
    printed, shown = "", 0
    for kind, text in _BLOCK.findall(_HOW_TO.read_text()):
        if kind == "python":
            caught = io.StringIO()
            with contextlib.redirect_stdout(caught):
                exec(compile(text, str(_HOW_TO), "exec"), namespace)
            printed = caught.getvalue()
        elif kind == "text":
            assert printed == text
            shown += 1
        else:
            _, *arguments = shlex.split(text)
            subprocess.run([sys.executable, "-m", "tilewright.cli", *arguments], check=True, capture_output=True)
    assert shown == 4
