"""Arrays in shards in the memories of cores: where the user puts them, and where they are kept between kernels."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES, VARIANTS, compiled, simulated
from tests.programs import Program
from tilewright import dtypes
from tilewright.errors import ResourceExhausted, UnsupportedOnTargetError
from tilewright.layout.catalogue.placements import Placement
from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE, LOCAL
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.core_space import CoreSpace
from tilewright.semantics.cores import ProgramRun
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]
PLACES = (
    "dram",
    "l1",
    "l1 height",
    "l1 width",
    "l1 block",
    "l1 block on 3x5 by columns",
    "l1 2x3 by columns",
    "l1 height on 2x2",
)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def negated(x: Array) -> Program:
    program = Program("main")
    program.outputs = [program.map("negative", program.array(*x.shape, dtype=dtypes.from_numpy(x.dtype)))]
    return program


def runs_of(unit: Unit) -> list[ProgramRun]:
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    return [run for _, run in simulation.runs]


def moved(unit: Unit, kind: str) -> int:
    return sum(run.moved_bytes.get(kind, 0) for run in runs_of(unit))


def remarks(unit: Unit, name: str) -> list[str]:
    return [str(remark) for remark in unit.remarks if remark.pass_name == name]


# ---- where the user puts them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(500, 200), (3, 40, 100), (7,)], ids=str)
def test_results_do_not_depend_on_places(place: str, shape: tuple[int, ...]) -> None:
    x, number = normal(*shape), PLACES.index(place)
    for variant in (VARIANTS[number], VARIANTS[(number + 3) % len(VARIANTS)]):
        for storage in ({0: place}, {1: place}, {0: place, 1: PLACES[number - 1]}):
            (got,) = simulated(negated(x), [x], MACHINES[number % 2], variant, storage)
            np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(PLACES[:6], 2)))
def test_arrays_are_moved_from_place_to_place(source: str, target: str, machine: str) -> None:
    """A program that gives what it gets, elsewhere."""
    x = normal(200, 330, dtype=ml_dtypes.bfloat16)
    program = Program("main")
    program.outputs = [program.array(*x.shape, dtype=dtypes.bf16)]
    variant = VARIANTS[(len(source) + len(target)) % len(VARIANTS)]
    (got,) = simulated(program, [x], machine, variant, {0: source, 1: target})
    np.testing.assert_array_equal(got, x)
    unit = compiled(program, machine, variant, {0: source, 1: target})
    assert len(runs_of(unit)) == 1
    size = 7 * 11 * 2048
    assert moved(unit, DRAM_READ) == (size if source == "dram" else 0)
    assert moved(unit, DRAM_WRITE) == (size if target == "dram" else 0)
    both = sum(moved(unit, kind) for kind in (DRAM_READ, DRAM_WRITE, CORE_READ, CORE_WRITE, LOCAL))
    assert both == 2 * size
    assert any("moved from" in each for each in remarks(unit, "tile-store-arrays"))


def test_a_result_that_is_an_argument_keeps_its_place() -> None:
    x = normal(64, 64)
    program = Program("main")
    argument = program.array(64, 64)
    program.outputs = [argument, argument, program.map("negative", argument)]
    unit = compiled(program, "wormhole", storage={0: "l1 height", 1: "l1 height", 2: "bfp8"})
    assert len(list(unit.kernels())) == 2
    got = Simulation(unit).run([x])
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[2], -x)
    assert 0 < np.abs(got[1] - x).max() < 2**-6 * np.abs(x).max()


@pytest.mark.parametrize("shape", [(4, 0), (0,), (2, 0, 40)], ids=str)
def test_arrays_of_nothing_are_placed(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for storage in ({"return": "l1"}, {"x": "l1 2x3", "return": "bfp8"}, {"x": "l1 block"}):
        assert tw.jit(lambda x: x).lower(x).compile(target="grid", storage=storage)(x).shape == shape
        assert tw.jit(lambda x: -x).lower(x).compile(target="grid", storage=storage)(x).shape == shape


def test_rows_of_their_own_core_take_no_network() -> None:
    x = normal(64 * 32, 64)
    unit = compiled(negated(x), "wormhole", storage={0: "l1 height", 1: "l1 height"})
    (run,) = runs_of(unit)
    assert {*run.moved_bytes} == {LOCAL}
    (elsewhere,) = runs_of(compiled(negated(x), "wormhole"))
    assert run.cycles < elsewhere.cycles


def test_formats_have_places_too() -> None:
    x, w = normal(100, 200), normal(200, 70)
    function = tw.jit(lambda x, w: tw.tanh(x @ w)).lower(x, w)
    wanted = function.compile(target="grid", storage={"w": "bfp8"})(x, w)
    got = function.compile(target="grid", storage={"w": "bfp8 l1 block", "x": "l1 height", "return": "l1"})(x, w)
    np.testing.assert_array_equal(got, wanted)


def test_elements_and_views_of_placed_arrays() -> None:
    x, places = normal(96, 64), np.array([90, 3, 3, 41], np.int32)
    function = tw.jit(lambda x, i: tw.reshape(x, (3, 32, 64))[1] + tw.sum(x[i])).lower(x, places)
    got = function.compile(target="grid", storage={"x": "l1 height"})(x, places)
    wanted = function.compile(target="grid")(x, places)
    np.testing.assert_array_equal(got, wanted)


def test_what_cannot_be_placed_is_said() -> None:
    x = normal(64, 64)
    lowered = tw.jit(lambda x: -x).lower(x)
    with pytest.raises(UnsupportedOnTargetError, match="no storage of an array on a grid of cores at `heigth`"):
        lowered.compile(target="grid", storage={"x": "l1 heigth"})
    with pytest.raises(UnsupportedOnTargetError, match="the machine has 8x8 cores, not 9x8"):
        lowered.compile(target="grid", storage={"x": "l1 on 9x8"})
    with pytest.raises(UnsupportedOnTargetError, match="not stored as f16"):
        lowered.compile(target="grid", storage={"x": "f16"})
    large = tw.jit(lambda x: -x).lower(tw.ShapeDtype((8192, 4096), tw.f32))
    with pytest.raises(ResourceExhausted, match=r"2097152 bytes: f32\[8192, 4096\] in l1 4x128 on 8x8") as caught:
        large.compile(target="grid", storage={"x": "l1 height"})
    assert caught.value.location is not None


# ---- where they are kept between kernels ----------------------------------------------------------------------------


def chained(rows: int, inner: int, links: int) -> Program:
    """Products one after another, each of what the one before gives."""
    program = Program("main")
    value = program.array(rows, inner)
    for _ in range(links):
        value = program.dot(value, program.array(inner, inner), 0, 1, 0)
    program.outputs = [value]
    return program


def arguments_of(program: Program) -> list[Array]:
    return [normal(*value.shape) for value in program.inputs]


@pytest.mark.parametrize("machine", MACHINES)
def test_what_kernels_hand_on_stays_with_cores(machine: str) -> None:
    program = chained(300, 200, 4)
    arrays = arguments_of(program)
    kept, in_dram = compiled(program, machine), compiled(program, machine, keeps_arrays=False)
    (wanted,) = Simulation(in_dram).run(arrays)
    for variant in VARIANTS[::3]:
        (got,) = simulated(program, arrays, machine, variant)
        np.testing.assert_array_equal(got, wanted)
    pages = 10 * 7
    assert moved(kept, DRAM_WRITE) == pages * 4096
    assert moved(in_dram, DRAM_WRITE) == 4 * pages * 4096
    assert len(remarks(kept, "scheduled-place-arrays")) == 3
    assert sum(run.cycles for run in runs_of(kept)) < sum(run.cycles for run in runs_of(in_dram))


def test_memory_is_taken_again_when_an_array_is_read_for_the_last_time() -> None:
    """More arrays than a core has room for at once, of which two are needed at a time."""
    side, links = 1024, 24
    unit = compiled(chained(side, side, links), "wormhole")
    each = side * side * 4 // 64
    grid = load("wormhole").grid
    assert grid is not None
    assert links * each > grid.memory_bytes
    assert sum("in l1" in remark for remark in remarks(unit, "scheduled-place-arrays")) == links - 1


def test_what_has_no_room_is_in_dram() -> None:
    unit = compiled(chained(8192, 4096, 3), "wormhole")
    found = remarks(unit, "scheduled-place-arrays")
    assert len(found) == 2
    assert all("in DRAM" in remark and "no core has room for 2097152 bytes" in remark for remark in found)
    assert "l1 " not in str(unit.module)


def test_queues_are_below_arrays() -> None:
    x = normal(2048, 2048)
    unit = compiled(negated(x), "wormhole", storage={0: "l1", 1: "l1"})
    text = str(unit.module)
    assert "arrays_begin_bytes = 974848" in text
    assert 1499136 - 2 * 64 * 4096 == 974848
    full = tw.jit(lambda x: -x).lower(tw.ShapeDtype((4096, 2656), tw.f32))
    with pytest.raises(ResourceExhausted, match="next to"):
        full.compile(target="grid", storage={"x": "l1", "return": "l1"})


def test_what_control_flow_carries_is_in_dram() -> None:
    def repeated(x: Any) -> Any:
        return tw.while_loop(
            lambda state: state[0] < 3, lambda state: (state[0] + 1, (state[1] @ state[1]) @ state[1]), (0, x)
        )[1]

    x = normal(64, 64) * 0.1
    compiled_ = tw.jit(repeated).lower(x).compile(target="grid")
    wanted = x.astype(np.float64)
    for _ in range(3):
        wanted = wanted @ wanted @ wanted
    assert np.linalg.norm(compiled_(x) - wanted) < 2e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_simulator_knows_no_better_placement(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each candidate alone, for all arrays between kernels."""
    program, every = chained(300, 200, 4), CoreSpace.placements
    chosen = sum(run.cycles for run in runs_of(compiled(program, machine)))
    for number in range(3):

        def one(self: CoreSpace, shape: Any, accesses: Any, number: int = number) -> list[Any]:
            return [None, every(self, shape, accesses)[number]]

        monkeypatch.setattr(CoreSpace, "placements", one)
        other = sum(run.cycles for run in runs_of(compiled(program, machine)))
        assert chosen <= other * 1.001
        assert (chosen < other) == (number != 2)


def test_the_next_best_placement_is_said() -> None:
    found = remarks(compiled(chained(300, 200, 3), "wormhole"), "scheduled-place-arrays")
    assert len(found) == 2
    assert all("in l1 2x1 on 5x7" in each and "l1 1x1 on 8x8 would take" in each for each in found)


def test_the_next_best_placement_is_taken_where_the_best_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one core were the best place for all of an array."""
    whole, spread = Placement((32, 32), (1, 1)), Placement((1, 1), (8, 8))
    costs = {None: 3.0, whole: 1.0, spread: 2.0}
    monkeypatch.setattr(CoreSpace, "placements", lambda self, shape, accesses: list(costs))
    monkeypatch.setattr(CoreSpace, "cycles", lambda self, shape, accesses, placement: costs[placement])
    program = chained(1024, 1024, 3)
    found = remarks(compiled(program, "wormhole"), "scheduled-place-arrays")
    assert len(found) == 2
    assert all("in l1 1x1 on 8x8 (1 cycles of transfers less" in each for each in found)
    assert all("no core has room for 4194304 bytes of it in l1 32x32 on 1x1" in each for each in found)
