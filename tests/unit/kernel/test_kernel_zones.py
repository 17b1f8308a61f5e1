"""Zones on targets that record none: the program is the same, and a remark says so; results never change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

Tensor = np.ndarray[Any, Any]


@tw.kernel
def zoned(x: tw.In["M N"], y: tw.Out["M"], *, rows: int = 4, columns: int = 8):
    for i in tw.grid(y, rows):
        total = tw.zeros((rows,), tw.f32)
        with tw.zone("all"):
            for k in tw.steps(x, axis=1, size=columns):
                with tw.zone("load"):
                    part = x[i, k]
                with tw.zone("add"):
                    total = total + tw.sum(part, axis=1)
        y[i] = total


@tw.kernel
def bare(x: tw.In["M N"], y: tw.Out["M"], *, rows: int = 4, columns: int = 8):
    for i in tw.grid(y, rows):
        total = tw.zeros((rows,), tw.f32)
        for k in tw.steps(x, axis=1, size=columns):
            part = x[i, k]
            total = total + tw.sum(part, axis=1)
        y[i] = total


def lowered(kernel: Any, target: str) -> Any:
    types = tw.ShapeDtype((10, 64), tw.f32), tw.ShapeDtype((10,), tw.f32)
    return kernel.lower(*types).compile(target).executable


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a"])
def test_zones_leave_no_mark_on_a_program(target: str) -> None:
    """Nothing is fused, vectorised or copied otherwise for them."""
    with_zones, without = (lowered(kernel, target) for kernel in (zoned, bare))
    ours, theirs = (text.ir("scheduled") for text in (with_zones, without))
    assert "tile.zone" not in ours
    assert _unnamed(ours, "zoned") == _unnamed(theirs, "bare")


def _unnamed(text: str, name: str) -> list[str]:
    """The lines of a program without the names of kernels, which have a digest of their source."""
    lines = text.split("kernel_" + name)
    return [lines[0], *(line.split(chr(34), 1)[1] for line in lines[1:])]


@pytest.mark.parametrize("traced", [False, True])
def test_a_remark_says_that_zones_are_left_out(traced: bool, tmp_path: Path) -> None:
    with tw.options(trace_file=tmp_path / "trace.json" if traced else None):
        text = lowered(zoned, "cpu:x86-64-v3").explain()
    (remark,) = [line for line in text.splitlines() if line.startswith("tile-erase-zones")]
    reason = "the target cpu records none" if traced else "no trace is recorded"
    assert remark.endswith(f"zones left out: `all`, `load`, `add` ({reason})")


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("traced", [False, True])
def test_results_are_those_without_zones(target: str, traced: bool, tmp_path: Path) -> None:
    x = np.arange(640, dtype=np.float32).reshape(10, 64)
    path = tmp_path / "trace.json"
    y = np.empty(10, np.float32)
    with tw.options(trace_file=path if traced else None):
        zoned.lower(x, y).compile(target)(x, y)
    np.testing.assert_array_equal(y, x.astype(np.float64).sum(axis=1))
    assert not path.exists()


def test_the_tile_phase_keeps_zones_around_what_they_enclose() -> None:
    text = zoned.lower(tw.ShapeDtype((10, 64), tw.f32), tw.ShapeDtype((10,), tw.f32)).ir()
    order = [text.index(f'label = "{label}", edge = "{edge}"') for label, edge in EDGES]
    assert order == sorted(order)
    begin, end = text.index('"all", edge = "begin"'), text.index('"all", edge = "end"')
    assert begin < text.index("tile.for") < end
    assert text.index('"load", edge = "begin"') < text.index("tile.load") < text.index('"load", edge = "end"')
    assert text.index('"add", edge = "begin"') < text.index("tile.reduce") < text.index('"add", edge = "end"')


EDGES = [
    *(("all", "begin"), ("load", "begin"), ("load", "end")),
    *(("add", "begin"), ("add", "end"), ("all", "end")),
]
