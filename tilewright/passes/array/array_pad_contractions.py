"""Pad the depth of contractions to whole steps of a matrix instruction.

A matrix instruction multiplies blocks of a fixed depth. Operands of a contraction whose depth is no multiple of it are
stored with zeros at its end: reading and storing them once takes less time than multiplying them by vectors, unless
there are few rows or columns, or most of the depth would be zeros. Captured arrays are padded at compile time. After
contractions have been narrowed, whose rows and columns are final; before any operand is fused.

Before (x86-64-amx):
    func.func @main(%x: tensor<64x50xi8>, %y: tensor<50x32xi8>) -> tensor<64x32xi32> {
      %z = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<64x32xi32>
      func.return %z : tensor<64x32xi32>
    }
After:
    func.func @main(%x: tensor<64x50xi8>, %y: tensor<50x32xi8>) -> tensor<64x32xi32> {
      %left = array.constant() {value = 0 : index, resource = ""} : tensor<i8>
      %x64 = array.pad(%x, %left) {low = array<i64: 0, 0>, high = array<i64: 0, 14>, interior = array<i64: 0, 0>}
        : tensor<64x64xi8>
      %right = array.constant() {value = 0 : index, resource = ""} : tensor<i8>
      %y64 = array.pad(%y, %right) {low = array<i64: 0, 0>, high = array<i64: 14, 0>, interior = array<i64: 0, 0>}
        : tensor<64x32xi8>
      %z = array.contract(%x64, %y64) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<64x32xi32>
      func.return %z : tensor<64x32xi32>
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.machines.machine import Machine
from tilewright.passes.array.array_simplify import Tensor, computed
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.contract_facts import accumulator_of, depth_of, multiplied_types
from tilewright.passes.kernels.vector_products import last_sizes
from tilewright.primitives import ArrayType

# The least part of a padded depth that is not zeros. Measured: i8 of depth 5 padded to 64 takes twice as long, of depth
# 17 0.6 of the time; bf16 of depth 5 padded to 32 0.9.
LEAST_FULL = 0.125
# The least rows and columns for one of an instruction, of integers and of floats, which vectors multiply faster.
# Measured: i8, 512 x 777 by 8 columns takes 0.18 of the time, 16 x 1703 by 512 columns 0.3; bf16 1.35 and 1.0.
LEAST_OF_INTEGERS, LEAST_OF_FLOATS = (1.0, 0.5), (2.0, 1.0)


class ArrayPadContractionsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-pad-contractions"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.ContractOp)]:
                more = _missing(op, unit.machine)
                if more:
                    reason = f"a depth of {depth_of(op)} is no multiple of a matrix instruction's"
                    unit.remarks.append(Remark(self.name, f"contraction at {where(op)}", f"padded by {more}", reason))
                    _pad(unit, op, more)


def _missing(op: array.ContractOp, machine: Machine) -> int:
    """How much the depth falls short of whole steps of a matrix instruction; 0 of a contraction that stays."""
    if op.part is not None or op.precision is not None or len(op.left_contract) != 1:
        return 0
    accumulator = accumulator_of(array_type(op.results[0]).dtype)
    atom = machine.matrix_step(*multiplied_types(op), accumulator)
    rows, columns, depth = last_sizes(op)
    if atom is None or depth % atom.depth == 0:
        return 0
    rows_of_one, columns_of_one = LEAST_OF_FLOATS if accumulator.is_float else LEAST_OF_INTEGERS
    padded = -(-depth // atom.depth) * atom.depth
    is_wide = rows >= rows_of_one * atom.rows and columns >= columns_of_one * atom.columns
    return padded - depth if is_wide and depth >= LEAST_FULL * padded else 0


def _pad(unit: Unit, op: array.ContractOp, more: int) -> None:
    axes = op.left_contract[0], op.right_contract[0]
    operands = [_padded(unit, op, value, axis, more) for value, axis in zip(op.operands, axes, strict=True)]
    op.results[0].replace_all_uses_with(_inserted(op, rebuilt(op, operands)))
    erase(op)


def _padded(unit: Unit, op: array.ContractOp, value: SSAValue, axis: int, more: int) -> SSAValue:
    """An operand with zeros at the end of an axis; that of a transpose is padded before it, as it is stored."""
    owner, type = value.owner, array_type(value)
    if isinstance(owner, array.TransposeOp):
        source = _padded(unit, op, owner.operands[0], owner.permutation[axis], more)
        return _inserted(op, array.TransposeOp(arguments=[source], permutation=owner.permutation))
    high = tuple(more if each == axis else 0 for each in range(type.rank))
    if isinstance(owner, array.ConstantOp):
        return computed(unit, op, [value], lambda given: _with_zeros(given, high))
    none = (0,) * type.rank
    zero = _inserted(op, array.ConstantOp(value=0, resource="", outputs=[tensor(ArrayType((), type.dtype))]))
    return _inserted(op, array.PadOp(arguments=[value, zero], low=none, high=high, interior=none))


def _inserted(op: array.ContractOp, made: array.ArrayOp) -> SSAValue:
    insert_like(op, made)
    return made.results[0]


def _with_zeros(given: Sequence[Tensor], high: Sequence[int]) -> Tensor:
    return np.pad(given[0], [(0, end) for end in high])
