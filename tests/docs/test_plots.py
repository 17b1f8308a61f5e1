"""Plots of measurements: their bars are the ratios of the records, and the pages show them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture
def make_plots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_plots  # pyright: ignore[reportMissingImports]  a module of the folder `docs`

    return make_plots


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_bars_are_the_ratios_of_the_record(path: Path, make_plots: ModuleType) -> None:
    record = json.loads(path.read_text())
    (axes,) = make_plots.ratios_figure(record).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    drawn = {
        (labels[round(bar.get_y() + bar.get_height() / 2)], bars.get_label()): bar.get_width()
        for bars in axes.containers
        for bar in bars
    }
    assert drawn == {
        (case["case"], peer): case["peers"][peer] / case["ours_s"]
        for case in record["cases"]
        for peer in case["ratios"]
    }


def test_a_record_without_peers_is_refused(make_plots: ModuleType) -> None:
    with pytest.raises(ValueError, match="no case of the suite gemm was compared"):
        make_plots.ratios_figure({"suite": "gemm", "cases": [{"case": "bf16 64x64x64", "ratios": {}}]})


def test_pages_show_plots_that_are_drawn(tmp_path: Path, make_plots: ModuleType) -> None:
    make_plots.write(tmp_path)
    shown = set(re.findall(r"\.\./_static/(\S+)", (ROOT / "docs" / "internals" / "measured.md").read_text()))
    assert shown
    assert shown <= {file.name for file in tmp_path.iterdir()}
    for file in tmp_path.iterdir():
        assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
