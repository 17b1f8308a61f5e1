"""Compute once what broadcasts repeat.

Elementwise operations all of whose operands are repeated along a dim give repeated elements too. They are computed
before the broadcast where that saves work: functions of many cycles, what is transposed, and what reductions read,
which `array-reduce-repeated` then reduces once. A reshape of a broadcast, as `tile` makes it, comes after them in the
same way. Before reductions of what is repeated are rewritten.

Before:
    func.func @main(%x: tensor<6xf32>, %m: tensor<1xf32>) -> tensor<4x6xf32> {
      %rows = array.broadcast(%x) {axes = array<i64: 1>} : tensor<4x6xf32>
      %shift = array.broadcast(%m) {axes = array<i64: 0>} : tensor<4x6xf32>
      %y = array.map(%rows, %shift) {fn = "subtract"} : tensor<4x6xf32>
      %z = array.map(%y) {fn = "exp"} : tensor<4x6xf32>
      func.return %z : tensor<4x6xf32>
    }
After:
    func.func @main(%x: tensor<6xf32>, %m: tensor<1xf32>) -> tensor<4x6xf32> {
      %one = array.reshape(%m) : tensor<f32>
      %shift = array.broadcast(%one) {axes = array<i64>} : tensor<6xf32>
      %y = array.map(%x, %shift) {fn = "subtract"} : tensor<6xf32>
      %e = array.map(%y) {fn = "exp"} : tensor<6xf32>
      %z = array.broadcast(%e) {axes = array<i64: 1>} : tensor<4x6xf32>
      func.return %z : tensor<4x6xf32>
    }
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.errors import CompilerBug
from tilewright.passes.array.array_move_reshapes import viewed_as
from tilewright.passes.array.array_reduce_repeated import merged_axes
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.array.fusion import ELEMENTWISE, is_cheap, is_splat, users
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType


class ArraySinkBroadcastsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-sink-broadcasts"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            repeated = _repeated_results(block)
            sunk = _worthwhile(block, repeated)
            for op in sunk:
                count = math.prod(repeated[op].shape) // math.prod(repeated[op].sizes)
                reason = f"broadcasts repeat all of its operands {count} times"
                unit.remarks.append(Remark(self.name, f"{op.name} at {where(op)}", "computed before them", reason))
                _compute_once(op, repeated[op])
            if sunk:
                drop_unused(block)


class _Repeated(msgspec.Struct, frozen=True):
    """A value as what a broadcast gives of an array: the shape of the broadcast's result, which a reshape may follow,
    and the dims of that along which elements differ."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.axes)


def _repeated_results(block: Block) -> dict[Operation, _Repeated]:
    """The elementwise operations of a block all of whose operands, scalars aside, are repeated along the same dims."""
    found: dict[Operation, _Repeated] = {}
    for op in block.ops:
        if not isinstance(op, ELEMENTWISE) or 0 in array_type(op.results[0]).shape:
            continue
        operands = [each for each in op.operands if not _is_scalar(each)]
        repeats = [_repeated_of(each, found) for each in operands]
        known = [each for each in repeats if each is not None]
        if not known or len(known) != len(repeats) or len({each.shape for each in known}) != 1:
            continue
        shape = known[0].shape
        axes = tuple(sorted({axis for each in known for axis in each.axes}))
        if math.prod(shape[axis] for axis in axes) < math.prod(shape):
            found[op] = _Repeated(shape, axes)
    return found


def _is_scalar(value: SSAValue) -> bool:
    return isinstance(value.owner, array.ConstantOp) and is_splat(value.owner)


def _repeated_of(value: SSAValue, found: dict[Operation, _Repeated]) -> _Repeated | None:
    owner = value.owner
    if isinstance(owner, Operation) and owner in found:
        return found[owner]
    broadcast = owner.operands[0].owner if isinstance(owner, array.ReshapeOp) else owner
    if not isinstance(broadcast, array.BroadcastOp) or list(broadcast.axes) != sorted(broadcast.axes):
        return None
    sizes, shape = array_type(broadcast.operands[0]).shape, array_type(broadcast.results[0]).shape
    return _Repeated(shape, tuple(axis for axis, n in zip(broadcast.axes, sizes, strict=True) if n != 1))


def _worthwhile(block: Block, repeated: dict[Operation, _Repeated]) -> list[Operation]:
    """The operations to compute before broadcasts, in their order: those of many cycles, those whose results are
    reduced or transposed, and those that compute the operands of both."""
    chosen: set[Operation] = set()
    for op in reversed(list(block.ops)):
        if op in repeated:
            readers = users(op.results[0])
            if not is_cheap(op) or any(user in chosen or _saves(user, repeated[op]) for user in readers):
                chosen.add(op)
    return [op for op in repeated if op in chosen]


def _saves(user: Operation, repeated: _Repeated) -> bool:
    """Whether an operation takes less time after a broadcast: a reduction, or a transpose, which moves its dims."""
    moves = isinstance(user, array.TransposeOp) and user.permutation[-1] != len(user.permutation) - 1
    return moves or _is_reduced(user, repeated)


def _is_reduced(user: Operation, repeated: _Repeated) -> bool:
    """Whether an operation reduces what is repeated, or a reshape of it, which may merge repeated dims with others."""
    if isinstance(user, array.ReshapeOp):
        return any(isinstance(each, array.ReduceOp) for each in users(user.results[0]))
    if not isinstance(user, array.ReduceOp):
        return False
    return merged_axes(repeated.shape, array_type(user.operands[0]).shape, user.axes) is not None


def _compute_once(op: Operation, repeated: _Repeated) -> None:
    """Replace the result of an operation by a broadcast of what it computes of its operands, not repeated."""
    operands = [_once(each, repeated, op) for each in op.operands]
    result = array_type(op.results[0])
    made = rebuilt(op, operands, [tensor(ArrayType(repeated.sizes, result.dtype))])
    insert_like(op, made)
    value = _spread(made.results[0], repeated.axes, repeated.shape, op)
    op.results[0].replace_all_uses_with(viewed_as(value, result.shape, op))
    erase(op)


def _once(value: SSAValue, repeated: _Repeated, before: Operation) -> SSAValue:
    """The elements of an operand along the dims that are left."""
    owner, type = value.owner, array_type(value)
    if isinstance(owner, array.ConstantOp) and is_splat(owner):
        made = rebuilt(owner, result_types=[tensor(ArrayType(repeated.sizes, type.dtype))])
        insert_like(before, made)
        return made.results[0]
    broadcast = owner.operands[0].owner if isinstance(owner, array.ReshapeOp) else owner
    if not isinstance(broadcast, array.BroadcastOp):
        raise CompilerBug(f"{value} is repeated by no broadcast")
    (source,) = broadcast.operands
    sizes = array_type(source).shape
    axes = [axis for axis, n in zip(broadcast.axes, sizes, strict=True) if n != 1]
    rows = viewed_as(source, tuple(n for n in sizes if n != 1), before)
    return _spread(rows, tuple(repeated.axes.index(axis) for axis in axes), repeated.sizes, before)


def _spread(value: SSAValue, axes: tuple[int, ...], shape: tuple[int, ...], before: Operation) -> SSAValue:
    if axes == tuple(range(len(shape))):
        return value
    outputs = [tensor(ArrayType(shape, array_type(value).dtype))]
    made = array.BroadcastOp(arguments=[value], axes=axes, outputs=outputs)
    insert_like(before, made)
    return made.results[0]
