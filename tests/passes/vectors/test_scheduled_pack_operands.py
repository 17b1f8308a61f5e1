"""When `scheduled-pack-operands` packs at compile time, when all threads do it, when first rows keep panels, and what
panels hold."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import Make, expect, parse, random_inputs, remarks, run, run_through, unit_of
from tests.programs import PROGRAMS, Program, attention, build, convolution, inputs_for, matmul_epilogue
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.passes.base import Unit
from tilewright.passes.vectors.scheduled_pack_operands import ScheduledPackOperandsPass
from tilewright.pipelines import compile_module
from tilewright.primitives import ArrayType

AT_COMPILE_TIME = ("packed at compile time", "a captured array")
AT_RUN_TIME = ("packed by all threads", "an operand known at run time only")
KEPT = ("kept by the first rows", "other rows read it again")
WEIGHTS = np.random.default_rng(3).standard_normal((4, 44)).astype(np.float32)


def packed(make: Make) -> Unit:
    return run_through(make, ScheduledPackOperandsPass)


def decisions(unit: Unit) -> list[tuple[str, str]]:
    return remarks(unit, ScheduledPackOperandsPass.name)


def captured(p: Program, value: np.ndarray = WEIGHTS) -> Value:
    return p.constant(value, ArrayType(value.shape, dtypes.f32))


def panels_of(weights: np.ndarray, width: int = 24) -> np.ndarray:
    """Element by element: panels of `width` columns, in each the rows one after the other, zeros beyond the end."""
    depth, columns = weights.shape
    result = np.zeros(-(-columns // width) * depth * width, weights.dtype)
    for k in range(depth):
        for n in range(columns):
            result[n // width * depth * width + k * width + n % width] = weights[k, n]
    return result


def test_a_captured_array_is_packed_once_for_two_kernels() -> None:
    def program(p: Program) -> list[Value]:
        w = captured(p)
        return [p.dot(p.array(rows, 4), w, 0, 1, 0) for rows in (2, 3)]

    unit = packed(program)
    expect(
        unit,
        """
        CHECK: [[P:%[0-9]+]] = array.constant() {{.*}}.panels.0.1.24.f32{{.*}}"} : tensor<192xf32>
        CHECK-NEXT: array.call(%0, [[P]]) {callee = "contract_0"}
        CHECK-NEXT: [[Q:%[0-9]+]] = array.constant() {{.*}}.panels.0.1.24.f32{{.*}}"} : tensor<192xf32>
        CHECK-NEXT: array.call(%1, [[Q]]) {callee = "contract_1"}
        CHECK-NEXT: func.return
        CHECK: !tile.ref<tensor<4x44xf32>, "", "(4, 44) : [4@mem*24 | 2@mem*96 24@mem]">
        CHECK-NOT: "shared"
        CHECK-NOT: scheduled.barrier
        """,
    )
    assert decisions(unit) == [AT_COMPILE_TIME] * 2
    names = {op.resource for op in unit.main.walk() if isinstance(op, array.ConstantOp)}
    (name,) = names
    np.testing.assert_array_equal(unit.constants[name], panels_of(WEIGHTS))


def test_a_captured_operand_that_is_transposed_has_the_panels_of_its_columns() -> None:
    unit = packed(lambda p: [p.dot(p.array(2, 4), captured(p, WEIGHTS.T.copy()), 0, 1, 1)])
    (name,) = (op.resource for op in unit.main.walk() if isinstance(op, array.ConstantOp))
    assert ".panels.1.0.24.f32" in name
    np.testing.assert_array_equal(unit.constants[name], panels_of(WEIGHTS))


def test_an_array_whose_columns_lie_apart_is_packed_by_all_threads_before_a_barrier() -> None:
    unit = packed(lambda p: [p.dot(p.array(999, 4), p.array(200, 4), 0, 1, 1)])
    expect(
        unit,
        """
        CHECK: [[P:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<208x4xf32>, "shared", "(208, 4) : [13@mem*64 16@mem
        CHECK-NEXT: scheduled.parallel() {extents = array<i64: 13>, grain = 1 : index}
        CHECK: [[PART:%[0-9]+]] = tile.load(%1, [[I:%[0-9]+]]) {{.*}} : tensor<4x16xf32>
        CHECK-NEXT: tile.store([[PART]], [[P]], [[I]])
        CHECK: scheduled.barrier() {scope = "team"}
        CHECK-NEXT: scheduled.parallel()
        CHECK: scheduled.dot(%0, [[P]],
        """,
    )
    assert decisions(unit) == [AT_RUN_TIME]


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16])
def test_each_tile_packs_what_it_alone_reads(dtype: dtypes.DType) -> None:
    """In memory of the thread, without a barrier: of a batch, and of columns that are apart."""

    def program(p: Program) -> list[Value]:
        x, w = p.array(5, 6, 4, dtype=dtype), p.array(5, 70, 4, dtype=dtype)
        return [p.dot(x, w, 1, 2, 2)]

    unit = packed(program)
    expect(
        unit,
        """
        CHECK-NOT: "shared"
        CHECK: scheduled.alloc() : !tile.ref<tensor<4x72xf32>, "worker"
        CHECK: tile.load(%1
        CHECK-NOT: scheduled.barrier
        """,
    )
    assert decisions(unit) == [("packed by each tile", "no other tile reads its part")]
    x, w = random_inputs(unit)
    wanted = x.astype(np.float32) @ w.astype(np.float32).swapaxes(1, 2)
    np.testing.assert_allclose(run(unit, [x, w])[0].astype(np.float32), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [2, 6])
def test_an_array_whose_columns_lie_side_by_side_is_read_where_it_lies_by_few_rows(rows: int) -> None:
    unit = packed(lambda p: [p.dot(p.array(rows, 4), p.array(4, 600), 0, 1, 0)])
    expect(unit, "CHECK-NOT: @mem\nCHECK-NOT: scheduled.barrier\nCHECK: scheduled.dot(%0, %1,")
    assert decisions(unit) == []


def test_the_first_rows_of_many_keep_panels() -> None:
    """In memory of the thread: no buffer of the program, and no tile waits for another."""
    unit = packed(lambda p: [p.dot(p.array(64, 512), p.array(512, 600), 0, 1, 0)])
    expect(
        unit,
        """
        CHECK-NOT: @mem
        CHECK: scheduled.parallel() {extents = array<i64: {{.*}}, 2>, grain = 1 : index}
        CHECK: scheduled.dot(%0, %1,
        CHECK-SAME: keep = true
        CHECK-NOT: scheduled.barrier
        """,
    )
    assert decisions(unit) == [KEPT]


def test_what_the_first_rows_keep_is_multiplied() -> None:
    """The last tile has columns that the array lacks, and the last trip of the depth has depths that it lacks."""
    unit = packed(lambda p: [p.dot(p.array(64, 2063), p.array(2063, 600), 0, 1, 0)])
    assert decisions(unit) == [KEPT]
    x, w = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x, w])[0], x @ w, rtol=1e-4, atol=1e-3)


def test_panels_hold_the_type_that_is_multiplied() -> None:
    def program(p: Program) -> list[Value]:
        return [p.dot(p.array(999, 4, dtype=dtypes.bf16), p.array(4, 20, dtype=dtypes.bf16), 0, 1, 0)]

    expect(
        packed(program),
        """
        CHECK: scheduled.alloc() : !tile.ref<tensor<4x{{24|32}}xf32>, "shared"
        CHECK: tile.load(%1{{.*}} : tensor<4x{{.*}}xbf16>
        CHECK-NEXT: tile.cast(%{{[0-9]+}}) : tensor<4x{{.*}}xf32>
        CHECK-NEXT: tile.store
        """,
    )


def test_a_kernel_that_also_gets_a_run_time_array_packs_it_itself() -> None:
    """Two layers share a kernel; the weights of one are captured, those of the other are an argument."""

    def program(p: Program) -> list[Value]:
        x = p.array(999, 4)
        return [p.dot(x, captured(p, WEIGHTS.T.copy()), 0, 1, 1), p.dot(x, p.array(44, 4), 0, 1, 1)]

    unit = packed(program)
    expect(
        unit,
        'CHECK: {callee = "contract_0"}\nCHECK: {callee = "contract_0"}\nCHECK: "shared"\nCHECK-NOT: "shared"',
    )
    assert decisions(unit) == [AT_RUN_TIME]


def test_a_kernel_that_also_gets_a_run_time_array_reads_both_where_they_lie() -> None:
    """The captured array must not be packed: the kernel has one form for both."""

    def program(p: Program) -> list[Value]:
        x = p.array(2, 4)
        return [p.dot(x, captured(p), 0, 1, 0), p.dot(x, p.array(4, 44), 0, 1, 0)]

    unit = packed(program)
    expect(unit, "CHECK-NOT: panels\nCHECK-NOT: @mem\nCHECK: scheduled.dot(%0, %1,")
    assert decisions(unit) == []
    x, w = random_inputs(unit)
    for got, wanted in zip(run(unit, [x, w]), (x @ WEIGHTS, x @ w), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_computed_operands_stay_where_they_were_packed() -> None:
    def program(p: Program) -> list[Value]:
        return [p.dot(p.array(2, 4), p.add("reverse", [p.array(4, 20)], axes=(0,))[0], 0, 1, 0)]

    unit = packed(program)
    expect(unit, 'CHECK-NOT: "shared"\nCHECK-NOT: scheduled.barrier')
    assert decisions(unit) == []


def test_two_products_of_one_kernel_share_the_panels() -> None:
    square, buffer = "!tile.ref<tensor<16x16xf32>>", '!tile.ref<tensor<16x16xf32>, "worker">'
    dot = (
        '{extents = array<i64: 16, 16, 16>, block = "(6, 16) : [6@reg*2 | 2@reg 8@simd]", '
        "accumulator_map = affine_map<(d0, d1)[s0] -> (d0, d1)>, left_map = affine_map<(d0, d1)[s0] -> (d0, d1)>, "
        "right_map = affine_map<(d0, d1)[s0] -> (d1, d0)>, accumulate = false}"
    )
    text = f"""
    func.func @main(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>) -> tensor<16x16xf32> {{
      %y = array.call(%x, %w) {{callee = "k"}} : tensor<16x16xf32>
      func.return %y : tensor<16x16xf32>
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%x: {square}, %w: {square}, %out: {square}):
      scheduled.parallel() {{extents = array<i64: 2>, grain = 1 : index}} do {{
      ^bb0(%i: index):
        %half = scheduled.alloc() : {buffer}
        %total = scheduled.alloc() : {buffer}
        scheduled.dot(%x, %w, %half, %i) {dot}
        scheduled.dot(%half, %w, %total, %i) {dot}
        scheduled.nest() do {{
          %y = tile.load(%total) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<16x16xf32>
          tile.store(%y, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
          scheduled.end()
        }}
        scheduled.end()
      }}
      tile.yield()
    }}
    """
    unit = unit_of(parse(text), {})
    ScheduledPackOperandsPass().apply(unit)
    unit.module.verify()
    expect(
        unit,
        """
        CHECK: [[P:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<16x16xf32>, "shared"
        CHECK-NOT: "shared"
        CHECK: scheduled.dot(%0, [[P]],
        CHECK-NEXT: scheduled.dot(%{{[0-9]+}}, [[P]],
        """,
    )
    x, w = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x, w])[0], x @ w.T @ w.T, rtol=1e-4, atol=1e-4)


def by_name(name: str) -> Make:
    return next(make for make in PROGRAMS if make.__name__ == name)


@pytest.mark.parametrize(
    "make", [matmul_epilogue, by_name("matmul_constant"), attention, convolution], ids=lambda f: f.__name__
)
def test_packed_programs_mean_what_they_meant(make: Make) -> None:
    program = build(make)
    inputs = inputs_for(program)
    expected = compile_module(build_module(program), program.constants, "interp")(*inputs)
    for got, wanted in zip(run(packed(make), inputs), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_packed_kernels_are_the_same_after_printing_and_parsing(make: Make) -> None:
    unit = packed(make)
    assert parse(str(unit.module)).is_structurally_equivalent(unit.module)
