"""What a timeline holds, and its file; and what programs print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cores import programs
from tests.cores.builder import Builder
from tests.cores.test_hazards import run
from tests.cores.test_results import numbers
from tests.cores.test_results import run as run_on
from tilewright.dialects import tile
from tilewright.semantics.cores import Timeline


def test_spans_cover_what_agents_did(tmp_path: Path) -> None:
    timeline = Timeline()
    kernel = programs.multicast_matmul(1, 2, 3)
    found, ran = run_on(kernel, [numbers((32, 96)), numbers((96, 64))], timeline=timeline)
    assert np.isfinite(found).all()
    assert ran == run_on(kernel, [numbers((32, 96)), numbers((96, 64))])[1]
    busy: dict[str, float] = {}
    for span in timeline.spans:
        assert 0 <= span.begin < span.end <= ran.cycles
        if span.category == "operation" and span.track in ("math", "pack"):
            busy[span.track] = busy.get(span.track, 0.0) + span.end - span.begin
    assert busy["pack"] == pytest.approx(ran.busy_cycles["pack"])
    moved = sum(span.bytes for span in timeline.spans if span.category == "transfer")
    assert moved == sum(ran.moved_bytes.values())
    assert {pages for *_, pages in timeline.fills} == {0, 1, 2}
    path = tmp_path / "trace.json"
    timeline.write(path)
    timeline.write(path)
    events: list[Any] = json.loads(path.read_text())["traceEvents"]
    assert len([event for event in events if event["name"] == "process_name"]) == 2
    assert len([event for event in events if event["ph"] == "X"]) == 2 * len(timeline.spans)
    assert len([event for event in events if event["ph"] == "C"]) == 2 * len(timeline.fills)


def test_zones_and_prints(capfd: pytest.CaptureFixture[str]) -> None:
    b = Builder((1, 1), [])
    x = b.queue("bf16", 2)
    with b.thread("reader"):
        b.reserve(x)
        b.add(tile.ZoneOp, [], {"label": "numbers", "edge": "begin"})
        b.generate(x, "d0")
        b.add(tile.ZoneOp, [], {"label": "numbers", "edge": "end"})
        b.add(tile.PrintOp, [x], {"label": "made"})
        b.push(x)
    with b.thread("compute"):
        b.wait(x)
        b.add(tile.PrintOp, [x], {"label": "seen"})
        b.pop(x)
    timeline = Timeline()
    run(b.finished(), timeline=timeline)
    assert [span.name for span in timeline.spans if span.category == "zone"] == ["numbers"]
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "made [core (0, 0) reader] queue 0"
    assert lines[1].startswith("seen [core (0, 0) compute] queue 0 bf16 x 2 at 0x")
    assert lines[1].endswith("front 0, back 1, waited 1, reserved 0")
