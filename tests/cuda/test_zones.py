"""Zones of kernels: what the emulator's clock says of them, the file that they come to, and that they are nothing
without it."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import tilewright as tw
from tests.cuda.chips import KINDS
from tests.emulators.cuda_driver import FakeDriver, tensor_maps
from tests.emulators.ptx.emulator import run
from tests.fuzz.tile_steps import generate
from tests.fuzz.tile_zones import with_zones
from tests.fuzz.tiles import check
from tests.sampling import sampled
from tilewright.dialects.tile import ref_type
from tilewright.errors import OptionError
from tilewright.machines import machine as machines
from tilewright.machines.machine import load as load_machine
from tilewright.passes.warps import scheduled_loop_over_tiles, scheduled_order_tiles, scheduled_record_zones
from tilewright.runtime.program import load
from tilewright.runtime.zones import Slice, slices_of
from tilewright.semantics.tile import poison

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


def compiled(kernel: Any, *arrays: Tensor, target: str = "cuda:sm_90a", **sizes: int) -> Any:
    return kernel.lower(*arrays, **sizes).compile(target)


def remarks_of(program: Any) -> list[str]:
    """What the pass that records says, after the name of the kernel."""
    found = [each for each in program.executable.unit.remarks if each.pass_name == "scheduled-record-zones"]
    return [f"{each.decision} ({each.reason})" for each in found]


def test_roles_record_their_zones_one_in_another(driver: FakeDriver, tmp_path: Path) -> None:
    a, b = operands()
    c = np.empty((ROWS, ROWS), np.float16)
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path):
        compiled(product, a, b, c)(a, b, c)
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
    (process,) = [event for event in events_in(path) if event["name"] == "process_name"]
    assert process["args"]["name"].startswith("cuda:0 ")


def test_what_has_no_room_is_counted(driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six edges are noted of eight of the threads that compute, and all six of the copying warp."""
    monkeypatch.setattr(scheduled_record_zones, "MOST_EDGES", 6)
    a, b = operands()
    c = np.empty((ROWS, ROWS), np.float16)
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path):
        program = compiled(product, a, b, c)
        program(a, b, c)
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))
    for thread, events in slices(path).items():
        (whole,) = (event for event in events if event["cat"] == "kernel")
        is_copying = thread.endswith("copies")
        assert whole["args"].get("lost_edges") == (None if is_copying else 2)
        names = [event["name"] for event in events[1:]]
        assert names == (["steps", "load", "load"] if is_copying else ["steps", "multiply", "multiply"])
        assert not any("cut" in event["args"] for event in events)


def test_a_zone_whose_end_is_lost_ends_with_its_role(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_record_zones, "MOST_EDGES", 3)
    x, y = np.arange(32, dtype=np.float32).reshape(4, 8), np.empty((4, 8), np.float32)
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path):
        compiled(doubled, x, y)(x, y)
    np.testing.assert_array_equal(y, 2 * x)
    (events,) = slices(path).values()
    whole, outer, inner = events
    assert whole["args"]["lost_edges"] == 1
    assert (outer["name"], outer["args"].get("cut"), inner["name"], inner["args"].get("cut")) == (
        *("outer", True),
        *("inner", None),
    )
    assert outer["ts"] + outer["dur"] == pytest.approx(whole["ts"] + whole["dur"])


def test_zones_are_nothing_without_a_trace(no_assembler: None, tmp_path: Path) -> None:
    a, b = operands()
    arrays = (a, b, np.empty((ROWS, ROWS), np.float16))
    plain = compiled(product, *arrays)
    ptx, scheduled = plain.ir("ptx"), plain.ir("scheduled")
    assert not any(word in ptx for word in ("clock64", "globaltimer", "smid"))
    assert "scheduled.record" not in scheduled
    assert "zone" not in scheduled
    with tw.options(trace_file=tmp_path / "trace.json"):
        traced = compiled(product, *arrays)
    assert all(word in traced.ir("ptx") for word in ("clock64", "globaltimer", "smid"))
    assert not (tmp_path / "trace.json").exists()


def test_one_function_has_a_program_with_zones_and_one_without(driver: FakeDriver, tmp_path: Path) -> None:
    """A call in a trace, one outside, in a trace of another file, and two kernels of one program."""

    @tw.jit(target="cuda:sm_90a")
    def twice(x: Any) -> Any:
        return doubled(doubled(x))

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path in (None, first, None, second):
        with tw.options(trace_file=path):
            np.testing.assert_array_equal(twice(x), 4 * x)
    for path in (first, second):
        assert Counter(event["name"] for event in events_in(path) if event.get("cat") == "zone") == {
            "outer": 2,
            "inner": 2,
        }


def test_each_turn_of_a_loop_of_the_host_is_in_the_trace(driver: FakeDriver, tmp_path: Path) -> None:
    @tw.jit(target="cuda:sm_90a")
    def eight_times(x: Any) -> Any:
        return tw.while_loop(lambda carried: tw.max(carried) < 200, doubled, x)

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path):
        np.testing.assert_array_equal(eight_times(x), 8 * x)
    (events,) = slices(path).values()
    assert [event["name"] for event in events if event["cat"] == "zone"] == ["outer", "inner"] * 3


def test_saved_programs_record_nothing(driver: FakeDriver, tmp_path: Path) -> None:
    x, y = np.arange(32, dtype=np.float32).reshape(4, 8), np.empty((4, 8), np.float32)
    trace, file = tmp_path / "trace.json", tmp_path / "doubled.twp"
    with tw.options(trace_file=trace):
        program = compiled(doubled, x, y)
        assert program.executable.program.manifest.device.records_zones
        program.executable.save(str(file))
        saved = load(file)
        assert not saved.manifest.device.records_zones
        np.testing.assert_array_equal(saved(x), 2 * x)
    assert not trace.exists()


def test_a_trace_that_cannot_be_written(driver: FakeDriver, tmp_path: Path) -> None:
    x, y = np.ones((4, 8), np.float32), np.empty((4, 8), np.float32)
    with tw.options(trace_file=tmp_path / "no" / "trace.json"):
        program = compiled(doubled, x, y)
        with pytest.raises(OptionError, match="trace_file"):
            program(x, y)


def test_a_grid_of_no_blocks(driver: FakeDriver, tmp_path: Path) -> None:
    x, y = np.empty((0, 8), np.float32), np.empty((0, 8), np.float32)
    path = tmp_path / "trace.json"
    with tw.options(trace_file=path):
        compiled(doubled, x, y)(x, y)
    assert not path.exists()


# ---- schedules of other kinds, on the emulator -----------------------------------------------------------------------


def recorded(program: Any, *inputs: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Counter[tuple[str, int]]]]:
    """What the one kernel of a program gives, and for each role how many slices of a name there are on the blocks, by
    how many others each is in."""
    unit = program.executable.unit
    (kernel,) = unit.kernels()
    (code,) = program.executable.built.kernels.values()
    types = [ref_type(ref) for ref in kernel.refs[len(inputs) :]]
    result, records = (poison(type.shape, type.dtype) for type in types)
    given = [*inputs, result, records]
    ptx = program.executable.built.ptx[code.name]
    arguments = [*given, *tensor_maps(code.tensor_maps, given)]
    run(ptx, code.name, code.blocks, code.threads, arguments, code.shared_bytes, random.Random(seed))
    found: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    slices = slices_of(code.zones, records)
    for each in slices:
        inside = [one for one in slices if one is not each and _has(one, each)]
        assert not each.lost
        assert not each.is_cut
        assert each.stop_ns > each.start_ns
        found[code.zones.roles[each.role]][each.label or "", len(inside)] += 1
    return result, found


def _has(one: Slice, other: Slice) -> bool:
    same = (one.block, one.role) == (other.block, other.role)
    return same and one.start_ns <= other.start_ns and other.stop_ns <= one.stop_ns


def expected_of(a: Tensor, b: Tensor) -> Tensor:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)


def traced(kernel: Any, *arrays: Tensor, target: str, tmp_path: Path, **sizes: int) -> Any:
    with tw.options(trace_file=tmp_path / "trace.json", verify=2):
        return compiled(kernel, *arrays, target=target, **sizes)


@pytest.mark.parametrize(
    ("target", "sizes", "counts"),
    [
        ("cuda:sm_80", {}, {"computes": {("", 0): 4, ("steps", 1): 4, ("multiply", 2): 8, ("store", 1): 4}}),
        (
            "cuda:sm_100a",
            {"bm": 128},
            {
                "copies": {("", 0): 2, ("steps", 1): 2, ("load", 2): 4},
                "multiplies": {("", 0): 2, ("steps", 1): 2, ("multiply", 2): 4},
                "computes": {("", 0): 2, ("steps", 1): 2, ("store", 1): 2},
            },
        ),
    ],
)
def test_products_of_other_kinds(target: str, sizes: dict[str, int], counts: dict[str, Any], tmp_path: Path) -> None:
    a, b = operands()
    program = traced(product, a, b, np.empty((ROWS, ROWS), np.float16), target=target, tmp_path=tmp_path, **sizes)
    c, found = recorded(program, a, b)
    np.testing.assert_array_equal(c, expected_of(a, b))
    assert found == counts


@pytest.mark.parametrize(("target", "sizes"), [("cuda:sm_90a", {"bn": 32}), ("cuda:sm_100a", {"bm": 128, "bn": 16})])
def test_blocks_of_several_tiles(
    target: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight tiles by three blocks: of two blocks three, of one two."""
    monkeypatch.setattr(machines, "load", lambda name: structs.replace(load_machine(name), cores=3))
    for module in (scheduled_loop_over_tiles, scheduled_order_tiles):
        monkeypatch.setattr(module, "blocks_together", lambda *_: 1)
    a, b = operands()
    program = traced(product, a, b, np.empty((ROWS, ROWS), np.float16), target=target, tmp_path=tmp_path, **sizes)
    c, found = recorded(program, a, b)
    np.testing.assert_array_equal(c, expected_of(a, b))
    assert found["computes"]["", 0] == 3
    assert found["computes"]["store", 1] == 8
    assert found["copies"] == {("", 0): 3, ("steps", 1): 8, ("load", 2): 16}


@tw.kernel
def both(a: tw.In["M K"], b: tw.In["K N"], d: tw.In["M K"], e: tw.In["K N"], c: tw.Out["M N"], *, size: int = 64):
    """Two products in one loop, which one warp copies for as for a chain."""
    for i, j in tw.grid(c, (size, size)):
        first = tw.zeros((size, size), tw.f32)
        second = tw.zeros((size, size), tw.f32)
        with tw.zone("steps"):
            for k in tw.steps(a, axis=1, size=size):
                with tw.zone("first"):
                    first = tw.dot(a[i, k], b[k, j], first)
                with tw.zone("second"):
                    second = tw.dot(d[i, k], e[k, j], second)
        c[i, j] = (first * second).astype(tw.f16)


def test_chains_of_products(tmp_path: Path) -> None:
    """A product is waited for where its result is used: not in its zone, which a remark says."""
    rng = np.random.default_rng(3)
    a, d = (rng.integers(-1, 2, (64, 128)).astype(np.float16) for _ in range(2))
    b, e = (rng.integers(-1, 2, (128, 64)).astype(np.float16) for _ in range(2))
    program = traced(both, a, b, d, e, np.empty((64, 64), np.float16), target="cuda:sm_90a", tmp_path=tmp_path)
    c, found = recorded(program, a, b, d, e)
    products = [left.astype(np.float64) @ right.astype(np.float64) for left, right in ((a, b), (d, e))]
    np.testing.assert_array_equal(c, (products[0] * products[1]).astype(np.float16))
    assert found == {
        "computes": {("", 0): 1, ("steps", 1): 1, ("first", 2): 2, ("second", 2): 2},
        "copies": {("", 0): 1, ("steps", 1): 1},
    }
    moved = [each for each in program.executable.unit.remarks if "ends before" in each.decision]
    assert [each.decision for each in moved] == [f"zone `{label}` ends before they do" for label in ("first", "second")]


@pytest.mark.parametrize("traced", [False, True])
def test_zones_never_change_results(traced: bool, tmp_path: Path) -> None:
    """Random kernels with random zones, on the CPU and on each kind of chip."""
    for seed, chip in enumerate(sampled(KINDS, 2, int(traced)), 200):
        kernel = with_zones(generate(seed))
        assert "tile.zone" in kernel.text
        with tw.options(trace_file=tmp_path / "trace.json" if traced else None):
            outcome = check(kernel, ("cpu", f"cuda:{chip}"))
        assert (outcome.kind, outcome.message) == ("", ""), seed
