"""Fuse softmax attention into one group, whose kernel never stores the score matrix (flash attention).

The pattern is what `softmax(f(q @ k^T)) @ v` traces to: scores from a matmul through elementwise operations, their row
maximum subtracted, the exponential, its row sum divided out (or its inverse multiplied), and a matmul with the values.
Before the other fusions, which would make each matmul a group of its own.

Before:
    func.func @main(%q: tensor<5x4xf32>, %k: tensor<6x4xf32>, %v: tensor<6x3xf32>) -> tensor<5x3xf32> {
      %scores = array.contract(%q, %k) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 1>} : tensor<5x6xf32>
      %highest = array.reduce(%scores) {fn = "maximum", axes = array<i64: 1>} : tensor<5xf32>
      %shift = array.broadcast(%highest) {axes = array<i64: 0>} : tensor<5x6xf32>
      %shifted = array.map(%scores, %shift) {fn = "subtract"} : tensor<5x6xf32>
      %e = array.map(%shifted) {fn = "exp"} : tensor<5x6xf32>
      %sum = array.reduce(%e) {fn = "add", axes = array<i64: 1>} : tensor<5xf32>
      %total = array.broadcast(%sum) {axes = array<i64: 0>} : tensor<5x6xf32>
      %weights = array.map(%e, %total) {fn = "divide"} : tensor<5x6xf32>
      %y = array.contract(%weights, %v) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<5x3xf32>
      func.return %y : tensor<5x3xf32>
    }
After:
    func.func @main(%q: tensor<5x4xf32>, %k: tensor<6x4xf32>, %v: tensor<6x3xf32>) -> tensor<5x3xf32> {
      %y = array.fused(%q, %k, %v) {kind = "attention",
        why = "softmax between two matmuls: one pass over the keys, the scores are never stored"} do {
      ^bb0(%q1: tensor<5x4xf32>, %k1: tensor<6x4xf32>, %v1: tensor<6x3xf32>):
        %scores = array.contract(%q1, %k1) {left_batch = array<i64>, right_batch = array<i64>,
          left_contract = array<i64: 1>, right_contract = array<i64: 1>} : tensor<5x6xf32>
        %highest = array.reduce(%scores) {fn = "maximum", axes = array<i64: 1>} : tensor<5xf32>
        %shift = array.broadcast(%highest) {axes = array<i64: 0>} : tensor<5x6xf32>
        %shifted = array.map(%scores, %shift) {fn = "subtract"} : tensor<5x6xf32>
        %e = array.map(%shifted) {fn = "exp"} : tensor<5x6xf32>
        %sum = array.reduce(%e) {fn = "add", axes = array<i64: 1>} : tensor<5xf32>
        %total = array.broadcast(%sum) {axes = array<i64: 0>} : tensor<5x6xf32>
        %weights = array.map(%e, %total) {fn = "divide"} : tensor<5x6xf32>
        %o = array.contract(%weights, %v1) {left_batch = array<i64>, right_batch = array<i64>,
          left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<5x3xf32>
        array.yield(%o)
      } : tensor<5x3xf32>
      func.return %y : tensor<5x3xf32>
    }
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import erase, in_block
from tilewright.dialects.walks import producers_first
from tilewright.passes.array.attention_masks import depends_on_positions
from tilewright.passes.array.fusion import (
    ELEMENTWISE,
    absorb_transpose,
    creates_cycle,
    inline_closure,
    is_inline,
    make_group,
    users,
)
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.lower_attention_group import (
    AttentionParts,
    attention_sizes,
    repeat_of,
)
from tilewright.passes.kernels.planners import planner_for

# Operations between the products: scores that go through more are computed by kernels of their own.
MOST_SCORE_OPERATIONS = 64


class ArrayFuseAttentionPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-fuse-attention"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ContractOp) and op.parent_block() is block:
                    _try(unit, block, op)


def _try(unit: Unit, block: Block, product: array.ContractOp) -> None:
    found, planner = match_attention(product), planner_for(unit.machine, unit.threads)
    if found is None or not planner.fuses_attention(found[0]):
        return
    parts, members = found
    fallback, fits = planner.attention_fallback(parts, unit.fallbacks.of(attention_sizes(parts)))
    if not fits:
        reason = f"not even its smallest tiles fit: it {fallback.reason}"
        unit.remarks.append(Remark("array-fuse-attention", f"attention at {where(product)}", "not fused", reason))
        return
    members |= _copy_positional_values(members, block) | _copy_repeats(parts, block)
    members |= set(inline_closure((o for op in members for o in op.operands), block))
    inside = {op for op in members if op.parent_block() is block}
    subject = f"attention at {where(product)}"
    leak = _leak(block, inside, parts.quotient)
    if leak is not None:
        reason = f"{leak.name} also needs an inner value"
        unit.remarks.append(Remark("array-fuse-attention", subject, "not fused", reason))
        return
    if any(is_inline(op) and any(_is_scored(o, parts, inside) for o in op.operands) for op in inside):
        reason = "the scores are also read at other coordinates"
        unit.remarks.append(Remark("array-fuse-attention", subject, "not fused", reason))
        return
    if creates_cycle(inside):
        unit.remarks.append(Remark("array-fuse-attention", subject, "not fused", "an input depends on an inner value"))
        return
    absorb_transpose(block, inside, parts.quotient)
    why = "softmax between two matmuls: one pass over the keys, the scores are never stored"
    make_group(block, inside, "attention", why)
    unit.remarks.append(Remark("array-fuse-attention", subject, "fused", why))


def _copy_positional_values(members: set[Operation], block: Block) -> set[Operation]:
    """Copies, for the members alone, of what they read that is computed from positions: a mask need not be stored."""
    copies: dict[SSAValue, SSAValue] = {}
    first = next(op for op in block.ops if op in members)

    for value in producers_first((o for op in members for o in op.operands), partial(_positional_operands, members)):
        op = value.owner
        if isinstance(op, Operation) and op not in members and depends_on_positions(value):
            copy = op.clone()
            copy.operands = [copies.get(o, o) for o in op.operands]
            block.insert_op_before(copy, first)
            copies[value] = copy.results[0]
    for op in members:
        op.operands = [copies.get(o, o) for o in op.operands]
    for value in reversed(list(copies)):
        _erase_unused(value)
    return {copy.owner for copy in copies.values() if isinstance(copy.owner, Operation)}


def _positional_operands(members: set[Operation], value: SSAValue) -> Sequence[SSAValue]:
    """The operands of what is no member and is computed from positions."""
    op = value.owner
    return op.operands if isinstance(op, Operation) and op not in members and depends_on_positions(value) else ()


def _copy_repeats(parts: AttentionParts, block: Block) -> set[Operation]:
    """Copies, for this attention alone, of what repeats keys and values for heads that share them."""
    result: set[Operation] = set()
    for product in (parts.score_product, parts.value_product):
        merged = product.operands[1].owner
        if repeat_of(product) is None or not isinstance(merged, array.ReshapeOp):
            continue
        spread = merged.operands[0].owner
        if not isinstance(spread, array.BroadcastOp):
            continue
        copies = (spread.clone(), merged.clone())
        copies[1].operands = [copies[0].results[0]]
        for copy in copies:
            block.insert_op_before(copy, product)
        old = product.operands[1]
        product.operands[1] = copies[1].results[0]
        _erase_unused(old)
        _erase_unused(spread.results[0])
        result.update(copies)
    return result


def _erase_unused(value: SSAValue) -> None:
    op = value.owner
    if isinstance(op, Operation) and value.first_use is None:
        erase(op)


def _is_scored(value: SSAValue, parts: AttentionParts, members: set[Operation]) -> bool:
    """Whether a member computes a value for every score, and not from the position alone."""
    computed = isinstance(value.owner, (array.ContractOp, *ELEMENTWISE)) and value.owner in members
    every = array_type(value).shape == array_type(parts.scores).shape
    return computed and every and not depends_on_positions(value)


def _leak(block: Block, members: set[Operation], root: SSAValue) -> Operation | None:
    """A user outside of anything but the root."""
    for op in members:
        for result in op.results:
            if result is root:
                continue
            for user in users(result):
                if in_block(user, block) not in members:
                    return user
    return None


def _behind_row_views(value: SSAValue) -> SSAValue:
    """The value that feeds broadcasts and unit reshapes, if those repeat it along the last dimension and nothing
    else."""
    shape = array_type(value).shape
    at = tuple(range(len(shape)))
    source = value
    while isinstance(source.owner, array.BroadcastOp | array.ReshapeOp) and is_inline(source.owner):
        op = source.owner
        inner = array_type(op.operands[0]).shape
        if isinstance(op, array.BroadcastOp):
            axes: tuple[int, ...] = op.axes
            at = tuple(at[axis] for axis in axes)
        else:
            rest = iter([c for c, n in zip(at, array_type(source).shape, strict=True) if n != 1])
            at = tuple(-1 if n == 1 else next(rest) for n in inner)
        source = op.operands[0]
    kept = [c for c, n in zip(at, array_type(source).shape, strict=True) if n != 1]
    return source if kept == [d for d, n in enumerate(shape[:-1]) if n != 1] else value


def _map_of(value: SSAValue, fn: str) -> array.MapOp | None:
    op = value.owner
    return op if isinstance(op, array.MapOp) and op.fn == fn else None


def _last_axis_reduce(value: SSAValue, fn: str, operand: SSAValue) -> array.ReduceOp | None:
    op = _behind_row_views(value).owner
    if not isinstance(op, array.ReduceOp) or op.fn != fn or op.operands[0] is not operand:
        return None
    return op if op.axes == (array_type(operand).rank - 1,) else None


def _quotient(value: SSAValue) -> tuple[SSAValue, SSAValue, set[Operation]] | None:
    """Dividend, divisor and operations of a division, or of a matmul with the inverse of what a row shares."""
    divide = _map_of(value, "divide")
    if divide is not None:
        return divide.operands[0], divide.operands[1], {divide}
    multiply = _map_of(value, "multiply")
    inverse = None if multiply is None else _map_of(_behind_row_views(multiply.operands[1]), "reciprocal")
    if multiply is None or inverse is None:
        return None
    return multiply.operands[0], inverse.operands[0], {multiply, inverse}


def _rounded(value: SSAValue) -> array.CastOp | None:
    """The cast by which a value gets a narrower type than it was computed in."""
    op = value.owner
    if not isinstance(op, array.CastOp):
        return None
    before, after = array_type(op.operands[0]).dtype, array_type(value).dtype
    return op if after.is_float and after.compute == before != after else None


def match_attention(product: array.ContractOp) -> tuple[AttentionParts, set[Operation]] | None:
    """The parts of the attention that ends in `product`, and its operations without inline ones."""
    rank = array_type(product.operands[0]).rank
    if not _plain_product(product, rank) or product.left_contract != (rank - 1,):
        return None
    weights = _rounded(product.operands[0])
    found = _quotient(product.operands[0] if weights is None else weights.operands[0])
    if found is None:
        return None
    dividend, divisor, dividing = found
    dividing |= set() if weights is None else {weights}
    exponential = _map_of(dividend, "exp")
    if exponential is None:
        return None
    total = _last_axis_reduce(divisor, "add", exponential.results[0])
    subtract = _map_of(exponential.operands[0], "subtract")
    if total is None or subtract is None:
        return None
    scores = subtract.operands[0]
    highest = _last_axis_reduce(subtract.operands[1], "maximum", scores)
    if highest is None:
        return None
    upstream = _score_operations(scores)
    if upstream is None:
        return None
    first, between = upstream
    if not _plain_product(first, rank) or not _one_compute_type(first, scores, product):
        return None
    if first.left_batch != product.left_batch:
        return None
    parts = AttentionParts(first, scores, product, product.results[0], weights)
    operations = {product, *dividing, exponential, total, subtract, highest, first, *between}
    # Values that are the scores themselves, or what a region finds outside, are no attention.
    if product.operands[1].owner in operations or len({op.parent_block() for op in operations}) > 1:
        return None
    return parts, operations


def _one_compute_type(first: array.ContractOp, scores: SSAValue, product: array.ContractOp) -> bool:
    """Whether scores, weights and result are computed in the same type: the kernel has one."""
    return len({array_type(v).dtype.compute for v in (first.results[0], scores, product.results[0])}) == 1


def _plain_product(op: array.ContractOp, rank: int) -> bool:
    """Whether a matmul has a left operand of `rank`, leading batch dimensions, one that is summed over, and one more on
    the right, and rounds no operands."""
    batch = tuple(range(len(op.left_batch)))
    return (
        op.precision is None
        and array_type(op.operands[0]).rank == rank >= len(batch) + 2
        and array_type(op.operands[1]).rank == len(batch) + 2
        and op.left_batch == batch
        and op.right_batch == batch
        and len(op.left_contract) == 1
    )


def _score_operations(scores: SSAValue) -> tuple[array.ContractOp, set[Operation]] | None:
    """The matmul that feeds the scores and the elementwise operations between, all of one shape."""
    shape = array_type(scores).shape
    first = _only_product(scores, shape)
    if first is None:
        return None
    between: set[Operation] = set()
    for value in producers_first([scores], partial(_scored_operands, shape)):
        op = value.owner
        if not isinstance(op, ELEMENTWISE) or array_type(value).shape != shape:
            continue
        if any(operand.owner is first or operand.owner in between for operand in op.operands):
            between.add(op)
    return (first, between) if len(between) <= MOST_SCORE_OPERATIONS else None


def _only_product(scores: SSAValue, shape: tuple[int, ...]) -> array.ContractOp | None:
    """The one matmul of a shape that feeds the scores; None where there are others. The nearest are found first: a
    residual stream has one in each layer."""
    found: array.ContractOp | None = None
    pending, seen = deque([scores]), {scores}
    while pending:
        value = pending.popleft()
        op = value.owner
        if isinstance(op, array.ContractOp) and array_type(value).shape == shape:
            if found is not None and found is not op:
                return None
            found = op
        following = [operand for operand in _scored_operands(shape, value) if operand not in seen]
        seen.update(following)
        pending.extend(dict.fromkeys(following))
    return found


def _scored_operands(shape: tuple[int, ...], value: SSAValue) -> Sequence[SSAValue]:
    """The operands of an elementwise operation of a shape."""
    op = value.owner
    return op.operands if isinstance(op, ELEMENTWISE) and array_type(value).shape == shape else ()


def attention_parts(group: array.FusedOp) -> AttentionParts:
    """The parts of an `attention` group."""
    for op in group.body.block.ops:
        if isinstance(op, array.ContractOp) and (found := match_attention(op)) is not None:
            return found[0]
    raise ValueError("the group holds no attention")
