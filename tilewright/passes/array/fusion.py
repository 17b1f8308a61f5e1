"""Shared code of the fusion passes: operations that are free to duplicate, and forming a group of a set of
operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from xdsl.dialects.builtin import LocationAttr, StringAttr, UnknownLoc
from xdsl.ir import Block, Operation, Region, SSAValue

from tilewright import ops
from tilewright.cached import cached_property
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import in_block
from tilewright.dialects.walks import producers_first, reached

INDEX_MAPS = (array.BroadcastOp, array.TransposeOp, array.SliceOp, array.ReverseOp, array.UnfoldOp)
_INLINE = frozenset((array.IotaOp, *INDEX_MAPS))
ELEMENTWISE = (array.MapOp, array.CastOp, array.BitcastOp)


def is_cheap(op: Operation) -> bool:
    """An elementwise operation of a cycle or so for each vector, which may be computed again where it is read."""
    if isinstance(op, array.MapOp):
        return ops.FUNCTIONS[op.fn].cost in (ops.MOVE, ops.ALU, ops.MULTIPLY)
    return isinstance(op, array.CastOp | array.BitcastOp)


def is_unit_reshape(op: Operation) -> bool:
    """A reshape that only adds or drops dimensions of size 1."""
    if type(op) is not array.ReshapeOp:
        return False
    source, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [n for n in source if n != 1] == [n for n in result if n != 1]


def is_splat(op: Operation) -> bool:
    return isinstance(op, array.ConstantOp) and not op.resource


def is_inline(op: Operation) -> bool:
    """Operations that cost nothing where they are used: splats, iota and index maps. Every user gets its own copy."""
    return type(op) in _INLINE or is_splat(op) or is_unit_reshape(op)


def inline_closure(values: Iterable[SSAValue], block: Block) -> list[Operation]:
    """The inline operations of a block that lead to the given values, producers first. Values of enclosing blocks are
    stored there and end the search."""

    def inline_owners(values: Iterable[SSAValue]) -> list[Operation]:
        owners = [value.owner for value in values]
        return [op for op in owners if isinstance(op, Operation) and is_inline(op) and op.parent_block() is block]

    return list(producers_first(inline_owners(values), lambda op: inline_owners(op.operands)))


def users(value: SSAValue) -> list[Operation]:
    """Distinct operations that use a value."""
    return list(dict.fromkeys(use.operation for use in value.uses))


def results_through(value: SSAValue, kinds: tuple[type[Operation], ...]) -> Iterator[SSAValue]:
    """Yield a value and those that operations of some kinds alone compute from it."""
    return reached(value, lambda each: [r for op in users(each) if isinstance(op, kinds) for r in op.results])


def operands_through(value: SSAValue, kinds: tuple[type[Operation], ...]) -> Iterator[SSAValue]:
    """Yield a value and those from which operations of some kinds alone compute it."""
    return reached(value, lambda each: each.owner.operands if isinstance(each.owner, kinds) else ())


class BlockOrder:
    """Positions of a block's operations; made again after operations move."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.ops = list(block.ops)
        self.index = {op: i for i, op in enumerate(self.ops)}
        self._owners: dict[Operation, list[Operation | Block]] = {}
        # For each position the first operation of a group that goes on there, which ties it to what stands before it.
        self._earliest = np.arange(len(self.ops))

    def owners(self, op: Operation) -> list[Operation | Block]:
        """The operations and blocks that the values come from which an operation reads."""
        found = self._owners.get(op)
        if found is None:
            found = self._owners[op] = [operand.owner for operand in _reads(op)]
        return found

    def note_group(self, members: Collection[Operation]) -> None:
        """Take note that operations will be computed as a whole."""
        positions = [self.index[m] for m in members]
        first, last = min(positions), max(positions)
        reached = self._earliest[first : last + 1]
        np.minimum(reached, first, out=reached)

    def _first_tied(self, position: int) -> int:
        """The position before which no operation is of a group that continues after it, so that nothing before it needs
        anything from there on."""
        while (earlier := int(self._earliest[position])) < position:
            position = earlier
        return position

    def creates_cycle(self, members: set[Operation]) -> bool:
        """Whether a path leaves the set and comes back, so that the set cannot run as one step."""
        positions = [self.index[m] for m in members]
        return _comes_back(self.ops[min(positions) : max(positions) + 1], members, self.owners)

    def needs_itself(
        self, members: set[Operation], inline: set[Operation], groups: Mapping[Operation, Collection[Operation]]
    ) -> bool:
        """Whether what a set reads, beyond the inline operations that it takes in, needs the set's own results, each of
        the `groups`, all of them noted, being computed as a whole."""
        own = members | inline
        first = self._first_tied(min(self.index[m] for m in own))
        pending = [owner for m in own for owner in self.owners(m) if owner not in own]
        seen: set[object] = set()
        while pending:
            owner = pending.pop()
            if owner in seen or not isinstance(owner, Operation):
                continue
            step = groups.get(owner, (owner,))
            seen.update(step)
            # Before this, nothing needs anything of the set.
            if all(self.index.get(op, -1) < first for op in step):
                continue
            owners = [owner for op in step for owner in self.owners(op)]
            if any(w in members for w in owners):
                return True
            pending.extend(owners)
        return False


def creates_cycle(members: set[Operation]) -> bool:
    """Whether a path leaves a set of operations of a block and comes back. Only the block's operations between the
    first and the last of the set are looked at."""
    return _comes_back(_span(members), members, lambda op: [operand.owner for operand in _reads(op)])


def _comes_back(
    span: Sequence[Operation], members: set[Operation], owners_of: Callable[[Operation], list[Operation | Block]]
) -> bool:
    """Whether a path leaves a set, whose first and last operation begin and end a span, and comes back."""
    tainted: set[Operation | Block] = set()
    for op in span:
        owners = owners_of(op)
        if op in members:
            if tainted and not tainted.isdisjoint(owners):
                return True
        elif not (members.isdisjoint(owners) and tainted.isdisjoint(owners)):
            tainted.add(op)
    return False


def _reads(op: Operation) -> Sequence[SSAValue]:
    """Operands of an operation and everything that its regions use from outside."""
    if not op.regions:
        return op.operands
    return [o for inner in op.walk() for o in inner.operands]


class StructuralKey(msgspec.Struct, frozen=True, dict=True):
    """The structure of a region, whose hash is computed once: it goes through every type and attribute."""

    parts: tuple[object, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.parts)


def structural_key(region: Region) -> StructuralKey:
    """Equal for regions of one block that hold the same operations on the same types."""
    numbers: dict[SSAValue, int] = {}
    for argument in region.block.args:
        numbers[argument] = len(numbers)
    parts: list[object] = [tuple(array_type(a) for a in region.block.args)]  # hashed faster than types of the IR
    for op in region.block.ops:
        operands = tuple(numbers[o] for o in op.operands)
        for result in op.results:
            numbers[result] = len(numbers)
        properties = tuple(sorted(op.properties.items()))
        parts.append((op.name, operands, properties, tuple(array_type(r) for r in op.results)))
    return StructuralKey(tuple(parts))


def make_group(block: Block, members: set[Operation], kind: str, why: str) -> array.FusedOp:
    """Move the operations of a set into one `array.fused`. The set must not create a cycle.

    Inside they stand in the order in which their results need them, so that equal sets become equal groups wherever
    their operations stood: equal groups share a kernel.
    """
    span = _span(members)
    in_program_order = [op for op in span if op in members]
    anchor = in_program_order[-1]
    results = [
        r
        for op in in_program_order
        for r in op.results
        if any(in_block(use.operation, block) not in members for use in r.uses)
    ]
    ordered = _in_order_of_need(results, members)
    inputs = list(dict.fromkeys(o for op in ordered for o in op.operands if _outside(o, members)))
    late = _dependents(block, members, span)
    region = Region(Block(arg_types=[i.type for i in inputs]))
    group = array.FusedOp(arguments=inputs, kind=kind, why=why, outputs=[r.type for r in results], body=region)
    group.location = _location(ordered)
    block.insert_op_after(group, anchor)
    previous: Operation = group
    for op in late:
        op.detach()
        block.insert_op_after(op, previous)
        previous = op
    inner = region.block
    for op in ordered:
        op.detach()
        inner.add_op(op)
    substitution = dict(zip(inputs, inner.args, strict=True))
    for op in ordered:
        op.operands = [substitution.get(o, o) for o in op.operands]
    inner.add_op(array.YieldOp(arguments=results))
    for old, new in zip(results, group.results, strict=True):
        old.replace_uses_with_if(new, lambda use: not _within(use.operation, group))
    return group


def _in_order_of_need(results: Iterable[SSAValue], members: set[Operation]) -> list[Operation]:
    """The operations of a set that lead to values, each after those that it reads."""

    def needed(op: Operation) -> list[Operation]:
        owners = [operand.owner for operand in _reads(op)]
        return [owner for owner in owners if isinstance(owner, Operation) and owner in members]

    owners = [result.owner for result in results]
    return list(producers_first([op for op in owners if isinstance(op, Operation)], needed))


def _within(op: Operation, ancestor: Operation) -> bool:
    parent = op.parent_op()
    while parent is not None:
        if parent is ancestor:
            return True
        parent = parent.parent_op()
    return False


def _outside(value: SSAValue, members: set[Operation]) -> bool:
    return not (isinstance(value.owner, Operation) and value.owner in members)


def _location(ops: Sequence[Operation]) -> LocationAttr:
    known = [op.location for op in ops if not isinstance(op.location, UnknownLoc)]
    return known[-1] if known else ops[-1].location


def _span(members: set[Operation]) -> list[Operation]:
    """The operations of their block from the first to the last of a set."""
    start = next(iter(members))
    before, after = start.prev_op, start.next_op
    earlier, later = list[Operation](), [start]
    missing = len(members) - 1
    # From one of them both ways: blocks are long, and sets are near each other.
    while missing and (before is not None or after is not None):
        if before is not None:
            earlier.append(before)
            missing -= before in members
            before = before.prev_op
        if after is not None:
            later.append(after)
            missing -= after in members
            after = after.next_op
    span = [*reversed(earlier), *later]
    inside = [n for n, op in enumerate(span) if op in members]
    return span[inside[0] : inside[-1] + 1]


def _dependents(block: Block, members: set[Operation], span: Sequence[Operation]) -> list[Operation]:
    """Operations of a span, others than its members, that use the members' results, directly or not."""
    others = {op for op in span if op not in members}
    if not others:
        return []
    found: set[Operation] = set()
    pending = [*members]
    while pending:
        for result in pending.pop().results:
            for use in result.uses:
                user = in_block(use.operation, block)
                if user in others and user not in found:
                    found.add(user)
                    pending.append(user)
    return [op for op in span if op in found]


def needs_memory(op: Operation) -> bool:
    """Whether an operation takes its operands as arrays in memory: views, control flow, library calls, results."""
    is_view = isinstance(op, array.ReshapeOp) and not is_unit_reshape(op)
    return is_view or isinstance(op, array.LibraryCallOp) or not isinstance(op, array.ArrayOp)


def absorb_transpose(block: Block, members: set[Operation], root: SSAValue) -> None:
    """A transpose that would be stored anyway, because its user needs memory, becomes part of the group's store."""
    following = users(root)
    if len(following) != 1 or not isinstance(following[0], array.TransposeOp):
        return
    (transpose,) = following
    if transpose.parent_block() is block and all(needs_memory(u) for u in users(transpose.results[0])):
        members.add(transpose)


def describe(members: Iterable[Operation]) -> str:
    """Names of the operations of a set, for remarks."""
    names: list[str] = []
    for op in members:
        if is_splat(op):
            continue
        fn = op.properties.get("fn")
        names.append(fn.data if isinstance(fn, StringAttr) else op.name.removeprefix("array."))
    return " ".join(names)
