"""Slices of time from hand-made records, and the file that they are written to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import events
from tilewright.errors import OptionError
from tilewright.runtime.trace_file import add_launch
from tilewright.runtime.zones import HEADER_WORDS, Zones, slices_of

# Two edges a section, 2 cycles a nanosecond.
ZONES = Zones(labels=("load", "store"), roles=("computes",), words=HEADER_WORDS + 4, clock_hertz=2e9)


def section(ns: int, clock: int, place: int, stop: int, *edges: tuple[int, int], count: int | None = None) -> list[int]:
    """A role that begins at some nanosecond and cycle, and ends at cycle `stop`."""
    flat = [word for edge in edges for word in edge]
    header = [ns, clock, place, len(edges) if count is None else count, ns + (stop - clock) // 2, stop]
    return [*header, *flat, *[-1] * (ZONES.words - HEADER_WORDS - len(flat))]


def records(*sections: list[int]) -> np.ndarray[Any, Any]:
    return np.array(sections, np.int64)


def found(*sections: list[int]) -> list[tuple[str | None, int, float, float]]:
    slices = slices_of(ZONES, records(*sections))
    return [(each.label, each.multiprocessor, each.start_ns, each.stop_ns) for each in slices]


def test_cycles_are_nanoseconds_from_the_first_block_of_a_multiprocessor_on() -> None:
    first = section(1000, 500, 7, 600, (2, 520), (3, 560))
    # By the device's clock, which is coarse, it began when the first one did.
    second = section(1000, 620, 7, 640)
    elsewhere = section(5000, 40, 3, 60)
    assert found(second, first, elsewhere) == [
        (None, 7, 1060, 1070),
        (None, 7, 1000, 1050),
        ("store", 7, 1010, 1030),
        (None, 3, 5000, 5010),
    ]


def test_a_long_span_gives_the_clock() -> None:
    long = section(0, 0, 0, 300_000)
    long[4] = 100_000  # 3 cycles a nanosecond, not 2
    assert found(long, section(0, 0, 1, 30)) == [(None, 0, 0, 100_000), (None, 1, 0, 10)]


def test_edges_without_room_are_counted_and_zones_that_they_end_are_cut() -> None:
    one, two = slices_of(ZONES, records(section(0, 0, 0, 100, (0, 20), (2, 40), count=9)))[:2]
    (last,) = slices_of(ZONES, records(section(0, 0, 0, 100, (0, 20), (2, 40), count=9)))[2:]
    assert (one.label, one.lost, one.is_cut) == (None, 7, False)
    assert (two.label, two.start_ns, two.stop_ns, two.is_cut) == ("load", 10, 50, True)
    assert (last.label, last.start_ns, last.stop_ns, last.is_cut) == ("store", 20, 50, True)


def test_short_zones_of_a_device_that_counts_since_1970(tmp_path: Path) -> None:
    """A float of its nanoseconds has steps of 256."""
    path = tmp_path / "trace.json"
    for start_ns in (1_795_000_000_000_000_000, 1_795_000_000_000_002_000):
        add_launch(path, (0, "cuda:0 H200"), "kernel", ZONES, records(section(start_ns, 0, 5, 100, (0, 20), (1, 24))))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["dur"] for event in events] == pytest.approx([0.05, 0.002] * 2)
    assert events[2]["ts"] - events[0]["ts"] == pytest.approx(2.0)


def test_the_file_is_complete_after_each_launch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("of another process")
    zoned = section(2000, 0, 5, 100, (0, 20), (1, 60))
    for count in (1, 2, 3):
        add_launch(path, (1, "cuda:1 H200"), "kernel", ZONES, records(zoned))
        trace = json.loads(path.read_text())
        assert [event["ph"] for event in trace["traceEvents"]] == ["M", "M", *"XX" * count]
    process, thread, whole, load = trace["traceEvents"][:4]
    assert (process["name"], process["pid"], process["args"]) == ("process_name", 1, {"name": "cuda:1 H200"})
    assert (thread["name"], thread["args"]) == ("thread_name", {"name": "SM 5 computes"})
    assert (whole["name"], whole["ts"], whole["dur"]) == ("kernel", 2.0, 0.05)
    assert (load["name"], load["ts"], load["dur"]) == ("load", pytest.approx(2.01), pytest.approx(0.02))
    assert load["args"] == {"kernel": "kernel", "block": 0}
    assert {event["tid"] for event in (thread, whole, load)} == {thread["tid"]}


def test_blocks_that_share_a_multiprocessor_are_threads_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    add_launch(
        path,
        (0, "H200"),
        "kernel",
        ZONES,
        records(section(0, 0, 2, 100), section(10, 20, 2, 80), section(60, 120, 2, 140), section(0, 0, 3, 100)),
    )
    trace = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    threads = {event["args"]["block"]: names[event["tid"]] for event in trace if event["ph"] == "X"}
    assert threads == {0: "SM 2 computes", 1: "SM 2 block 1 computes", 2: "SM 2 computes", 3: "SM 3 computes"}


def test_a_role_has_its_thread_whatever_its_number_in_a_kernel(tmp_path: Path) -> None:
    path, other = tmp_path / "trace.json", Zones(labels=(), roles=("copies",), words=ZONES.words, clock_hertz=2e9)
    for kernel, zones in (("first", ZONES), ("second", other), ("third", ZONES)):
        add_launch(path, (0, "H200"), kernel, zones, records(section(0, 0, 2, 100)))
    trace = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    threads = {event["name"]: names[event["tid"]] for event in trace if event["ph"] == "X"}
    assert threads == {"first": "SM 2 computes", "second": "SM 2 copies", "third": "SM 2 computes"}


def test_what_was_lost_is_said(tmp_path: Path) -> None:
    with events.capture() as seen:
        lost = section(0, 0, 0, 100, (0, 20), (1, 40), count=6)
        add_launch(tmp_path / "trace.json", (0, "H200"), "kernel", ZONES, records(lost))
    (record,) = [each for each in seen if each["kind"] == "trace.zones"]
    assert (record["lost_edges"], record["slices"], record["kernel"]) == (4, 2, "kernel")
    whole = json.loads((tmp_path / "trace.json").read_text())["traceEvents"][2]
    assert whole["args"]["lost_edges"] == 4


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "trace.json"
    with pytest.raises(OptionError, match="trace_file"):
        add_launch(path, (0, "H200"), "kernel", ZONES, records(section(0, 0, 0, 100)))
