"""Pairs of blocks that share what they copy: on an emulator and by the definitions of the operations against float64,
on machines that are small enough for few tiles to be many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IndexType, IntegerAttr

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.mutant_subjects import subjects_of
from tests.cuda.schedule_mutants import verdicts
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, numbers, operands, product
from tests.passes.pass_support import parse
from tests.passes.warps.test_scheduled_loop_over_tiles import Small, biased
from tests.passes.warps.test_scheduled_specialize_warps import Make, defined, ops_of, remarks
from tests.sampling import ALL
from tilewright.cost.warps.tile_order import TileGrid, TileOrder, best_order, common_bytes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.dialects.scheduled.tile_order import GroupedOrder
from tilewright.machines.machine import load
from tilewright.passes.warps import scheduled_multicast_copies
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.scheduled_multicast_copies import ScheduledMulticastCopiesPass
from tilewright.passes.warps.tensor_windows import boxes_of
from tilewright.passes.warps.tile_lower_to_warps import parsed
from tilewright.semantics.hazards import DeadlockError, HazardError, PhaseError, RaceError
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.target import CudaProgram


def check_pairs(program: CudaProgram) -> None:
    (said,) = remarks(program, ScheduledMulticastCopiesPass)
    assert said.startswith("pairs of blocks multicast "), said
    assert [code.cluster for code in program.kernels.values()] == [2]
    assert all(".reqnctapercluster 2, 1, 1" in text for text in program.ptx.values())


def check_result(program: CudaProgram, arrays: tuple[Any, ...], exact: Any) -> None:
    """The same by definition and on the emulator, without bank conflicts."""
    by_definition = defined(program, arrays)
    np.testing.assert_array_equal(by_definition, exact.astype(by_definition.dtype))
    got, counts = executed(program, arrays)
    np.testing.assert_array_equal(got, by_definition)
    assert counts.shared_conflicts == 0


def shared_sides(program: CudaProgram) -> list[int]:
    """Which operands of a product are shared: the numbers of the arrays."""
    (kernel,) = program.unit.kernels()
    copies = ops_of(program, asynchronous.TensorCopyOp)
    return [kernel.refs.index(copy.source) for copy in copies if copy.parts is not None]


# ---- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("cores", [2, 4, 100])
def test_every_order_of_operands(by_warpgroups: Make, small: Small, cores: int, order: str) -> None:
    """Blocks of several tiles, and one for each."""
    small(cores)
    a, b, exact = operands(order, "bf16", 136, 56, 136)
    program = by_warpgroups((64, 32, 64, 1, 3), product(order, "bf16"), a, b)
    check_pairs(program)
    check_result(program, (a, b), exact)


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("cores", [2, 100])
def test_every_order_of_operands_in_tensor_memory(in_tensor_memory: Make, small: Small, cores: int, order: str) -> None:
    small(cores)
    a, b, exact = operands(order, "bf16", 264, 56, 136)
    program = in_tensor_memory((128, 32, 64, 1, 3), product(order, "bf16"), a, b)
    check_pairs(program)
    check_result(program, (a, b), exact)


@pytest.mark.parametrize(
    ("stages", "trips", "cores"),
    [
        (stages, trips, (2, 100)[(row + column) % 2])
        for row, stages in enumerate((2, 3, 4))
        for column, trips in enumerate((2, 3, 5))
        if ALL or (row + 2 * column) % 3 != 1
    ],
)
def test_any_number_of_trips_and_stages(by_warpgroups: Make, small: Small, stages: int, trips: int, cores: int) -> None:
    small(cores)
    a, b, exact = operands("nn", "f16", 136, 56, 64 * trips - 8)
    program = by_warpgroups((64, 16, 64, 1, stages), product("nn", "f16"), a, b)
    check_pairs(program)
    check_result(program, (a, b), exact)


def test_two_warpgroups_that_both_say_that_a_stage_is_empty(by_warpgroups: Make, small: Small) -> None:
    small(2)
    a, b, exact = operands("nn", "f16", 264, 232, 136)
    program = by_warpgroups((128, 64, 64, 2, 2), biased, a, b)
    check_pairs(program)
    check_result(program, (a, b), np.maximum(exact + b[0], 0))


def test_batches(by_warpgroups: Make, small: Small) -> None:
    small(4)
    a, b = numbers((3, 200, 72), "f16", 1), numbers((3, 72, 40), "f16", 2)
    program = by_warpgroups((64, 32, 64, 1, 2), lambda x, y: x @ y, a, b)
    check_pairs(program)
    check_result(program, (a, b), a.astype(np.float64) @ b.astype(np.float64))


def of_tf32(x: Any, y: Any) -> Any:
    return tw.matmul(x, y.T, precision="tf32")


@pytest.mark.parametrize("dtype", ["i8", "f8e4m3fn"])
def test_products_of_8_bits(by_warpgroups: Make, in_tensor_memory: Make, small: Small, dtype: str) -> None:
    small(2)
    a, b, exact = operands("nt", dtype, 264, 248, 368)
    result = tw.i32 if dtype == "i8" else tw.f32
    for make in (by_warpgroups, in_tensor_memory):
        program = make((128, 64, 128, 2, 2), lambda x, y: tw.matmul(x, y.T, dtype=result), a, b)
        check_pairs(program)
        check_result(program, (a, b), exact)


def test_products_of_tf32(in_tensor_memory: Make, small: Small) -> None:
    small(2)
    a, b, exact = operands("nt", "f32", 264, 248, 120)
    program = in_tensor_memory((128, 64, 32, 1, 3), of_tf32, a, b)
    check_pairs(program)
    check_result(program, (a, b), exact)


# ---- which panel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "shared"), [(120, 120, [0]), (120, 88, [1])], ids=["the row", "the column"])
def test_which_operand_is_shared(by_warpgroups: Make, small: Small, m: int, n: int, shared: list[int]) -> None:
    """Two rows by four columns of tiles, or by three."""
    small(100)
    a, b, exact = operands("nn", "f16", m, n, 136)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "f16"), a, b)
    check_pairs(program)
    assert shared_sides(program) == shared
    check_result(program, (a, b), exact)


@pytest.mark.parametrize(("rows", "columns", "group"), [(6, 5, 2), (8, 3, 4), (4, 4, 1), (3, 6, 1), (10, 7, 6)])
def test_what_pairs_have_in_common(rows: int, columns: int, group: int) -> None:
    """By the points of the order themselves."""
    grid, order = TileGrid(rows, columns, 7, 11), GroupedOrder((rows, columns), group)
    pairs = [(order.point(number), order.point(number + 1)) for number in range(0, rows * columns - 1, 2)]
    common = [all(one[dim] == other[dim] for one, other in pairs) for dim in range(2)]
    assert common_bytes(grid, TileOrder(group, False, 0)) == (7 if common[0] else 11 if common[1] else 0)
    turned = TileGrid(columns, rows, 11, 7)
    assert common_bytes(turned, TileOrder(group, True, 0)) == (7 if common[0] else 11 if common[1] else 0)


def test_an_order_for_pairs_reads_hardly_more() -> None:
    grid = TileGrid(32, 16, 1 << 20, 1 << 21)
    best, in_pairs = (best_order(grid, 132, 1 << 20, in_pairs=pairs) for pairs in (False, True))
    assert common_bytes(grid, in_pairs) == 1 << 21
    assert in_pairs.traffic_bytes <= 1.25 * best.traffic_bytes


def test_parts_of_a_window_are_boxes_of_their_own() -> None:
    """The boxes of all ranks together are those of the whole, or halves of them."""
    text = """
      tile.kernel() {sym_name = "k", grid = array<i64>, effects = ["in"]} do {
      ^bb0(%x: !tile.ref<tensor<64x256xf16>>):
        %y = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x256xf16>
        tile.yield()
      }
    """
    (window,) = (op for op in parse(text).walk() if isinstance(op, tile.LoadOp))
    lines = "(64, 256) : [64@mem.shared*64 | 4@mem.shared*4096 64@mem.shared] + swizzle[mem.shared{3:6}^{6:9}]"
    layout = parsed(lines)
    source = tile.ref_type(window.source)
    whole = boxes_of(window.map, source, layout)
    for dim in range(2):
        part = boxes_of(window.map, source, layout, (2, dim))
        covered = np.zeros((64, 256), int)
        for rank in range(2):
            for start, _ in part.parts:
                at = [first + rank * step for first, step in zip(start, part.rank_index, strict=True)]
                covered[at[0] : at[0] + part.box[0], at[1] : at[1] + part.box[1]] += 1
        assert (covered == 1).all()
        assert part.rank_bytes == {0: 32 * 64 * 2, 1: 2 * 4096 * 2}[dim]
    assert len(whole.parts) == 4
    with pytest.raises(Refused, match="3 equal parts"):
        boxes_of(window.map, source, layout, (3, 0))


# ---- where it is not done -------------------------------------------------------------------------------------------


def test_an_odd_number_of_tiles_is_no_pairs(by_warpgroups: Make, small: Small) -> None:
    small(100)
    a, b, _ = operands("nn", "f16", 136, 88, 136)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "f16"), a, b)
    assert remarks(program, ScheduledMulticastCopiesPass) == ["no multicast: 9 blocks are no pairs"]


def test_an_odd_number_of_multiprocessors_is_no_pairs(by_warpgroups: Make, small: Small) -> None:
    small(3)
    a, b, exact = operands("nn", "f16", 200, 120, 136)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "f16"), a, b)
    assert remarks(program, ScheduledMulticastCopiesPass) == ["no multicast: 3 blocks are no pairs"]
    check_result(program, (a, b), exact)


def test_chips_without_clusters_have_none() -> None:
    for name in ("sm_80", "sm_89", "sm_120a"):
        assert "cta" not in load(name).axes
    square = tw.ShapeDtype((1024, 1024), tw.bf16)
    program = built(tw.jit(product("nn", "bf16")).lower(square, square), "cuda:sm_120a")
    assert remarks(program, ScheduledMulticastCopiesPass) == []


def test_a_step_that_is_multiplied_for_longer(
    by_warpgroups: Make, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(2)
    monkeypatch.setattr(scheduled_multicast_copies, "_product_seconds", lambda *_: 1.0)
    a, b, _ = operands("nn", "f16", 200, 120, 136)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "f16"), a, b)
    (said,) = remarks(program, ScheduledMulticastCopiesPass)
    assert "a step is multiplied in 1000000000 ns" in said


# ---- what is out of order -------------------------------------------------------------------------------------------


def of_pairs(by_warpgroups: Make, small: Small) -> tuple[tile.KernelOp, list[Any]]:
    small(2)
    a, b, _ = operands("nn", "f16", 128, 120, 200)
    program = by_warpgroups((64, 32, 64, 1, 2), product("nn", "f16"), a, b)
    check_pairs(program)
    (kernel,) = program.unit.kernels()
    return kernel, [a, b]


def left_out(kernel: tile.KernelOp, chosen: Callable[[Any], bool]) -> None:
    for op in [op for op in kernel.walk() if chosen(op)]:
        op.detach()
        op.erase()


def test_barriers_that_the_other_block_may_not_have_made(by_warpgroups: Make, small: Small) -> None:
    kernel, arrays = of_pairs(by_warpgroups, small)
    left_out(kernel, lambda op: isinstance(op, scheduled.BarrierOp) and op.scope == scheduled.CLUSTER)
    for seed in range(4):
        with pytest.raises(RaceError, match=r"may not have made|another warp made since"):
            run_call(kernel, arrays, seed)


def test_a_block_that_may_end_before_the_other_one_says_something_there(by_warpgroups: Make, small: Small) -> None:
    kernel, arrays = of_pairs(by_warpgroups, small)
    left_out(kernel, lambda op: isinstance(op, asynchronous.AwaitOp) and isinstance(op.parent_op(), scheduled.RoleOp))
    for seed in range(4):
        with pytest.raises(RaceError, match="may end before what others of the cluster do"):
            run_call(kernel, arrays, seed)


def test_a_stage_that_is_empty_in_one_block_only(by_warpgroups: Make, small: Small) -> None:
    kernel, arrays = of_pairs(by_warpgroups, small)
    for op in kernel.walk():
        if isinstance(op, asynchronous.MbarrierOp) and any(
            isinstance(use.operation, asynchronous.ArriveOp) for use in op.result.uses
        ):
            op.properties["arrivals"] = IntegerAttr(1, IndexType())
        if isinstance(op, asynchronous.ArriveOp):
            del op.properties["everywhere"]
    for seed in range(4):
        with pytest.raises(HazardError):
            run_call(kernel, arrays, seed)


def test_bytes_that_nobody_waits_for_are_too_many(by_warpgroups: Make, small: Small) -> None:
    kernel, arrays = of_pairs(by_warpgroups, small)
    (expect,) = (op for op in kernel.walk() if isinstance(op, asynchronous.ExpectOp))
    bytes = expect.bytes
    for wrong in (bytes // 2, 2 * bytes):
        expect.properties["bytes"] = IntegerAttr(wrong, IndexType())
        with pytest.raises((PhaseError, DeadlockError)):
            run_call(kernel, arrays)


@pytest.mark.parametrize(
    ("shape", "n"), [((64, 16, 32, 1, 2), 56), ((64, 32, 64, 1, 2), 88)], ids=["by threads", "by the machine"]
)
def test_mistakes_are_seen_and_nothing_else(by_warpgroups: Make, small: Small, shape: tuple[int, ...], n: int) -> None:
    small(2)
    a, b, _ = operands("nt", "f16", 128, n, 136)
    program = by_warpgroups(shape, product("nt", "f16"), a, b)
    check_pairs(program)
    (subject,) = subjects_of(program, [a, b], "a product whose blocks share what they copy")
    found = list(verdicts(subject, range(2), every=2))
    assert sum(bool(each.caught) for each in found) >= 35
    assert [each for each in found if each.is_missed or each.is_wronged] == []


def test_mistakes_in_tensor_memory_are_seen_and_nothing_else(in_tensor_memory: Make, small: Small) -> None:
    small(2)
    a, b, _ = operands("nt", "f16", 120, 248, 136)
    program = in_tensor_memory((128, 32, 64, 1, 2), product("nt", "f16"), a, b)
    check_pairs(program)
    (subject,) = subjects_of(program, [a, b], "a product in tensor memory whose blocks share what they copy")
    found = list(verdicts(subject, range(2), every=3))
    assert sum(bool(each.caught) for each in found) >= 40
    assert [each for each in found if each.is_missed or each.is_wronged] == []


# ---- machine code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chip", "products"), [("sm_90a", "HGMMA"), ("sm_100a", "UTCHMMA"), ("sm_103a", "UTCHMMA")])
def test_large_products_come_in_pairs_and_are_clean(chip: str, products: str) -> None:
    square = tw.ShapeDtype((8192, 8192), tw.bf16)
    program = built(tw.jit(product("nn", "bf16")).lower(square, square), f"cuda:{chip}")
    check_pairs(program)
    assert shared_sides(program) == [1]
    counts = check_clean(program)
    assert counts[products] >= 4
    assert counts["UTMALDG.MULTICAST"] >= 1
    assert (counts["UCGABAR_ARV"], counts["UCGABAR_WAIT"]) == (1, 1)
    assert ("UTCBAR.MULTICAST" in counts) == bool(ops_of(program, tensor_memory.MmaCommitOp))
