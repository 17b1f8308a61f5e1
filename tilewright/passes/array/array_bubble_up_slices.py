"""Bubble slices and gathers up: compute only the elements that later operations take.

A slice of what an elementwise operation, a view, a reduction, a sort, a scan or a contraction gives is that operation
on slices of its operands, if nothing else uses it. Slices meet the arguments of the program, or what has other uses.
Several slices of one value bubble up where together they take at most half of it, or all of what is computed of
arguments alone, which no matmul or reduction computes with its results; a gather does where it takes at most half.
First of all, so that the simplification after it joins and folds what is written here; not on cores, where slices move
pages.

Before:
    func.func @main(%x: tensor<8x6xf32>, %y: tensor<6xf32>) -> tensor<2x6xf32> {
      %row = array.map(%y) {fn = "exp"} : tensor<6xf32>
      %rows = array.broadcast(%row) {axes = array<i64: 1>} : tensor<8x6xf32>
      %sum = array.map(%x, %rows) {fn = "add"} : tensor<8x6xf32>
      %z = array.slice(%sum)
        {starts = array<i64: 4, 0>, limits = array<i64: 8, 6>, strides = array<i64: 2, 1>} : tensor<2x6xf32>
      func.return %z : tensor<2x6xf32>
    }
After:
    func.func @main(%x: tensor<8x6xf32>, %y: tensor<6xf32>) -> tensor<2x6xf32> {
      %part = array.slice(%x)
        {starts = array<i64: 4, 0>, limits = array<i64: 7, 6>, strides = array<i64: 2, 1>} : tensor<2x6xf32>
      %row = array.map(%y) {fn = "exp"} : tensor<6xf32>
      %rows = array.broadcast(%row) {axes = array<i64: 1>} : tensor<2x6xf32>
      %z = array.map(%part, %rows) {fn = "add"} : tensor<2x6xf32>
      func.return %z : tensor<2x6xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, has_uses, insert_like
from tilewright.passes.array.array_move_reshapes import hoist_reshapes_of_parts, runs
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.array.fusion import ELEMENTWISE, operands_through
from tilewright.passes.array.gathered_operands import gather_operands
from tilewright.passes.base import Unit, blocks_of
from tilewright.primitives import ArrayType

# The largest part of a value that several slices take together, and that one takes of a sum, for which the operation
# is written again.
_MOST_OF_MANY, _MOST_OF_SUMS = 0.5, 0.75
# The largest part of an array that is reshaped as rows of which a slice takes some elements.
_MOST_OF_ROWS = 0.75
# A gather that bubbles up leaves slices to bubble up, and a slice that does leaves gathers.
_ROUNDS = 4
_LINKS = (*ELEMENTWISE, array.BroadcastOp, array.ReshapeOp, array.TransposeOp, array.SliceOp, array.ReverseOp)
# Operations that are not written again for each of several slices.
_COMPUTED_ONCE = (
    array.ContractOp,
    array.ReduceOp,
    array.ArgReduceOp,
    array.ScanOp,
    array.SortOp,
    array.WindowReduceOp,
)


class Range(NamedTuple):
    """The positions `start`, `start + stride`, ... of a dim, `size` of them."""

    start: int
    size: int
    stride: int

    @property
    def limit(self) -> int:
        """The position after the last one."""
        return self.start + (self.size - 1) * self.stride + 1

    def of(self, outer: Range) -> Range:
        """The positions that this range takes of those of another one."""
        return Range(outer.start + outer.stride * self.start, self.size, outer.stride * self.stride)


Ranges = tuple[Range, ...]


class ArrayBubbleUpSlicesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-bubble-up-slices"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            if any(isinstance(op, array.SliceOp | array.GatherOp) for op in block.ops):
                drop_unused(block)
                hoist_reshapes_of_parts(unit, block)
                slices = _Slices(block)
                slices.bubble_up(through_slices=False)
                for _ in range(_ROUNDS - 1):
                    if not slices.bubble_up():
                        break
                drop_unused(block)


class _Slices(msgspec.Struct):
    """The slices of a block, with those that were written here."""

    block: Block
    written: dict[tuple[SSAValue, Ranges], SSAValue] = msgspec.field(
        default_factory=dict[tuple[SSAValue, Ranges], SSAValue]
    )

    def bubble_up(self, through_slices: bool = True) -> bool:
        """Rewrite operations of which slices or one gather alone are used, users before what they use; gives whether
        there was one. Gathers go through slices once those have bubbled up: what is taken of an operand is less."""
        changed = False
        for op in reversed(list(self.block.ops)):
            if op.parent is None:
                continue  # a slice that went with what read it
            waits = isinstance(op, array.SliceOp) and not through_slices
            if isinstance(op, array.ArrayOp) and not waits and _gather_first(op):
                changed = True
                continue
            rule = _RULES.get(type(op))
            slices = _only_slices(op) if rule is not None and isinstance(op, array.ArrayOp) else []
            if not slices or not isinstance(op, array.ArrayOp) or not _is_worthwhile(op, slices):
                continue
            for each in slices:
                made = rule(self, op, _ranges(each)) if rule is not None else None
                if made is not None:
                    changed = True
                    each.results[0].replace_all_uses_with(made)
                    erase(each)
            if not any(True for _ in op.results[0].uses):
                erase(op)
        return changed

    def add(self, op: array.ArrayOp, made: array.ArrayOp) -> SSAValue:
        """Insert an operation before the one that it stands for."""
        insert_like(op, made)
        return made.results[0]

    def part(self, op: array.ArrayOp, value: SSAValue, ranges: Ranges) -> SSAValue:
        """A slice of an operand of `op`, after what gives that: operations before `op` may read it, too."""
        type = array_type(value)
        if ranges == _whole(type.shape):
            return value
        found = self.written.get((value, ranges))
        if found is None:
            made = array.SliceOp(
                arguments=[value],
                starts=tuple(each.start for each in ranges),
                limits=tuple(each.limit for each in ranges),
                strides=tuple(each.stride for each in ranges),
                outputs=[_tensor(_sizes(ranges), value)],
            )
            made.location = op.location
            owner = value.owner
            if isinstance(owner, Operation) and owner.parent_block() is self.block:
                self.block.insert_op_after(made, owner)
            else:
                self.block.insert_ops_before([made], next(iter(self.block.ops)))
            found = self.written[value, ranges] = made.results[0]
        return found

    def again(self, op: array.ArrayOp, operands: Sequence[SSAValue], ranges: Ranges) -> SSAValue:
        """The operation on other operands, whose result has the sizes of `ranges`."""
        return self.add(op, rebuilt(op, operands, [_tensor(_sizes(ranges), op.results[0])]))


def _only_slices(op: array.ArrayOp) -> list[array.SliceOp]:
    """The slices of the only result of an operation; none where something else uses it."""
    if len(op.results) != 1:
        return []
    slices: list[array.SliceOp] = []
    for use in op.results[0].uses:
        user = use.operation
        if not isinstance(user, array.SliceOp) or user.parent_block() is not op.parent_block():
            return []
        slices.append(user)
    return slices


def _gather_first(op: array.ArrayOp) -> bool:
    """Gather from the operands of an operation instead of from its result, where only that is used; gives whether."""
    gather = _only_gather(op)
    gathered = gather_operands(op, gather) if gather is not None else None
    if gather is None or gathered is None:
        return False
    gather.results[0].replace_all_uses_with(gathered)
    read = dict.fromkeys(each.owner for each in op.operands)
    erase(gather)
    erase(op)
    for each in read:
        if isinstance(each, array.SliceOp) and not has_uses(each):
            erase(each)
    return True


def _only_gather(op: array.ArrayOp) -> array.GatherOp | None:
    """The gather that takes at most half of what an operation gives, or any part of what is concatenated along another
    axis, which nothing else uses; equal ones, as of a value that an operation uses twice, become the first of them."""
    block, uses = op.parent_block(), list(op.results[0].uses)
    gathers = [use.operation for use in uses if isinstance(use.operation, array.GatherOp) and not use.index]
    if not gathers or len(gathers) < len(uses) or any(each.parent_block() is not block for each in gathers):
        return None
    if any(each.operands != gathers[0].operands or each.axes != gathers[0].axes for each in gathers):
        return None
    joins_others = isinstance(op, array.ConcatOp) and op.axis not in gathers[0].axes
    if not _is_part(gathers[0], 1 if joins_others else _MOST_OF_MANY):
        return None
    return _merged(gathers) if len(gathers) > 1 else gathers[0]


def _is_part(op: array.GatherOp, most: float = _MOST_OF_MANY) -> bool:
    """Whether a gather takes at most a part of what it reads."""
    return array_type(op.results[0]).size <= most * array_type(op.operands[0]).size


def _merged(gathers: Sequence[array.GatherOp]) -> array.GatherOp:
    """Of equal gathers in a block the first one, in place of all."""
    first = gathers[0]
    for each in gathers[1:]:
        first = each if each.is_before_in_block(first) else first
    for each in gathers:
        if each is not first:
            each.results[0].replace_all_uses_with(first.results[0])
            erase(each)
    return first


def _is_worthwhile(op: array.ArrayOp, slices: Sequence[array.SliceOp]) -> bool:
    """Whether slices take so little of a result that the operation is written for each of them."""
    size = array_type(op.results[0]).size
    taken = sum(array_type(each.results[0]).size for each in {_ranges(each): each for each in slices}.values())
    if len(slices) == 1:
        return 0 < taken < size * (_MOST_OF_SUMS if isinstance(op, array.ReduceOp | array.ContractOp) else 1)
    if isinstance(op, _COMPUTED_ONCE) or (isinstance(op, array.GatherOp) and _takes_few(op)):
        return False
    # Indices and conditions are no epilogue of a matmul: where slices share them out, each computes its own.
    is_index = not array_type(op.results[0]).dtype.is_float
    is_whole = isinstance(op, array.ConcatOp) or is_index or _reads_arguments(op)
    return 0 < taken <= size * (1 if is_whole else _MOST_OF_MANY)


def _reads_arguments(op: array.ArrayOp) -> bool:
    """Whether an operation is computed of arguments of the program alone, elementwise and by views."""
    owners = [value.owner for operand in op.operands for value in operands_through(operand, _LINKS)]
    return all(isinstance(each, (Block, array.ConstantOp, array.IotaOp, *_LINKS)) for each in owners)


def _takes_few(op: array.GatherOp) -> bool:
    """Whether a gather bubbles up by itself, which gathers of parts of its indices would not."""
    return _is_computed(op.operands[0]) and _is_part(op)


def _ranges(op: array.SliceOp) -> Ranges:
    sizes = array_type(op.results[0]).shape
    return tuple(Range(*each) for each in zip(op.starts, sizes, op.strides, strict=True))


def _whole(shape: Sequence[int]) -> Ranges:
    return tuple(Range(0, size, 1) for size in shape)


def _sizes(ranges: Sequence[Range]) -> tuple[int, ...]:
    return tuple(each.size for each in ranges)


def _tensor(shape: tuple[int, ...], like: SSAValue) -> Attribute:
    return tensor(ArrayType(shape, array_type(like).dtype))


# ---- rules: the slice of an operation's result, or None where it stays -----------------------------------------------


def _elementwise(slices: _Slices, op: array.ArrayOp, ranges: Ranges) -> SSAValue | None:
    return slices.again(op, [slices.part(op, operand, ranges) for operand in op.operands], ranges)


def _transpose(slices: _Slices, op: array.TransposeOp, ranges: Ranges) -> SSAValue | None:
    by_axis = dict(zip(op.permutation, ranges, strict=True))
    source = slices.part(op, op.operands[0], tuple(by_axis[axis] for axis in range(len(ranges))))
    return slices.again(op, [source], ranges)


def _broadcast(slices: _Slices, op: array.BroadcastOp, ranges: Ranges) -> SSAValue | None:
    sizes = array_type(op.operands[0]).shape
    result = array_type(op.results[0]).shape
    # A dim that is repeated is there as a whole.
    taken = [
        ranges[axis] if size == result[axis] else Range(0, size, 1) for size, axis in zip(sizes, op.axes, strict=True)
    ]
    return slices.again(op, [slices.part(op, op.operands[0], tuple(taken))], ranges)


def _slice(slices: _Slices, op: array.SliceOp, ranges: Ranges) -> SSAValue | None:
    joined = tuple(inner.of(outer) for inner, outer in zip(ranges, _ranges(op), strict=True))
    return slices.part(op, op.operands[0], joined)


def _reverse(slices: _Slices, op: array.ReverseOp, ranges: Ranges) -> SSAValue | None:
    shape = array_type(op.results[0]).shape
    taken = [
        each._replace(start=size - each.limit) if axis in op.axes else each
        for axis, (each, size) in enumerate(zip(ranges, shape, strict=True))
    ]
    return slices.again(op, [slices.part(op, op.operands[0], tuple(taken))], ranges)


def _reshape(slices: _Slices, op: array.ReshapeOp, ranges: Ranges) -> SSAValue | None:
    """A dim of which a part is taken is a dim of the operand, or several whose elements it counts, or one of several
    that count the elements of one: of whole rows that hold the part, where something computes them, the rest is a
    slice. Of what is in memory the reshape is free, and would be a copy of the part."""
    if not _is_computed(op.operands[0]):
        return None
    sizes, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    taken, held, left = list(_whole(sizes)), list(_whole(result)), list(_whole(result))
    for axis, each in enumerate(ranges):
        if each.size == result[axis]:
            continue
        first, end = _counted_dims(sizes, math.prod(result[:axis]), result[axis])
        if first < end:
            taken[first:end], left[axis] = _rows_of(each, sizes[first:end])
            held[axis] = Range(0, math.prod(rows.size for rows in taken[first:end]), 1)
            continue
        found = _counting_dims(sizes, result, axis)
        if found is None:
            return None
        source, counting = found
        here = slice(counting.start, counting.stop)
        taken[source], held[here], left[here] = _block_of(ranges[here], result[here])
    is_rest = left != held
    if is_rest and math.prod(_sizes(held)) > _MOST_OF_ROWS * math.prod(sizes):
        return None
    rows = slices.again(op, [slices.part(op, op.operands[0], tuple(taken))], tuple(held))
    return slices.part(op, rows, tuple(left)) if is_rest else rows


def _is_computed(value: SSAValue) -> bool:
    return isinstance(value.owner, array.ArrayOp) and not isinstance(value.owner, array.ConstantOp)


def _counted_dims(sizes: Sequence[int], before: int, size: int) -> tuple[int, int]:
    """The first of the dims that follow on `before` elements and have `size` together, and the one after them; twice
    the same where there are none."""
    starts = [math.prod(sizes[:n]) for n in range(len(sizes) + 1)]
    if before not in starts or before * size not in starts:
        return 0, 0
    return len(starts) - 1 - starts[::-1].index(before), starts.index(before * size)


def _counting_dims(sizes: Sequence[int], result: Sequence[int], axis: int) -> tuple[int, range] | None:
    """The dim of the operand whose elements dims of the result count, `axis` among them, and these dims."""
    for source, counting in runs(tuple(sizes), tuple(result)):
        if axis in counting:
            dims = [d for d in source if sizes[d] != 1]
            return (dims[0], counting) if len(dims) == 1 else None
    return None


def _block_of(given: Sequence[Range], sizes: Sequence[int]) -> tuple[Range, list[Range], list[Range]]:
    """The elements of one dim that several ones count and that hold positions in these: one range, the sizes that it
    has along them, and the positions that are taken of it."""
    steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    start = sum(each.start * step for each, step in zip(given, steps, strict=True))
    exact = _exact_step(given, sizes)
    if exact is not None:
        held = list(_whole(_sizes(given)))
        return Range(start, math.prod(_sizes(held)), exact), held, held
    start, held, left = 0, list(_whole(sizes)), list(given)
    for d, each in enumerate(given):
        start += each.start * steps[d]
        held[d], left[d] = Range(0, each.limit - each.start, 1), each._replace(start=0)
        if each.size > 1:
            break
    return Range(start, math.prod(_sizes(held)), 1), held, left


def _exact_step(given: Sequence[Range], sizes: Sequence[int]) -> int | None:
    """The distance of the elements at positions in several dims, if all are equally far from the next: one dim of
    which any are taken, whole ones inside of it, and one position of all others; else None."""
    several = [d for d, each in enumerate(given) if each.size > 1]
    if not several:
        return 1
    first, last = several[0], several[-1]
    inner = math.prod(sizes[last + 1 :])
    if first == last:
        return given[first].stride * inner
    whole = all(given[d] == Range(0, sizes[d], 1) for d in range(first + 1, last + 1))
    return inner if whole and given[first].stride == 1 else None


def _rows_of(given: Range, sizes: Sequence[int]) -> tuple[list[Range], Range]:
    """Positions in each of several dims, whole ones of the inner dims or part of an innermost one, that hold positions
    in a dim that counts the elements of all; with the latter among what is held."""
    if len(sizes) == 1:
        return [given], Range(0, given.size, 1)
    inner = math.prod(sizes[1:])
    first, last = given.start // inner, (given.limit - 1) // inner
    inside = given._replace(start=given.start - first * inner)
    if first == last:
        rest, left = _rows_of(inside, sizes[1:])
        return [Range(first, 1, 1), *rest], left
    return [Range(first, last + 1 - first, 1), *_whole(sizes[1:])], inside


def _gather(slices: _Slices, op: array.GatherOp, ranges: Ranges) -> SSAValue | None:
    """Parts of the index arrays, and parts of the array on its other axes."""
    source, *indices = op.operands
    rank = array_type(indices[0]).rank
    parts = [slices.part(op, each, ranges[:rank]) for each in indices]
    rest = iter(ranges[rank:])
    taken = tuple(Range(0, size, 1) if d in op.axes else next(rest) for d, size in enumerate(array_type(source).shape))
    return slices.again(op, [slices.part(op, source, taken), *parts], ranges)


def _iota(slices: _Slices, op: array.IotaOp, ranges: Ranges) -> SSAValue | None:
    counted = ranges[op.axis]
    return slices.again(op, [], ranges) if counted.start == 0 and counted.stride == 1 else None


def _concat(slices: _Slices, op: array.ConcatOp, ranges: Ranges) -> SSAValue | None:
    taken, parts, offset = ranges[op.axis], list[SSAValue](), 0
    for operand in op.operands:
        size = array_type(operand).shape[op.axis]
        first = max(0, -(-(offset - taken.start) // taken.stride))
        end = min(taken.size, -(-(offset + size - taken.start) // taken.stride))
        if first < end:
            here = Range(taken.start + first * taken.stride - offset, end - first, taken.stride)
            parts.append(slices.part(op, operand, (*ranges[: op.axis], here, *ranges[op.axis + 1 :])))
        offset += size
    return parts[0] if len(parts) == 1 else slices.again(op, parts, ranges)


def _pad(slices: _Slices, op: array.PadOp, ranges: Ranges) -> SSAValue | None:
    """The padding that is left around the part of the operand that is taken."""
    source, value = op.operands
    sizes, result = array_type(source).shape, array_type(op.results[0]).shape
    low, high, interior, taken = list(op.low), list(op.high), list(op.interior), list(_whole(sizes))
    for axis, each in enumerate(ranges):
        if each.size == result[axis]:
            continue
        if interior[axis]:
            return None
        # Of the positions that are taken, the first one in the operand and the end of these.
        first = max(0, -(-(low[axis] - each.start) // each.stride))
        end = min(each.size, -(-(low[axis] + sizes[axis] - each.start) // each.stride))
        if first >= end:
            return slices.add(
                op, array.BroadcastOp(arguments=[value], axes=(), outputs=[_tensor(_sizes(ranges), source)])
            )
        taken[axis] = Range(each.start + first * each.stride - low[axis], end - first, each.stride)
        low[axis], high[axis] = first, each.size - end
    part = slices.part(op, source, tuple(taken))
    if not any((*low, *high, *interior)):
        return part
    outputs = [_tensor(_sizes(ranges), source)]
    padded = array.PadOp(
        arguments=[part, value], low=tuple(low), high=tuple(high), interior=tuple(interior), outputs=outputs
    )
    return slices.add(op, padded)


def _reduce(slices: _Slices, op: array.ReduceOp, ranges: Ranges) -> SSAValue | None:
    if op.part is not None:
        return None
    sizes, kept = array_type(op.operands[0]).shape, iter(ranges)
    taken = tuple(Range(0, size, 1) if axis in op.axes else next(kept) for axis, size in enumerate(sizes))
    return slices.again(op, [slices.part(op, op.operands[0], taken)], ranges)


def _along_lines(slices: _Slices, op: array.SortOp | array.ScanOp, ranges: Ranges) -> SSAValue | None:
    """The lines that are taken, sorted or scanned; elements of lines are taken of the result."""
    if len(op.operands) > 1:
        return None
    return _some_dims(slices, op, ranges, [axis != op.axis for axis in range(len(ranges))])


def _window_reduce(slices: _Slices, op: array.WindowReduceOp, ranges: Ranges) -> SSAValue | None:
    """Dims without windows that are taken are those of the operand; the others are taken of the result."""
    dims = zip(op.window, op.strides, op.low, op.high, strict=True)
    return _some_dims(slices, op, ranges, [dim == (1, 1, 0, 0) for dim in dims])


def _some_dims(slices: _Slices, op: array.ArrayOp, ranges: Ranges, bubbles: Sequence[bool]) -> SSAValue | None:
    """The operation on the part of its operand that some dims take, and a slice of the others; None where these take
    all."""

    def choose(others: Ranges) -> Ranges:
        return tuple(each if up else other for each, other, up in zip(ranges, others, bubbles, strict=True))

    whole = _whole(array_type(op.results[0]).shape)
    taken = choose(whole)
    if taken == whole:
        return None
    source = op.operands[0]
    part = slices.part(op, source, choose(_whole(array_type(source).shape)))
    left = tuple(held if up else each for each, held, up in zip(ranges, _whole(_sizes(taken)), bubbles, strict=True))
    return slices.part(op, slices.again(op, [part], taken), left)


def _arg_reduce(slices: _Slices, op: array.ArgReduceOp, ranges: Ranges) -> SSAValue | None:
    size = array_type(op.operands[0]).shape[op.axis]
    taken = (*ranges[: op.axis], Range(0, size, 1), *ranges[op.axis :])
    return slices.again(op, [slices.part(op, op.operands[0], taken)], ranges)


def _contract(slices: _Slices, op: array.ContractOp, ranges: Ranges) -> SSAValue | None:
    """Rows, columns and batches that are taken are those of the operands."""
    if op.part is not None:
        return None
    left, right = op.operands
    batch = ranges[: len(op.left_batch)]
    left_free = array_type(left).rank - len(op.left_batch) - len(op.left_contract)
    rows, columns = ranges[len(batch) : len(batch) + left_free], ranges[len(batch) + left_free :]
    operands = [
        slices.part(op, left, _operand_ranges(left, op.left_batch, op.left_contract, batch, rows)),
        slices.part(op, right, _operand_ranges(right, op.right_batch, op.right_contract, batch, columns)),
    ]
    return slices.again(op, operands, ranges)


def _operand_ranges(
    operand: SSAValue, batch_axes: Sequence[int], summed_axes: Sequence[int], batch: Ranges, free: Ranges
) -> Ranges:
    rest, by_axis = iter(free), dict(zip(batch_axes, batch, strict=True))
    return tuple(
        by_axis[axis] if axis in by_axis else Range(0, size, 1) if axis in summed_axes else next(rest)
        for axis, size in enumerate(array_type(operand).shape)
    )


# A rule takes the operation of its class.
_RULES: dict[type, Callable[[_Slices, Any, Ranges], SSAValue | None]] = {
    array.MapOp: _elementwise,
    array.CastOp: _elementwise,
    array.BitcastOp: _elementwise,
    array.TransposeOp: _transpose,
    array.BroadcastOp: _broadcast,
    array.SliceOp: _slice,
    array.ReverseOp: _reverse,
    array.ReshapeOp: _reshape,
    array.GatherOp: _gather,
    array.IotaOp: _iota,
    array.ConcatOp: _concat,
    array.PadOp: _pad,
    array.ReduceOp: _reduce,
    array.ArgReduceOp: _arg_reduce,
    array.ScanOp: _along_lines,
    array.SortOp: _along_lines,
    array.WindowReduceOp: _window_reduce,
    array.ContractOp: _contract,
}
