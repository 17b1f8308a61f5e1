"""Zones and prints of kernels on a grid of cores: in the threads that do what is in them, and in the trace."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores import headers
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.targets.grid.target import GridProgram

Tensor = np.ndarray[Any, Any]


@tw.kernel(target="grid:wormhole")
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 64, bn: int = 64, bk: int = 64):
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
            c[i, j] = acc


@tw.kernel(target="grid:wormhole")
def bare(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 64, bn: int = 64, bk: int = 64):
    for i, j in tw.grid(c, (bm, bn)):
        acc = tw.zeros((bm, bn), tw.f32)
        for k in tw.steps(a, axis=1, size=bk):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


@tw.kernel(target="grid:wormhole")
def printed(x: tw.In["M N"], y: tw.Out["M N"], *, bm: int = 32, bn: int = 64):
    for i, j in tw.grid(y, (bm, bn)):
        part = tw.exp(x[i, j])
        with tw.zone('the "print"'):
            tw.print("part {}", part)
        y[i, j] = part + 1.0


OPERANDS = (tw.ShapeDtype((128, 128), tw.f32),) * 3


def inputs() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (128, 128)).astype(np.float32) for _ in range(2))
    return a, b


def executable(kernel: Any, *types: tw.ShapeDtype) -> GridProgram:
    with tw.options(cache=False):
        return kernel.lower(*types).compile().executable


def events_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def test_zones_are_of_the_threads_that_do_something_in_them(tmp_path: Path) -> None:
    """Pages come when they are asked for: in the zone of the product, and not in that of the loads, which is empty. The
    last products are computed with what stores them."""
    with tw.options(trace_file=tmp_path / "trace.json"):
        unit: Unit = executable(matmul, *OPERANDS).unit
    (kernel,) = unit.kernels()
    (program,) = (op for op in kernel.walk() if op.name == "cores.program")
    found: dict[str, list[str]] = {}
    for op in program.walk():
        if op.name == "cores.thread":
            zones = [inner for inner in op.walk() if inner.name == "tile.zone"]
            assert all(zone.other() in zones for zone in zones)
            found[op.role] = [zone.label for zone in zones if zone.begins]
    assert found == {
        "reader": ["steps", "multiply"],
        "writer": ["store"],
        "compute": ["steps", "multiply", "store", "multiply"],
    }


def test_without_a_trace_there_are_none() -> None:
    zoned, plain = executable(matmul, *OPERANDS), executable(bare, *OPERANDS)
    assert "tile.zone" not in zoned.ir("scheduled")
    assert "Zone" not in zoned.ir("cpp")
    assert [run for _, run in zoned.timing] == [run for _, run in plain.timing]


def test_a_trace_has_what_agents_transfers_and_queues_do(tmp_path: Path) -> None:
    a, b = inputs()
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path, cache=False):
        first = matmul(a, b)
        ends = max(event["ts"] + event["dur"] for event in events_of(path) if event["ph"] == "X")
        second = matmul(a, b)
    for result in (first, second):
        np.testing.assert_array_equal(result, a @ b)
    events = events_of(path)
    cores, calls = 4, 2
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert sorted(names) == [f"grid:wormhole core ({row}, {column})" for row in range(2) for column in range(2)]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"kernel", "reader", "writer", "unpack", "math", "pack", "reader transfers", "writer transfers"} == tracks
    zones = Counter(event["name"] for event in events if event.get("cat") == "zone")
    # Two trips; the reader, unpack, math and pack have the zones of products, the writer one of stores.
    assert zones["multiply"] == cores * calls * 2 * 4
    assert zones["steps"] == cores * calls * 4
    assert 0 < zones["store"] <= cores * calls * 4
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) == cores * calls
    assert len([event for event in kernels if event["ts"] >= ends]) == cores
    fills = [event for event in events if event["ph"] == "C"]
    assert {event["name"].partition(" ")[0] for event in fills} == {"queue"}
    moved = sum(event["args"]["bytes"] for event in events if event.get("cat") == "transfer")
    assert moved >= calls * 3 * a.nbytes


def test_a_trace_changes_no_time(tmp_path: Path) -> None:
    a, b = inputs()
    (plain,) = [run for _, run in executable(matmul, *OPERANDS).timing]
    with tw.options(trace_file=tmp_path / "trace.json"):
        program = executable(matmul, *OPERANDS)
        program(a, b)
    (traced,) = [run for _, run in program.runs]
    assert traced.cycles == plain.cycles


@tw.kernel
def printed_by_some(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (32, 32)):
        part = x[i, j]
        if j.index == 1:
            tw.print(part)
        y[i, j] = part


def test_a_print_in_a_branch_is_refused() -> None:
    with pytest.raises(UnsupportedOnTargetError, match="`print` in a branch"):
        printed_by_some.lower(*(tw.ShapeDtype((64, 64), tw.f32),) * 2).compile(target="grid:wormhole")


def test_prints_say_where_queues_are(capfd: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((64, 64), np.float32)
    with tw.options(cache=False):
        np.testing.assert_allclose(printed(x), 2.0, rtol=1e-3)
    lines = capfd.readouterr().err.splitlines()
    for core in ("(0, 0)", "(0, 1)"):
        for thread in ("reader", "writer", "compute"):
            own = [line for line in lines if line.startswith(f"part {{}} [core {core} {thread}] queue ")]
            assert len(own) == 1
            assert ("front 0, back 2, waited 2, reserved 0" in own[0]) == (thread == "compute")


@pytest.mark.headers
def test_the_headers_take_marks(tmp_path: Path) -> None:
    try:
        headers.headers()
    except headers.NoHeaders as error:
        pytest.skip(str(error))
    from tilewright.targets.grid.emit import emit_program

    with tw.options(trace_file=tmp_path / "trace.json"):
        program = executable(printed, *(tw.ShapeDtype((64, 64), tw.f32),) * 2)
    (kernel,) = program.unit.kernels()
    source = emit_program(kernel, program.unit.machine)
    for role in ("reader", "compute"):
        text = getattr(source, role)
        assert 'DeviceZoneScopedN("the \\"print\\"");' in text
        assert 'DPRINT("part {{}} queue {}\\n", cb_' in text
        assert not headers.check_source(text, role, "wormhole", ["f32"] * 8, True, ["unpack"])
