"""Reshapes that `array-copy-reshapes` makes kernels of: those that move elements between pages, with transposes next to
them."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.passes.array.array_copy_reshapes import ArrayCopyReshapesPass
from tilewright.passes.base import Unit

GRID = "wormhole"


def reshaped(before: str, after: str, dtype: str = "f32") -> str:
    return f"""
    func.func @main(%x: tensor<{before}x{dtype}>) -> tensor<{after}x{dtype}> {{
      %y = array.reshape(%x) : tensor<{after}x{dtype}>
      func.return %y : tensor<{after}x{dtype}>
    }}
    """


def groups_of(unit: Unit) -> list[list[str]]:
    """The operations of each group of `main`."""
    found = [op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp)]
    return [[op.name.removeprefix("array.") for op in group.body.block.ops][:-1] for group in found]


@pytest.mark.parametrize(
    ("before", "after", "dtype"),
    [
        ("64x128", "64x2x64", "f32"),  # rows of another length
        ("33x64", "3x11x64", "bf16"),  # rows of the same length, cut into pages of others
        ("7x5", "35", "i32"),
        ("12", "3x4", "i1"),
    ],
)
def test_reshapes_to_other_pages_are_groups(before: str, after: str, dtype: str) -> None:
    unit = check_meaning(ArrayCopyReshapesPass(), reshaped(before, after, dtype), GRID)
    assert groups_of(unit) == [["reshape"]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("64x128", "2x32x128"),  # whole pages
        ("2x33x40", "2x1x33x40"),  # a dim of size 1
        ("5", "1x5x1"),
        ("0x64", "0x32x2"),  # no elements
        ("1x32", "32x1"),  # a row and a column are other pages, but loops take in what moves dims of size 1
    ],
)
def test_reshapes_that_other_groups_or_views_take_are_no_groups(before: str, after: str) -> None:
    check_unchanged(ArrayCopyReshapesPass(), reshaped(before, after), GRID)


def test_a_reshape_of_what_is_repeated_is_left_to_its_reader() -> None:
    text = """
    func.func @main(%x: tensor<2x64xf32>) -> tensor<12x64xf32> {
      %wide = array.broadcast(%x) {axes = array<i64: 0, 2>} : tensor<2x6x64xf32>
      %y = array.reshape(%wide) : tensor<12x64xf32>
      func.return %y : tensor<12x64xf32>
    }
    """
    check_unchanged(ArrayCopyReshapesPass(), text, GRID)


AROUND = """
    func.func @main(%x: tensor<6x10xbf16>) -> ({types}) {{
      %turned = array.transpose(%x) {{permutation = array<i64: 1, 0>}} : tensor<10x6xbf16>
      %split = array.reshape(%turned) : tensor<10x2x3xbf16>
      %heads = array.transpose(%split) {{permutation = array<i64: 1, 0, 2>}} : tensor<2x10x3xbf16>
      func.return {results} : {types}
    }}
"""
TYPES = {"turned": "tensor<10x6xbf16>", "split": "tensor<10x2x3xbf16>", "heads": "tensor<2x10x3xbf16>"}


@pytest.mark.parametrize(
    ("results", "group"),
    [
        (["heads"], ["transpose", "reshape", "transpose"]),
        (["heads", "turned"], ["reshape", "transpose"]),  # the first transpose has another user
        (["heads", "split"], ["transpose", "reshape"]),  # the reshape has another user
        (["turned", "split", "heads"], ["reshape"]),
    ],
    ids=str,
)
def test_transposes_are_taken_in_where_nothing_else_uses_them(results: list[str], group: list[str]) -> None:
    text = AROUND.format(types=", ".join(TYPES[r] for r in results), results=", ".join(f"%{r}" for r in results))
    assert groups_of(check_meaning(ArrayCopyReshapesPass(), text, GRID)) == [group]


def test_two_transposes_of_one_reshape_stay_outside() -> None:
    text = """
    func.func @main(%x: tensor<6x10xf32>) -> (tensor<3x20xf32>, tensor<3x20xf32>) {
      %y = array.reshape(%x) : tensor<20x3xf32>
      %a = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<3x20xf32>
      %b = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<3x20xf32>
      func.return %a, %b : tensor<3x20xf32>, tensor<3x20xf32>
    }
    """
    assert groups_of(check_meaning(ArrayCopyReshapesPass(), text, GRID)) == [["reshape"]]


def test_a_transpose_outside_of_a_branch_stays_there() -> None:
    text = """
    func.func @main(%x: tensor<6x10xf32>, %c: tensor<i1>) -> tensor<20x3xf32> {
      %turned = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<10x6xf32>
      %y = array.if(%c) do {
        %a = array.reshape(%turned) : tensor<20x3xf32>
        array.yield(%a)
      } do {
        %b = array.constant() {value = 1.0 : f64, resource = ""} : tensor<f32>
        %c1 = array.broadcast(%b) {axes = array<i64>} : tensor<20x3xf32>
        array.yield(%c1)
      } : tensor<20x3xf32>
      func.return %y : tensor<20x3xf32>
    }
    """
    unit = check_meaning(ArrayCopyReshapesPass(), text, GRID)
    (group,) = (op for op in unit.main.walk() if isinstance(op, array.FusedOp))
    assert [op.name for op in group.body.block.ops] == ["array.reshape", "array.yield"]
    assert isinstance(group.parent_op(), array.IfOp)
