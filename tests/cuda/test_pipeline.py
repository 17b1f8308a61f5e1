"""Products whose windows are copied ahead in stages: on an emulator against float64, what the assembler makes of them,
and that what is taken out of their schedules is missed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tilewright as tw
from tests.cuda.chips import KINDS, Tensor, built
from tests.cuda.test_machine_code import check_clean
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.counts import Counts
from tests.emulators.ptx.emulator import run
from tests.passes.pass_support import parse, unit_of
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.tile_erase_zones import TileEraseZonesPass
from tilewright.passes.tile_expand_arg_reduce import TileExpandArgReducePass
from tilewright.passes.warps.scheduled_drop_barriers import ScheduledDropBarriersPass
from tilewright.passes.warps.scheduled_loop_over_tiles import ScheduledLoopOverTilesPass
from tilewright.passes.warps.scheduled_multicast_copies import ScheduledMulticastCopiesPass
from tilewright.passes.warps.scheduled_multiply_in_tensor_memory import ScheduledMultiplyInTensorMemoryPass
from tilewright.passes.warps.scheduled_order_accesses import ScheduledOrderAccessesPass
from tilewright.passes.warps.scheduled_order_tiles import ScheduledOrderTilesPass
from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
from tilewright.passes.warps.scheduled_plan_block_memory import ScheduledPlanBlockMemoryPass
from tilewright.passes.warps.scheduled_record_zones import ScheduledRecordZonesPass
from tilewright.passes.warps.scheduled_share_registers import ScheduledShareRegistersPass
from tilewright.passes.warps.scheduled_specialize_chains import ScheduledSpecializeChainsPass
from tilewright.passes.warps.scheduled_specialize_warps import ScheduledSpecializeWarpsPass
from tilewright.passes.warps.scheduled_store_tensors import ScheduledStoreTensorsPass
from tilewright.passes.warps.scheduled_sum_in_tensor_memory import ScheduledSumInTensorMemoryPass
from tilewright.passes.warps.tile_flatten_loops import TileFlattenLoopsPass
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass
from tilewright.passes.warps.tile_multiply_in_tensor_memory import TileMultiplyInTensorMemoryPass
from tilewright.pipelines import tile_to_warps
from tilewright.semantics import scheduled as semantics
from tilewright.semantics.array import Interpreter
from tilewright.targets.cuda.emit import emit_kernel
from tilewright.targets.cuda.target import CudaProgram
from tilewright.targets.cuda.toolchain import COMPILER

# ---- whole products -------------------------------------------------------------------------------------------------


def numbers(shape: Sequence[int], dtype: str, seed: int) -> Tensor:
    """Whole numbers from -4 to 4, which products add exactly."""
    return np.random.default_rng(seed).integers(-4, 5, tuple(shape)).astype(dtypes.by_name(dtype).numpy)


def executed(program: CudaProgram, arrays: Sequence[Tensor]) -> tuple[Tensor, Counts]:
    """The result of a program of one kernel on the emulator, and what it counted."""
    counted: list[Counts] = []

    def call(callee: str, given: list[Tensor]) -> list[Tensor]:
        code, out = program.kernels[callee], tile.ref_type(program.unit.kernel(callee).refs[-1])
        result = np.zeros(out.shape, out.dtype.numpy)
        copies = [np.array(each, copy=True, order="C") for each in given]
        order = random.Random(len(callee))
        ptx, shared_bytes = program.ptx[callee], code.shared_bytes
        arrays = [*copies, result]
        arrays += tensor_maps(code.tensor_maps, arrays)
        counted.append(run(ptx, callee, code.blocks, code.threads, arrays, shared_bytes, order))
        return [result]

    (got,) = Interpreter(program.unit.constants, call).run(program.unit.main.body.block, list(arrays))
    (counts,) = counted
    return got, counts


def compiled(function: Callable[..., Any], chip: str, *arrays: Any) -> CudaProgram:
    return built(tw.jit(function).lower(*arrays), f"cuda:{chip}")


def said(program: CudaProgram) -> list[str]:
    """What the pass that copies ahead decided, and why."""
    remarks = [each for each in program.unit.remarks if each.pass_name == ScheduledPipelineCopiesPass.name]
    return [f"{each.decision}: {each.reason}" for each in remarks]


def product(order: str, dtype: str) -> Callable[[Any, Any], Any]:
    """A product of operands of which those under `t` are stored transposed."""

    def of(a: Any, b: Any) -> Any:
        a, b = (each.T if how == "t" else each for how, each in zip(order, (a, b), strict=True))
        return tw.matmul(a, b, dtype=tw.i32) if dtype == "i8" else a @ b

    return of


def operands(order: str, dtype: str, m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two operands as they are stored, and their product."""
    a, b = numbers((m, k), dtype, 1), numbers((k, n), dtype, 2)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    stored = [np.ascontiguousarray(each.T) if how == "t" else each for how, each in zip(order, (a, b), strict=True)]
    return *stored, exact


@pytest.mark.parametrize(
    ("chip", "order", "dtype"),
    [
        (chip, order, ("bf16", "f16")[(row + column) % 2])
        for row, chip in enumerate(KINDS)
        for column, order in enumerate(("nn", "nt", "tn", "tt"))
    ],
)
def test_products_of_any_order(chip: str, order: str, dtype: str) -> None:
    a, b, exact = operands(order, dtype, 40, 72, 208)
    program = compiled(product(order, dtype), chip, a, b)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    assert said(program)[0].startswith("2 windows copied ahead")
    assert counts.shared_conflicts == 0
    assert counts.instructions["cp.async.cg.shared.global"] > 0
    loaded = [opcode for opcode in counts.instructions if opcode.startswith("ldmatrix")]
    assert any(".trans" in opcode for opcode in loaded) == (order != "nt")


@pytest.mark.parametrize("depth", [512, 4096])
def test_results_move_in_the_type_that_is_stored(depth: int) -> None:
    """Not in that of the sums, of twice the bytes, however much there is to add up."""
    types = [tw.ShapeDtype(shape, tw.bf16) for shape in ((4096, depth), (depth, 4096))]
    module = str(compiled(product("nn", "bf16"), "sm_80", *types).unit.module)
    assert '!tile.ref<tensor<128x256xbf16>, "block"' in module
    assert 'xf32>, "block"' not in module


@pytest.mark.parametrize("chip", KINDS)
def test_products_of_8_bits(chip: str) -> None:
    a, b, exact = operands("nt", "i8", 80, 96, 256)
    program = compiled(product("nt", "i8"), chip, a, b)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(np.int32))
    assert said(program)[0].startswith("2 windows copied ahead")
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize(
    ("dtype", "order", "m", "n", "k", "pieces"),
    [
        ("bf16", "nn", 130, 100, 108, 8),
        ("f16", "nn", 33, 38, 70, 4),
        ("bf16", "tt", 76, 64, 204, 8),
        ("i8", "nt", 40, 24, 132, 4),
        ("bf16", "nn", 300, 520, 136, 16),
    ],
)
def test_windows_beyond_the_arrays_are_zeros(dtype: str, order: str, m: int, n: int, k: int, pieces: int) -> None:
    a, b, exact = operands(order, dtype, m, n, k)
    program = compiled(product(order, dtype), "sm_80", a, b)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    assert said(program)[0].startswith("2 windows copied ahead")
    hint = "cg" if pieces == 16 else "ca"
    assert counts.instructions[f"cp.async.{hint}.shared.global"] > 0
    assert re.search(rf"cp\.async\.{hint}\.shared\.global \[%\S+\], \[%\S+\], {pieces},", *program.ptx.values())
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize("batches", [(3,), (2, 2)], ids=str)
def test_batched_products(batches: tuple[int, ...]) -> None:
    a, b = numbers((*batches, 48, 96), "bf16", 1), numbers((*batches, 96, 64), "bf16", 2)
    program = compiled(lambda x, y: x @ y, "sm_90a", a, b)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))
    assert said(program)[0].startswith("2 windows copied ahead")
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize("chip", KINDS)
def test_what_follows_a_product(chip: str) -> None:
    a, b, exact = operands("nt", "f16", 96, 128, 160)
    bias = numbers((128,), "f16", 3)
    program = compiled(lambda x, y, z: tw.maximum(x @ y.T + z, 0), chip, a, b, bias)
    got, counts = executed(program, (a, b, bias))
    np.testing.assert_array_equal(got, np.maximum(exact + bias.astype(np.float64), 0).astype(np.float16))
    assert said(program)[0].startswith("2 windows copied ahead")
    assert counts.shared_conflicts == 0


def test_results_in_more_bits() -> None:
    a, b, exact = operands("nn", "bf16", 64, 80, 96)
    program = compiled(lambda x, y: tw.matmul(x, y, dtype=tw.f32), "sm_90a", a, b)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(np.float32))


REFUSED = {
    "odd rows": (("bf16", "nn", 40, 33, 77), "rows of 33 elements of 2 bytes do not begin at multiples of 4 bytes"),
    "8 bits transposed": (("i8", "nn", 64, 64, 256), "an operand of 8 bits would have to be transposed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_copied_ahead_says_why_and_is_right(name: str) -> None:
    (dtype, order, m, n, k), reason = REFUSED[name]
    a, b, exact = operands(order, dtype, m, n, k)
    program = compiled(product(order, dtype), "sm_80", a, b)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    assert any(reason in each for each in said(program))


# ---- kernels with given tiles ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A product of f16, `m` x `k` with `k` x `n`, by tiles of the same letters in capitals."""

    m: int = 64
    n: int = 32
    k: int = 160
    M: int = 32
    N: int = 32
    K: int = 32
    warps: int = 4
    stages: int = 3

    def module(self) -> ModuleOp:
        return parse(f"""
func.func @main(%x: tensor<{self.m}x{self.k}xf16>, %y: tensor<{self.k}x{self.n}xf16>)
    -> tensor<{self.m}x{self.n}xf32> {{
  %z = array.call(%x, %y) {{callee = "product"}} : tensor<{self.m}x{self.n}xf32>
  func.return %z : tensor<{self.m}x{self.n}xf32>
}}
tile.kernel() {{sym_name = "product", grid = array<i64: {-(-self.m // self.M)}, {-(-self.n // self.N)}>,
    effects = ["in", "in", "out"], warps = {self.warps} : index, stages = {self.stages} : index}} do {{
^bb0(%x: !tile.ref<tensor<{self.m}x{self.k}xf16>>, %y: !tile.ref<tensor<{self.k}x{self.n}xf16>>,
    %out: !tile.ref<tensor<{self.m}x{self.n}xf32>>, %i: index, %j: index):
  %zero = tile.full() {{value = 0.0 : f64}} : tensor<{self.M}x{self.N}xf32>
  %sum = tile.for(%zero) {{trips = {-(-self.k // self.K)} : index}} do {{
  ^bb1(%t: index, %s: tensor<{self.M}x{self.N}xf32>):
    %a = tile.load(%x, %i, %t) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * {self.M}, d1 + s1 * {self.K})>,
        fill = 0.0 : f64}} : tensor<{self.M}x{self.K}xf16>
    %b = tile.load(%y, %t, %j) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * {self.K}, d1 + s1 * {self.N})>,
        fill = 0.0 : f64}} : tensor<{self.K}x{self.N}xf16>
    %p = tile.dot(%a, %b, %s) : tensor<{self.M}x{self.N}xf32>
    tile.yield(%p)
  }} : tensor<{self.M}x{self.N}xf32>
  tile.store(%sum, %out, %i, %j) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * {self.M}, d1 + s1 * {self.N})>}}
  tile.yield()
}}
""")

    def unit(self, chip: str = "sm_90a", last: type | None = None) -> Unit:
        """The program after the passes for warps, up to one of them."""
        unit = unit_of(self.module(), {})
        unit.machine = load(chip)
        for each in tile_to_warps():
            each.apply(unit)
            unit.module.verify()
            if last is not None and isinstance(each, last):
                break
        return unit

    def arrays(self) -> tuple[Tensor, Tensor]:
        return numbers((self.m, self.k), "f16", 1), numbers((self.k, self.n), "f16", 2)

    def exact(self) -> Tensor:
        a, b = self.arrays()
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


def interpreted(unit: Unit, given: Given) -> Tensor:
    """The result by the definitions of the operations, which check what warps and copies do to buffers."""
    (kernel,) = unit.kernels()
    return semantics.run_call(kernel, list(given.arrays()))[0]


def emulated_unit(unit: Unit, given: Given) -> tuple[Tensor, Counts]:
    (kernel,) = unit.kernels()
    code = emit_kernel(kernel, unit.machine)
    ptx = COMPILER.ptx(code.name, code.text, unit.machine)
    result = np.zeros((given.m, given.n), np.float32)
    arrays = [*given.arrays(), result]
    arrays += tensor_maps(code.tensor_maps, arrays)
    counts = run(ptx, code.name, code.blocks, code.threads, arrays, code.shared_bytes)
    return result, counts


def of_kind(unit: Unit, kind: type) -> list[Any]:
    (kernel,) = unit.kernels()
    return [op for op in kernel.walk() if isinstance(op, kind)]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 40, 24), (17, 40, 1), (16, 33, 40), (5, 512, 7)], ids=str)
@pytest.mark.parametrize("chip", ["sm_86", "sm_120a"])
def test_tiles_larger_than_their_arrays(chip: str, shape: tuple[int, int, int], dtype: str) -> None:
    rows, depth, columns = shape
    a, b = numbers((rows, depth), dtype, 1), numbers((depth, columns), dtype, 2)
    got, _ = executed(compiled(lambda x, y: x @ y, chip, a, b), (a, b))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(a.dtype).astype(np.float64))


# ---- machine code ---------------------------------------------------------------------------------------------------


# Those without warpgroups and tensor memory, whose products the tests of `passes/warps` assemble.
BY_WARPS = tuple(chip for chip in KINDS if chip not in ("sm_90a", "sm_100a"))


@pytest.mark.parametrize("chip", BY_WARPS)
@pytest.mark.parametrize("dtype", ["bf16", "i8"])
def test_large_products_are_clean(chip: str, dtype: str) -> None:
    square = tw.ShapeDtype((4096, 4096), getattr(tw, dtype))
    program = compiled(product("nt", dtype), chip, square, square)
    counts = check_clean(program)
    assert counts["LDGSTS"] >= 8
    assert counts["LDSM"] >= 4
    assert counts["IMMA" if dtype == "i8" else "HMMA"] >= 32
    assert counts["BAR"] <= 4
    ((kernel, taken),) = program.cost()["kernels"].items()
    assert taken["shared_bytes"] <= load(chip).memories[0].bytes + 1024, kernel  # the system takes 1 KiB
    explained = program.explain()
    assert "windows copied ahead, " in explained
    assert f"{taken['resident_blocks']} resident blocks, {taken['resident_warps']} resident warps\n" in explained
    assert f"  no more blocks at once for want of {' and '.join(taken['limited_by'])}\n" in explained


@pytest.mark.parametrize("chip", BY_WARPS)
def test_what_follows_large_products_has_registers(chip: str) -> None:
    square, row = tw.ShapeDtype((4096, 4096), tw.bf16), tw.ShapeDtype((4096,), tw.bf16)
    program = compiled(lambda a, b, c, r: tw.nn.gelu(a @ b + c) + r, chip, square, square, row, square)
    assert check_clean(program)["LDGSTS"] >= 8


def test_the_order_of_the_passes_is_that_of_these_tests() -> None:
    names = [type(each) for each in tile_to_warps()]
    assert names == [
        TileEraseZonesPass,
        TileExpandArgReducePass,
        TileFlattenLoopsPass,
        TileMultiplyInTensorMemoryPass,
        TileLowerToWarpsPass,
        ScheduledOrderAccessesPass,
        ScheduledMultiplyInTensorMemoryPass,
        ScheduledSpecializeChainsPass,
        ScheduledSumInTensorMemoryPass,
        ScheduledSpecializeWarpsPass,
        ScheduledShareRegistersPass,
        ScheduledPipelineCopiesPass,
        ScheduledStoreTensorsPass,
        ScheduledOrderTilesPass,
        ScheduledLoopOverTilesPass,
        ScheduledMulticastCopiesPass,
        ScheduledPlanBlockMemoryPass,
        ScheduledDropBarriersPass,
        ScheduledRecordZonesPass,
    ]
