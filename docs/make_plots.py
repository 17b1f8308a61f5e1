"""Plots of the records in `benchmarks/results`, for the pages of measurements. The build of the site draws them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_COLOURS = {"torch": "#d9822b", "triton": "#3b7dd8", "jax": "#6f4bb2", "numpy": "#4c9a52", "onnxruntime": "#8a8a8a"}
_BAR = 0.28  # inches for one bar of a case
_MARGIN = 1.0  # inches for the axis and its label


def write(folder: Path, results: Path = RESULTS) -> None:
    """Draw each suite's record into a folder, as `<record>.svg`.

    Raises:
        ValueError: a record has no case that was compared with a peer.
    """
    folder.mkdir(exist_ok=True)
    for path in sorted(results.glob("*.json")):
        figure = ratios_figure(json.loads(path.read_text()))
        # Without a date, so that the same record gives the same file.
        figure.savefig(folder / f"{path.stem}.svg", metadata={"Date": None})


def ratios_figure(record: Mapping[str, Any]) -> Figure:
    """Bars of the ratios of each peer's time to ours, for each case of a suite; above 1 ours is faster."""
    cases = [case for case in record["cases"] if case.get("ratios")]
    if not cases:
        raise ValueError(f"no case of the suite {record['suite']} was compared with a peer")
    peers = sorted({peer for case in cases for peer in case["ratios"]})
    figure = Figure(figsize=(8, _MARGIN + _BAR * len(cases) * len(peers)), layout="constrained")
    axes = figure.subplots()
    for number, peer in enumerate(peers):
        _draw_bars(axes, cases, peer, number / len(peers), 1 / len(peers))
    axes.axvline(1.0, color="black", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(cases)), [case["case"] for case in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlabel("time of the peer / time of Tilewright")
    axes.set_title(_title(record["suite"], cases))
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_bars(axes: Axes, cases: Sequence[Mapping[str, Any]], peer: str, offset: float, height: float) -> None:
    """The bars of one peer, of the cases that it ran."""
    bars = [(row, case["ratios"][peer]) for row, case in enumerate(cases) if peer in case["ratios"]]
    rows, ratios = zip(*bars, strict=True)
    # A case's bars take 0.8 of its row, centred on its label.
    centres = [row - 0.4 + 0.8 * (offset + height / 2) for row in rows]
    drawn = axes.barh(centres, ratios, height=0.8 * height, color=_COLOURS.get(peer), label=peer)
    axes.bar_label(drawn, fmt="%.2f", padding=2, fontsize=7)


def _title(suite: str, cases: Sequence[Mapping[str, Any]]) -> str:
    devices = sorted({case["measured_on"]["device"] for case in cases if "measured_on" in case})
    return ": ".join([suite, *devices])
