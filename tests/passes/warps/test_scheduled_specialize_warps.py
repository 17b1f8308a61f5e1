"""Products of warpgroups that a warp of its own has the machine copy for: on an emulator and by the definitions of the
operations against float64, and what the assembler makes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.rewriter import InsertPoint, Rewriter

import tilewright as tw
from tests.cuda.chips import Tensor, built
from tests.cuda.mutant_subjects import subjects_of
from tests.cuda.schedule_mutants import verdicts
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import Given, emulated_unit, executed, interpreted, numbers, of_kind, operands, product
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, RegisterRace, SharedRace
from tests.passes.pass_support import parse, unit_of
from tests.passes.pass_support import run as run_unit
from tests.passes.warps.products import Product
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import NO_STAGES, Fallback
from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
from tilewright.passes.warps.scheduled_specialize_warps import ScheduledSpecializeWarpsPass
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass
from tilewright.semantics import scheduled as semantics
from tilewright.semantics.array import Interpreter
from tilewright.targets.cuda.target import CudaProgram

Make = Callable[..., CudaProgram]
SMALL, TWO_GROUPS = (64, 32, 64, 1, 3), (128, 64, 64, 2, 2)


def defined(program: CudaProgram, arrays: tuple[Tensor, ...]) -> Tensor:
    """The result by the definitions of the operations, which check who does what to buffers."""

    def call(callee: str, given: list[Tensor]) -> list[Tensor]:
        return semantics.run_call(program.unit.kernel(callee), given, seed=len(given))

    (result,) = Interpreter(program.unit.constants, call).run(program.unit.main.body.block, list(arrays))
    return result


def ops_of(program: CudaProgram, kind: type) -> list[Any]:
    return [op for kernel in program.unit.kernels() for op in kernel.walk() if isinstance(op, kind)]


def remarks(program: CudaProgram, pass_type: type) -> list[str]:
    return [f"{r.decision}: {r.reason}" for r in program.unit.remarks if r.pass_name == pass_type.name]


def check_fed_by_a_warp(program: CudaProgram) -> None:
    """All that is copied ahead a warp has copied."""
    assert remarks(program, ScheduledSpecializeWarpsPass)[0].startswith("a warp copies 2 windows ahead")
    assert len(ops_of(program, asynchronous.TensorCopyOp)) == 2
    assert ops_of(program, scheduled.CopyOp) == []


# ---- that they are right --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, TWO_GROUPS], ids=str)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_products_of_any_order(by_warpgroups: Make, order: str, shape: tuple[int, ...]) -> None:
    dtype = "bf16" if shape is SMALL else "f16"
    # A whole tile and an edge each way.
    a, b, exact = operands(order, dtype, shape[0] + 8, shape[1] + 8, 200)
    program = by_warpgroups(shape, product(order, dtype), a, b)
    check_fed_by_a_warp(program)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


def test_products_of_8_bits(by_warpgroups: Make) -> None:
    a, b, exact = operands("nt", "i8", 80, 96, 272)
    program = by_warpgroups((64, 32, 128, 1, 2), product("nt", "i8"), a, b)
    check_fed_by_a_warp(program)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(np.int32))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


def summed_twice(x: Any, y: Any) -> Any:
    return tw.einsum("mjk,jkn->mn", x, y)


@pytest.mark.parametrize("stages", [2, 3])
def test_two_contracted_dims_are_one_loop(by_warpgroups: Make, stages: int) -> None:
    a, b = (numbers(shape, "f16", seed) for seed, shape in enumerate(((72, 3, 96), (3, 96, 40))))
    program = by_warpgroups((64, 32, 64, 1, stages), summed_twice, a, b)
    check_fed_by_a_warp(program)
    got, _ = executed(program, (a, b))
    exact = np.einsum("mjk,jkn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


@pytest.mark.parametrize("trips", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_number_of_trips_and_stages(by_warpgroups: Make, stages: int, trips: int) -> None:
    a, b, exact = operands("nn", "bf16", 64, 16, 32 * trips - 8)
    program = by_warpgroups((64, 16, 32, 1, stages), product("nn", "bf16"), a, b)
    rings = [op for op in ops_of(program, scheduled.AllocOp) if op.stages is not None]
    assert [ring.count for ring in rings] == [min(stages, trips)] * 2
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


@pytest.mark.parametrize(
    ("shape", "m", "n", "k"),
    [
        ((64, 16, 32, 1, 2), 2, 8, 40),
        ((64, 16, 16, 1, 3), 65, 24, 72),
        ((128, 256, 64, 2, 4), 130, 264, 136),
        ((256, 64, 64, 2, 2), 200, 56, 96),
        ((64, 256, 64, 1, 2), 60, 512, 128),
        ((128, 64, 128, 1, 2), 100, 64, 264),
    ],
    ids=str,
)
def test_windows_beyond_the_arrays_are_zeros(
    by_warpgroups: Make, shape: tuple[int, ...], m: int, n: int, k: int
) -> None:
    a, b, exact = operands("nn", "f16", m, n, k)
    program = by_warpgroups(shape, lambda x, y: tw.matmul(x, y, dtype=tw.f32), a, b)
    check_fed_by_a_warp(program)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(np.float32))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


FLOATS = ["f8e4m3fn", "f8e5m2"]


@pytest.mark.parametrize(("left", "right"), [(left, right) for left in FLOATS for right in FLOATS])
def test_floats_of_8_bits(by_warpgroups: Make, left: str, right: str) -> None:
    """Of both formats, and each with the other; with edges, by one warpgroup and by two."""
    a, b = numbers((136, 208), left, 1), numbers((72, 208), right, 2)
    shape = (64, 32, 64, 1, 3) if left == right else (128, 64, 128, 2, 2)
    program = by_warpgroups(shape, lambda x, y: tw.matmul(x, y.T, dtype=tw.f32), a, b)
    check_fed_by_a_warp(program)
    names = {"f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}
    assert f"m64n{shape[1]}k32.f32.{names[left]}.{names[right]}" in "".join(program.ptx.values())
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


def test_batches(by_warpgroups: Make) -> None:
    a, b = numbers((2, 2, 72, 96), "bf16", 1), numbers((2, 2, 96, 40), "bf16", 2)
    program = by_warpgroups(SMALL, lambda x, y: x @ y, a, b)
    check_fed_by_a_warp(program)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def gelu_of_biased(a: Any, b: Any, bias: Any, rest: Any) -> Any:
    return tw.nn.gelu(a @ b + bias) + rest


def test_what_follows_a_product(by_warpgroups: Make) -> None:
    a, b, exact = operands("nn", "f16", 136, 72, 136)
    bias, rest = numbers((72,), "f16", 3), numbers((136, 72), "f16", 4)
    program = by_warpgroups(TWO_GROUPS, gelu_of_biased, a, b, bias, rest)
    check_fed_by_a_warp(program)
    got, counts = executed(program, (a, b, bias, rest))
    sums = exact + bias.astype(np.float64)
    wanted = sums * 0.5 * (1 + np.vectorize(math.erf)(sums / np.sqrt(2))) + rest.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
    assert counts.shared_conflicts == 0
    np.testing.assert_allclose(defined(program, (a, b, bias, rest)).astype(np.float64), wanted, rtol=2e-3, atol=2e-3)


# ---- what a warp does not copy --------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "rows of 8 bytes": (lambda x, y: x @ y, ((72, 100), (100, 40)), "do not begin at multiples of 16 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_warp_does_not_copy_is_right_and_says_why(by_warpgroups: Make, name: str) -> None:
    function, shapes, reason = REFUSED[name]
    a, b = (numbers(shape, "f16", seed) for seed, shape in enumerate(shapes))
    program = by_warpgroups(SMALL, function, a, b)
    (said,) = remarks(program, ScheduledSpecializeWarpsPass)
    assert said.startswith("not warp-specialized")
    assert reason in said
    assert ops_of(program, scheduled.RoleOp) == []
    copied = remarks(program, ScheduledPipelineCopiesPass)[0]
    assert copied.startswith("2 windows copied ahead")
    got, _ = executed(program, (a, b))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got, wanted.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


@dataclass(frozen=True)
class Computed(Given):
    """A product whose left operand is negated on the way, or as it is; by warpgroups, or by what is found best."""

    negated: bool = True
    named: bool = True

    def module(self) -> ModuleOp:
        module = super().module()
        (dot,) = (op for op in module.walk() if isinstance(op, tile.DotOp))
        if self.named:
            dot.properties["atom"] = StringAttr(f"wgmma, {self.warps // 4} warpgroup{'s' if self.warps > 4 else ''}")
        if self.negated:
            negated = tile.MapOp(arguments=[dot.left], fn="negative", outputs=[dot.left.type])
            Rewriter.insert_op(negated, InsertPoint.before(dot))
            dot.operands[0] = negated.results[0]
        return module


@pytest.mark.parametrize("negated", [True, False])
def test_operands_that_are_computed_pass_through_registers(negated: bool) -> None:
    given = Computed(m=136, n=40, k=104, M=128, N=32, K=32, warps=8, negated=negated)
    unit = given.unit()
    (kernel,) = unit.kernels()
    reasons = "; ".join(str(remark) for remark in unit.remarks)
    assert ("`map` stands between the window of the left operand and the matmul" in reasons) == negated
    assert any(isinstance(op, scheduled.RoleOp) for op in kernel.walk()) != negated
    exact = -given.exact() if negated else given.exact()
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], exact)
    np.testing.assert_array_equal(interpreted(unit, given), exact)


@pytest.mark.parametrize("negated", [True, False])
def test_kernels_that_say_nothing_are_multiplied_by_warpgroups_from_windows(negated: bool) -> None:
    given = Computed(m=128, n=64, k=96, M=64, N=32, K=32, negated=negated, named=False)
    unit = given.unit()
    (kernel,) = unit.kernels()
    assert any(isinstance(op, scheduled.RoleOp) for op in kernel.walk()) != negated
    assert any(isinstance(op, scheduled.MmaWaitOp) for op in kernel.walk()) != negated
    exact = -given.exact() if negated else given.exact()
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], exact)


def test_one_trip_is_copied_by_a_warp_too() -> None:
    given = Computed(m=64, n=32, k=32, M=64, N=32, K=32, negated=False)
    unit = given.unit()
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], given.exact())
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())


def test_a_product_without_a_loop_is_by_single_warps() -> None:
    a, b, exact = operands("nn", "bf16", 64, 64, 16)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_90a")
    assert ops_of(program, scheduled.MmaWaitOp) == []
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))


# ---- that each synchronisation is needed ----------------------------------------------------------------------------

BROKEN = {
    "mbarrier.arrive.expect_tx": (Deadlock, BarrierMisuse),
    "mbarrier.arrive.shared": (Deadlock,),
    "mbarrier.try_wait": (SharedRace, RegisterRace, BarrierMisuse),
    "fence.mbarrier_init": (BarrierMisuse,),
    "bar.sync": (SharedRace, BarrierMisuse),
    "wgmma.wait_group": (SharedRace, RegisterRace),
    "wgmma.fence": (RegisterRace,),
    "wgmma.commit_group": (SharedRace, RegisterRace),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_left_out_is_found(by_warpgroups: Make, broken: str) -> None:
    """A kernel of many trips, so that loops are loops, without all of its synchronisations of a kind."""
    a, b, _ = operands("nn", "f16", 64, 16, 32 * 40)
    program = by_warpgroups((64, 16, 32, 1, 2), product("nn", "f16"), a, b)
    ((name, code),) = program.kernels.items()
    lines = program.ptx[name].splitlines()
    assert any(broken in line for line in lines)
    arrays: list[Any] = [a, b, np.zeros((64, 16), np.float16)]
    arrays += tensor_maps(code.tensor_maps, arrays)
    text = "\n".join(without(line) if broken in line else line for line in lines)
    with pytest.raises(BROKEN[broken]):
        run(text, name, code.blocks, code.threads, arrays, code.shared_bytes)


@pytest.mark.parametrize(("shape", "depth"), [((64, 16, 32, 1, 3), 224), ((128, 16, 32, 2, 2), 192), (SMALL, 220)])
def test_mistakes_planted_in_schedules_are_found(by_warpgroups: Make, shape: tuple[int, ...], depth: int) -> None:
    """By a warp that copies, for one and two warpgroups, and by the warps themselves."""
    a, b, _ = operands("nt", "f16", 128, 32, depth)
    program = by_warpgroups(shape, product("nt", "f16"), a, b)
    (subject,) = subjects_of(program, [a, b], "a product of warpgroups")
    found = list(verdicts(subject, range(2), every=2))
    assert sum(bool(each.caught) for each in found) >= 10
    assert [each for each in found if each.is_missed or each.is_wronged] == []


def without(line: str) -> str:
    """Nothing, or what a wait finds that is not waited for."""
    found = re.search(r"try_wait\S* (%p\d+),", line)
    return f"setp.eq.b32 {found[1]}, 0, 0;" if found else ""


# ---- what is chosen, and machine code -------------------------------------------------------------------------------


def of_square(size: int, dtype: str, order: str = "nn") -> CudaProgram:
    square = tw.ShapeDtype((size, size), getattr(tw, dtype))
    return built(tw.jit(product(order, dtype)).lower(square, square), "cuda:sm_90a")


# What multiplies types of 8 bits; those of 16 are multiplied by HGMMA.
OF_8_BITS = {"i8": "IGMMA", "f8e4m3fn": "QGMMA", "f8e5m2": "QGMMA"}


def test_the_schedule_of_a_large_product() -> None:
    """Beside three stages there is room for the result, which is stored while the next tile is multiplied."""
    (said,) = remarks(of_square(8192, "bf16"), ScheduledSpecializeWarpsPass)
    assert said.startswith("a warp copies 2 windows ahead, 3 stages: tile 128 x 256 x 64, wgmma, 2 warpgroups")


@pytest.mark.parametrize(
    ("dtype", "order"),
    [*(("bf16", order) for order in ("nn", "nt", "tn", "tt")), ("f16", "nn"), *((dtype, "nt") for dtype in OF_8_BITS)],
)
def test_large_products_are_clean(dtype: str, order: str) -> None:
    program = of_square(4096, dtype, order)
    check_fed_by_a_warp(program)
    counts = check_clean(program)
    assert counts[OF_8_BITS.get(dtype, "HGMMA")] == 4
    assert counts["UTMALDG"] >= 2
    assert counts["SYNCS"] >= 4
    ((_, taken),) = program.cost()["kernels"].items()
    assert taken["threads"] == 288
    assert taken["registers"] <= 224  # a block has 65536: CUDA C++ Programming Guide, technical specifications


def test_what_follows_large_products_has_registers_and_does_not_wait() -> None:
    square, row = tw.ShapeDtype((4096, 4096), tw.bf16), tw.ShapeDtype((4096,), tw.bf16)
    program = built(tw.jit(gelu_of_biased).lower(square, square, row, square), "cuda:sm_90a")
    check_fed_by_a_warp(program)
    assert check_clean(program)["HGMMA"] == 4


def test_tensor_maps_describe_the_arrays() -> None:
    a, b = tw.ShapeDtype((3, 256, 512), tw.bf16), tw.ShapeDtype((3, 512, 1024), tw.bf16)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_90a")
    ((name, code),) = program.kernels.items()
    refs = program.unit.kernel(name).refs
    assert [each.parameter for each in code.tensor_maps] == [0, 1, 2]
    for each in code.tensor_maps:
        type = tile.ref_type(refs[each.parameter])
        assert each.shape == type.shape[::-1]
        assert each.strides == (type.shape[2] * 2, type.shape[1] * type.shape[2] * 2)
        assert (each.box[0] * 2, each.box[2], each.swizzle) == (128, 1, 128)


# ---- one condition at a time ----------------------------------------------------------------------------------------

PASS = ScheduledSpecializeWarpsPass()
PLAIN = Product(rows=64, columns=32, trips=4, atom='atom = "wgmma, 1 warpgroup"')
SECOND = f"%q = tile.dot(%a, %b, %s) {{{PLAIN.atom}}} : tensor<64x32xf32>"
REFUSED_WINDOWS = {
    "a bound that the grid point chooses": (
        replace(PLAIN, end=", end = affine_map<()[s0] -> (s0 + 2)>"),
        "the trip count of the loop is not known at block start",
    ),
    "two matmuls": (replace(PLAIN, between=SECOND), "the loop has more than one matmul"),
    "something is done with the sum": (
        replace(PLAIN, after='%q = tile.map(%p, %p) {fn = "add"} : tensor<64x32xf32>', result="%q"),
        "the loop does more than accumulate matmuls",
    ),
    "another sum is passed on": (replace(PLAIN, result="%s"), "the loop does more than accumulate matmuls"),
    "each trip begins anew": (
        replace(PLAIN, before="%none = tile.full() {value = 0.0 : f64} : tensor<64x32xf32>", accumulator="%none"),
        "the loop does more than accumulate matmuls",
    ),
    "a computed operand": (
        replace(PLAIN, between='%c = tile.map(%a) {fn = "negative"} : tensor<64x16xf16>', left="%c"),
        "`map` stands between the window of the left operand and the matmul",
    ),
    "filled with ones": (
        replace(PLAIN, fill="1.0 : f64"),
        "the left operand is filled with something else than zeros",
    ),
    "rows that are not aligned": (replace(PLAIN, width=76), "rows of 76 elements of 2 bytes do not begin at multiples"),
    "two stages without room": (
        replace(PLAIN, columns=256, depth=512, trips=2),
        "two stages need 655360 bytes of mem.shared, 232448 are left",
    ),
    "a window that is used twice": (
        replace(PLAIN, between="tile.store(%a, %x, %t) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 16)>}"),
        "the left operand is used more than once",
    ),
}


def in_warps(product: Product) -> Unit:
    unit = unit_of(parse(product.text), {}, "sm_90a")
    TileLowerToWarpsPass().apply(unit)
    return unit


@pytest.mark.parametrize("name", REFUSED_WINDOWS)
def test_a_loop_without_a_producer_warp_stays_and_says_why(name: str) -> None:
    product, reason = REFUSED_WINDOWS[name]
    unit = in_warps(product)
    before = str(unit.module)
    PASS.apply(unit)
    found = [each for each in unit.remarks if each.pass_name == PASS.name]
    assert found
    assert all(each.decision == "not warp-specialized" and each.reason.startswith(reason) for each in found)
    assert str(unit.module) == before


@pytest.mark.parametrize(("stages", "trips", "expected"), [(2, 4, 2), (3, 4, 3), (8, 4, 4), (4, 1, 2)])
def test_stages_are_no_more_than_trips(stages: int, trips: int, expected: int) -> None:
    product = replace(PLAIN, trips=trips, warps=f", stages = {stages} : index")
    unit = in_warps(product)
    PASS.apply(unit)
    unit.module.verify()
    rings = [op.count for op in of_kind(unit, scheduled.AllocOp) if op.stages is not None]
    assert rings == [expected, expected]
    a, b = numbers((64, 16 * trips), "f16", 1), numbers((16 * trips, 32), "f16", 2)
    np.testing.assert_array_equal(run_unit(unit, [a, b])[0], a.astype(np.float64) @ b.astype(np.float64))


def test_a_kernel_without_stages_left_has_no_producer_warp() -> None:
    """It has fallen back because its stages had no room."""
    unit = in_warps(PLAIN)
    before = str(unit.module)
    unit.fallbacks.by_key["product"] = Fallback(NO_STAGES)
    PASS.apply(unit)
    assert str(unit.module) == before
