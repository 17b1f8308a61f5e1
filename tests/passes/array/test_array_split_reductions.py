"""Reductions in parts: of long sums, and on GPUs of those with too few blocks for all SMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, emulated
from tests.passes.pass_support import applied, check_meaning, check_unchanged, run
from tilewright import dtypes, schedules
from tilewright.cost.warps.loops import reduction_blocks
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import load
from tilewright.options import options
from tilewright.passes.array import array_split_reductions
from tilewright.passes.array.array_split_reductions import ArraySplitReductionsPass


def remarks(program: Any) -> list[str]:
    return [each.decision for each in program.unit.remarks if each.pass_name == ArraySplitReductionsPass.name]


def of_shape(function: Callable[..., Any], *shape: int, dtype: Any = tw.f32, target: str = "cuda:sm_90a") -> Any:
    return built(tw.jit(function).lower(tw.ShapeDtype(shape, dtype)), target)


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [
        ((8192, 8192), 0, ["8 parts"]),  # 128 blocks of 64 columns
        ((64, 1 << 20), 1, ["16 parts"]),  # a block for each row
        ((8192, 8192), 1, []),  # enough rows
        ((1024, 1024), 0, []),  # too small for a second kernel
        ((8191, 8192), 0, []),  # no equal parts
    ],
)
def test_reductions_of_few_blocks_have_parts(shape: tuple[int, ...], axis: int, parts: list[str]) -> None:
    program = of_shape(lambda x: tw.sum(x, axis=axis), *shape)
    assert [each for each in remarks(program) if "parts" in each] == parts


def test_all_sms_have_blocks() -> None:
    cores = load("sm_90a").cores
    program = of_shape(lambda x: tw.max(x, axis=0), 8192, 8192)
    assert reduction_blocks((8192, 8192), (0,), cores) < cores
    first = next(iter(program.unit.kernels()))
    assert np.prod(first.body.block.first_op.extents) >= 4 * cores


@pytest.mark.parametrize("function", [tw.sum, tw.max, tw.prod], ids=lambda f: f.__name__)
def test_results_in_parts(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_split_reductions, "LEAST_SHARED", 1)
    x = np.float32(2.0) ** np.random.default_rng(0).integers(-1, 2, (512, 70)).astype(np.float32)
    program = built(tw.jit(lambda x: function(-x, axis=0) + 1).lower(x), "cuda:sm_90a")
    assert [each for each in remarks(program) if "parts" in each] == ["4 parts"]
    reference = {"sum": np.sum, "max": np.max, "prod": np.prod}[function.__name__]
    expected = reference(-x.astype(np.float64), axis=0) + 1
    np.testing.assert_allclose(emulated(program, [x])[0], expected, rtol=1e-4)


def joined(function: str, middle: str = "", source: str = "%j") -> str:
    """A reduction of 300,000 and 3 elements, concatenated."""
    return f"""
    func.func @main(%x: tensor<300000xi32>, %y: tensor<3xi32>) -> tensor<i32> {{
      %j = array.concat(%x, %y) {{axis = 0 : index}} : tensor<300003xi32>
      {middle}
      %z = array.reduce({source}) {{fn = "{function}", axes = array<i64: 0>}} : tensor<i32>
      func.return %z : tensor<i32>
    }}
    """


HALVES = """
      %two = array.constant() {value = 2.0 : f64, resource = ""} : tensor<i32>
      %twos = array.broadcast(%two) {axes = array<i64>} : tensor<300003xi32>
      %n = array.iota() {axis = 0 : index} : tensor<300003xi32>
      %h = array.map(%j, %twos) {fn = "multiply"} : tensor<300003xi32>
      %m = array.map(%h, %n) {fn = "subtract"} : tensor<300003xi32>
"""


@pytest.mark.parametrize("function", ["add", "maximum"])
@pytest.mark.parametrize(("middle", "source"), [("", "%j"), (HALVES, "%m")], ids=["alone", "computed"])
def test_operands_of_a_concatenation_are_reduced_apart(function: str, middle: str, source: str) -> None:
    unit = check_meaning(ArraySplitReductionsPass(), joined(function, middle, source))
    ops = list(unit.main.body.block.ops)
    assert not any(isinstance(op, array.ConcatOp) for op in ops)
    sizes = [array_type(op.operands[0]).size for op in ops if isinstance(op, array.ReduceOp)]
    assert {300000, 3} <= set(sizes)


@pytest.mark.parametrize("sizes", [(3000, 5000), (3, 7000), (20, 10)])
def test_operands_of_a_concatenation_are_reduced_apart_to_many_results(sizes: tuple[int, int]) -> None:
    a, b = sizes
    rows = 70
    text = f"""
    func.func @main(%x: tensor<{rows}x{a}xf32>, %y: tensor<{rows}x{b}xf32>) -> tensor<{rows}xf32> {{
      %j = array.concat(%x, %y) {{axis = 1 : index}} : tensor<{rows}x{a + b}xf32>
      %z = array.reduce(%j) {{fn = "add", axes = array<i64: 1>}} : tensor<{rows}xf32>
      func.return %z : tensor<{rows}xf32>
    }}
    """
    inputs = [np.random.default_rng(0).integers(-9, 9, (rows, n)).astype(np.float32) for n in sizes]
    unit = check_meaning(ArraySplitReductionsPass(), text, inputs=inputs)
    assert not any(isinstance(op, array.ConcatOp) for op in unit.main.body.block.ops)


def test_sums_of_narrow_operands_are_added_before_they_are_rounded() -> None:
    text = """
    func.func @main(%x: tensor<70x300xbf16>, %y: tensor<70x500xbf16>) -> tensor<70xbf16> {
      %j = array.concat(%x, %y) {axis = 1 : index} : tensor<70x800xbf16>
      %z = array.reduce(%j) {fn = "add", axes = array<i64: 1>} : tensor<70xbf16>
      func.return %z : tensor<70xbf16>
    }
    """
    unit = check_meaning(ArraySplitReductionsPass(), text)
    ops = list(unit.main.body.block.ops)
    assert not any(isinstance(op, array.ConcatOp) for op in ops)
    sums = [array_type(op.results[0]).dtype for op in ops if isinstance(op, array.ReduceOp | array.MapOp)]
    assert sums == [dtypes.f32] * 3


def test_what_is_computed_of_a_concatenation_twice_over_is_computed_once() -> None:
    """Each of 40 operations has both operands from the one before: 2 ** 40 paths."""
    lines = ['%v0 = array.map(%j, %j) {fn = "minimum"} : tensor<300003xi32>']
    lines += [f'%v{n} = array.map(%v{n - 1}, %v{n - 1}) {{fn = "minimum"}} : tensor<300003xi32>' for n in range(1, 40)]
    unit = applied(ArraySplitReductionsPass(), joined("add", " ".join(lines), "%v39"))
    maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert len(maps) == 2 * 40 + 1


def test_a_concatenation_that_is_returned_too_is_reduced_as_a_whole() -> None:
    text = joined("add").replace("-> tensor<i32>", "-> (tensor<i32>, tensor<300003xi32>)")
    text = text.replace("return %z : tensor<i32>", "return %z, %j : tensor<i32>, tensor<300003xi32>")
    unit = applied(ArraySplitReductionsPass(), text)
    assert sum(isinstance(op, array.ConcatOp) for op in unit.main.body.block.ops) == 1


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((148, 50, 512), 0),
        ((3, 200, 512), 1),
        ((147, 53, 250), 0),
        ((300, 7, 512), 0),
        ((2, 3, 100000), 2),
        ((113, 211, 37), 0),
    ],
)
def test_long_sums_are_cut_along_the_outermost_dim_of_enough_parts(shape: tuple[int, ...], cut: int) -> None:
    size = "x".join(map(str, shape))
    text = f"""
    func.func @main(%x: tensor<{size}xi32>) -> tensor<i32> {{
      %z = array.reduce(%x) {{fn = "add", axes = array<i64: 0, 1, 2>}} : tensor<i32>
      func.return %z : tensor<i32>
    }}
    """
    unit = check_meaning(ArraySplitReductionsPass(), text)
    first = next(op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp))
    assert first.part_axis == cut
    assert array_type(first.results[0]).shape[0] >= 8


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [
        ((40001, 48), 0, True),  # parts of which the last one is shorter
        ((20000, 4, 12), 0, True),
        ((20000, 100), 0, True),
        ((2000, 60), 0, False),  # too few elements
        ((1024, 8192), 0, False),  # columns are work for many threads
        ((64, 4000, 32), 1, False),  # so are the batches
    ],
)
@pytest.mark.parametrize("function", ["add", "maximum"])
def test_rows_are_shared_where_columns_cannot_be(shape: tuple[int, ...], axis: int, parts: bool, function: str) -> None:
    size, kept = "x".join(map(str, shape)), "x".join(map(str, (*shape[:axis], *shape[axis + 1 :])))
    text = f"""
    func.func @main(%x: tensor<{size}xf32>) -> tensor<{kept}xf32> {{
      %z = array.reduce(%x) {{fn = "{function}", axes = array<i64: {axis}>}} : tensor<{kept}xf32>
      func.return %z : tensor<{kept}xf32>
    }}
    """
    if not parts:
        check_unchanged(ArraySplitReductionsPass(), text)
        return
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    unit = check_meaning(ArraySplitReductionsPass(), text, inputs=[x])
    first = next(op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp))
    assert first.part_axis == axis


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [
        ((20000, 48), 0, True),
        ((1000, 64), 0, True),  # one kernel takes 0.05 ms, two and a half take 0.02
        ((20000, 7), 0, True),  # few results, of few elements each
        ((8, 28, 28, 64), (0, 1, 2), True),  # eight parts of the outermost dim
        ((4, 56, 56, 96), (0, 1, 2), True),  # parts of the next one
        ((100, 64), 0, False),  # too few elements
        ((16, 1024, 64), 1, False),  # batches are work for all threads, and each is near
        ((4, 20000, 64), 1, True),  # batches that are not near
    ],
)
def test_columns_that_are_read_again(shape: tuple[int, ...], axis: int | tuple[int, ...], parts: bool) -> None:
    def function(x: Any) -> Any:
        return x - tw.max(x, axis=axis, keepdims=True)

    program = of_shape(function, *shape, target="cpu:x86-64-v3")
    assert ("parts" in "".join(remarks(program))) is parts
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(tw.jit(function)(x), x - x.max(axis, keepdims=True))


@pytest.mark.parametrize("shape", [(40001, 48), (30000, 7), (5000, 4, 60), (9000, 300)], ids=str)
@pytest.mark.parametrize("function", ["plain", "sigmoid", "square", "max", "bf16"])
def test_sums_of_columns(shape: tuple[int, ...], function: str) -> None:
    """Of little and of much arithmetic, in parts and as a whole; equal for any number of threads."""
    dtype = tw.bf16 if function == "bf16" else tw.f32
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype.numpy)
    wide = x.astype(np.float64)
    ours, expected = {
        "plain": (lambda x: tw.sum(x, axis=0), wide.sum(0)),
        "bf16": (lambda x: tw.sum(x, axis=0), wide.sum(0)),
        "sigmoid": (lambda x: tw.sum(tw.nn.sigmoid(x), axis=0), (1 / (1 + np.exp(-wide))).sum(0)),
        "square": (lambda x: tw.mean(x * x, axis=0), (wide * wide).mean(0)),
        "max": (lambda x: tw.max(x, axis=0), wide.max(0)),
    }[function]
    found: list[Any] = []
    for threads in (1, 2, 3):
        with options(threads=threads):
            found.append(np.asarray(tw.jit(ours)(x)).astype(np.float64))
    rounding = 2**-8 if function == "bf16" else 2e-6
    np.testing.assert_allclose(found[0], expected, rtol=rounding, atol=2e-6 * np.sqrt(shape[0]))
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize("dtype", [tw.bf16, tw.f16])
@pytest.mark.parametrize("function", ["add", "maximum"])
def test_parts_of_narrow_floats_are_not_rounded(function: str, dtype: tw.DType) -> None:
    """Sums of parts would round to bf16 after each: the whole is rounded once."""
    text = f"""
    func.func @main(%x: tensor<300000x{dtype}>) -> tensor<{dtype}> {{
      %z = array.reduce(%x) {{fn = "{function}", axes = array<i64: 0>}} : tensor<{dtype}>
      func.return %z : tensor<{dtype}>
    }}
    """
    x = (np.random.default_rng(0).random(300000) / 64).astype(dtype.numpy)
    unit = applied(ArraySplitReductionsPass(), text)
    parts, whole = [op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp)]
    assert array_type(parts.results[0]).shape[0] > 1
    assert array_type(whole.results[0]).dtype == (tw.f32 if function == "add" else dtype)
    (found,) = run(unit, [x])
    exact = x.astype(np.float64).sum() if function == "add" else x.astype(np.float64).max()
    assert found.dtype == dtype.numpy
    assert found == np.float32(exact).astype(dtype.numpy)


@pytest.mark.parametrize("columns", [1, 7, 200])
def test_few_elements_of_operands_of_a_concatenation_are_reduced_apart(columns: int) -> None:
    """Vectors would be loaded from several of them, under masks; where kernels take longer to launch, they are."""
    rows = 28000 // (4 * columns)
    arguments = ", ".join(f"%a{n}: tensor<{rows}x{columns}xi32>" for n in range(4))
    text = f"""
    func.func @main({arguments}) -> tensor<i32> {{
      %j = array.concat(%a0, %a1, %a2, %a3) {{axis = 1 : index}} : tensor<{rows}x{4 * columns}xi32>
      %z = array.reduce(%j) {{fn = "add", axes = array<i64: 0, 1>}} : tensor<i32>
      func.return %z : tensor<i32>
    }}
    """
    unit = check_meaning(ArraySplitReductionsPass(), text)
    assert not any(isinstance(op, array.ConcatOp) for op in unit.main.body.block.ops)
    check_unchanged(ArraySplitReductionsPass(fills_cores=True), text)


def test_transposed_operands_of_a_concatenation_are_reduced_as_they_are_stored() -> None:
    text = """
    func.func @main(%x: tensor<300x500xi32>, %y: tensor<500x300xi32>) -> tensor<i32> {
      %t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<300x500xi32>
      %j = array.concat(%x, %t) {axis = 1 : index} : tensor<300x1000xi32>
      %e = array.map(%j) {fn = "negative"} : tensor<300x1000xi32>
      %z = array.reduce(%e) {fn = "maximum", axes = array<i64: 0, 1>} : tensor<i32>
      func.return %z : tensor<i32>
    }
    """
    unit = check_meaning(ArraySplitReductionsPass(), text)
    assert not any(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops)


def test_sums_of_short_operands_of_narrow_floats_are_rounded_once() -> None:
    arrays = [np.random.default_rng(n).random((1000, 7)).astype(tw.bf16.numpy) for n in range(4)]
    found = tw.jit(lambda *each: tw.sum(tw.concat(each, axis=1)))(*arrays)
    exact = sum(each.astype(np.float64).sum() for each in arrays)
    assert np.asarray(found) == np.float32(exact).astype(tw.bf16.numpy)


def test_parts_of_transposed_arrays_use_lines_whole() -> None:
    x, y = tw.ShapeDtype((640, 49, 64), tw.f32), tw.ShapeDtype((64, 49, 640), tw.f32)
    program = tw.jit(lambda x, y: tw.sum(tw.permute_dims(x, (2, 1, 0)) + y, axis=(0, 1))).lower(x, y)
    split = program.compile("cpu:x86-64-v4").schedules["loop_0"]
    assert isinstance(split, schedules.Loop)
    assert split.tile[1] >= 16
