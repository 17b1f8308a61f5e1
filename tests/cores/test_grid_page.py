"""The page on grids of cores: what its code says happens, and the hazard that it shows is the one that is raised."""

from __future__ import annotations

import json
import linecache
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UnsupportedOnTargetError
from tilewright.semantics.hazards import CoreHazard

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "grid.md"
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_HAZARD = re.compile(r"```text\n(\[.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines. Kernels read their source, which is known to `linecache` only."""
    source = "\n".join(_CODE.findall(PAGE.read_text()))
    linecache.cache[str(PAGE)] = (len(source), None, source.splitlines(keepends=True), str(PAGE))
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(source, str(PAGE), "exec"), namespace)
    return namespace


def test_the_profile_is_that_of_the_simulator(page: dict[str, Any]) -> None:
    x = np.ones((128, 128), np.float32)
    name, seconds, estimated_s = page["slowest"](x, x)
    assert name.startswith("contract")
    assert 0.5 < estimated_s / seconds < 2


def matrix(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_programs_are_simulated(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    x = matrix(64, 96)
    powers = np.exp(2 * (x - x.max(-1, keepdims=True)))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(page["scaled_softmax"](x, 2.0), expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(page["simulated"](x), expected, rtol=1e-3, atol=1e-6)
    assert re.fullmatch(r"loop_0 takes [\d.]+ cycles, and sets states of units \d+ times\n", capsys.readouterr().out)
    assert page["in_other_orders"](x)


def test_programs_are_saved(page: dict[str, Any], tmp_path: Path) -> None:
    x = matrix(64, 96)
    result, cycles = page["saved"](x, str(tmp_path / "softmax.twp"))
    program = page["scaled_softmax"].lower(x, 2.0).compile().executable
    np.testing.assert_array_equal(result, program(x, np.float32(2.0))[0])
    assert cycles == [(kernel, run.cycles) for kernel, run in program.runs]


def test_the_hazard_of_the_page_is_raised(page: dict[str, Any]) -> None:
    with pytest.raises(CoreHazard) as caught:
        page["without_barriers"](matrix(64, 96))
    assert caught.value.kind == "read-before-arrival"
    (shown,) = _HAZARD.findall(PAGE.read_text())
    assert " ".join(shown.split()) in str(caught.value)


def test_arrays_are_placed(page: dict[str, Any]) -> None:
    x, w = matrix(100, 64), matrix(64, 70)
    expected = np.tanh(x.astype(np.float64) @ w)
    assert np.linalg.norm(page["placed"](x, w) - expected) < 2e-2 * np.linalg.norm(expected)
    moved = page["resharded"](x)
    np.testing.assert_array_equal(moved(x), x)
    assert "moved from l1 1x2 on 8x8 to l1 4x1 on 8x8" in moved.explain()
    assert "is in l1 1x2 on 8x8, shards in tiles and their cores." in moved.ir("cpp")


def test_arrays_by_rows_are_made_tiles(page: dict[str, Any]) -> None:
    x = matrix(100, 70)
    made = page["by_rows"](x)
    powers, same = made(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_allclose(powers, np.exp(x), rtol=2**-8)
    for text in ("tilize_0: moved from row-major to dram (copy", "moved from dram to bf16 row-major (copy"):
        assert text in made.explain()


def test_what_was_decided_is_printed(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    (kernel,) = page["looked_at"](matrix(64, 96))
    assert kernel["predicted_cycles"] == pytest.approx(kernel["cycles"], rel=0.25)
    printed = capsys.readouterr().out
    for text in ("cores.thread", "void kernel_main()", "cycles simulated", "limited by", "states of units set"):
        assert text in printed


def test_a_timeline_is_written(page: dict[str, Any], tmp_path: Path) -> None:
    a, b = (matrix(128, 128).round().astype(ml_dtypes.bfloat16) for _ in range(2))
    result = page["traced"](a, b, tmp_path / "trace.json")
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(result, wanted)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "zone"} == {"steps", "store"}


def test_what_does_not_run_is_refused(page: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOnTargetError, match="numbers of f64"):
        page["refused"](matrix(64, 96))
