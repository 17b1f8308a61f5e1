"""Fuse what follows a matrix product (bias, activation, residual) and the index maps and casts before it.

Before:
    %2 = array.contract(%x, %w) ...
    %3 = array.broadcast(%b) ...
    %4 = array.map(%2, %3) {fn = "add"} ...
After:
    %4 = array.fused(%x, %w, %b) {kind = "contract", ...} { contract; broadcast; map }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block, Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.fusion import (
    ELEMENTWISE,
    BlockOrder,
    absorb_transpose,
    describe,
    inline_closure,
    make_group,
    users,
)

LARGEST_EPILOGUE = 48


@dataclass(frozen=True)
class ArrayFuseContractPass:
    name: ClassVar[str] = "array-fuse-contract"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
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
    why = f"product with epilogue {describe(epilogue)}" if epilogue else "product alone"
    make_group(block, members, kind, why)
    unit.remarks.append(Remark("array-fuse-contract", f"{kind} at {where(product)}", "group", why))


def _grow_epilogue(unit: Unit, block: Block, product: array.ArrayOp, members: set[Operation]) -> list[Operation]:
    """Add elementwise users of the product's shape in program order, as long as no cycle arises."""
    shape = array_type(product.results[0]).shape
    epilogue: list[Operation] = []
    core: set[Operation] = {product}
    order = BlockOrder(block)
    for op in order.ops[order.index[product] :]:
        if op in members or not isinstance(op, ELEMENTWISE) or len(epilogue) >= LARGEST_EPILOGUE:
            continue
        if not any(isinstance(o.owner, Operation) and o.owner in core for o in op.operands):
            continue
        subject = f"{describe([op])} at {where(op)}"
        if array_type(op.results[0]).shape != shape:
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", "another shape"))
            continue
        views = inline_closure(op.operands, block)
        if any(o.owner in core for view in views for o in view.operands):
            reason = "it reads the product at other coordinates"
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", reason))
            continue
        wider = members | {op, *views}
        if order.creates_cycle(wider):
            reason = "an operand depends on the product another way"
            unit.remarks.append(Remark("array-fuse-contract", subject, "not in epilogue", reason))
            continue
        members |= wider
        core.add(op)
        epilogue.append(op)
    return epilogue
