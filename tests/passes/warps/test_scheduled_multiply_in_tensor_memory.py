"""Products in tensor memory, fed by a warp that copies and begun by one that multiplies: on an emulator and by the
definitions of the operations against float64, and what the assembler makes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import Tensor, built, emulated
from tests.cuda.mutant_subjects import subjects_of
from tests.cuda.schedule_mutants import verdicts
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import Given, emulated_unit, executed, interpreted, numbers, operands, product
from tests.cuda.test_tf32 import check as check_tf32
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, SharedRace, TensorMemoryFault
from tests.passes.warps.test_scheduled_specialize_warps import defined, gelu_of_biased, ops_of, remarks
from tilewright.dialects import scheduled
from tilewright.dialects.scheduled import tensor_memory
from tilewright.passes.warps.scheduled_multiply_in_tensor_memory import ScheduledMultiplyInTensorMemoryPass
from tilewright.targets.cuda.target import CudaProgram

Make = Callable[..., CudaProgram]
SMALL, TWO_GROUPS = (128, 32, 64, 1, 3), (128, 64, 64, 2, 2)


def check_in_tensor_memory(program: CudaProgram) -> None:
    """A warp copies, one multiplies, and nothing is in registers before the sum."""
    (said,) = remarks(program, ScheduledMultiplyInTensorMemoryPass)
    assert said.startswith("in tensor memory; a warp copies 2 windows ahead")
    assert [op.role for op in ops_of(program, scheduled.RoleOp)] == ["copies", "multiplies"]
    assert len(ops_of(program, tensor_memory.TensorMmaOp)) == 1
    assert ops_of(program, scheduled.MmaOp) == ops_of(program, scheduled.CopyOp) == []


def check(program: CudaProgram, arrays: tuple[Tensor, ...], exact: Tensor) -> None:
    """The emulator and the definitions agree with what is exact, and no bank is met twice."""
    check_in_tensor_memory(program)
    got, counts = executed(program, arrays)
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, arrays), got)
    assert counts.shared_conflicts == 0


# ---- that they are right --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, TWO_GROUPS], ids=str)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_products_of_any_order(in_tensor_memory: Make, order: str, shape: tuple[int, ...]) -> None:
    dtype, chip = ("bf16", "sm_100a") if shape is SMALL else ("f16", "sm_103a")
    # A whole tile and an edge each way.
    a, b, exact = operands(order, dtype, shape[0] + 8, shape[1] + 8, 200)
    check(in_tensor_memory(shape, product(order, dtype), a, b, chip=chip), (a, b), exact)


@pytest.mark.parametrize(
    ("left", "right"), [("i8", "i8"), *((x, y) for x in ("f8e4m3fn", "f8e5m2") for y in ("f8e4m3fn", "f8e5m2"))]
)
def test_products_of_8_bits(in_tensor_memory: Make, left: str, right: str) -> None:
    a, b = numbers((144, 272), left, 1), numbers((48, 272), right, 2)
    result = tw.i32 if left == "i8" else tw.f32
    program = in_tensor_memory((128, 32, 128, 1, 2), lambda x, y: tw.matmul(x, y.T, dtype=result), a, b)
    check(program, (a, b), a.astype(np.float64) @ b.astype(np.float64).T)


def test_products_of_tf32_are_rounded_by_the_copies(in_tensor_memory: Make) -> None:
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((rows, 104)).astype(np.float32) for rows in (136, 40))
    program = in_tensor_memory((128, 32, 32, 1, 3), lambda x, y: tw.matmul(x, y.T, precision="tf32"), a, b)
    check_in_tensor_memory(program)
    check_tf32(emulated(program, [a, b])[0], a, b)
    check_tf32(defined(program, (a, b)), a, b)


@pytest.mark.parametrize("trips", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_trips_and_stages(in_tensor_memory: Make, stages: int, trips: int) -> None:
    a, b, exact = operands("nn", "bf16", 100, 16, 32 * trips - 8)
    program = in_tensor_memory((128, 16, 32, 1, stages), product("nn", "bf16"), a, b)
    rings = [op for op in ops_of(program, scheduled.AllocOp) if op.stages is not None]
    assert [ring.count for ring in rings] == [min(stages, trips)] * 2
    check(program, (a, b), exact)


@pytest.mark.parametrize(
    ("shape", "m", "n", "k"),
    [
        ((128, 16, 16, 1, 3), 129, 24, 72),
        ((128, 256, 64, 2, 4), 130, 264, 136),
        ((128, 128, 64, 1, 2), 60, 512, 128),
        ((128, 96, 128, 1, 2), 100, 104, 264),
    ],
    ids=str,
)
def test_windows_beyond_the_arrays_are_zeros(
    in_tensor_memory: Make, shape: tuple[int, ...], m: int, n: int, k: int
) -> None:
    a, b, exact = operands("nn", "f16", m, n, k)
    check(in_tensor_memory(shape, lambda x, y: tw.matmul(x, y, dtype=tw.f32), a, b), (a, b), exact)


def test_batches(in_tensor_memory: Make) -> None:
    a, b = numbers((2, 2, 72, 96), "bf16", 1), numbers((2, 2, 96, 40), "bf16", 2)
    check(in_tensor_memory(SMALL, lambda x, y: x @ y, a, b), (a, b), a.astype(np.float64) @ b.astype(np.float64))


def test_what_follows_a_product(in_tensor_memory: Make) -> None:
    a, b, exact = operands("nn", "f16", 136, 72, 136)
    bias, rest = numbers((72,), "f16", 3), numbers((136, 72), "f16", 4)
    program = in_tensor_memory(TWO_GROUPS, gelu_of_biased, a, b, bias, rest)
    check_in_tensor_memory(program)
    sums = exact + bias.astype(np.float64)
    wanted = sums * 0.5 * (1 + np.vectorize(math.erf)(sums / np.sqrt(2))) + rest.astype(np.float64)
    got, counts = executed(program, (a, b, bias, rest))
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(defined(program, (a, b, bias, rest)).astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize("warps", [4, 8])
def test_kernels_that_say_nothing_are_multiplied_there(warps: int) -> None:
    given = Given(m=200, n=64, k=96, M=128, N=32, K=32, warps=warps)
    unit = given.unit("sm_100a")
    (kernel,) = unit.kernels()
    assert any(isinstance(op, tensor_memory.TensorMmaOp) for op in kernel.walk())
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], given.exact())
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())


def test_one_trip_is_copied_by_a_warp_too() -> None:
    given = Given(m=128, n=32, k=32, M=128, N=32, K=32)
    unit = given.unit("sm_100a")
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], given.exact())
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())


# ---- what is not multiplied there -----------------------------------------------------------------------------------


def test_two_contracted_dims_are_one_loop(in_tensor_memory: Make) -> None:
    a, b = (numbers(shape, "f16", seed) for seed, shape in enumerate(((130, 3, 96), (3, 96, 40))))
    program = in_tensor_memory(SMALL, lambda x, y: tw.einsum("mjk,jkn->mn", x, y), a, b)
    assert len(ops_of(program, scheduled.RoleOp)) == 2
    got, _ = executed(program, (a, b))
    exact = np.einsum("mjk,jkn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))


# ---- that each synchronisation is needed ----------------------------------------------------------------------------

BROKEN = {
    "mbarrier.arrive.expect_tx": (Deadlock, BarrierMisuse),
    "mbarrier.try_wait": (SharedRace, TensorMemoryFault, BarrierMisuse),
    "fence.mbarrier_init": (BarrierMisuse,),
    "bar.sync": (SharedRace, BarrierMisuse, TensorMemoryFault),
    "tcgen05.commit": (Deadlock,),
    "tcgen05.fence::after_thread_sync": (TensorMemoryFault,),
    "tcgen05.dealloc": (TensorMemoryFault,),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_left_out_is_found(in_tensor_memory: Make, broken: str) -> None:
    """A kernel of many trips, so that loops are loops, without all of its synchronisations of a kind."""
    a, b, _ = operands("nn", "f16", 128, 16, 32 * 40)
    program = in_tensor_memory((128, 16, 32, 1, 2), product("nn", "f16"), a, b)
    ((name, code),) = program.kernels.items()
    lines = program.ptx[name].splitlines()
    assert any(broken in line for line in lines)
    arrays: list[Any] = [a, b, np.zeros((128, 16), np.float16)]
    arrays += tensor_maps(code.tensor_maps, arrays)
    text = "\n".join(_without(line) if broken in line else line for line in lines)
    with pytest.raises(BROKEN[broken]):
        run(text, name, code.blocks, code.threads, arrays, code.shared_bytes)


@pytest.mark.parametrize(("shape", "depth"), [((128, 16, 32, 1, 3), 224), ((128, 32, 32, 2, 2), 192)])
def test_mistakes_planted_in_schedules_are_found(in_tensor_memory: Make, shape: tuple[int, ...], depth: int) -> None:
    a, b, _ = operands("nt", "f16", 128, 32, depth)
    program = in_tensor_memory(shape, product("nt", "f16"), a, b)
    (subject,) = subjects_of(program, [a, b], "a product in tensor memory")
    found = list(verdicts(subject, range(2), every=2))
    assert sum(bool(each.caught) for each in found) >= 20
    assert [(each.op, each.mutant.rule) for each in found if each.is_missed] == []
    assert [each for each in found if each.is_wronged] == []


def _without(line: str) -> str:
    """Nothing, or what a wait finds that is not waited for."""
    found = re.search(r"try_wait\S* (%p\d+),", line)
    return f"setp.eq.b32 {found[1]}, 0, 0;" if found else ""


# ---- what is chosen, and machine code -------------------------------------------------------------------------------


def of_square(size: int, dtype: str, order: str = "nn", chip: str = "sm_100a") -> CudaProgram:
    square = tw.ShapeDtype((size, size), getattr(tw, dtype))
    return built(tw.jit(product(order, dtype)).lower(square, square), f"cuda:{chip}")


@pytest.mark.parametrize("chip", ["sm_100a", "sm_103a"])
def test_the_schedule_of_a_large_product(chip: str) -> None:
    """Beside three stages there is room for a result of 16 bits, which is stored while the next tile is multiplied."""
    (said,) = remarks(of_square(8192, "bf16", chip=chip), ScheduledMultiplyInTensorMemoryPass)
    wanted = "in tensor memory; a warp copies 2 windows ahead, 3 stages: tile 128 x 256 x 64, tcgen05, "
    assert said.startswith(wanted)


INSTRUCTIONS = {"bf16": "UTCHMMA", "f16": "UTCHMMA", "i8": "UTCIMMA", "f8e4m3fn": "UTCQMMA", "f8e5m2": "UTCQMMA"}


@pytest.mark.parametrize(
    ("dtype", "order", "chip"),
    [
        *(("bf16", order, "sm_100a") for order in ("nn", "nt", "tn", "tt")),
        *(("f16", "nn", "sm_103a"), ("i8", "nt", "sm_100a"), ("f8e5m2", "nt", "sm_103a")),
    ],
)
def test_large_products_are_clean(dtype: str, order: str, chip: str) -> None:
    program = of_square(4096, dtype, order, chip)
    check_in_tensor_memory(program)
    counts = check_clean(program)
    assert counts[INSTRUCTIONS[dtype]] == 4
    assert counts["UTMALDG"] >= 2
    assert counts["LDTM"] == 1
    assert counts["UTCBAR"] == 2
    ((_, taken),) = program.cost()["kernels"].items()
    assert taken["threads"] == 320
    assert taken["registers"] <= 200  # a block has 65536: CUDA C++ Programming Guide, technical specifications


def test_large_products_of_tf32_are_clean() -> None:
    square = tw.ShapeDtype((4096, 4096), tw.f32)
    program = built(tw.jit(lambda x, y: tw.matmul(x, y.T, precision="tf32")).lower(square, square), "cuda:sm_100a")
    check_in_tensor_memory(program)
    assert check_clean(program)["UTCHMMA"] == 4


def test_what_follows_large_products_has_registers() -> None:
    square, row = tw.ShapeDtype((4096, 4096), tw.bf16), tw.ShapeDtype((4096,), tw.bf16)
    program = built(tw.jit(gelu_of_biased).lower(square, square, row, square), "cuda:sm_100a")
    check_in_tensor_memory(program)
    assert check_clean(program)["UTCHMMA"] == 4
