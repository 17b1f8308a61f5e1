"""The command line with programs for grids of cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import CommandLine


@pytest.mark.parametrize("machine", ["wormhole", "blackhole"])
def test_show_prints_the_source_of_a_device(tilewright: CommandLine, functions: Path, machine: str):
    run = tilewright("show", f"{functions}::scale", "--target", f"grid:{machine}", "--stage", "cpp", "--json")
    assert run.exit_code == 0, run.stderr
    assert run.document["target"] == f"grid:{machine}"
    assert run.document["stage"] == "cpp"
    for part in ("void kernel_main() {", ": reader\n", ": compute\n", ": writer\n", "ttnn.ProgramDescriptor"):
        assert part in run.document["text"]
    coloured = ("--stage", "cpp", "--color", "always")
    assert "\x1b[" in tilewright("show", f"{functions}::scale", "--target", f"grid:{machine}", *coloured).stdout


def test_show_prints_threads_of_cores(tilewright: CommandLine, functions: Path):
    run = tilewright("show", f"{functions}::scale", "--target", "grid", "--stage", "scheduled")
    assert "cores.program" in run.stdout


@pytest.mark.parametrize(("target", "known"), [("cpu", "llvm"), ("cuda:sm_90a", "ptx, sass"), ("interp", "`tile`")])
def test_other_targets_name_the_stages_that_they_have(
    tilewright: CommandLine, functions: Path, target: str, known: str
):
    run = tilewright("show", f"{functions}::scale", "--target", target, "--stage", "cpp")
    assert run.exit_code == 1
    assert "target has no `cpp` phase" in run.stderr
    assert known in run.stderr


def test_a_grid_has_no_code_of_other_targets(tilewright: CommandLine, functions: Path):
    run = tilewright("show", f"{functions}::scale", "--target", "grid", "--stage", "llvm")
    assert run.exit_code == 1
    assert "ask for array, tile, scheduled, cpp" in run.stderr


def test_explain_says_what_limits_kernels(tilewright: CommandLine, functions: Path, tmp_path: Path):
    given = ("explain", f"{functions}::scale", "--target", "grid:wormhole")
    run = tilewright(*given)
    assert run.exit_code == 0, run.stderr
    assert "array-fuse-loops" in run.stdout
    assert "cycles simulated" in run.stdout
    assert "limited by" in run.stdout
    document = tilewright(*given, "--json", "--out", tmp_path / "text").document
    assert document["machine"] == "wormhole"
    assert document["kernels"][0]["predicted_cycles"] > 0
    assert document["explanation"].strip() == run.stdout.strip() == (tmp_path / "text").read_text().strip()


def test_explain_has_no_layouts_of_a_grid(tilewright: CommandLine, functions: Path):
    run = tilewright("explain", f"{functions}::scale", "--target", "grid", "--value", "x")
    assert run.exit_code == 1
    assert "pages in queues" in run.stderr
    elsewhere = ("--target", "grid", "--machine", "sm_90a")
    assert "on sm_90a" in tilewright("explain", f"{functions}::scale", *elsewhere).stdout


def test_doctor_names_the_grids(tilewright: CommandLine):
    found = {each["target"]: each["cores"] for each in tilewright("doctor", "--no-measure", "--json").document["grid"]}
    assert found == {"grid:wormhole": [8, 8], "grid:blackhole": [10, 13]}
