"""The page on traces: what its code says happens on the emulated device, and the remarks that it shows are made."""

from __future__ import annotations

import json
import linecache
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.emulators.cuda_driver import FakeDriver

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "trace.md"
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_REMARK = re.compile(r"^scheduled-record-zones: matmul: (.*)$", re.MULTILINE)


def code_of_the_page() -> dict[str, Any]:
    """What the page defines. Kernels read their source, which is known to `linecache` only."""
    source = "\n".join(_CODE.findall(PAGE.read_text()))
    linecache.cache[str(PAGE)] = (len(source), None, source.splitlines(keepends=True), str(PAGE))
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(source, str(PAGE), "exec"), namespace)
    return namespace


def test_the_code_of_the_page_runs(driver: FakeDriver, tmp_path: Path) -> None:
    page = code_of_the_page()
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (128, 128)).astype(np.float16) for _ in range(2))
    path = tmp_path / "trace.json"
    np.testing.assert_array_equal(page["traced"](a, b, path), (a.astype(np.float64) @ b).astype(np.float16))
    zones = [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "zone"]
    assert Counter(zones) == {"steps": 8, "load": 8, "multiply": 8, "store": 4}
    page.clear()


def test_the_remarks_of_the_page_are_made(tmp_path: Path) -> None:
    matmul = code_of_the_page()["matmul"]
    operand = tw.ShapeDtype((128, 128), tw.f16)
    with tw.options(trace_file=tmp_path / "trace.json"):
        unit = matmul.lower(operand, operand, operand).compile().executable.unit
    made = [f"{each.decision} ({each.reason})" for each in unit.remarks if each.pass_name == "scheduled-record-zones"]
    assert made == _REMARK.findall(PAGE.read_text())
