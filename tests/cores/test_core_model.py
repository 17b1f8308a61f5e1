"""The model of programs against the simulator: what units do is the same, and times are near."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.cores import programs as written
from tests.cores.grid_programs import PROGRAMS, chain, compiled, matmul, program_of, softmax, types
from tilewright.cost.cores.model import CoreCost, cost_of
from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, ProgramRun, run_program
from tilewright.targets.grid.target import GridProgram

# How far the prediction of a kernel may be from what the simulator counts.
TOLERANCE = 0.25


def costs(program: GridProgram) -> list[tuple[str, CoreCost, ProgramRun]]:
    found: list[tuple[str, CoreCost, ProgramRun]] = []
    for name, run in program.timing:
        cost = cost_of(program.unit.kernel(name), program.grid)
        assert cost is not None
        found.append((name, cost, run))
    return found


@pytest.mark.parametrize("target", ["grid:wormhole", "grid:blackhole"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_predictions_are_near(name: str, target: str) -> None:
    for kernel, cost, run in costs(compiled(name, target)):
        assert cost.predicted_cycles == pytest.approx(run.cycles, rel=TOLERANCE), kernel
        assert cost.roofline_cycles < run.cycles
        _check_amounts(cost, run)


def _check_amounts(cost: CoreCost, run: ProgramRun) -> None:
    """What is moved is the same; each unit works on no core longer than on all together, and on one of them so long."""
    assert cost.dram_read_bytes == run.moved_bytes.get(DRAM_READ, 0)
    assert cost.dram_written_bytes == run.moved_bytes.get(DRAM_WRITE, 0)
    assert cost.sent_bytes == run.moved_bytes.get(CORE_WRITE, 0)
    assert cost.core_read_bytes == run.moved_bytes.get(CORE_READ, 0)
    for agent, cycles in run.busy_cycles.items():
        assert cycles / cost.cores <= cost.unit_cycles[agent] * 1.0001
        assert cost.unit_cycles[agent] <= cycles * 1.0001
    assert sum(kind.tiles for kind in cost.kinds if kind.kind != "configures" and kind.unit != "unpack") == (
        run.tile_operations
    )


def ragged_sum(x: Any) -> Any:
    return tw.sum(x, axis=1)


def sorted_rows(x: Any) -> Any:
    return tw.cumulative_sum(tw.sort(x, axis=1), axis=1)


def reshaped(x: Any) -> Any:
    return tw.reshape(x, (130, 96)) * 2.0


# Arrays that end within pages, cores that have more points than others, rows in several parts, and what movers do to
# elements.
RAGGED = {
    "chain": (chain, types((1000, 999), (1000, 999))),
    "matmul": (matmul, types((300, 700), (700, 500))),
    "rows": (ragged_sum, types((777, 1300), dtype=tw.f32)),
    "softmax": (softmax, types((200, 1500))),
    "sort": (sorted_rows, types((70, 300), dtype=tw.f32)),
    "reshape": (reshaped, types((96, 130))),
}


@pytest.mark.parametrize("target", ["grid:wormhole", "grid:blackhole"])
@pytest.mark.parametrize("name", RAGGED)
def test_arrays_that_end_within_pages(name: str, target: str) -> None:
    for kernel, cost, run in costs(program_of(*RAGGED[name], target)):
        assert cost.predicted_cycles == pytest.approx(run.cycles, rel=TOLERANCE), kernel
        _check_amounts(cost, run)


@pytest.mark.parametrize("multicasts", [False, True])
@pytest.mark.parametrize("name", ["matmul 1024", "chain", "layer norm"])
def test_threads_that_take_turns(name: str, multicasts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues of one step, and pages that each core fetches for itself."""
    from tilewright import pipelines

    def passes() -> list[Any]:
        made = pipelines.tile_to_cores(buffers=1)
        return [each for each in made if multicasts or each.name != "scheduled-multicast-fetches"]

    monkeypatch.setitem(pipelines.SCHEDULING, "cores", passes)
    for kernel, cost, run in costs(compiled(name)):
        assert cost.predicted_cycles == pytest.approx(run.cycles, rel=TOLERANCE), kernel
        _check_amounts(cost, run)


def test_roofline_is_what_the_machine_allows() -> None:
    """2048 cubed is 64^3 products of tiles at 64 cycles, on 64 cores; a chain reads two arrays and writes one."""
    (_, product, _), (_, elements, _) = costs(compiled("matmul 2048"))[0], costs(compiled("chain"))[0]
    assert product.bound == "compute"
    assert 64**3 <= product.roofline_cycles <= 1.01 * 64**3
    assert elements.bound == "dram"
    assert elements.roofline_cycles == pytest.approx(3 * 2 * 2048**2 / 265)
    assert product.bounds["network"] < product.roofline_cycles


def test_a_product_without_multicasts_has_the_same_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright import pipelines

    (_, usual, run), *_ = costs(compiled("matmul 1024"))
    without = [p for p in pipelines.tile_to_cores() if p.name != "scheduled-multicast-fetches"]
    monkeypatch.setitem(pipelines.SCHEDULING, "cores", lambda: without)
    (_, cost, slower), *_ = costs(compiled("matmul 1024"))
    assert slower.cycles > 1.5 * run.cycles
    assert cost.roofline_cycles == usual.roofline_cycles
    assert cost.dram_read_bytes == 8 * usual.dram_read_bytes
    assert cost.limited_by == "reader"


def test_a_thread_of_one_core() -> None:
    """A program that is written by hand, where nothing is shared: the prediction is the time itself, nearly."""
    kernel = written.elementwise(8, 2, 4)
    machine = load("wormhole")
    cost = cost_of(kernel, machine.core_grid)
    arrays = [DeviceArray.undefined((32, 256), tw.bf16) for _ in range(3)]
    run = run_program(kernel, arrays, machine, values=False)
    assert cost is not None
    assert cost.predicted_cycles == pytest.approx(run.cycles, rel=0.1)
    assert cost.overlapped == (True, True)
    assert cost.limited_by == "reader"


def test_a_kernel_with_nothing_to_do_has_no_cost() -> None:
    program = program_of(chain, types((0, 32), (0, 32)))
    assert [cost_of(kernel, program.grid) for kernel in program.unit.kernels()] == [None]
