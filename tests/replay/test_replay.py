"""Replay finds the corpus unchanged, and a change of the generated code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replay.__main__ import first_difference, main
from tests.replay.digests import TARGETS, Store

CHOSEN = ["--group", "examples", "--match", "^vector_add", "--jobs", "1"]


def test_replay_finds_equal_code_and_each_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path), *CHOSEN]) == 0
    assert main(["record", str(tmp_path), *CHOSEN]) == 0  # nothing is left to record
    assert main(["compare", str(tmp_path), *CHOSEN]) == 0
    index_path = tmp_path / "index.jsonl"
    (line,) = index_path.read_text().splitlines()
    program = json.loads(line)
    assert {target: tuple(phases) for target, phases in program["digests"].items()} == TARGETS

    program["digests"]["cuda:sm_90a"]["llvm"] = "0" * 24
    index_path.write_text(json.dumps(program))
    capsys.readouterr()
    assert main(["compare", str(tmp_path), *CHOSEN]) == 1
    printed = capsys.readouterr().out
    assert "1 programs differ on cuda:sm_90a, first in llvm" in printed
    assert "1 programs, 28 texts compared, 1 differ" in printed


def test_nothing_compared_is_no_success(tmp_path: Path) -> None:
    assert main(["compare", str(tmp_path), *CHOSEN]) == 1


def test_the_first_difference_is_of_the_earliest_phase(tmp_path: Path) -> None:
    store = Store(tmp_path)
    a, b, c, x, y = (store.put(text) for text in "abcxy")
    recorded = {"tile": a, "scheduled": b, "llvm": c}
    assert first_difference(recorded, dict(recorded), store) is None
    assert first_difference(recorded, recorded | {"scheduled": x, "llvm": y}, store) == "scheduled"
    assert first_difference(recorded, {"refused": "DTypeError"}, store) == "refused"
    assert first_difference({"refused": "DTypeError"}, recorded, store) == "tile"


def test_digests_in_the_names_of_kernels_are_no_difference(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (store.put(f"call @kernel_matmul_{digest}()") for digest in ("0123456789ab", "ba9876543210"))
    assert first_difference({"tile": first}, {"tile": second}, store) is None
