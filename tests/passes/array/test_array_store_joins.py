"""Concatenations of short rows, which `array-store-joins` stores where expensive functions read them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, remarks
from tilewright.dialects import array
from tilewright.passes.array.array_store_joins import ArrayStoreJoinsPass
from tilewright.passes.base import Unit

ROWS = 64


def joined(columns: Sequence[int], fns: Sequence[str], dtype: str = "f32", inner: int | None = None) -> str:
    """Functions one after the other of arrays that are concatenated along their second dim."""

    def type_of(size: int) -> str:
        return f"tensor<{ROWS}x{size}x{f'{inner}x' if inner else ''}{dtype}>"

    whole = type_of(sum(columns))
    arguments = ", ".join(f"%a{n}: {type_of(size)}" for n, size in enumerate(columns))
    operands = ", ".join(f"%a{n}" for n in range(len(columns)))
    lines = [f"%v0 = array.concat({operands}) {{axis = 1 : index}} : {whole}"]
    lines += [f'%v{n + 1} = array.map(%v{n}) {{fn = "{fn}"}} : {whole}' for n, fn in enumerate(fns)]
    body = "\n".join(lines)
    return f"""
    func.func @main({arguments}) -> {whole} {{
      {body}
      func.return %v{len(fns)} : {whole}
    }}
    """


def stored(unit: Unit) -> list[list[type]]:
    """The operations of each kernel that was made."""
    groups = [op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp)]
    return [[type(op) for op in group.body.block.ops] for group in groups]


@pytest.mark.parametrize("columns", [[3] * 5, [1] * 16, [2, 1, 1, 5, 1, 1, 1]])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_short_rows_are_stored_for_dear_functions(columns: Sequence[int], dtype: str) -> None:
    unit = check_meaning(ArrayStoreJoinsPass(), joined(columns, ["tanh", "exp"], dtype))
    assert stored(unit) == [[array.ConcatOp, array.YieldOp]]
    assert remarks(unit, "array-store-joins") == [("stored", "short rows of expensive functions")]


def test_dims_inside_of_the_axis_are_columns_of_a_row() -> None:
    assert stored(check_meaning(ArrayStoreJoinsPass(), joined([1, 1, 1], ["tanh", "tanh"], inner=5)))
    check_unchanged(ArrayStoreJoinsPass(), joined([1, 1, 1], ["tanh", "tanh"], inner=64))


@pytest.mark.parametrize(
    ("columns", "fns"),
    [
        ([3] * 5, ["negative"]),  # as quick in lanes without elements as the copy
        ([3] * 5, []),
        ([64, 64], ["tanh", "tanh"]),  # whole vectors
        ([20, 40], ["exp"]),
        ([1, 1, 1, 1], ["tanh", "tanh"]),  # lanes of four columns are shuffled into rows
    ],
)
def test_a_loop_that_takes_as_long_is_left(columns: Sequence[int], fns: Sequence[str]) -> None:
    assert check_unchanged(ArrayStoreJoinsPass(), joined(columns, fns)).remarks == []
