"""Concatenations of many arrays, which `array-split-joins` makes of concatenations of few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, remarks
from tilewright.dialects import array
from tilewright.passes.array.array_split_joins import MOST_OPERANDS, ArraySplitJoinsPass
from tilewright.passes.base import Unit


def joined(sizes: Sequence[int], axis: int = 0, dtype: str = "f32") -> str:
    """A concatenation of arrays that have 3 elements along the other dim."""

    def type_of(size: int) -> str:
        shape = (size, 3) if axis == 0 else (3, size)
        return f"tensor<{shape[0]}x{shape[1]}x{dtype}>"

    arguments = ", ".join(f"%a{n}: {type_of(size)}" for n, size in enumerate(sizes))
    operands = ", ".join(f"%a{n}" for n in range(len(sizes)))
    return f"""
    func.func @main({arguments}) -> {type_of(sum(sizes))} {{
      %z = array.concat({operands}) {{axis = {axis} : index}} : {type_of(sum(sizes))}
      func.return %z : {type_of(sum(sizes))}
    }}
    """


def joins(unit: Unit) -> list[int]:
    return [len(op.operands) for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp)]


@pytest.mark.parametrize("count", [1, 2, MOST_OPERANDS])
def test_few_arrays_are_left(count: int) -> None:
    assert check_unchanged(ArraySplitJoinsPass(), joined([2] * count)).remarks == []


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (17, [16, 2]),  # the last array is no part of its own
        (18, [16, 2, 2]),
        (32, [16, 16, 2]),
        (256, [16] * 16 + [16]),
        (257, [16] * 16 + [16, 2]),  # two levels
        (300, [16] * 18 + [12] + [16, 3] + [2]),
    ],
)
@pytest.mark.parametrize(("axis", "dtype"), [(0, "f32"), (1, "bf16"), (1, "i1")])
def test_many_arrays_are_joined_in_parts(count: int, expected: list[int], axis: int, dtype: str) -> None:
    sizes = [1 + n % 3 for n in range(count)]
    unit = check_meaning(ArraySplitJoinsPass(), joined(sizes, axis, dtype))
    found = joins(unit)
    assert sorted(found) == sorted(expected)
    assert max(found) <= MOST_OPERANDS
    assert [decision for decision, _ in remarks(unit, "array-split-joins")] == ["concatenated in parts"]


def test_a_part_stands_after_the_last_of_its_operands() -> None:
    """The memory of the first sixteen is free before the others are computed."""
    names = [f"%b{n}" for n in range(20)]
    maps = "\n".join(f'{name} = array.map(%x) {{fn = "negative"}} : tensor<2xf32>' for name in names)
    text = f"""
    func.func @main(%x: tensor<2xf32>) -> tensor<40xf32> {{
      {maps}
      %z = array.concat({", ".join(names)}) {{axis = 0 : index}} : tensor<40xf32>
      func.return %z : tensor<40xf32>
    }}
    """
    unit = check_meaning(ArraySplitJoinsPass(), text, inputs=[np.array([3.0, -0.0], np.float32)])
    kinds = [op.name.removeprefix("array.") for op in unit.main.body.block.ops]
    assert kinds == [*["map"] * 16, "concat", *["map"] * 4, "concat", "concat", "func.return"]


def test_one_array_that_is_joined_many_times() -> None:
    text = joined([2] * 40)
    for n in range(1, 40):
        text = text.replace(f", %a{n}: tensor<2x3xf32>", "").replace(f", %a{n},", ", %a0,").replace(f"%a{n})", "%a0)")
    assert joins(check_meaning(ArraySplitJoinsPass(), text)) == [16, 16, 8, 3]


def test_one_result_that_is_joined_more_often_than_two_levels_hold() -> None:
    """All parts follow one operation; parts of parts follow those."""
    text = f"""
    func.func @main(%x: tensor<2xi32>) -> tensor<514xi32> {{
      %y = array.map(%x) {{fn = "negative"}} : tensor<2xi32>
      %z = array.concat({", ".join(["%y"] * 257)}) {{axis = 0 : index}} : tensor<514xi32>
      func.return %z : tensor<514xi32>
    }}
    """
    assert joins(check_meaning(ArraySplitJoinsPass(), text)) == [*[16] * 17, 2]


def test_joins_in_branches_are_split_there() -> None:
    operands = ", ".join(["%x"] * 17)
    text = f"""
    func.func @main(%x: tensor<2xi32>, %c: tensor<i1>) -> tensor<34xi32> {{
      %y = array.if(%c) do {{
        %a = array.concat({operands}) {{axis = 0 : index}} : tensor<34xi32>
        array.yield(%a)
      }} do {{
        %b = array.constant() {{value = 7 : index, resource = ""}} : tensor<34xi32>
        array.yield(%b)
      }} : tensor<34xi32>
      func.return %y : tensor<34xi32>
    }}
    """
    unit = check_meaning(ArraySplitJoinsPass(), text)
    assert [len(op.operands) for op in unit.main.walk() if isinstance(op, array.ConcatOp)] == [16, 2]
