"""Contractions of great depth and few results, which `array-split-contractions` cuts into parts, and all others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged, parse, remarks, run, unit_of
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_split_contractions import ArraySplitContractionsPass
from tilewright.passes.base import Unit


def product(
    rows: int, columns: int, depth: int, *, dtype: str = "i32", left: str = "mk", right: str = "kn", result: str = ""
) -> str:
    """A matmul of arrays stored with their dims in some order, seen through transposes where that is not the one."""
    sizes = {"m": rows, "n": columns, "k": depth}

    def stored(name: str, order: str, usual: str) -> tuple[str, str]:
        shape = "x".join(str(sizes[d]) for d in order)
        if order == usual:
            return f"%{name}: tensor<{shape}x{dtype}>", ""
        turned = "x".join(str(sizes[d]) for d in usual)
        view = f"%{name} = array.transpose(%{name}s) {{permutation = array<i64: 1, 0>}} : tensor<{turned}x{dtype}>"
        return f"%{name}s: tensor<{shape}x{dtype}>", view

    (a, turn_a), (b, turn_b) = stored("a", left, "mk"), stored("b", right, "kn")
    type = f"tensor<{rows}x{columns}x{result or dtype}>"
    return f"""
    func.func @main({a}, {b}) -> {type} {{
      {turn_a}
      {turn_b}
      %z = array.contract(%a, %b) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>}} : {type}
      func.return %z : {type}
    }}
    """


def parts(unit: Unit) -> list[str]:
    return [decision for decision, _ in remarks(unit, "array-split-contractions")]


@pytest.mark.parametrize("left", ["mk", "km"])
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_parts_mean_the_whole_whichever_way_operands_are_stored(left: str, right: str) -> None:
    unit = check_meaning(ArraySplitContractionsPass(), product(33, 25, 6144, left=left, right=right))
    assert parts(unit) == ["6 parts"]
    shapes = {array_type(op.operands[0]).shape for op in unit.main.walk() if isinstance(op, array.ReshapeOp)}
    assert shapes <= {(33, 6144), (6144, 33), (6144, 25), (25, 6144)}, "arrays in memory are reshaped"


def test_parts_of_floats_are_near_the_whole() -> None:
    text = product(20, 30, 8192, dtype="f32")
    unit = applied(ArraySplitContractionsPass(), text)
    assert parts(unit) == ["8 parts"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 8192), (8192, 30)))
    (got,) = run(unit, [a, b])
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "sizes",
    [
        (129, 128, 65536),  # enough results for all threads
        (32, 32, 2048),  # too little work
        (200, 50, 1535),  # no parts of 1024
        (200, 50, 4099),  # a prime number of terms
    ],
    ids=str,
)
def test_other_sizes_are_left(sizes: tuple[int, int, int]) -> None:
    check_unchanged(ArraySplitContractionsPass(), product(*sizes))


def test_sizes_at_the_limits() -> None:
    for sizes in ((128, 128, 4096), (32, 64, 2048)):
        assert parts(applied(ArraySplitContractionsPass(), product(*sizes))), sizes


def test_results_that_are_summed_in_another_type_are_left() -> None:
    """Parts would be rounded to it before they are added."""
    check_unchanged(ArraySplitContractionsPass(), product(32, 32, 65536, dtype="bf16"))


def test_batches_are_left() -> None:
    text = """
    func.func @main(%x: tensor<2x8x65536xi32>, %y: tensor<2x65536x8xi32>) -> tensor<2x8x8xi32> {
      %z = array.contract(%x, %y) {left_batch = array<i64: 0>, right_batch = array<i64: 0>,
        left_contract = array<i64: 2>, right_contract = array<i64: 1>} : tensor<2x8x8xi32>
      func.return %z : tensor<2x8x8xi32>
    }
    """
    check_unchanged(ArraySplitContractionsPass(), text)


def test_two_contracted_dims_are_left() -> None:
    text = """
    func.func @main(%x: tensor<8x4096x16xi32>, %y: tensor<4096x16x8xi32>) -> tensor<8x8xi32> {
      %z = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1, 2>,
        right_contract = array<i64: 0, 1>} : tensor<8x8xi32>
      func.return %z : tensor<8x8xi32>
    }
    """
    check_unchanged(ArraySplitContractionsPass(), text)


@pytest.mark.parametrize(
    ("right", "columns", "depth", "dtype", "expected"),
    [
        ("kn", 1024, 1024, "f32", ["16 parts"]),  # parts of few rows are read in longer runs
        ("nk", 1024, 8192, "f32", []),  # each column is one run
        ("nk", 500, 8400, "f64", ["8 parts"]),  # the same, but too few columns for all threads
    ],
)
def test_few_rows_have_parts_where_runs_become_longer(
    right: str, columns: int, depth: int, dtype: str, expected: list[str]
) -> None:
    unit = applied(ArraySplitContractionsPass(), product(1, columns, depth, dtype=dtype, right=right))
    assert parts(unit) == expected


def test_the_precision_of_a_contraction_is_that_of_its_parts() -> None:
    text = product(8, 8, 65536, dtype="f32").replace("right_contract", 'precision = "tf32", right_contract')
    unit = unit_of(parse(text), {})
    ArraySplitContractionsPass().apply(unit)
    assert parts(unit) == ["16 parts"]
    assert [op.precision for op in unit.main.walk() if isinstance(op, array.ContractOp)] == ["tf32"]
