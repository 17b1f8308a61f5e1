"""Cut concatenations of many arrays into a tree of concatenations of few.

A kernel that concatenates reads all its operands for each element of the result and keeps the one that has it, so that
both its code and its work grow with the number of operands; a core also has a queue for each. Parts of 16 operands are
concatenated by kernels of their own, which equal parts share: an element is copied once for each level of the tree.
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
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

MOST_OPERANDS = 16


@dataclass(frozen=True)
class ArraySplitJoinsPass:
    name: ClassVar[str] = "array-split-joins"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            long = [op for op in block.ops if isinstance(op, array.ConcatOp) and len(op.operands) > MOST_OPERANDS]
            positions = {op: n for n, op in enumerate(block.ops)} if long else {}
            for op in long:
                why = f"a kernel concatenates at most {MOST_OPERANDS} arrays"
                subject = f"concat of {len(op.operands)} at {where(op)}"
                unit.remarks.append(Remark(self.name, subject, "concatenated in parts", why))
                _split(block, op, positions)


def _split(block: Block, op: array.ConcatOp, positions: dict[Operation, int]) -> None:
    """Concatenate parts of an operation's operands, and parts of those, until there are few enough. Each part stands
    after the last of its operands: what makes them is near, and their memory is free soon."""
    operands: Sequence[SSAValue] = op.operands
    while len(operands) > MOST_OPERANDS:
        parts = [operands[n : n + MOST_OPERANDS] for n in range(0, len(operands), MOST_OPERANDS)]
        operands = [_joined(block, op, part, positions) for part in parts]
    op.operands = operands


def _joined(block: Block, op: array.ConcatOp, part: Sequence[SSAValue], positions: dict[Operation, int]) -> SSAValue:
    if len(part) == 1:
        return part[0]
    attributes: dict[str, Any] = op.attributes_of()
    axis, first = attributes["axis"], array_type(part[0])
    shape = list(first.shape)
    shape[axis] = sum(array_type(operand).shape[axis] for operand in part)
    made = array.ConcatOp.make(part, attributes, [tensor(ArrayType(tuple(shape), first.dtype))])
    made.location = op.location
    owners = [v.owner for v in part if isinstance(v.owner, Operation) and v.owner.parent_block() is block]
    last = max(owners, key=positions.__getitem__, default=None)
    if last is None:
        block.insert_op_before(made, op)
        positions[made] = -1
    else:
        block.insert_op_after(made, last)
        positions[made] = positions[last]
    return made.results[0]
