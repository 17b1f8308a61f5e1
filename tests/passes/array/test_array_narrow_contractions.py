"""Contractions of few columns and of few results, which `array-narrow-contractions` rewrites."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, remarks
from tilewright.dialects import array
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
        ((96, 64), (64, 5), (96, 5)),  # enough columns
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
