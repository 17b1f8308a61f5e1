"""Each step of the debug ladder shows what it promises, and nothing of the steps above."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import events

FIRST_LEVEL = {
    "compile.remark": 3,
    "compile.kernel": 3,
    "compile.source": 4,
    "compile.phase": 5,
    "compile.pass": 6,
    "compile.assembly": 7,
}


def printed(level: int, capsys: pytest.CaptureFixture[str]) -> str:
    with tw.options(debug=level, cache=False):
        tw.jit(lambda x: x @ x + level)(np.ones((3, 3), np.float32))
    return capsys.readouterr().err


@pytest.mark.parametrize("level", range(8))
def test_a_level_prints_its_steps(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(level, capsys)
    for kind, first in FIRST_LEVEL.items():
        assert (kind in text) == (level >= first), (kind, text[:500])


def test_the_event_log_has_phases_in_order() -> None:
    with events.capture() as seen, tw.options(cache=False):
        tw.jit(lambda x: x * 3)(np.ones(5, np.float32))
    phases = [e["phase"] for e in seen if e["kind"] == "compile.phase"]
    assert phases == ["array", "tile", "scheduled"]
