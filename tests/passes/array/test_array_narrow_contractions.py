"""Contractions of few columns and of few results, which `array-narrow-contractions` rewrites."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import applied, check_meaning, check_unchanged, remarks
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_narrow_contractions import LEAST_ROWS, ArrayNarrowContractionsPass
from tilewright.passes.base import Unit

PASS = ArrayNarrowContractionsPass()


def contraction(
    left: tuple[int, ...],
    right: tuple[int, ...],
    result: tuple[int, ...],
    *,
    batch: tuple[str, str] = ("", ""),
    summed: tuple[str, str] = ("1", "0"),
    dtypes: tuple[str, str] = ("i32", "i32"),
) -> str:
    """A program of one contraction, of whole numbers, whose sums are exact in any order."""

    def tensor(shape: tuple[int, ...], dtype: str) -> str:
        return f"tensor<{'x'.join(map(str, (*shape, dtype)))}>"

    operand, total = dtypes

    def axes(text: str) -> str:
        return f"array<i64: {text}>" if text else "array<i64>"

    return f"""
    func.func @main(%x: {tensor(left, operand)}, %y: {tensor(right, operand)}) -> {tensor(result, total)} {{
      %z = array.contract(%x, %y) {{left_batch = {axes(batch[0])}, right_batch = {axes(batch[1])},
        left_contract = {axes(summed[0])}, right_contract = {axes(summed[1])}}} : {tensor(result, total)}
      func.return %z : {tensor(result, total)}
    }}
    """


def ops(unit: Unit) -> list[str]:
    return [op.name for op in unit.main.body.block.ops]


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_few_columns_become_rows(columns: int) -> None:
    unit = check_meaning(PASS, contraction((96, 64), (64, columns), (96, columns)))
    (product,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    assert product.operands[0] is unit.main.body.block.args[1]
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["operands swapped"]


@pytest.mark.parametrize(
    ("machine", "depth", "columns", "swapped"),
    [
        ("x86-64-v3", 64, 6, True),
        ("x86-64-v3", 64, 7, False),
        ("x86-64-v3", 264, 7, True),
        ("x86-64-v3", 264, 8, False),
        ("x86-64-v4", 64, 12, False),
        ("x86-64-v4", 264, 12, True),
        ("x86-64-v4", 512, 16, False),
        ("x86-64-v4", 1024, 16, True),  # rows on the same sets of the first-level cache
        ("x86-64-v4", 1024, 17, False),
    ],
)
def test_columns_that_are_best_summed_along_the_depth(machine: str, depth: int, columns: int, *, swapped: bool) -> None:
    """Vectors have eight and sixteen lanes."""
    text = contraction((96, depth), (depth, columns), (96, columns))
    unit = check_meaning(PASS, text, machine) if swapped else check_unchanged(PASS, text, machine)
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["operands swapped"] * swapped


def test_columns_stay_where_the_left_operand_is_not_stored_along_the_depth() -> None:
    check_unchanged(PASS, contraction((256, 96), (256, 6), (96, 6), summed=("0", "0")))


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((1, 64), (64, 1), (1, 1)),  # a dot product
        ((LEAST_ROWS - 1, 64), (64, 1), (LEAST_ROWS - 1, 1)),
        ((100, 3), (3, 1), (100, 1)),
        ((2, 64), (64, 2), (2, 2)),
        ((64,), (64,), ()),
        ((64,), (64, 2), (2,)),
    ],
)
def test_few_results_are_reductions(left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]) -> None:
    summed = (str(len(left) - 1), "0")
    unit = check_meaning(PASS, contraction(left, right, result, summed=summed))
    assert "array.contract" not in ops(unit)
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["a multiplication and a reduction"]


def test_one_row_by_columns_that_are_stored_along_the_depth() -> None:
    unit = check_meaning(PASS, contraction((1, 64), (8, 64), (1, 8), summed=("1", "1")))
    assert "array.contract" not in ops(unit)
    # Its rows are vectors of columns.
    check_unchanged(PASS, contraction((1, 64), (64, 8), (1, 8)))


@pytest.mark.parametrize(("rows", "depth", "reduces"), [(127, 20000, True), (128, 20000, False), (64, 16383, False)])
def test_long_rows_of_fewer_tiles_than_threads_are_reduced(rows: int, depth: int, reduces: bool) -> None:
    """Two threads, vectors of eight: each has two tiles of 32 rows."""
    unit = applied(PASS, contraction((rows, depth), (depth, 1), (rows, 1)))
    assert ("array.contract" not in ops(unit)) == reduces


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_row_by_a_matrix_of_narrow_floats_along_the_depth(dtype: str) -> None:
    shapes = ((1, 64), (2 * LEAST_ROWS, 64), (1, 2 * LEAST_ROWS))
    unit = applied(PASS, contraction(*shapes, summed=("1", "1"), dtypes=(dtype, "f32")))
    assert "array.contract" not in ops(unit)
    wide = applied(PASS, contraction(*shapes, summed=("1", "1"), dtypes=("f32", "f32")))
    assert "array.contract" in ops(wide)


@pytest.mark.parametrize(("stride", "reduces"), [(1, False), (2, True), (3, True)])
def test_a_row_by_a_matrix_of_elements_apart_along_the_depth(stride: int, reduces: bool) -> None:
    columns, depth = 2 * LEAST_ROWS, 24
    text = f"""
    func.func @main(%x: tensor<1x{depth}xi32>, %w: tensor<{columns}x{stride * depth}xi32>) -> tensor<1x{columns}xi32> {{
      %s = array.slice(%w) {{starts = array<i64: 0, 0>, limits = array<i64: {columns}, {stride * depth}>,
        strides = array<i64: 1, {stride}>}} : tensor<{columns}x{depth}xi32>
      %t = array.transpose(%s) {{permutation = array<i64: 1, 0>}} : tensor<{depth}x{columns}xi32>
      %z = array.contract(%x, %t) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>}} : tensor<1x{columns}xi32>
      func.return %z : tensor<1x{columns}xi32>
    }}
    """
    unit = check_meaning(PASS, text) if reduces else check_unchanged(PASS, text)
    assert ("array.contract" in ops(unit)) != reduces


def test_depth_that_is_not_inside_is_not_reduced_in_vectors() -> None:
    """The left operand is stored by columns: the product of one row with it reads it in long runs."""
    unit = check_meaning(PASS, contraction((64, 8), (64, 1), (8, 1), summed=("0", "0")))
    assert "array.contract" in ops(unit)


def test_batches_and_several_dims() -> None:
    text = contraction((5, 6, 40, 7), (6, 7, 3), (6, 5, 40, 3), batch=("1", "0"), summed=("3", "1"))
    check_unchanged(PASS, text)  # too little depth
    text = contraction((5, 6, 40, 17), (6, 17, 3), (6, 5, 40, 3), batch=("1", "0"), summed=("3", "1"))
    assert "array.contract" in ops(check_meaning(PASS, text))
    text = contraction((4, 6, 3), (6, 3, 4), (6,), batch=("1", "0"), summed=("0, 2", "2, 1"))
    assert "array.contract" not in ops(check_meaning(PASS, text))


def test_narrow_operands_are_summed_in_the_type_of_the_result() -> None:
    unit = check_meaning(PASS, contraction((1, 64), (64, 1), (1, 1), dtypes=("i8", "i32")))
    assert "array.contract" not in ops(unit)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((96, 64), (64, 9), (96, 9)),  # enough columns
        ((3, 64), (64, 4), (3, 4)),  # no more rows than columns
        ((96, 8), (8, 2), (96, 2)),  # little depth
        ((96, 0), (0, 1), (96, 1)),
    ],
)
def test_others_stay(left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]) -> None:
    check_unchanged(PASS, contraction(left, right, result))


def test_operands_that_are_rounded_stay() -> None:
    text = contraction((96, 64), (64, 2), (96, 2), dtypes=("f32", "f32"))
    check_unchanged(
        PASS, text.replace("right_contract = array<i64: 0>", 'right_contract = array<i64: 0>, precision = "tf32"')
    )


@pytest.mark.parametrize(
    ("left", "right", "result", "batch", "summed"),
    [
        ((48, 1), (1, 96), (48, 96), ("", ""), ("1", "0")),
        ((1, 48), (96, 1), (48, 96), ("", ""), ("0", "1")),
        ((5, 1, 48), (1, 5, 96), (5, 48, 96), ("0", "1"), ("1", "0")),
        ((48, 1, 1), (1, 9, 1, 7), (48, 9, 7), ("", ""), ("1, 2", "0, 2")),
        ((48, 1), (1, 1), (48, 1), ("", ""), ("1", "0")),
    ],
)
def test_outer_products_are_multiplications(
    left: tuple[int, ...],
    right: tuple[int, ...],
    result: tuple[int, ...],
    batch: tuple[str, str],
    summed: tuple[str, str],
) -> None:
    unit = check_meaning(PASS, contraction(left, right, result, batch=batch, summed=summed))
    assert not {"array.contract", "array.reduce"} & set(ops(unit))
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["a multiplication"]


@pytest.mark.parametrize(
    ("left", "right", "result", "batch", "summed", "stored"),
    [
        ((48, 2), (2, 96), (48, 96), ("", ""), ("1", "0"), 0),
        ((3, 48), (96, 3), (48, 96), ("", ""), ("0", "1"), 1),
        ((5, 48, 3), (5, 96, 3), (5, 48, 96), ("0", "0"), ("2", "2"), 1),
        ((4, 5, 20, 3), (3, 20, 5, 6), (5, 20, 4, 6), ("1, 2", "2, 1"), ("3", "0"), 0),
        ((600, 5), (500, 5), (600, 500), ("", ""), ("1", "1"), 1),  # a large result
        ((90000, 8), (8, 3), (90000, 3), ("", ""), ("1", "0"), 0),  # and one of few columns
    ],
)
@pytest.mark.parametrize("dtypes", [("i32", "i32"), ("bf16", "f32"), ("i8", "i32")])
def test_contractions_of_a_short_depth_are_sums_of_multiplications(
    left: tuple[int, ...],
    right: tuple[int, ...],
    result: tuple[int, ...],
    batch: tuple[str, str],
    summed: tuple[str, str],
    stored: int,
    dtypes: tuple[str, str],
) -> None:
    """A right operand that is contiguous along the depth is stored by columns first."""
    unit = check_meaning(PASS, contraction(left, right, result, batch=batch, summed=summed, dtypes=dtypes))
    assert not {"array.contract", "array.reduce"} & set(ops(unit))
    assert ops(unit).count("array.fused") == stored
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["a sum of multiplications"]


@pytest.mark.parametrize(
    ("left", "right", "result", "summed"),
    [
        ((48, 4), (4, 96), (48, 96), ("1", "0")),
        ((12, 3), (96, 3), (12, 96), ("1", "1")),  # few rows read what would be stored
        ((48, 2, 2), (2, 2, 96), (48, 96), ("1, 2", "0, 1")),
    ],
)
def test_longer_depths_and_few_rows_along_it_stay(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], summed: tuple[str, str]
) -> None:
    check_unchanged(PASS, contraction(left, right, result, summed=summed))


@pytest.mark.parametrize(
    ("left", "right", "result", "batch", "summed", "rows"),
    [
        ((40, 1, 96), (96, 64), (40, 64), ("", ""), ("2", "0"), (40, 96)),
        ((6, 7, 1, 1, 96), (96, 64), (6, 7, 64), ("", ""), ("4", "0"), (6, 7, 96)),
        ((3, 40, 96, 1), (3, 96, 64), (3, 40, 64), ("0", "0"), ("2", "1"), (3, 40, 96)),
    ],
)
def test_rows_of_size_1_go(
    left: tuple[int, ...],
    right: tuple[int, ...],
    result: tuple[int, ...],
    batch: tuple[str, str],
    summed: tuple[str, str],
    rows: tuple[int, ...],
) -> None:
    ones = (1,) * (len(left) - len(rows))
    text = contraction(left, right, (*result[:-1], *ones, result[-1]), batch=batch, summed=summed)
    unit = check_meaning(PASS, text)
    (product,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    assert array_type(product.operands[0]).shape == rows
    assert array_type(product.results[0]).shape == result


def test_a_single_row_stays() -> None:
    check_unchanged(PASS, contraction((1, 1, 96), (96, 64), (1, 1, 64), summed=("2", "0")))
    check_unchanged(PASS, contraction((1, 40, 96), (96, 64), (1, 40, 64), summed=("2", "0")))


@pytest.mark.parametrize(("outer", "inner", "merged"), [(40, 4, True), (40, 5, False), (12, 5, True), (1, 5, False)])
def test_few_rows_are_one_dim_with_outer_ones(outer: int, inner: int, merged: bool) -> None:
    text = contraction((outer, inner, 96), (96, 64), (outer, inner, 64), summed=("2", "0"))
    unit = check_meaning(PASS, text) if merged else check_unchanged(PASS, text)
    (product,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    assert array_type(product.results[0]).shape == ((outer * inner, 64) if merged else (outer, inner, 64))


def test_batches_and_the_depth_stay_where_rows_are_merged() -> None:
    text = contraction((6, 3, 2, 3, 9), (3, 9, 6, 7), (3, 2, 3, 7), batch=("1", "0"), summed=("0, 4", "2, 1"))
    unit = check_meaning(PASS, text)
    (product,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    assert (product.left_batch, product.left_contract) == ((1,), (0, 3))
    assert array_type(product.results[0]).shape == (3, 6, 7)


def test_rows_of_a_view_or_of_a_transposed_result_stay() -> None:
    apart = """
    func.func @main(%x: tensor<4x40x96xi32>, %w: tensor<96x64xi32>) -> tensor<40x4x64xi32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0, 2>} : tensor<40x4x96xi32>
      %z = array.contract(%t, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 2>,
        right_contract = array<i64: 0>} : tensor<40x4x64xi32>
      func.return %z : tensor<40x4x64xi32>
    }
    """
    turned = """
    func.func @main(%x: tensor<40x4x96xi32>, %w: tensor<96x64xi32>) -> tensor<40x64x4xi32> {
      %z = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 2>,
        right_contract = array<i64: 0>} : tensor<40x4x64xi32>
      %t = array.transpose(%z) {permutation = array<i64: 0, 2, 1>} : tensor<40x64x4xi32>
      func.return %t : tensor<40x64x4xi32>
    }
    """
    check_unchanged(PASS, apart)
    check_unchanged(PASS, turned)


def test_what_follows_a_contraction_has_its_shape() -> None:
    """Elementwise operations on the rows, which may become an epilogue; others see the shape that they had."""
    text = """
    func.func @main(%x: tensor<40x1x96xi32>, %w: tensor<96x64xi32>, %b: tensor<64xi32>, %r: tensor<40x1x64xi32>)
        -> (tensor<40x1x64xi1>, tensor<64x1x40xi32>) {
      %z = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 2>,
        right_contract = array<i64: 0>} : tensor<40x1x64xi32>
      %bias = array.broadcast(%b) {axes = array<i64: 2>} : tensor<40x1x64xi32>
      %y = array.map(%z, %bias) {fn = "add"} : tensor<40x1x64xi32>
      %s = array.map(%y, %r) {fn = "less"} : tensor<40x1x64xi1>
      %t = array.transpose(%y) {permutation = array<i64: 2, 1, 0>} : tensor<64x1x40xi32>
      func.return %s, %t : tensor<40x1x64xi1>, tensor<64x1x40xi32>
    }
    """
    unit = check_meaning(PASS, text)
    maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert [array_type(op.results[0]).shape for op in maps] == [(40, 64), (40, 64)]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "dtype", "swapped"),
    [
        (16, 96, 512, "f32", True),
        (9, 96, 512, "f32", True),
        (128, 200, 256, "f32", True),
        (8, 96, 512, "f32", False),  # added up along the depth
        (17, 96, 512, "f32", False),  # half of a register block's columns would be unused
        (16, 96, 256, "f32", False),  # soon packed
        (144, 200, 256, "f32", False),
        (96, 96, 512, "f32", False),
        (16, 96, 512, "bf16", False),
        (16, 96, 512, "i32", False),
    ],
)
def test_right_operands_along_the_depth_are_read_as_they_are_stored(
    rows: int, columns: int, depth: int, dtype: str, *, swapped: bool
) -> None:
    """As weights of a linear layer that are arguments: packed, they would take as long as some rows."""
    total = "f32" if dtype == "bf16" else dtype
    text = contraction((rows, depth), (columns, depth), (rows, columns), summed=("1", "1"), dtypes=(dtype, total))
    if swapped:
        unit = applied(PASS, text)
        assert ops(unit) == ["array.contract", "array.transpose", "func.return"]
    else:
        unit = check_unchanged(PASS, text)
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["operands swapped"] * swapped


@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 77, 5551), (9, 333, 130), (33, 200, 1001), (48, 600, 70)])
def test_right_operands_along_the_depth_are_multiplied(rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((rows, depth)), rng.standard_normal((columns, depth)), rng.standard_normal(columns)
    expected = np.maximum(x @ w.T + b, 0)
    found = tw.jit(lambda x, w, b: tw.maximum(x @ w.T + b, 0))(*(each.astype(np.float32) for each in (x, w, b)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.sqrt(depth))


def test_turned_right_operands_of_a_batch_and_a_short_depth() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (3, 30, 2)).astype(np.float32), rng.integers(-9, 9, (3, 30, 2)).astype(np.float32)
    found = tw.jit(lambda x, w: x @ tw.matrix_transpose(w))(x, w)
    np.testing.assert_array_equal(found, x @ np.swapaxes(w, 1, 2))


def test_a_turned_operand_of_repeated_elements_is_stored_alone() -> None:
    """Its kernel had the operand as it was as a second result, which no kernel of that shape can store."""
    x, s = np.arange(64, dtype=np.float32).reshape(2, 16, 2), np.float32(3)
    found = tw.jit(lambda x, s: tw.einsum("dab,xyd->abxy", x, tw.broadcast_to(s, (16, 16, 2))))(x, s)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0)[:, :, None, None] * s, (16, 2, 16, 16)))


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "turned", "swapped"),
    [
        (40, 60, 300, (True, True), True),
        (60, 40, 300, (True, True), True),
        (60, 40, 300, (True, False), False),
        (60, 40, 300, (False, True), False),
        (200, 200, 20, (True, True), False),
    ],
)
def test_two_transposed_operands_are_swapped(
    rows: int, columns: int, depth: int, turned: tuple[bool, bool], *, swapped: bool
) -> None:
    """Not where the result, which is transposed then, is larger than they are."""
    shapes = [(depth, rows) if turned[0] else (rows, depth), (columns, depth) if turned[1] else (depth, columns)]
    views = [
        f"%{name}t = array.transpose(%{name}) {{permutation = array<i64: 1, 0>}} : tensor<{shape[1]}x{shape[0]}xi32>"
        for name, shape, turn in zip("xy", shapes, turned, strict=True)
        if turn
    ]
    operands = [f"%{name}{'t' * turn}" for name, turn in zip("xy", turned, strict=True)]
    text = f"""
    func.func @main(%x: tensor<{shapes[0][0]}x{shapes[0][1]}xi32>, %y: tensor<{shapes[1][0]}x{shapes[1][1]}xi32>)
        -> tensor<{rows}x{columns}xi32> {{
      {" ".join(views)}
      %z = array.contract({", ".join(operands)}) {{left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>}} : tensor<{rows}x{columns}xi32>
      func.return %z : tensor<{rows}x{columns}xi32>
    }}
    """
    if swapped:
        (contraction,) = (op for op in check_meaning(PASS, text).main.walk() if isinstance(op, array.ContractOp))
        assert array_type(contraction.results[0]).shape == (columns, rows)
    else:
        check_unchanged(PASS, text)


@pytest.mark.parametrize(("rows", "converted"), [(600, 1), (100, 2)])
@pytest.mark.parametrize("is_turned", [False, True])
def test_narrow_elements_of_a_right_operand_are_converted_once(rows: int, converted: int, is_turned: bool) -> None:
    right, summed = ((32, 2), ("1", "1")) if is_turned else ((2, 32), ("1", "0"))
    unit = check_meaning(PASS, contraction((rows, 2), right, (rows, 32), summed=summed, dtypes=("f16", "f16")))
    ops = list(unit.main.body.walk())
    wide = [op for op in ops if isinstance(op, array.CastOp) and array_type(op.results[0]).dtype == tw.f32]
    of_right = [op for op in wide if rows not in array_type(op.results[0]).shape]
    assert len(of_right) == converted


def program(body: str, left: str, right: str, result: str) -> str:
    return f"""
    func.func @main(%x: tensor<{left}xi32>, %y: tensor<{right}xi32>) -> tensor<{result}xi32> {{
      {body}
      func.return %z : tensor<{result}xi32>
    }}
    """


ROWS_BY_COLUMN = """%z = array.contract(%h, %y) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<96x1xi32>"""
NEGATIVE = '%h = array.map(%x) {fn = "negative"} : tensor<96x64xi32>'
TRANSPOSED = """%t = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<96x64xi32>
      %h = array.map(%t) {fn = "negative"} : tensor<96x64xi32>"""
NEGATIVE_FIRST = """%n = array.map(%x) {fn = "negative"} : tensor<64x96xi32>
      %h = array.transpose(%n) {permutation = array<i64: 1, 0>} : tensor<96x64xi32>"""
COLUMN_BY_ROWS = """%z = array.contract(%y, %h) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 0>, right_contract = array<i64: 1>} : tensor<1x96xi32>"""


@pytest.mark.parametrize(
    ("body", "left", "axes"), [(NEGATIVE, "96x64", (1,)), (TRANSPOSED, "64x96", (0,)), (NEGATIVE_FIRST, "64x96", (0,))]
)
@pytest.mark.parametrize(("contract", "result"), [(ROWS_BY_COLUMN, "96x1"), (COLUMN_BY_ROWS, "1x96")])
def test_a_computed_matrix_by_a_vector_is_reduced_in_the_order_of_memory(
    body: str, left: str, axes: tuple[int, ...], contract: str, result: str
) -> None:
    unit = check_meaning(PASS, program(f"{body}\n      {contract}", left, "64x1", result))
    (reduction,) = [op for op in unit.main.body.walk() if isinstance(op, array.ReduceOp)]
    assert reduction.axes == axes
    assert "array.contract" not in ops(unit)


def test_several_dims_of_a_computed_matrix_meet_a_vector() -> None:
    body = """%h = array.map(%x) {fn = "negative"} : tensor<4x9x6xi32>
      %z = array.contract(%h, %y) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 2, 0>, right_contract = array<i64: 0, 1>} : tensor<9xi32>"""
    unit = check_meaning(PASS, program(body, "4x9x6", "6x4", "9"))
    assert "array.contract" not in ops(unit)


@pytest.mark.parametrize(
    ("matrix", "vector", "batch", "summed", "result"),
    [
        ("5x9x6", "5x6x1", ("0", "0"), ("2", "1"), "5x9x1"),
        ("5x9x6", "5x9", ("0", "0"), ("1", "1"), "5x6"),
        ("5x3x9x6", "3x6x5", ("0, 1", "2, 0"), ("3", "1"), "5x3x9"),
        ("48x3x9x6", "6x3x9", ("1", "1"), ("2, 3", "2, 0"), None),  # a free dim comes first
    ],
)
def test_computed_matrices_meet_as_many_vectors(
    matrix: str, vector: str, batch: tuple[str, str], summed: tuple[str, str], result: str | None
) -> None:
    body = f"""%h = array.map(%x) {{fn = "negative"}} : tensor<{matrix}xi32>
      %z = array.contract(%h, %y) {{left_batch = array<i64: {batch[0]}>, right_batch = array<i64: {batch[1]}>,
        left_contract = array<i64: {summed[0]}>, right_contract = array<i64: {summed[1]}>}}
        : tensor<{result or "3x48"}xi32>"""
    text = program(body, matrix, vector, result or "3x48")
    if result is None:
        assert "array.contract" in ops(applied(PASS, text))
    else:
        assert "array.contract" not in ops(check_meaning(PASS, text))


@pytest.mark.parametrize(("batch", "reduced"), [(5, False), (16, True)])
def test_lanes_of_vectors_are_a_batch_that_fills_them(batch: int, reduced: bool) -> None:
    body = f"""%t = array.transpose(%x) {{permutation = array<i64: 2, 1, 0>}} : tensor<{batch}x48x6xi32>
      %h = array.map(%t) {{fn = "negative"}} : tensor<{batch}x48x6xi32>
      %z = array.contract(%h, %y) {{left_batch = array<i64: 0>, right_batch = array<i64: 0>,
        left_contract = array<i64: 2>, right_contract = array<i64: 1>}} : tensor<{batch}x48xi32>"""
    unit = applied(PASS, program(body, f"6x48x{batch}", f"{batch}x6", f"{batch}x48"))
    assert ("array.contract" not in ops(unit)) == reduced


def test_a_matrix_that_others_read_is_stored() -> None:
    body = f"""{NEGATIVE}
      %v = {ROWS_BY_COLUMN[5:]}
      %s = array.reduce(%h) {{fn = "maximum", axes = array<i64: 1>}} : tensor<96xi32>
      %r = array.reshape(%s) : tensor<96x1xi32>
      %z = array.map(%v, %r) {{fn = "add"}} : tensor<96x1xi32>"""
    assert "array.contract" in ops(applied(PASS, program(body, "96x64", "64x1", "96x1")))


def test_the_epilogue_of_a_contraction_stays_one() -> None:
    body = f"""%c = array.contract(%x, %x) {{left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 1>}} : tensor<96x96xi32>
      %h = array.map(%c) {{fn = "negative"}} : tensor<96x96xi32>
      {ROWS_BY_COLUMN}"""
    assert ops(applied(PASS, program(body, "96x64", "96x1", "96x1"))).count("array.contract") == 2


@pytest.mark.parametrize(("rows", "columns", "reduced"), [(4096, 64, True), (4096, 2048, False), (1024, 64, False)])
def test_long_columns_of_short_rows_are_reduced(rows: int, columns: int, reduced: bool) -> None:
    text = contraction((1, rows), (rows, columns), (1, columns), dtypes=("f32", "f32"))
    assert ("array.reduce" in ops(applied(PASS, text))) == reduced
