"""Tiles in an order for the second-level cache, and blocks that do several: on an emulator and by the definitions of
the operations against float64, on machines that are small enough for few tiles to be many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.mutant_subjects import subjects_of
from tests.cuda.schedule_mutants import verdicts
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, numbers, operands, product
from tests.passes.warps.test_scheduled_specialize_warps import Make, defined, ops_of, remarks
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.machines import machine as machines
from tilewright.machines.machine import with_caches
from tilewright.passes.warps.scheduled_loop_over_tiles import ScheduledLoopOverTilesPass
from tilewright.passes.warps.scheduled_order_tiles import ScheduledOrderTilesPass
from tilewright.semantics.hazards import HazardError, RaceError
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.target import CudaProgram

Small = Callable[..., None]


def check_loops(program: CudaProgram, blocks: int, tiles: int) -> None:
    assert remarks(program, ScheduledLoopOverTilesPass)[0].startswith(f"{blocks} persistent blocks for {tiles} tiles: ")
    assert [code.blocks for code in program.kernels.values()] == [blocks]


# ---- blocks that do several tiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "order"), [(1, "nn"), (2, "tt"), (5, "nt"), (15, "tn")])
def test_any_number_of_blocks(by_warpgroups: Make, small: Small, blocks: int, order: str) -> None:
    small(blocks)
    a, b, exact = operands(order, "bf16", 200, 104, 136)
    program = by_warpgroups((64, 32, 64, 1, 3), product(order, "bf16"), a, b)
    check_loops(program, blocks, 16)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize("trips", [2, 3, 5])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_trips_and_stages(by_warpgroups: Make, small: Small, stages: int, trips: int) -> None:
    small(2)
    a, b, exact = operands("nn", "f16", 136, 48, 32 * trips - 8)
    program = by_warpgroups((64, 16, 32, 1, stages), product("nn", "f16"), a, b)
    check_loops(program, 2, 9)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def biased(a: Any, b: Any) -> Any:
    return tw.nn.relu(a @ b + b[0])


@pytest.mark.parametrize("dtype", [tw.f32, None], ids=["by threads", "by the machine"])
def test_two_warpgroups_and_what_follows(by_warpgroups: Make, small: Small, dtype: Any) -> None:
    small(3)
    a, b, exact = operands("nn", "f16", 264, 136, 136)

    def function(x: Any, y: Any) -> Any:
        return tw.matmul(x, y, dtype=dtype) if dtype else biased(x, y)

    program = by_warpgroups((128, 64, 64, 2, 2), function, a, b)
    check_loops(program, 3, 9)
    expected = exact if dtype else np.maximum(exact + b[0], 0)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, expected.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def test_batches_in_loops(by_warpgroups: Make, small: Small) -> None:
    small(4)
    a, b = numbers((3, 136, 72), "f16", 1), numbers((3, 72, 40), "f16", 2)
    program = by_warpgroups((64, 32, 32, 1, 3), lambda x, y: x @ y, a, b)
    check_loops(program, 4, 18)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def test_stores_are_waited_for_before_their_buffer_is_written_again(by_warpgroups: Make, small: Small) -> None:
    """And not before the next tile is multiplied."""
    small(2)
    a, b, _ = operands("nn", "bf16", 136, 104, 136)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "bf16"), a, b)
    (kernel,) = program.unit.kernels()
    waits = [op for op in kernel.walk() if isinstance(op, asynchronous.StoreWaitOp)]
    assert [type(wait.parent_op()) for wait in waits] == [tile.ForOp, scheduled.ParallelOp]
    body = list(waits[0].parent_block().ops)
    (products,) = (op for op in body if isinstance(op, tile.ForOp))
    (store,) = (op for op in body if isinstance(op, asynchronous.TensorStoreOp))
    assert body.index(products) < body.index(waits[0]) < body.index(store)
    waits[0].detach()
    waits[0].erase()
    with pytest.raises(RaceError, match="tensor_store"):
        run_call(kernel, [a, b])


def test_stages_that_begin_anew_with_a_tile_are_seen(by_warpgroups: Make, small: Small) -> None:
    small(1)
    a, b, _ = operands("nn", "bf16", 136, 48, 72)
    program = by_warpgroups((64, 16, 32, 1, 2), product("nn", "bf16"), a, b)
    (kernel,) = program.unit.kernels()
    (arrival,) = (op for op in kernel.walk() if isinstance(op, asynchronous.ArriveOp) and op.trip is None)
    arrival.detach()
    arrival.erase()
    with pytest.raises(HazardError):
        run_call(kernel, [a, b])


@pytest.mark.parametrize(
    ("shape", "n"), [((64, 16, 32, 1, 2), 48), ((64, 32, 32, 1, 2), 88)], ids=["by threads", "by the machine"]
)
def test_mistakes_are_seen_and_nothing_else(by_warpgroups: Make, small: Small, shape: tuple[int, ...], n: int) -> None:
    """Results are stored by threads, or by the machine."""
    small(2)
    a, b, _ = operands("nt", "f16", 128, n, 72)
    program = by_warpgroups(shape, product("nt", "f16"), a, b)
    check_loops(program, 2, 6)
    assert bool(ops_of(program, asynchronous.TensorStoreOp)) == (n == 88)
    (subject,) = subjects_of(program, [a, b], "a product in a loop over tiles")
    found = list(verdicts(subject, range(2), every=2))
    assert sum(bool(each.caught) for each in found) >= 15
    assert [each for each in found if each.is_missed or each.is_wronged] == []


@pytest.mark.parametrize(
    ("cores", "together", "reason"),
    [(9, 1, "9 tiles for 9 multiprocessors"), (2, 3, "3 blocks have room on a multiprocessor")],
)
def test_why_a_block_does_one_tile(by_warpgroups: Make, small: Small, cores: int, together: int, reason: str) -> None:
    small(cores, together=together)
    a, b, _ = operands("nn", "bf16", 136, 48, 72)
    program = by_warpgroups((64, 16, 32, 1, 2), product("nn", "bf16"), a, b)
    (said,) = remarks(program, ScheduledLoopOverTilesPass)
    assert said.startswith("not persistent: ")
    assert reason in said


def test_results_that_have_no_room_beside_stages(by_warpgroups: Make, small: Small, monkeypatch: Any) -> None:
    small(2)
    roomy = machines.load
    monkeypatch.setattr(machines, "load", lambda name: with_caches(roomy(name), {"shared": 26 * 1024}))
    a, b, exact = operands("nn", "bf16", 136, 104, 264)
    program = by_warpgroups((64, 32, 64, 1, 4), product("nn", "bf16"), a, b)
    (said,) = remarks(program, ScheduledLoopOverTilesPass)
    assert "stages and the buffers of results need" in said
    np.testing.assert_array_equal(executed(program, (a, b))[0], exact.astype(a.dtype))


# ---- machine code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4096, 8192])
def test_large_products_loop_over_tiles_and_are_clean(size: int) -> None:
    square = tw.ShapeDtype((size, size), tw.bf16)
    program = built(tw.jit(product("nn", "bf16")).lower(square, square), "cuda:sm_90a")
    check_loops(program, 132, size // 128 * (size // 256))
    rings = [op for op in ops_of(program, scheduled.AllocOp) if op.stages is not None]
    assert [(tile.ref_type(ring.result).shape, ring.stages) for ring in rings] == [
        ((128, 64), 3),
        ((64, 256), 3),
    ]
    assert "tiles in groups of" in remarks(program, ScheduledOrderTilesPass)[0]
    counts = check_clean(program)
    assert counts["UTMASTG"] >= 1


# ---- products in tensor memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "order"), [(1, "nn"), (2, "tt"), (5, "nt")])
def test_any_number_of_blocks_with_two_accumulators(
    in_tensor_memory: Make, small: Small, blocks: int, order: str
) -> None:
    small(blocks)
    a, b, exact = operands(order, "bf16", 264, 72, 200)
    program = in_tensor_memory((128, 32, 64, 1, 3), product(order, "bf16"), a, b)
    check_loops(program, blocks, 9)
    (held,) = ops_of(program, tensor_memory.TensorAllocOp)
    assert (held.count, held.tile_columns) == (2, 32)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


@pytest.mark.parametrize(("trips", "stages"), [(2, 2), (3, 2), (5, 3)])
def test_any_number_of_trips_in_tensor_memory(in_tensor_memory: Make, small: Small, trips: int, stages: int) -> None:
    small(2)
    a, b, exact = operands("nn", "f16", 264, 120, 64 * trips - 8)
    program = in_tensor_memory((128, 64, 64, 2, stages), lambda x, y: tw.matmul(x, y, dtype=tw.f32), a, b)
    check_loops(program, 2, 6)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def test_mistakes_with_two_accumulators_are_seen_and_nothing_else(in_tensor_memory: Make, small: Small) -> None:
    small(1)
    a, b, _ = operands("nt", "f16", 120, 88, 136)
    program = in_tensor_memory((128, 32, 64, 1, 2), product("nt", "f16"), a, b)
    check_loops(program, 1, 3)
    (subject,) = subjects_of(program, [a, b], "a product in tensor memory in a loop over tiles")
    found = list(verdicts(subject, range(2), every=2))
    assert sum(bool(each.caught) for each in found) >= 20
    assert [each for each in found if each.is_missed or each.is_wronged] == []


def test_large_products_in_tensor_memory_loop_over_tiles_and_are_clean() -> None:
    square = tw.ShapeDtype((8192, 8192), tw.bf16)
    program = built(tw.jit(product("nn", "bf16")).lower(square, square), "cuda:sm_100a")
    (held,) = ops_of(program, tensor_memory.TensorAllocOp)
    assert (held.count, held.tile_columns) == (2, 256)
    check_clean(program)
