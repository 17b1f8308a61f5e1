"""`tilewright bench grid`: cycles of the simulator beside what machines allow and what is predicted."""

from __future__ import annotations

from typing import Any

import pytest
from cli_support import CommandLine

from tilewright.cli.bench_suites import load_cases
from tilewright.cli.bench_suites.grid import MACHINES, Schedule


def test_a_quick_run_has_figures_of_each_case(tilewright: CommandLine):
    run = tilewright("bench", "grid", "--quick", "--threads", "1", "--repeat", "1", "--case", "wormhole", "--json")
    assert run.exit_code == 0, run.stderr
    found: dict[str, Any] = {case["case"].removesuffix(", wormhole"): case["figures"] for case in run.document["cases"]}
    others = [f"matmul bf16 256, {name}" for name in ("no multicasts", "single buffers", "neither")]
    elements = ["elementwise", "softmax", "layer norm", "attention 128x64"]
    assert [*found] == ["matmul bf16 128", "matmul bf16 256", *others, *elements]
    for figures in found.values():
        assert 0 < figures["roofline_cycles"] < figures["cycles"]
        assert figures["fraction"] == pytest.approx(figures["roofline_cycles"] / figures["cycles"], abs=1e-3)
        assert figures["predicted_cycles"] == pytest.approx(figures["cycles"], rel=0.25)
        assert figures["checked_tiles_per_s"] > 0
        assert figures["timed_tiles_per_s"] > 0
    assert found["matmul bf16 256"]["cycles"] < found["matmul bf16 256, no multicasts"]["cycles"]


def test_sizes_are_those_that_are_compared():
    names = [case.name for case in load_cases("grid", quick=False)]
    for machine in MACHINES:
        assert {f"matmul bf16 {side}, {machine}" for side in (512, 1024, 2048)} <= {*names}
        assert f"matmul bf16 2048, neither, {machine}" in names
        assert f"attention 4096x64, {machine}" in names


def test_a_schedule_leaves_passes_out():
    names = [each.name for each in Schedule().passes()]
    assert "scheduled-multicast-fetches" in names
    (lowers,) = (each for each in Schedule(buffers=1).passes() if each.name == "tile-lower-to-cores")
    assert getattr(lowers, "buffers", None) == 1
    names.remove("scheduled-multicast-fetches")
    assert [each.name for each in Schedule(multicasts=False).passes()] == names
