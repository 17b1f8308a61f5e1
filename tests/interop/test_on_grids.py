"""A sample of the suites of ONNX and StableHLO on simulated grids of cores: a case is right, or names what a grid has
not. All of them: `python -m tests.interop.onnx.suite --target grid:wormhole`, and the same of `stablehlo`."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cores.compiling import MACHINES


def check(outcomes: Sequence[Any]) -> None:
    failed = [f"{o.name}: {o.state}: {o.reason}" for o in outcomes if o.state not in ("passed", "unsupported")]
    assert not failed, "\n".join(failed)
    counts = collections.Counter(o.state for o in outcomes)
    assert counts["passed"] >= 0.5 * len(outcomes)


@pytest.mark.parametrize(("machine", "first"), [*zip(MACHINES, (0, 8), strict=True)])
def test_onnx(machine: str, first: int) -> None:
    pytest.importorskip("onnx")
    from tests.interop.onnx.cases import cases, run_case

    check([run_case(case, f"grid:{machine}") for case in cases("pytorch-converted")[first::16]])


@pytest.mark.parametrize(("machine", "first"), [*zip(MACHINES, (5, 60), strict=True)])
def test_stablehlo(machine: str, first: int) -> None:
    pytest.importorskip("jax")
    from tests.interop.stablehlo.cases import run_case
    from tests.interop.stablehlo.table import all_cases

    check([run_case(case, f"grid:{machine}") for case in list(all_cases())[first::200]])
