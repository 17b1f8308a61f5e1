"""Assignment of tile values to buffers and to the loop nests that compute them.

Roots (stores, reductions, operands of matmuls, carried tiles) become loop nests; what they need is computed inside
them, element by element. Roots of one shape that do not wait for each other share a nest. A value lands in a buffer
when it crosses a reduction, a matmul or a loop, or when it is dear and two nests, or all rows of one, need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import msgspec
from xdsl.ir import Block, Operation, Region, SSAValue

from tilewright import ops
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.layout import Layout
from tilewright.layout.construct import strided
from tilewright.machines.machine import Machine
from tilewright.passes.layouts.layout_rules import ELEMENTWISE
from tilewright.passes.vectors.in_place_updates import is_updated_in_place
from tilewright.passes.vectors.nest_writer import NestWriter, Root, is_place, is_unit_reshape
from tilewright.primitives import ArrayType

RECOMPUTED_OPERATIONS = 6
# Rows from which on a dear value that all of them need, of vectors along a row, is computed before them.
LEAST_REPEATED = 4
# Rows a multiple of this apart fall into the same few sets of a first-level cache.
CONFLICT_BYTES = 1024


class Places(msgspec.Struct, eq=False):
    """Storage of the values of one kernel."""

    machine: Machine
    top: Block  # buffers are allocated at the start of the parallel region
    conflicts: set[SSAValue]  # refs whose accesses must keep their order
    layouts: dict[SSAValue, Layout] = msgspec.field(default_factory=dict[SSAValue, Layout])  # of tile values
    blocks: list[tuple[ArrayType, Layout]] = msgspec.field(
        default_factory=list[tuple[ArrayType, Layout]]
    )  # of products
    outer: dict[SSAValue, SSAValue] = msgspec.field(default_factory=dict)  # refs and index scalars, old to new
    buffers: dict[SSAValue, SSAValue] = msgspec.field(default_factory=dict)  # tile values that live in a buffer

    def alloc(self, type: ArrayType, layout: str = "") -> SSAValue:
        op = scheduled.AllocOp(result=tile.ref(type, scheduled.WORKER, layout))
        first = self.top.first_op
        if first is None:
            self.top.add_op(op)
        else:
            self.top.insert_op_before(op, first)
        return op.results[0]

    def padded(self, type: ArrayType) -> ArrayType:
        """Room for whole register blocks, for values that a matmul may accumulate into."""
        blocks = [block.static_shape for accumulator, block in self.blocks if accumulator == type]
        if not blocks:
            return type
        stride = max(round_up(type.shape[1], columns) for _, columns in blocks)
        if stride * type.dtype.itemsize % CONFLICT_BYTES == 0:
            stride += max(columns for _, columns in blocks)
        return ArrayType((max(round_up(type.shape[0], rows) for rows, _ in blocks), stride), type.dtype)

    def layout(self, value: SSAValue) -> Layout | None:
        """How a tile's elements are dealt to vectors; None for one that has no registers of its own."""
        found = self.layouts.get(value)
        return found if found is not None and "simd" in found.axes else None


class Segment(msgspec.Struct, eq=False):
    """Operations between two barriers, their roots, and the stage at which each value was put into a buffer."""

    places: Places
    ops: dict[Operation, None] = msgspec.field(default_factory=dict)  # in order
    roots: list[Root] = msgspec.field(default_factory=list)
    written: dict[SSAValue, int] = msgspec.field(default_factory=dict)
    repeated: set[SSAValue] = msgspec.field(default_factory=set[SSAValue])  # in buffers for the rows that need them
    barrier: Operation | None = None
    last_conflict: int = -1

    def add(self, op: Operation) -> None:
        """Take the next operation of the block, which is no barrier."""
        self.ops[op] = None
        if isinstance(op, tile.ReduceOp):
            buffer = self.places.alloc(array_type(op.results[0]))
            stage = self.stage(op.operands[0])
            self.roots.append(Root(op.operands[0], stage, reduce=op, buffer=buffer))
            self.places.buffers[op.results[0]] = buffer
            self.written[op.results[0]] = stage
        elif isinstance(op, tile.StoreOp):
            stage = max(self.stage(v) for v in op.operands if not is_place(v))
            if op.destination in self.places.conflicts:
                stage = max(stage, self.last_conflict + 1)
                self.last_conflict = stage
            self.roots.append(Root(op.value, stage, store=op))
        elif isinstance(op, tile.LoadOp) and self._keeps_its_order(op):
            stage = max([self.last_conflict + 1, *(self.stage(s) for s in op.symbols if not is_place(s))])
            self.last_conflict = stage
            self.materialise(op.result, stage)
        elif isinstance(op, tile.PrintOp | tile.AssertOp):
            stage = max((self.stage(o) for o in op.operands), default=0)
            self.roots.append(Root(op.operands[0], stage, effect=op))
        elif isinstance(op, tile.ReshapeOp | tile.ConcatOp) and not is_unit_reshape(op):
            for operand in op.operands:
                self.materialise(operand)
        elif isinstance(op, tile.BroadcastOp) and self._repeats_dear(op):
            self.materialise(op.operands[0])
            self.repeated.add(op.operands[0])

    def _keeps_its_order(self, load: tile.LoadOp) -> bool:
        """Whether a load must be done before later accesses. One that is updated in place is done in the nest of its
        store, which comes after all that is before the load."""
        return load.source in self.places.conflicts and not is_updated_in_place(load, self.places.conflicts)

    def _repeats_dear(self, op: tile.BroadcastOp) -> bool:
        """Whether dear vectors along a row are repeated for many rows, each of which would compute them."""
        layout = self.places.layout(op.results[0])
        if layout is None or op.operands[0] in self.places.buffers or not self._is_dear(op.operands[0]):
            return False
        along = _vector_dims(layout)
        sizes, shape = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
        own = {axis for axis, size in zip(op.axes, sizes, strict=True) if size > 1}
        repeats = prod(size for dim, size in enumerate(shape) if dim not in own)
        return bool(along) and own.issuperset(along) and repeats >= LEAST_REPEATED

    def put(self, value: SSAValue, buffer: SSAValue, stage: int | None = None) -> None:
        """Write a value to a buffer, as early as it can be computed unless a stage is given."""
        self.roots.append(Root(value, self.stage(value) if stage is None else stage, buffer=buffer))

    def materialise(self, value: SSAValue, stage: int | None = None, storage: str = "") -> SSAValue:
        """A value's buffer, written at the end of the segment at the latest; `storage` is the layout of a new one."""
        if value in self.places.buffers:
            return self.places.buffers[value]
        stage = self.stage(value) if stage is None else stage
        buffer = self.places.alloc(array_type(value), storage)
        self.put(value, buffer, stage)
        self.places.buffers[value] = buffer
        self.written[value] = stage
        return buffer

    def stage(self, value: SSAValue) -> int:
        """The earliest nest round of the segment in which a value can be computed."""
        stages: dict[SSAValue, int] = {}
        for needed in producers_first([value], self._stage_operands, stages):
            stages[needed] = self._stage_after(needed, stages)
        return stages[value]

    def _stage_operands(self, value: SSAValue) -> Sequence[SSAValue]:
        """The operands that decide in which round a value can be computed; none where a buffer holds it."""
        op = value.owner
        if value in self.written or value in self.places.buffers or not isinstance(op, Operation):
            return ()
        return [operand for operand in op.operands if not is_place(operand)]

    def _stage_after(self, value: SSAValue, known: Mapping[SSAValue, int]) -> int:
        """The round of a value, from those of its operands."""
        if value in self.written:
            owner = value.owner
            crosses = isinstance(owner, tile.ReduceOp | tile.LoadOp) or value in self.repeated
            return self.written[value] + 1 if crosses else self.written[value]
        op = value.owner
        if value in self.places.buffers or not isinstance(op, Operation):
            return 0
        # A value computed before this segment may still read what the segment wrote (it is recomputed here).
        stages = [known[operand] for operand in self._stage_operands(value)]
        moves = isinstance(op, tile.ReshapeOp | tile.ConcatOp) and not is_unit_reshape(op)
        return max(stages, default=0) + (1 if moves and stages and op in self.ops else 0)

    def flush(self, new: Block) -> None:
        """Append the nests of the segment."""
        self._share_dear_values()
        for roots in _nests(self.roots):
            block = Block()
            stage = min(r.stage for r in roots)
            writer = NestWriter(block, self.places.outer, self.places.buffers, lambda v, s=stage: self._readable(v, s))
            for root in roots:
                writer.add(root)
            block.add_op(scheduled.EndOp())
            new.add_op(scheduled.NestOp(layout=self._layout_of(roots), body=Region(block)))
        self.roots.clear()
        self.written.clear()
        self.repeated.clear()

    def _layout_of(self, roots: Sequence[Root]) -> str | None:
        """The layout of a nest: what most of its roots have, the first of them where there is no majority."""
        found = Counter(layout for root in roots if (layout := self.places.layout(root.value)) is not None)
        return str(found.most_common(1)[0][0]) if found else None

    def _share_dear_values(self) -> None:
        """Buffers for values that are dear to compute and needed by several nests or after the segment."""
        for op in self.ops:
            for value in op.results:
                if value in self.places.buffers or isinstance(op, tile.FullOp) or not self._is_dear(value):
                    continue
                follow = [u.operation for u in value.uses]
                later = any(self._is_later(user) for user in follow)
                if len(follow) == 1 and not later and follow[0] in self.ops and _keeps_shape(follow[0]):
                    continue
                where = {n for n, roots in enumerate(_nests(self.roots)) for r in roots if self._reads(r, value)}
                if len(where) + later >= 2:
                    self.materialise(value, storage=self._along_vectors(value))

    def _along_vectors(self, value: SSAValue) -> str:
        """The layout of a buffer whose neighbours are those in vectors, where nests alone use a value and these do not
        run along the last dim; else none: row by row."""
        layout, shape = self.places.layout(value), array_type(value).shape
        along = [] if layout is None else _vector_dims(layout)
        if len(along) != 1 or along[0] == len(shape) - 1:
            return ""
        if not all(isinstance(use.operation, (*ELEMENTWISE, tile.ReduceOp, tile.StoreOp)) for use in value.uses):
            return ""
        order = [*(dim for dim in range(len(shape)) if dim != along[0]), *along]
        strides = [prod(shape[other] for other in order[order.index(dim) + 1 :]) for dim in range(len(shape))]
        return str(strided(shape, strides))

    def _is_later(self, user: Operation) -> bool:
        """Whether a user runs after the segment; the barrier itself and the yield have roots of their own."""
        return user not in self.ops and user is not self.barrier and not isinstance(user, tile.YieldOp)

    def _reads(self, root: Root, value: SSAValue) -> bool:
        """Whether computing a root inline computes `value`."""
        pending, seen = list(_root_values(root)), set[SSAValue]()
        while pending:
            current = pending.pop()
            if current is value:
                return True
            if current in seen or self._readable(current, root.stage):
                continue
            seen.add(current)
            op = current.owner
            if isinstance(op, Operation):
                pending.extend(operand for operand in op.operands if not is_place(operand))
        return False

    def _readable(self, value: SSAValue, stage: int) -> bool:
        """Whether a value's buffer is filled before a nest of the given stage runs."""
        return value in self.places.buffers and self.written.get(value, -1) < stage

    def _is_dear(self, value: SSAValue) -> bool:
        count = 0
        pending, seen = [value], set[SSAValue]()
        while pending:
            current = pending.pop()
            op = current.owner
            if current in seen or current in self.places.buffers or isinstance(op, Block):
                continue
            seen.add(current)
            if isinstance(op, tile.MapOp):
                if ops.FUNCTIONS[op.fn].cost in (ops.DIVIDE, ops.TRANSCENDENTAL):
                    return True
                count += 1
                if count > RECOMPUTED_OPERATIONS:
                    return True
            pending.extend(o for o in op.operands if not is_place(o))
        return False


def _nests(all_roots: Sequence[Root]) -> list[list[Root]]:
    """Roots by nest: one stage, one shape, one set of reduced axes (plain roots join the first reduction)."""
    buckets: dict[tuple[int, tuple[int, ...]], dict[tuple[int, ...] | None, list[Root]]] = {}
    for root in all_roots:
        buckets.setdefault((root.stage, root.shape), {}).setdefault(root.reduced, []).append(root)
    nests: list[tuple[int, list[Root]]] = []
    for (stage, _), by_axes in buckets.items():
        plain = by_axes.pop(None, [])
        groups = list(by_axes.values())
        if groups:
            groups[0] = [*groups[0], *plain]
        elif plain:
            groups = [plain]
        nests.extend((stage, group) for group in groups)
    return [group for _, group in sorted(nests, key=lambda item: item[0])]


def _vector_dims(layout: Layout) -> list[int]:
    """The dims along which neighbours are in vectors."""
    return [dim for dim, digits in enumerate(layout.shard) if any(digit.axis == "simd" for digit in digits)]


def _root_values(root: Root) -> Sequence[SSAValue]:
    if root.store is not None:
        return [o for o in root.store.operands if not is_place(o)]
    return root.effect.operands if root.effect is not None else [root.value]


def _keeps_shape(op: Operation) -> bool:
    return len(op.results) == 1 and isinstance(op, ELEMENTWISE)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
