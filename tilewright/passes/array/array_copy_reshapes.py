"""Put reshapes of paged arrays into copy kernels: a reshape that is a view of a linear array moves elements between
pages.

Transposes next to such a reshape move into its kernel: attention heads that are split from rows and transposed to the
front are copied once.

Before (wormhole):
    func.func @main(%x: tensor<64x128xf32>) -> tensor<2x64x64xf32> {
      %split = array.reshape(%x) : tensor<64x2x64xf32>
      %heads = array.transpose(%split) {permutation = array<i64: 1, 0, 2>} : tensor<2x64x64xf32>
      func.return %heads : tensor<2x64x64xf32>
    }
After:
    func.func @main(%x: tensor<64x128xf32>) -> tensor<2x64x64xf32> {
      %heads = array.fused(%x) {kind = "reshape", why = "pages change"} do {
      ^bb0(%x1: tensor<64x128xf32>):
        %split = array.reshape(%x1) : tensor<64x2x64xf32>
        %turned = array.transpose(%split) {permutation = array<i64: 1, 0, 2>} : tensor<2x64x64xf32>
        array.yield(%turned)
      } : tensor<2x64x64xf32>
      func.return %heads : tensor<2x64x64xf32>
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.layout.catalogue.device_tiles import same_pages
from tilewright.passes.array.fusion import is_unit_reshape, make_group, users
from tilewright.passes.base import Unit, blocks_of


class ArrayCopyReshapesPass(msgspec.Struct, frozen=True):
    """Reshapes that only add or drop dims of size 1 are left to the groups that absorb them."""

    name: ClassVar[str] = "array-copy-reshapes"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                # What is repeated is read where it is repeated from, where a product takes it.
                if changes_pages(op) and not is_unit_reshape(op) and not _is_repeated(op):
                    make_group(block, _with_transposes(op, block), "reshape", "pages change")


def changes_pages(op: Operation) -> bool:
    """Whether an operation is a reshape to an array of other pages."""
    if not isinstance(op, array.ReshapeOp):
        return False
    before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return 0 not in before and not same_pages(before, after)


def _is_repeated(op: Operation) -> bool:
    return isinstance(op.operands[0].owner, array.BroadcastOp)


def _with_transposes(op: Operation, block: Block) -> set[Operation]:
    """A reshape and the transposes before and after it of which nothing else is used."""
    found: set[Operation] = {op}
    value: SSAValue = op.operands[0]
    while isinstance(value.owner, array.TransposeOp) and len(users(value)) == 1 and value.owner.parent_block() is block:
        found.add(value.owner)
        value = value.owner.operands[0]
    value = op.results[0]
    while len(users(value)) == 1 and isinstance(users(value)[0], array.TransposeOp):
        (user,) = users(value)
        if user.parent_block() is not block:
            break
        found.add(user)
        value = user.results[0]
    return found
