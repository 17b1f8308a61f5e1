"""Fuse the remaining operations: elementwise chains and diamonds, reductions with their producers and consumers.

Two groups merge when the merged group still computes every value once, so `softmax` and `layer_norm` become one kernel.
A value that takes a cycle and reads one array is computed again, not stored for another group. Last of the fusions:
after it, all that computes is in a group.

Before:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %highest = array.reduce(%x) {fn = "maximum", axes = array<i64: 1>} : tensor<4xf32>
      %shift = array.broadcast(%highest) {axes = array<i64: 0>} : tensor<4x8xf32>
      %shifted = array.map(%x, %shift) {fn = "subtract"} : tensor<4x8xf32>
      %y = array.map(%shifted) {fn = "exp"} : tensor<4x8xf32>
      func.return %y : tensor<4x8xf32>
    }
After:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %y = array.fused(%x) {kind = "loop", why = "maximum subtract exp"} do {
      ^bb0(%x1: tensor<4x8xf32>):
        %highest = array.reduce(%x1) {fn = "maximum", axes = array<i64: 1>} : tensor<4xf32>
        %shift = array.broadcast(%highest) {axes = array<i64: 0>} : tensor<4x8xf32>
        %shifted = array.map(%x1, %shift) {fn = "subtract"} : tensor<4x8xf32>
        %e = array.map(%shifted) {fn = "exp"} : tensor<4x8xf32>
        array.yield(%e)
      } : tensor<4x8xf32>
      func.return %y : tensor<4x8xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt
from tilewright.dialects.rewriting import erase, in_block, insert_like
from tilewright.dialects.walks import producers_first
from tilewright.passes.array.fusion import (
    ELEMENTWISE,
    BlockOrder,
    describe,
    inline_closure,
    is_cheap,
    is_inline,
    is_unit_reshape,
    make_group,
    users,
)
from tilewright.passes.array.read_orders import (
    Coordinates,
    Numbers,
    is_part_of_rows,
    joins_gathered_rows,
    moves_in_any_order,
)
from tilewright.passes.array.stored_views import SMALLER, stored_view
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.lower_ordered_group import ORDERED
from tilewright.passes.kernels.planners import KernelPlanner, planner_for
from tilewright.passes.kernels.tile_builder import PULLABLE

# A chain of so many operations, most of them waiting for the one before, is about what a processor looks ahead: in a
# longer one the next elements begin only after it. Groups of more operations have to be wide.
LONGEST_CHAIN = 64
# Arrays that a group reads and stores: a kernel has a pointer to each, a core a queue for the pages of each.
MOST_ARRAYS = 24

# Operations that are computed again for another group.
_MOST_COPIED = 4
# How often a gather takes what is stored for it, at least, and of how many elements.
_OFTEN, _MANY_ELEMENTS = 4, 65536
# Why a group does not store what others read, which is no reason once these are in the group.
_OTHER_SHAPES = "results of different shapes"

# Operations that read their operands at coordinates of their own: what feeds them is stored first.
_MAPPED = (
    array.PadOp,
    array.ConcatOp,
    array.GatherOp,
    array.DynamicSliceOp,
    array.DynamicUpdateSliceOp,
    array.WindowReduceOp,
    array.RandomBitsOp,
)


class ArrayFuseLoopsPass(msgspec.Struct, frozen=True):
    """A symbolic pull of a merged group's roots must reach each operation at a single set of coordinates: a value that
    is consumed transposed as well as straight stays apart."""

    name: ClassVar[str] = "array-fuse-loops"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            _fuse_block(unit, block)


class _Group(msgspec.Struct, eq=False):
    """Operations that are computed together, and the inline operations that lead to what they read."""

    ops: set[Operation]
    inline: set[Operation]

    def reduces(self) -> list[array.ReduceOp]:
        return [op for op in self.ops if isinstance(op, array.ReduceOp)]


def loops(op: Operation) -> bool:
    """Whether an operation is computed element by element, in a loop that others may share."""
    return isinstance(op, array.ArrayOp) and op.primitive in PULLABLE and not is_inline(op) and not _is_array(op)


def _is_array(op: Operation) -> bool:
    """Values that are arrays in memory without any work: captured arrays and reshapes of stored values."""
    return isinstance(op, array.ConstantOp) or (isinstance(op, array.ReshapeOp) and not is_unit_reshape(op))


def _fuse_block(unit: Unit, block: Block) -> None:
    planner = planner_for(unit.machine, unit.threads)
    group_of: dict[Operation, _Group] = {}
    members_of: dict[Operation, set[Operation]] = {}
    order = BlockOrder(block)
    postponed: list[tuple[Operation, Operation, int]] = []
    for op in order.ops:
        if not loops(op):
            continue
        group = _Group({op}, set(inline_closure(op.operands, block)))
        group_of[op], members_of[op] = group, group.ops
        refused: dict[Operation, str] = {}
        for producer in _producers(op):
            _fuse_producer(unit, planner, order, op, producer, refused, group_of, members_of)
        for producer in [each for each, why in refused.items() if why == _OTHER_SHAPES and group_of[op].ops != {op}]:
            _fuse_producer(unit, planner, order, op, producer, refused, group_of, members_of)
        for producer, reason in refused.items():
            unit.remarks.append(Remark("array-fuse-loops", _subject(producer, op), "not fused", reason))
            if reason == _OTHER_SHAPES:
                postponed.append((op, producer, len(group_of[op].ops)))
    for op, producer, size in postponed:
        own = group_of[op]
        if len(own.ops) > size and producer in group_of and _is_read_by_one(order, group_of[producer], own):
            _fuse_producer(unit, planner, order, op, producer, {}, group_of, members_of)
    if planner.most_windows is None:
        for op in list(group_of):
            if op in group_of:
                _compute_again(order, op, group_of)
    for group in dict.fromkeys(group_of.values()):
        members = group.ops | set(inline_closure((o for op in group.ops for o in op.operands), block))
        if planner.shuffles_lanes:
            members |= stored_view(unit, group.ops, members, block)
        make_group(block, members, "loop", describe(sorted(group.ops, key=order.index.__getitem__)))
    _group_rest(block)


def _fuse_producer(
    unit: Unit,
    planner: KernelPlanner,
    order: BlockOrder,
    op: Operation,
    producer: Operation,
    refused: dict[Operation, str],
    group_of: dict[Operation, _Group],
    members_of: dict[Operation, set[Operation]],
) -> None:
    """Merge the group of an operation with that of what it reads, or note in `refused` why not."""
    other, own = group_of.get(producer), group_of[op]
    if other is None or other is own:
        return
    continues = own.ops == {op} and _continues(order, op, own.inline, other, planner)
    reason = None if continues else _refusal(order, own, other, members_of, planner)
    joined = [own]
    if reason and isinstance(op, array.ReduceOp) and op.part is not None:
        joined = _in_parts_of(op, other, group_of)
        if len(joined) > 1:
            reason = _refusal(order, _union(joined), other, members_of, planner)
    if reason is not None:
        refused[producer] = reason
        return
    refused.pop(producer, None)
    unit.remarks.append(Remark("array-fuse-loops", _subject(producer, op), "fused", "computed once"))
    _merge([other, *joined], group_of, members_of)
    order.note_group(members_of[op])


def _is_read_by_one(order: BlockOrder, producer: _Group, consumer: _Group) -> bool:
    """Whether a loop reads all that another one gives, neither of which reduces."""
    if producer.reduces() or consumer.reduces():
        return False
    merged = producer.ops | consumer.ops
    return not producer.ops.intersection(_roots(order, merged, merged | producer.inline | consumer.inline))


def _subject(producer: Operation, op: Operation) -> str:
    return f"{describe([producer])} into {describe([op])} at {where(op)}"


def _compute_again(order: BlockOrder, op: Operation, group_of: dict[Operation, _Group]) -> None:
    """Compute what takes a cycle and reads one array, such as the distance from a mean, in each group that reads it, in
    place of storing it for these."""
    readers = [user for user in users(op.results[0]) if group_of.get(user) is not group_of[op]]
    if not readers or not all(
        user in group_of and isinstance(user, (*ELEMENTWISE, array.ReduceOp)) for user in readers
    ):
        return
    copied = _copied_with(order, op, group_of)
    if not copied:
        return
    copies: dict[int, dict[SSAValue, SSAValue]] = {}
    for user in sorted(readers, key=order.index.__getitem__):
        group = group_of[user]
        made = copies.get(id(group))
        if made is None:
            made = copies[id(group)] = {}
            for each in copied:
                copy = rebuilt(each, [made.get(value, value) for value in each.operands])
                insert_like(user, copy)
                made[each.results[0]] = copy.results[0]
                if not is_inline(copy):
                    order.index[copy], group_of[copy] = order.index[user], group
                    group.ops.add(copy)
        user.operands = [made.get(each, each) if each is op.results[0] else each for each in user.operands]
    for each in reversed(copied):
        if not any(True for _ in each.results[0].uses):
            if each in group_of:
                group_of.pop(each).ops.discard(each)
            erase(each)


def _copied_with(order: BlockOrder, op: Operation, group_of: Mapping[Operation, _Group]) -> list[Operation]:
    """Operations to compute again with an operation, producers first: itself, smaller ones that its group does not
    store and the inline ones between them. None where that takes more than a cycle or reads more than one array of its
    size."""
    group, size = group_of[op], array_type(op.results[0]).size
    space, _ = _space(group.ops, _roots(order, group.ops, group.ops | group.inline))
    arrays = set[SSAValue]()

    def inside(value: SSAValue) -> list[SSAValue]:
        owner, type = value.owner, array_type(value)
        if isinstance(owner, Operation) and is_inline(owner) and owner.parent_block() is order.block:
            return list(owner.operands)
        is_small = type.size * SMALLER <= size
        is_stored = is_small and bool(space.reduced) and _root_coordinates(type.shape, space) is not None
        if isinstance(owner, Operation) and owner in group.ops and not is_stored:
            return list(owner.operands)
        if not is_small:
            arrays.add(value)
        return []

    found = [value.owner for value in producers_first([op.results[0]], inside)]
    copied = [each for each in found if isinstance(each, Operation) and (is_inline(each) or each in group.ops)]
    computed = [each for each in copied if not is_inline(each)]
    views = (array.BroadcastOp, array.ReshapeOp, array.ConstantOp)
    is_plain = all(isinstance(each, views) for each in copied if is_inline(each))
    is_light = all(isinstance(each, ELEMENTWISE) and is_cheap(each) for each in computed)
    return copied if is_plain and is_light and len(arrays) <= 1 and len(computed) <= _MOST_COPIED else []


def _union(groups: Sequence[_Group]) -> _Group:
    ops, inline = set[Operation](), set[Operation]()
    return _Group(ops.union(*(each.ops for each in groups)), inline.union(*(each.inline for each in groups)))


def _merge(
    groups: Sequence[_Group], group_of: dict[Operation, _Group], members_of: dict[Operation, set[Operation]]
) -> None:
    """Make one group of several: the smaller ones join the largest, the first of these."""
    merged = max(groups, key=lambda each: len(each.ops))
    for joining in groups:
        if joining is merged:
            continue
        merged.ops |= joining.ops
        merged.inline |= joining.inline
        for member in joining.ops:
            group_of[member], members_of[member] = merged, merged.ops


def _in_parts_of(op: array.ReduceOp, producer: _Group, group_of: Mapping[Operation, _Group]) -> list[_Group]:
    """The groups of the reductions in parts that read what a group computes, that of `op` first: together they need not
    store it, which none of them may alone."""
    found = {group_of[op]: None}
    for member in producer.ops:
        for user in users(member.results[0]):
            if isinstance(user, array.ReduceOp) and user.part is not None and user in group_of:
                found[group_of[user]] = None
    found.pop(producer, None)
    return list(found)


def _group_rest(block: Block) -> None:
    """Ordered operations with their index maps, and index maps that must be stored."""
    for op in list(block.ops):
        if isinstance(op, (*ORDERED, array.ScatterOp)):
            kind = op.primitive
            make_group(block, {op, *inline_closure(op.operands, block)}, kind, f"{kind} runs alone")
    for op in list(block.ops):
        if op.parent_block() is block and is_inline(op) and not is_unit_reshape(op):
            follow = [u for r in op.results for u in users(r)]
            if any(not is_inline(u) or u.parent_block() is not block or is_unit_reshape(u) for u in follow):
                make_group(block, {op, *inline_closure(op.operands, block)}, "loop", "an index map that must be stored")


def _producers(op: Operation) -> list[Operation]:
    """Non-inline operations whose results reach `op` through inline ones."""
    found: dict[Operation, None] = {}
    pending = list(op.operands)
    while pending:
        owner = pending.pop(0).owner
        if not isinstance(owner, Operation):
            continue
        if is_inline(owner):
            pending.extend(owner.operands)
        else:
            found[owner] = None
    return list(found)


def _continues(
    order: BlockOrder, op: Operation, inline_of_op: set[Operation], producer: _Group, planner: KernelPlanner
) -> bool:
    """Whether an operation plainly continues a group, so that nothing needs to be proven of what they make together:
    all operations work element by element on one shape, and all that this one reads is theirs or there before them."""
    members = producer.ops | {op}
    shape = array_type(op.results[0]).shape
    if _is_too_large(order, members, planner) or not all(
        isinstance(member, ELEMENTWISE) and array_type(member.results[0]).shape == shape for member in members
    ):
        return False
    beside = [operand for operand in op.operands if operand.owner not in producer.ops]
    inline = inline_closure(beside, order.block)
    for value in (*beside, *(operand for view in inline for operand in view.operands)):
        owner = value.owner
        is_there = isinstance(owner, Block | array.ConstantOp) or owner.parent_block() is not order.block
        if not is_there and owner not in inline:
            return False
    every = members | producer.inline | inline_of_op
    return _too_many(members, every, _roots(order, members, every), planner.most_windows) is None


def _is_too_large(order: BlockOrder, members: set[Operation], planner: KernelPlanner) -> str | None:
    """Why operations are too many, or too long a chain, for a kernel; None where they are not."""
    if len(members) > planner.most_operations:
        return f"the group would have more than {planner.most_operations} operations"
    if len(members) <= LONGEST_CHAIN:
        return None
    chains: dict[Operation, int] = {}
    for op in sorted(members, key=order.index.__getitem__):
        chains[op] = 1 + max((chains[each] for each in _producers(op) if each in chains), default=0)
    is_long = max(chains.values()) > LONGEST_CHAIN
    return f"the group would have a chain of more than {LONGEST_CHAIN} operations" if is_long else None


def _roots(order: BlockOrder, merged: set[Operation], every: set[Operation]) -> list[Operation]:
    """The operations of a set whose results are used outside it."""
    block = order.block
    return [op for op in merged if any(in_block(u.operation, block) not in every for r in op.results for u in r.uses)]


def _too_many(
    members: set[Operation], every: set[Operation], roots: list[Operation], most_windows: int | None
) -> str | None:
    """Why a group reads and stores more arrays, or windows of them, than a kernel may; None where it does not."""
    if most_windows is None and len(roots) + sum(len(op.operands) for op in every) <= MOST_ARRAYS:
        return None
    arrays = {o for op in every for o in op.operands if o.owner not in every}
    if len(arrays) + len(roots) > MOST_ARRAYS:
        return f"the group would read and store more than {MOST_ARRAYS} arrays"
    windows = {o for op in members for o in op.operands if o.owner not in members}
    generated = sum(_generated_tiles(op) for op in every if isinstance(op, array.PadOp))
    if most_windows is not None and len(windows) + len(roots) + generated > most_windows:
        return f"the group would read, store and generate more than {most_windows} windows of arrays"
    return None


def _generated_tiles(pad: array.PadOp) -> int:
    """How many tiles of positions, of which a core keeps each in a queue, distinguish an array from its padding: one
    for each end of a dimension, and where there is padding between elements, its remainder, its quotient and what they
    state."""
    ends = zip(pad.low, pad.high, pad.interior, strict=True)
    return sum(bool(low) + bool(high) if not interior else 5 for low, high, interior in ends)


def _refusal(
    order: BlockOrder,
    consumer: _Group,
    producer: _Group,
    groups: Mapping[Operation, set[Operation]],
    planner: KernelPlanner,
) -> str | None:
    """Why two of the groups must not merge, or None."""
    merged = consumer.ops | producer.ops
    too_large = _is_too_large(order, merged, planner)
    if too_large:
        return too_large
    every = merged | consumer.inline | producer.inline
    roots = _roots(order, merged, every)
    too_many = _too_many(merged, every, roots, planner.most_windows)
    if too_many:
        return too_many
    space, problem = _space(merged, roots)
    if not problem and not _reaches_each_once(merged, every, space):
        problem = _recomputes(merged, roots, space, planner.shuffles_lanes)
    if problem:
        return problem
    leaves = order.creates_cycle(every) or order.needs_itself(merged, every - merged, groups)
    return "another path between them leaves the group" if leaves else None


# The coordinate that counts the parts of reductions.
_PART = "part"


class _Space(msgspec.Struct, frozen=True):
    """The shape of all elements of a group, the dimensions that it reduces, and into how many parts, if into any."""

    shape: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    parts: int | None = None

    @property
    def identity(self) -> tuple[int, ...]:
        return tuple(range(len(self.shape)))

    @property
    def row(self) -> tuple[Any, ...]:
        """Coordinates of what the reductions give."""
        kept = tuple(d for d in self.identity if d not in self.reduced)
        return kept if self.parts is None else (_PART, *kept)

    @property
    def row_shape(self) -> tuple[int, ...]:
        kept = tuple(n for d, n in enumerate(self.shape) if d not in self.reduced)
        return kept if self.parts is None else (self.parts, *kept)


def _space(ops_: Iterable[Operation], roots: Iterable[Operation]) -> tuple[_Space, str | None]:
    """The space of a set of operations with the given roots, or why it has none."""
    reduces = [op for op in ops_ if isinstance(op, array.ReduceOp)]
    spaces: set[tuple[tuple[int, ...], tuple[int, ...], int | None, int | None]] = {
        (array_type(op.operands[0]).shape, op.axes, op.part, op.part_axis) for op in reduces
    }
    if len({shape for shape, *_ in spaces}) > 1 or len({axes for _, axes, *_ in spaces}) > 1:
        return _Space(()), "reductions of different shapes or axes"
    if len(spaces) > 1:
        return _Space(()), "one reduces in parts, the other as a whole"
    if not spaces:
        shapes = {array_type(op.results[0]).shape for op in roots}
        return (_Space(shapes.pop()), None) if len(shapes) == 1 else (_Space(()), _OTHER_SHAPES)
    ((shape, reduced, part, axis),) = spaces
    if 0 in shape:
        return _Space(()), "empty reductions stay alone"
    space = _Space(shape, reduced, None if part is None or axis is None else -(-shape[axis] // part))
    if space.parts is not None and any(array_type(op.results[0]).shape != space.row_shape for op in roots):
        return _Space(()), "a reduction in parts stores nothing but its parts"
    return space, None


def _reaches_each_once(merged: set[Operation], every: set[Operation], space: _Space) -> bool:
    """Whether operations work element by element on one shape and none reads another by an index map, so that nothing
    needs to be pulled to see that each is computed once."""
    if not all(isinstance(op, ELEMENTWISE) and array_type(op.results[0]).shape == space.shape for op in merged):
        return False
    return all(operand.owner not in merged for op in every if op not in merged for operand in op.operands)


def _recomputes(merged: set[Operation], roots: list[Operation], space: _Space, permutes_rows: bool) -> str | None:
    """Pull the roots symbolically: every operation must be reached at one set of coordinates."""
    seen: dict[Operation, set[Any]] = {}
    numbers: Numbers = {}
    problems: list[str] = []

    def reach(value: SSAValue, at: tuple[Any, ...]) -> None:
        op = value.owner
        if isinstance(op, Block):
            return
        if op in merged:
            known = seen.setdefault(op, set())
            found = _canonical(array_type(value).shape, at)
            if found in known:
                return
            known.add(found)
            if len(known) > 1:
                problems.append(f"{describe([op])} would be computed more than once")
                return
        elif not is_inline(op):
            return
        for operand, inner in _operand_coordinates(op, at, numbers):
            reach(operand, inner)

    straight = _canonical(space.shape, space.identity)
    row = _canonical(space.row_shape, space.row)
    for root in roots:
        at = _root_coordinates(array_type(root.results[0]).shape, space)
        if at is None:
            return _OTHER_SHAPES
        reach(root.results[0], at)
        if problems:
            return problems[0]
    often = _gathered_often(seen, space)
    for op, coordinates in seen.items():
        (at,) = coordinates
        if isinstance(op, array.ReduceOp) and at != row:
            return "a reduction would be read at shifted coordinates"
        permuted = permutes_rows and (
            moves_in_any_order(op, at, straight)
            or joins_gathered_rows(op, at, space.identity, numbers, seen)
            or is_part_of_rows(op, at, numbers.get(space.identity), seen)
        )
        if op in often or (at not in (straight, row) and not is_cheap(op) and not permuted):
            return f"{describe([op])} would be repeated for every element that reads it"
    return None


def _gathered_often(seen: Collection[Operation], space: _Space) -> set[Operation]:
    """The operations whose elements a gather takes so often that they are stored for it."""
    pending = [op.operands[0].owner for op in seen if isinstance(op, array.GatherOp)]
    found, most = set[Operation](), math.prod(space.shape)
    while pending and most >= _MANY_ELEMENTS:
        op = pending.pop()
        if not isinstance(op, Operation) or op in found or not (op in seen or is_inline(op)):
            continue
        found.add(op)
        pending += [operand.owner for operand in op.operands]
    return {op for op in found if op in seen and _OFTEN * array_type(op.results[0]).size <= most}


def _root_coordinates(shape: tuple[int, ...], space: _Space) -> tuple[Any, ...] | None:
    if shape == space.shape and space.parts is None:
        return space.identity
    if space.reduced and shape == space.row_shape:
        return space.row
    with_ones = tuple(1 if d in space.reduced else n for d, n in enumerate(space.shape))
    if not space.reduced or space.parts is not None or shape != with_ones:
        return None
    return tuple(-1 if d in space.reduced else d for d in space.identity)


def _canonical(shape: tuple[int, ...], at: tuple[Any, ...]) -> tuple[Any, ...]:
    """Coordinates without those of unit dimensions."""
    return tuple(c for c, n in zip(at, shape, strict=True) if n != 1 and c != -1)


def _operand_coordinates(op: Operation, at: Coordinates, numbers: Numbers) -> Iterable[tuple[SSAValue, Coordinates]]:
    """Symbolic counterpart of the tile builder's rules."""
    if isinstance(op, ELEMENTWISE):
        return [(operand, at) for operand in op.operands]
    return _moved_coordinates(op, at, numbers)


def _moved_coordinates(op: Operation, at: Coordinates, numbers: Numbers) -> Iterable[tuple[SSAValue, Coordinates]]:
    if isinstance(op, array.ReduceOp):
        shape, axes = array_type(op.operands[0]).shape, op.axes
        rest = iter(at if op.part is None else at[1:])
        yield op.operands[0], tuple(d if d in axes else next(rest) for d in range(len(shape)))
    elif isinstance(op, array.BroadcastOp):
        sizes, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
        axes = op.axes
        yield (
            op.operands[0],
            tuple(-1 if n == 1 and result[d] != 1 else at[d] for n, d in zip(sizes, axes, strict=True)),
        )
    elif isinstance(op, array.TransposeOp):
        inner: list[Any] = [None] * len(at)
        for position, source in enumerate(op.permutation):
            inner[source] = at[position]
        yield op.operands[0], tuple(inner)
    elif is_unit_reshape(op):
        result = array_type(op.results[0]).shape
        rest = iter(c for c, n in zip(at, result, strict=True) if n != 1)
        yield op.operands[0], tuple(-1 if n == 1 else next(rest) for n in array_type(op.operands[0]).shape)
    elif isinstance(op, (array.SliceOp, array.ReverseOp, array.UnfoldOp, *_MAPPED)):
        number = numbers.setdefault(at, len(numbers))
        for operand in op.operands:
            yield operand, tuple((id(op), number, d) for d in range(array_type(operand).rank))
    else:
        for operand in op.operands:
            yield operand, at
