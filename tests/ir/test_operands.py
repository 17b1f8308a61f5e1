"""Operands of operations behave as those of xDSL's operations do, and numbers keep their bits."""

from __future__ import annotations

import copy
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest
from xdsl.dialects.builtin import UnrealizedConversionCastOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import tensor
from tilewright.dialects.fields import encode
from tilewright.dtypes import DType, f32
from tilewright.primitives import ArrayType

TYPE = tensor(ArrayType((2, 3), f32))
Edit = Callable[[Operation, list[SSAValue]], None]


def ours(values: list[SSAValue]) -> Operation:
    return array.ConcatOp(arguments=values, axis=0, outputs=[TYPE])


def theirs(values: list[SSAValue]) -> Operation:
    return UnrealizedConversionCastOp.create(operands=values, result_types=[TYPE])


def set_one(op: Operation, values: list[SSAValue]) -> None:
    op.operands[1] = values[2]


def set_twice_through_one_view(op: Operation, values: list[SSAValue]) -> None:
    view = op.operands
    view[0] = values[1]
    view[1] = values[0]


def set_all(op: Operation, values: list[SSAValue]) -> None:
    op.operands = [values[2], values[2], values[0]]


def set_fewer(op: Operation, values: list[SSAValue]) -> None:
    op.operands = values[:1]


def replace_all(op: Operation, values: list[SSAValue]) -> None:
    values[0].replace_all_uses_with(values[2])


def edit_a_copy(op: Operation, values: list[SSAValue]) -> None:
    op.clone().operands[0] = values[1]


def erase(op: Operation, values: list[SSAValue]) -> None:
    op.detach()
    op.erase()


def outcome(make: Callable[[list[SSAValue]], Operation], edit: Edit) -> tuple[Any, ...]:
    """The operands after an edit, and the positions of the uses of each value in order."""
    block = Block(arg_types=[TYPE] * 3)
    values: list[SSAValue] = list(block.args)
    op = make([values[0], values[1], values[0]])
    block.add_op(op)
    edit(op, values)
    operands = [values.index(operand) for operand in op.operands]
    uses = [[(use.operation is op, use.index) for use in value.uses] for value in values]
    return operands, uses, len(op.operands)


@pytest.mark.parametrize(
    "edit", [set_one, set_twice_through_one_view, set_all, set_fewer, replace_all, edit_a_copy, erase]
)
def test_edits_of_operands(edit: Edit) -> None:
    assert outcome(ours, edit) == outcome(theirs, edit)


def test_operations_have_no_successors() -> None:
    with pytest.raises(TypeError, match="no successors"):
        array.ConcatOp.create(successors=[Block()])


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, math.nan])
def test_numbers_keep_their_bits(value: float) -> None:
    for each in (value, -value, value):
        stored: Any = encode(each)
        assert struct.pack("<d", stored.value.data) == struct.pack("<d", each)


@pytest.mark.parametrize("dtype", [*dtypes.ALL, *dtypes.COMPLEX, dtypes.tf32], ids=str)
def test_copies_of_an_element_type_are_the_type(dtype: DType) -> None:
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
