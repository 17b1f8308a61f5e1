"""Fuse a contraction or convolution with its elementwise epilogue and the index maps of its operands.

Bias, activation and residual are applied to a tile of the result before it is stored. Before the loops are fused, so
that an epilogue belongs to its matmul.

Before:
    func.func @main(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>, %b: tensor<3xf32>) -> tensor<2x3xf32> {
      %product = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<2x3xf32>
      %bias = array.broadcast(%b) {axes = array<i64: 1>} : tensor<2x3xf32>
      %y = array.map(%product, %bias) {fn = "add"} : tensor<2x3xf32>
      func.return %y : tensor<2x3xf32>
    }
After:
    func.func @main(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>, %b: tensor<3xf32>) -> tensor<2x3xf32> {
      %y = array.fused(%x, %w, %b) {kind = "contract", why = "matmul with epilogue add"} do {
      ^bb0(%x1: tensor<2x4xf32>, %w1: tensor<4x3xf32>, %b1: tensor<3xf32>):
        %product = array.contract(%x1, %w1) {left_batch = array<i64>, right_batch = array<i64>,
          left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<2x3xf32>
        %bias = array.broadcast(%b1) {axes = array<i64: 1>} : tensor<2x3xf32>
        %sum = array.map(%product, %bias) {fn = "add"} : tensor<2x3xf32>
        array.yield(%sum)
      } : tensor<2x3xf32>
      func.return %y : tensor<2x3xf32>
    }
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_duplicate_views import duplicate_views
from tilewright.passes.array.fusion import (
    ELEMENTWISE,
    absorb_transpose,
    creates_cycle,
    describe,
    inline_closure,
    make_group,
    users,
)
from tilewright.passes.base import Remark, Unit, blocks_of, where

LARGEST_EPILOGUE = 48


class ArrayFuseContractPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-fuse-contract"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            # Those of the passes since `array-duplicate-views`, which would tie the groups of their users together.
            duplicate_views(block)
            for op in list(block.ops):
                if isinstance(op, array.ContractOp | array.ConvolveOp) and op.parent_block() is block:
                    _fuse(unit, block, op)


def _fuse(unit: Unit, block: Block, product: array.ArrayOp) -> None:
    members: set[Operation] = {product, *inline_closure(product.operands, block)}
    epilogue = _grow_epilogue(unit, block, product, members)
    root = product.results[0]
    outside = [op for op in members if any(u not in members for r in op.results for u in users(r))]
    if len(outside) == 1:
        root = outside[0].results[0]
        absorb_transpose(block, members, root)
    kind = "convolve" if isinstance(product, array.ConvolveOp) else "contract"
    why = f"matmul with epilogue {describe(epilogue)}" if epilogue else "no epilogue"
    make_group(block, members, kind, why)
    unit.remarks.append(Remark("array-fuse-contract", f"{kind} at {where(product)}", "group", why))


def _grow_epilogue(unit: Unit, block: Block, product: array.ArrayOp, members: set[Operation]) -> list[Operation]:
    """Add elementwise users of the matmul's shape in program order, as long as no cycle arises."""
    shape = array_type(product.results[0]).shape
    epilogue: list[Operation] = []
    core: set[Operation] = {product}
    for op in _later_users(product, core):
        if op in members or not isinstance(op, ELEMENTWISE) or len(epilogue) >= LARGEST_EPILOGUE:
            continue
        subject = f"{describe([op])} at {where(op)}"
        if array_type(op.results[0]).shape != shape:
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", "different shape"))
            continue
        views = inline_closure(op.operands, block)
        if any(o.owner in core for view in views for o in view.operands):
            reason = "reads the matmul at other coordinates"
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", reason))
            continue
        wider = members | {op, *views}
        if creates_cycle(wider):
            reason = "another operand depends on the matmul too"
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", reason))
            continue
        members |= wider
        core.add(op)
        epilogue.append(op)
    return epilogue


def _later_users(product: Operation, core: set[Operation]) -> Iterator[Operation]:
    """Users of the operations of a set in program order, those of operations that are added on the way as well. The
    walk ends with the last user: blocks are long."""
    block = product.parent_block()
    asked: set[Operation] = set()
    waiting: set[Operation] = set()
    op: Operation | None = product
    while op is not None:
        for added in core - asked:
            waiting.update(user for r in added.results for user in users(r) if user.parent_block() is block)
        asked |= core
        if not waiting:
            return
        op = op.next_op
        if op is not None and op in waiting:
            waiting.discard(op)
            yield op
