"""Zones of kernels: what the emulator's clock says of them, the file that they come to, and that they are nothing
without it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.fake_driver import FakeDriver
from tilewright.errors import OptionError
from tilewright.passes import scheduled_record_zones
from tilewright.runtime import cuda_driver
from tilewright.runtime.program import load

Tensor = np.ndarray[Any, Any]
ROWS = 128


@tw.kernel
def product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 64, bn: int = 64, bk: int = 64):
    for i, j in tw.grid(c, (bm, bn)):
        acc = tw.zeros((bm, bn), tw.f32)
        with tw.zone("steps"):
            for k in tw.steps(a, axis=1, size=bk):
                with tw.zone("load"):
                    left = a[i, k]
                    right = b[k, j]
                with tw.zone("multiply"):
                    acc = tw.dot(left, right, acc)
        with tw.zone("store"):
            c[i, j] = acc.astype(tw.f16)


@tw.kernel
def doubled(x: tw.In["M N"], y: tw.Out["M N"], *, rows: int = 4):
    for i in tw.grid(x, rows):
        with tw.zone("outer"), tw.zone("inner"):
            tile = x[i, :]
        y[i, :] = tile + tile


def operands() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (ROWS, ROWS)).astype(np.float16) for _ in range(2))
    return a, b


def events_in(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def slices(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The slices by the names of their threads, in the order of the file."""
    events = events_in(path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def depth_of(event: dict[str, Any], others: list[dict[str, Any]]) -> int:
    """How many others a slice is in; one that only overlaps with another one is an error."""
    start, end = event["ts"], event["ts"] + event["dur"]
    depth = 0
    for other in others:
        from_, to = other["ts"], other["ts"] + other["dur"]
        if other is event or end <= from_ + 1e-9 or to <= start + 1e-9:
            continue
        inside, around = from_ <= start and end <= to + 1e-9, start <= from_ and to <= end + 1e-9
        assert inside or around, (event, other)
        depth += inside
    return depth


def test_roles_record_their_zones_one_in_another(driver: FakeDriver, tmp_path: Path) -> None:
    a, b = operands()
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path, target="cuda:sm_90a"):
        c = product(a, b)
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))
    found = slices(path)
    assert sorted(found) == sorted(f"SM {n} {role}" for n in range(4) for role in ("copies", "computes"))
    for thread, events in found.items():
        depths = Counter((event["name"], depth_of(event, events)) for event in events)
        (kernel,) = (event["name"] for event in events if event["cat"] == "kernel")
        assert kernel.startswith("kernel_product")
        if thread.endswith("copies"):
            assert depths == {(kernel, 0): 1, ("steps", 1): 1, ("load", 2): 2}
        else:
            assert depths == {(kernel, 0): 1, ("steps", 1): 1, ("multiply", 2): 2, ("store", 1): 1}
        assert all(event["dur"] > 0 for event in events)
        starts = [event["ts"] for event in events]
        assert starts == sorted(starts)
        assert {event["args"]["block"] for event in events} == {int(thread.split()[1])}


def test_blocks_of_several_tiles_and_loops_without_roles(driver: FakeDriver, tmp_path: Path) -> None:
    """Copies ahead of `mma.sync`: the loads are done by nobody else, and the zone of them is left out."""
    a, b = operands()
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path, verify=2):
        compiled = product.lower(a, b, np.empty((ROWS, ROWS), np.float16)).compile("cuda:sm_80")
    text = compiled.explain() if False else compiled.ir("scheduled")
    assert text.count('label = "load"') == 0
    assert text.count('label = "multiply"') == 2
