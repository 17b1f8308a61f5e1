"""Move reshapes past elementwise operations, so that these are computed in one kernel with what is before or after.

A reshape takes an array in memory: what computes its operand and what reads its result are kernels of their own. Below
a kernel that computes, such as a matmul, elementwise operations come first and the reshape after them (`sunk`); above
what reads it, elementwise operations on stored arrays come after the reshape of these (`hoisted`), which costs nothing.
After contractions have their final form, which adds reshapes; before their epilogues are fused.

Before:
    func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<2x2x8xf32> {
      %y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<4x8xf32>
      %rows = array.reshape(%y) : tensor<2x2x8xf32>
      %z = array.map(%rows) {fn = "exp"} : tensor<2x2x8xf32>
      func.return %z : tensor<2x2x8xf32>
    }
After:
    func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<2x2x8xf32> {
      %y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<4x8xf32>
      %e = array.map(%y) {fn = "exp"} : tensor<4x8xf32>
      %z = array.reshape(%e) : tensor<2x2x8xf32>
      func.return %z : tensor<2x2x8xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeGuard

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dialects.walks import producers_first
from tilewright.passes.array.array_fuse_loops import loops
from tilewright.passes.array.fusion import ELEMENTWISE, INDEX_MAPS, is_splat, is_unit_reshape, needs_memory, users
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# Operations that are computed again in another shape at most.
_MOST_HOISTED = 64

Shape = tuple[int, ...]


class ArrayMoveReshapesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-move-reshapes"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            _view_unit_transposes(block)
            _sink(unit, block)
            _hoist(unit, block, _is_read_by_kernels)


def hoist_reshapes_of_parts(unit: Unit, block: Block) -> None:
    """Hoist the reshapes of which slices or gathers take a part, so that these bubble up."""
    for op in reversed(list(block.ops)):
        if moves(op) and _is_taken_apart(op.results[0]):
            _reshape_operands(op)
    _hoist(unit, block, _is_taken_apart)


def _view_unit_transposes(block: Block) -> None:
    """Make reshapes of the transposes that move no dims but those of one element."""
    for op in [op for op in block.ops if isinstance(op, array.TransposeOp)]:
        shape = array_type(op.operands[0]).shape
        long = [axis for axis in op.permutation if shape[axis] != 1]
        if long == sorted(long):
            view = array.ReshapeOp(arguments=op.operands, outputs=[op.results[0].type])
            insert_like(op, view)
            op.results[0].replace_all_uses_with(view.results[0])
            erase(op)


def _sink(unit: Unit, block: Block) -> None:
    op = block.first_op
    while op is not None:
        next_op = op.next_op
        if isinstance(op, array.ReshapeOp) and _is_merged(op):
            op = next_op
            continue
        following = elementwise_after(op) if moves(op) and _is_computed(op.operands[0]) else []
        if not moves(op) or not following:
            op = next_op
            continue
        before = op.prev_op
        reason = f"{len(following)} elementwise operations follow"
        unit.remarks.append(Remark(ArrayMoveReshapesPass.name, f"reshape at {where(op)}", "sunk", reason))
        sink_past(op, following)
        op = block.first_op if before is None else before.next_op


def _is_merged(reshape: array.ReshapeOp) -> bool:
    """Make one of two reshapes; whether the second one is gone, since the first one's operand has its shape."""
    first = reshape.operands[0].owner
    if not isinstance(first, array.ReshapeOp):
        return False
    reshape.operands[0] = first.operands[0]
    if first.results[0].first_use is None:
        erase(first)
    if array_type(reshape.operands[0]).shape != array_type(reshape.results[0]).shape:
        return False
    reshape.results[0].replace_all_uses_with(reshape.operands[0])
    erase(reshape)
    return True


def moves(op: Operation) -> TypeGuard[array.ReshapeOp]:
    """Whether an operation is a reshape that is not done by inserting or dropping dims of size 1."""
    return isinstance(op, array.ReshapeOp) and not is_unit_reshape(op) and 0 not in array_type(op.results[0]).shape


def _is_computed(value: SSAValue) -> bool:
    """Whether the kernel that stores an array may compute more than that."""
    op = value.owner
    return isinstance(op, Operation) and (loops(op) or isinstance(op, (array.ContractOp, *INDEX_MAPS)))


def elementwise_after(reshape: array.ReshapeOp) -> list[Operation]:
    """The elementwise operations that a reshape may come after, each after those that it reads; none where something
    else reads the reshape too."""
    source, result = (array_type(each).shape for each in (reshape.operands[0], reshape.results[0]))
    found: dict[Operation, None] = {}

    def is_ready(op: Operation) -> bool:
        if not isinstance(op, ELEMENTWISE) or op.parent_block() is not reshape.parent_block():
            return False
        if array_type(op.results[0]).shape != result:
            return False
        own = (each is reshape.results[0] or each.owner in found for each in op.operands)
        return all(is_own or _reshapes(each, source) for is_own, each in zip(own, op.operands, strict=True))

    first = users(reshape.results[0])
    pending = list(reversed(first))
    while pending:
        op = pending.pop()
        # One that also reads something that is not found yet comes again as a user of that.
        if op not in found and is_ready(op):
            found[op] = None
            pending += reversed(users(op.results[0]))
    return list(found) if all(op in found for op in first) else []


def sink_past(reshape: array.ReshapeOp, following: Sequence[Operation]) -> None:
    """Compute the operations of `elementwise_after` before a reshape."""
    source = reshape.operands[0]
    shape = array_type(source).shape
    moved: dict[SSAValue, SSAValue] = {reshape.results[0]: source}
    inside = set(following)
    for op in following:
        made = _in_shape(op, [moved.get(each) or _reshaped(each, shape, op) for each in op.operands], shape)
        insert_like(op, made)
        (result,) = op.results
        moved[result] = made.results[0]
        if any(user not in inside for user in users(result)):
            after = array.ReshapeOp(arguments=[made.results[0]], outputs=[result.type])
            insert_like(op, after)
            result.replace_uses_with_if(after.results[0], lambda use: use.operation not in inside)
    for op in (*reversed(following), reshape):
        erase(op)


def _in_shape(op: Operation, operands: Sequence[SSAValue], shape: Shape) -> Operation:
    return rebuilt(op, operands, [tensor(ArrayType(shape, array_type(op.results[0]).dtype))])


def _hoist(unit: Unit, block: Block, applies: Callable[[SSAValue], bool]) -> None:
    for op in reversed(list(block.ops)):
        if not moves(op) or not applies(op.results[0]):
            continue
        tree = _hoisted(op)
        if tree:
            reason = f"{len(tree)} elementwise operations read stored arrays"
            unit.remarks.append(Remark(ArrayMoveReshapesPass.name, f"reshape at {where(op)}", "hoisted", reason))
            _hoist_past(op, tree)


def _is_read_by_kernels(value: SSAValue) -> bool:
    return not all(needs_memory(user) for user in users(value))


def _is_taken_apart(value: SSAValue) -> bool:
    """Whether slices or gathers read a value, or a transpose of it."""
    found = users(value)
    turned = [user for op in found if isinstance(op, array.TransposeOp) for user in users(op.results[0])]
    return any(isinstance(op, array.SliceOp | array.GatherOp) for op in (*found, *turned))


def _reshape_operands(reshape: array.ReshapeOp) -> None:
    """Concatenate reshaped operands instead of reshaping a concatenation along the outermost of the dims that become
    one, where these are arrays in memory of whole rows of it."""
    join, shape = reshape.operands[0].owner, array_type(reshape.results[0]).shape
    if not isinstance(join, array.ConcatOp) or users(join.results[0]) != [reshape]:
        return
    sizes = array_type(join.results[0]).shape
    first, second = next(run for run in runs(sizes, shape) if join.axis in run[0])
    rows = [d for d in second if shape[d] != 1]
    if not rows or math.prod(sizes[first.start : join.axis]) != 1:
        return
    before, behind = shape[: rows[0]], shape[rows[0] + 1 :]
    inner = math.prod(shape[d] for d in rows[1:])
    counts = [array_type(each).size // math.prod((*before, *behind)) for each in join.operands]
    lengths = [math.prod(array_type(each).shape[d] for d in first) for each in join.operands]
    if any(length % inner for length in lengths) or not all(_is_stored(each) for each in join.operands):
        return
    parts = [viewed_as(each, (*before, n, *behind), reshape) for each, n in zip(join.operands, counts, strict=True)]
    made = array.ConcatOp(arguments=parts, axis=rows[0], outputs=[reshape.results[0].type])
    insert_like(reshape, made)
    reshape.results[0].replace_all_uses_with(made.results[0])
    erase(reshape)
    erase(join)


def _hoisted(reshape: array.ReshapeOp) -> list[Operation]:
    """The elementwise operations between stored arrays and a reshape, each after what it reads; none where something
    else is between them, or something else reads them."""
    shape = array_type(reshape.results[0]).shape
    found: dict[Operation, None] = {}
    pending: list[SSAValue] = [reshape.operands[0]]
    while pending:
        value = pending.pop()
        if _reshapes(value, shape):
            continue
        op = value.owner
        if not isinstance(op, ELEMENTWISE) or op.parent_block() is not reshape.parent_block():
            return []
        if array_type(value).shape != array_type(reshape.operands[0]).shape:
            return []
        found[op] = None
        pending += op.operands
        if len(found) > _MOST_HOISTED:
            return []
    if any(user is not reshape and user not in found for op in found for user in users(op.results[0])):
        return []

    def read(op: Operation) -> list[Operation]:
        owners = [each.owner for each in op.operands]
        return [owner for owner in owners if isinstance(owner, Operation) and owner in found]

    return list(producers_first(found, read))


def _hoist_past(reshape: array.ReshapeOp, tree: Sequence[Operation]) -> None:
    shape = array_type(reshape.results[0]).shape
    moved: dict[SSAValue, SSAValue] = {}
    for op in tree:
        made = _in_shape(op, [moved.get(each) or _reshaped(each, shape, op) for each in op.operands], shape)
        insert_like(op, made)
        moved[op.results[0]] = made.results[0]
    reshape.results[0].replace_all_uses_with(moved[reshape.operands[0]])
    for op in (reshape, *reversed(tree)):
        erase(op)


# ---- values that another shape costs nothing -----------------------------------------------------------------------


def _reshapes(value: SSAValue, shape: Shape) -> bool:
    """Whether a value is there in another shape without being stored for that."""
    op = value.owner
    if isinstance(op, array.BroadcastOp):
        return _broadcast_in(op, shape) is not None
    if isinstance(op, array.ReshapeOp):
        return array_type(op.operands[0]).shape == shape or _is_stored(op.operands[0])
    return _is_stored(value) or (isinstance(op, array.ConstantOp) and is_splat(op))


def _is_stored(value: SSAValue) -> bool:
    op = value.owner
    if isinstance(op, array.ConstantOp):
        return bool(op.resource)
    return not isinstance(op, array.ArrayOp) or isinstance(op, array.FusedOp | array.LibraryCallOp)


def _reshaped(value: SSAValue, shape: Shape, before: Operation) -> SSAValue:
    """A value that `_reshapes`, in another shape."""
    type, op = ArrayType(shape, array_type(value).dtype), value.owner
    made: Operation
    if isinstance(op, array.BroadcastOp) and (found := _broadcast_in(op, shape)) is not None:
        sizes, axes = found
        rows = viewed_as(op.operands[0], sizes, before)
        made = array.BroadcastOp(arguments=[rows], axes=axes, outputs=[tensor(type)])
    elif isinstance(op, array.ConstantOp) and is_splat(op):
        made = rebuilt(op, result_types=[tensor(type)])
    else:
        return viewed_as(op.operands[0] if isinstance(op, array.ReshapeOp) else value, shape, before)
    insert_like(before, made)
    return made.results[0]


def viewed_as(value: SSAValue, shape: Shape, before: Operation) -> SSAValue:
    """A value in another shape, by a reshape before an operation where it has not that shape."""
    type = array_type(value)
    if type.shape == shape:
        return value
    made = array.ReshapeOp(arguments=[value], outputs=[tensor(ArrayType(shape, type.dtype))])
    insert_like(before, made)
    return made.results[0]


def _broadcast_in(op: array.BroadcastOp, shape: Shape) -> tuple[Shape, Shape] | None:
    """The shape of the operand and the axes of a broadcast that gives the same elements in another shape; None where an
    operand has elements along some of the dims that become others together, or would be stored to be reshaped."""
    source, sizes = array_type(op.results[0]).shape, array_type(op.operands[0]).shape
    given = {axis for axis, n in zip(op.axes, sizes, strict=True) if n != 1}
    kept: list[int] = []
    for first, second in runs(source, shape):
        dims = {d for d in first if source[d] != 1}
        if dims <= given:
            kept += [d for d in second if shape[d] != 1]
        elif dims & given:
            return None
    rows = tuple(shape[d] for d in kept)
    is_view = [n for n in sizes if n != 1] == list(rows) or _is_stored(op.operands[0])
    return (rows, tuple(kept)) if is_view and list(op.axes) == sorted(op.axes) else None


def runs(first: Shape, second: Shape) -> list[tuple[range, range]]:
    """The shortest runs of dims of two shapes that have as many elements; dims of size 1 may be in any."""
    found: list[tuple[range, range]] = []
    starts, ends, sizes = [0, 0], [0, 0], [1, 1]
    shapes = first, second
    while ends[0] < len(first) or ends[1] < len(second):
        behind = 0 if ends[1] == len(second) or (ends[0] < len(first) and sizes[0] <= sizes[1]) else 1
        sizes[behind] *= shapes[behind][ends[behind]]
        ends[behind] += 1
        if sizes[0] == sizes[1]:
            found.append((range(starts[0], ends[0]), range(starts[1], ends[1])))
            starts, sizes = list(ends), [1, 1]
    return found
