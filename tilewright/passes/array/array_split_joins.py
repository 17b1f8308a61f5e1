"""Split concatenations of many arrays into a tree of concatenations of few.

A kernel that concatenates reads all its operands for each element of the result and selects one, so that both its code
and its work grow with the number of operands; a core also has a queue for each. Parts of 16 operands, on CPUs, which
split the loop where an operand ends, of 32, are concatenated by kernels of their own, which equal parts share: an
element is copied once for each level of the tree.
After simplification, which removes concatenations of nothing; before fusion, so that each part fuses with what makes
its operands.

Before:
    func.func @main(%x: tensor<2xf32>, %y: tensor<1xf32>) -> tensor<33xf32> {
      %z = array.concat(%x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %y) {axis = 0 : index}
        : tensor<33xf32>
      func.return %z : tensor<33xf32>
    }
After:
    func.func @main(%x: tensor<2xf32>, %y: tensor<1xf32>) -> tensor<33xf32> {
      %part = array.concat(%x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x) {axis = 0 : index}
        : tensor<32xf32>
      %z = array.concat(%part, %y) {axis = 0 : index} : tensor<33xf32>
      func.return %z : tensor<33xf32>
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

MOST_OPERANDS = 16
# Loops that are cut where an operand ends copy each element once; one for each operand bounds the code.
MOST_CUT_OPERANDS = 32


class ArraySplitJoinsPass(msgspec.Struct, frozen=True):
    """Split concatenations of more than `most_operands` arrays."""

    most_operands: int = MOST_OPERANDS
    name: ClassVar[str] = "array-split-joins"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            joins = [op for op in block.ops if isinstance(op, array.ConcatOp) and len(op.operands) > self.most_operands]
            if not joins:
                continue
            places = _Places(block)
            for op in joins:
                why = f"a kernel concatenates at most {self.most_operands} arrays"
                subject = f"concat of {len(op.operands)} at {where(op)}"
                unit.remarks.append(Remark(self.name, subject, "concatenated in parts", why))
                _split(op, places, self.most_operands)


class _Places:
    """The order of a block's operations while others are inserted after them: by the index of the operation that they
    follow, then one after the other."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._index = {op: n for n, op in enumerate(block.ops)}
        self._lasts = list(block.ops)  # of each operation, the last one that was inserted after it, or itself

    def insert(self, made: Operation, user: Operation) -> None:
        """Insert an operation after the last of its operands; before its user where those are arguments."""
        before = self._index[user] - 1
        owners = [operand.owner for operand in made.operands]
        index = max((self._index[o] for o in owners if isinstance(o, Operation) and o in self._index), default=before)
        if index < 0:
            self._block.insert_op_before(made, user)
            return
        self._block.insert_op_after(made, self._lasts[index])
        self._index[made] = index
        self._lasts[index] = made


def _split(op: array.ConcatOp, places: _Places, most: int) -> None:
    """Concatenate parts of an operation's operands, and parts of those, until there are few enough. Each part stands
    after the last of its operands: what makes them is near, and their memory is free soon."""
    operands: Sequence[SSAValue] = op.operands
    while len(operands) > most:
        parts = [operands[n : n + most] for n in range(0, len(operands), most)]
        operands = [part[0] if len(part) == 1 else _joined(op, part, places) for part in parts]
    op.operands = operands


def _joined(op: array.ConcatOp, part: Sequence[SSAValue], places: _Places) -> SSAValue:
    first = array_type(part[0])
    shape = list(first.shape)
    shape[op.axis] = sum([array_type(operand).shape[op.axis] for operand in part])
    made = rebuilt(op, part, [tensor(ArrayType(tuple(shape), first.dtype))])
    made.location = op.location
    places.insert(made, op)
    return made.results[0]
