"""Give every tile value a place: streamed through registers inside a loop nest, or a buffer.

The grid becomes a parallel region, products become `scheduled.dot` on buffers. From here on every buffer and loop can
be seen, so that a target only prints.

Before:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "loop_0"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "loop_0", grid = array<i64: 4>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4xf32>>, %i: index):
      %row = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>} : tensor<8xf32>
      %sum = tile.reduce(%row) {fn = "add", axes = array<i64: 0>} : tensor<f32>
      %y = tile.map(%sum) {fn = "exp"} : tensor<f32>
      tile.store(%y, %out, %i) {map = affine_map<()[s0] -> (s0)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "loop_0"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "loop_0", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4xf32>>):
      scheduled.parallel() {extents = array<i64: 4>, grain = 1 : index} do {
      ^bb0(%i: index):
        %sums = scheduled.alloc() : !tile.ref<tensor<f32>, "worker">
        scheduled.nest() do {
          %row = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>} : tensor<8xf32>
          %sum = tile.reduce(%row) {fn = "add", axes = array<i64: 0>} : tensor<f32>
          tile.store(%sum, %sums) {map = affine_map<() -> ()>}
          scheduled.end()
        }
        scheduled.nest() do {
          %sum = tile.load(%sums) {map = affine_map<() -> ()>} : tensor<f32>
          %y = tile.map(%sum) {fn = "exp"} : tensor<f32>
          tile.store(%y, %out, %i) {map = affine_map<()[s0] -> (s0)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import ops
from tilewright.cost.tiles import even_split
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, decode, tensor
from tilewright.errors import CompilerBug
from tilewright.layout import panels
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.base import Unit
from tilewright.passes.nest_writer import NestWriter, Root, identity_map, is_place, is_unit_reshape
from tilewright.primitives import ArrayType

ORDERED = (tile.ArgReduceOp, tile.ScanOp, tile.SortOp)
BARRIERS = (tile.ForOp, tile.IfOp, tile.DotOp, *ORDERED)
STRICT = (tile.MapOp, tile.CastOp, tile.BitcastOp, tile.FillPaddingOp)
RECOMPUTED_OPERATIONS = 6
# Rows a multiple of this apart fall into the same few sets of a first-level cache.
CONFLICT_BYTES = 1024


@dataclass(frozen=True)
class TileLowerToScheduledPass:
    name: ClassVar[str] = "tile-lower-to-scheduled"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.kernels():
            scheduled_kernel = lower_kernel(kernel, unit.machine)
            block = kernel.parent_block()
            if block is not None:
                block.insert_op_before(scheduled_kernel, kernel)
            kernel.detach()
            kernel.erase()


def lower_kernel(kernel: tile.KernelOp, machine: Machine) -> tile.KernelOp:
    """The scheduled form of one kernel: its grid becomes a parallel region."""
    types = [tile.ref_type(r) for r in kernel.refs]
    result = tile.kernel(kernel.sym_name.data, (), types, kernel.effect_names)
    body = Block(arg_types=[IndexType() for _ in kernel.grid_shape])
    _cast_operands(kernel)
    lowering = _Lowering(machine, body)
    lowering.outer.update(zip(kernel.refs, result.refs, strict=True))
    lowering.outer.update(zip(kernel.indices, body.args, strict=True))
    lowering.conflicts = _conflicting_refs(kernel)
    lowering.lower_block(kernel.body.block, body)
    body.add_op(scheduled.EndOp.make([], {}, []))
    parallel = scheduled.ParallelOp.make([], {"extents": kernel.grid_shape, "grain": 1}, [], [Region(body)])
    result.body.block.add_op(parallel)
    result.body.block.add_op(tile.YieldOp.make([], {}, []))
    return result


def _cast_operands(kernel: tile.KernelOp) -> None:
    """Products multiply in the accumulator's type on this kind of machine: convert their operands first."""
    for op in list(kernel.walk()):
        block = op.parent_block()
        if not isinstance(op, tile.DotOp) or block is None:
            continue
        dtype = array_type(op.accumulator).dtype
        for position in (0, 1):
            type = array_type(op.operands[position])
            if type.dtype != dtype:
                cast = tile.CastOp.make([op.operands[position]], {}, [tensor(ArrayType(type.shape, dtype))])
                block.insert_op_before(cast, op)
                op.operands[position] = cast.results[0]


def _conflicting_refs(kernel: tile.KernelOp) -> set[SSAValue]:
    """Refs that the kernel both loads and stores, or stores in several places: the order of their accesses matters."""
    loaded = {op.source for op in kernel.walk() if isinstance(op, tile.LoadOp)}
    stored = Counter(op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp))
    return {ref for ref, count in stored.items() if count > 1 or ref in loaded}


@dataclass(eq=False)
class _Segment:
    """Roots between two barriers, and the stage at which each value of the segment was put into a buffer."""

    ops: list[Operation] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    written: dict[SSAValue, int] = field(default_factory=dict)
    barrier: Operation | None = None
    last_conflict: int = -1


class _Lowering:
    """Roots (stores, reductions, operands of products, carried tiles) become loop nests; what they need is computed
    inside them, element by element. Roots of one shape that do not wait for each other share a nest. A value lands in a
    buffer when it crosses a reduction, a product or a loop, or when it is dear and two nests need it. Products work in
    place on their accumulator where nothing else reads it."""

    def __init__(self, machine: Machine, top: Block) -> None:
        self.machine = machine
        self.top = top  # buffers are allocated at the start of the parallel region
        self.outer: dict[SSAValue, SSAValue] = {}  # refs and index scalars, old to new
        self.buffers: dict[SSAValue, SSAValue] = {}  # tile values that live in a buffer
        self.conflicts: set[SSAValue] = set()
        self._allocs = 0

    # ---- buffers ------------------------------------------------------------------------------------------------

    def alloc(self, type: ArrayType, layout: str = "") -> SSAValue:
        op = scheduled.AllocOp.make([], {}, [tile.ref(type, scheduled.WORKER, layout)])
        first = self.top.first_op
        if first is None:
            self.top.add_op(op)
        else:
            self.top.insert_op_before(op, first)
        return op.results[0]

    def _padded(self, type: ArrayType) -> ArrayType:
        """Room for whole register blocks, for values that a product may accumulate into."""
        if len(type.shape) != 2 or type.dtype.compute != type.dtype or type.dtype.is_bool:
            return type
        rows, columns = self.micro(type)
        stride = _round_up(type.shape[1], columns)
        if stride * type.dtype.itemsize % CONFLICT_BYTES == 0:
            stride += columns
        return ArrayType((_round_up(type.shape[0], rows), stride), type.dtype)

    def micro(self, accumulator: ArrayType) -> tuple[int, int]:
        rows, columns = self.machine.micro_tile(accumulator.dtype)
        return even_split(accumulator.shape[0], rows), columns

    # ---- blocks -------------------------------------------------------------------------------------------------

    def lower_block(self, old: Block, new: Block, carried: Sequence[tuple[SSAValue, SSAValue]] = ()) -> None:
        """Lower the operations of a block; `carried` pairs its carried arguments with their buffers."""
        segment = _Segment()
        for op in old.ops:
            if isinstance(op, tile.YieldOp):
                self._lower_yield(op, segment, new, carried)
                return
            if not isinstance(op, BARRIERS):
                segment.ops.append(op)
                self._collect(op, segment)
                continue
            segment.barrier = op
            if isinstance(op, tile.ForOp):
                self._lower_for(op, segment, new)
            elif isinstance(op, tile.IfOp):
                self._lower_if(op, segment, new)
            elif isinstance(op, tile.DotOp):
                self._lower_dot(op, segment, new, carried)
            else:
                self._lower_ordered(op, segment, new)
            segment = _Segment()

    def _collect(self, op: Operation, segment: _Segment) -> None:
        if isinstance(op, tile.ReduceOp):
            buffer = self.alloc(array_type(op.results[0]))
            stage = self._stage(op.operands[0], segment)
            segment.roots.append(Root(op.operands[0], stage, reduce=op, buffer=buffer))
            self.buffers[op.results[0]] = buffer
            segment.written[op.results[0]] = stage
        elif isinstance(op, tile.StoreOp):
            stage = max(self._stage(v, segment) for v in op.operands if not is_place(v))
            if op.destination in self.conflicts:
                stage = max(stage, segment.last_conflict + 1)
                segment.last_conflict = stage
            segment.roots.append(Root(op.value, stage, store=op))
        elif isinstance(op, tile.LoadOp) and op.source in self.conflicts:
            stage = max([segment.last_conflict + 1, *(self._stage(s, segment) for s in op.symbols if not is_place(s))])
            segment.last_conflict = stage
            self._materialise(op.result, segment, stage)
        elif isinstance(op, tile.PrintOp | tile.AssertOp):
            stage = max((self._stage(o, segment) for o in op.operands), default=0)
            segment.roots.append(Root(op.operands[0], stage, effect=op))
        elif isinstance(op, tile.ReshapeOp | tile.ConcatOp) and not is_unit_reshape(op):
            for operand in op.operands:
                self._materialise(operand, segment)

    def _materialise(self, value: SSAValue, segment: _Segment, stage: int | None = None) -> SSAValue:
        """Make sure that a value has a buffer, written at the end of this segment at the latest."""
        if value in self.buffers:
            return self.buffers[value]
        stage = self._stage(value, segment) if stage is None else stage
        buffer = self.alloc(array_type(value))
        segment.roots.append(Root(value, stage, buffer=buffer))
        self.buffers[value] = buffer
        segment.written[value] = stage
        return buffer

    def _stage(self, value: SSAValue, segment: _Segment) -> int:
        """The earliest nest round of the segment in which a value can be computed."""
        if value in segment.written:
            owner = value.owner
            crosses = isinstance(owner, tile.ReduceOp | tile.LoadOp)
            return segment.written[value] + 1 if crosses else segment.written[value]
        op = value.owner
        if value in self.buffers or not isinstance(op, Operation) or op not in segment.ops:
            return 0 if not isinstance(op, Operation) or value in self.buffers else self._outer_stage(op, segment)
        stages = [self._stage(o, segment) for o in op.operands if not is_place(o)]
        if isinstance(op, tile.ReshapeOp | tile.ConcatOp) and not is_unit_reshape(op):
            stages = [s + 1 for s in stages]
        return max(stages, default=0)

    def _outer_stage(self, op: Operation, segment: _Segment) -> int:
        """A value computed before this segment may still read what the segment wrote (it is recomputed here)."""
        return max((self._stage(o, segment) for o in op.operands if not is_place(o)), default=0)

    # ---- nests --------------------------------------------------------------------------------------------------

    def flush(self, segment: _Segment, new: Block) -> None:
        """Emit the nests of a segment."""
        self._share_dear_values(segment)
        for roots in _nests(segment):
            block = Block()
            stage = min(r.stage for r in roots)
            writer = NestWriter(block, self.outer, self.buffers, lambda v, s=stage: self.readable(v, s, segment))
            for root in roots:
                writer.add(root)
            block.add_op(scheduled.EndOp.make([], {}, []))
            new.add_op(scheduled.NestOp.make([], {}, [], [Region(block)]))
        segment.roots.clear()
        segment.written.clear()

    def _share_dear_values(self, segment: _Segment) -> None:
        """Buffers for values that are dear to compute and needed by several nests or after the segment."""
        for op in segment.ops:
            for value in op.results:
                if value in self.buffers or not self._is_dear(value) or isinstance(op, tile.FullOp):
                    continue
                where = {n for n, roots in enumerate(_nests(segment)) for r in roots if self._reads(r, value, segment)}
                later = any(self._is_later(u.operation, segment) for u in value.uses)
                if len(where) + later < 2:
                    continue
                follow = [u.operation for u in value.uses]
                if len(follow) == 1 and not later and follow[0] in segment.ops and _keeps_shape(follow[0]):
                    continue
                self._materialise(value, segment)

    def _is_later(self, user: Operation, segment: _Segment) -> bool:
        """Whether a user runs after the segment; the barrier itself and the yield have roots of their own."""
        return user not in segment.ops and user is not segment.barrier and not isinstance(user, tile.YieldOp)

    def _reads(self, root: Root, value: SSAValue, segment: _Segment) -> bool:
        """Whether computing a root inline computes `value`."""
        seen: set[SSAValue] = set()

        def visit(current: SSAValue) -> bool:
            if current is value:
                return True
            if current in seen or self.readable(current, root.stage, segment):
                return False
            seen.add(current)
            op = current.owner
            return isinstance(op, Operation) and any(visit(o) for o in op.operands if not is_place(o))

        return any(visit(v) for v in _root_values(root))

    def readable(self, value: SSAValue, stage: int, segment: _Segment) -> bool:
        """Whether a value's buffer is filled before a nest of the given stage runs."""
        return value in self.buffers and segment.written.get(value, -1) < stage

    def _is_dear(self, value: SSAValue) -> bool:
        count = 0
        pending, seen = [value], set[SSAValue]()
        while pending:
            current = pending.pop()
            if current in seen or current in self.buffers or not isinstance(current.owner, Operation):
                continue
            seen.add(current)
            op = current.owner
            if isinstance(op, tile.MapOp):
                if ops.FUNCTIONS[op.fn.data].cost in (ops.DIVIDE, ops.TRANSCENDENTAL):
                    return True
                count += 1
            pending.extend(o for o in op.operands if not is_place(o))
        return count > RECOMPUTED_OPERATIONS

    # ---- control ------------------------------------------------------------------------------------------------

    def _lower_for(self, op: tile.ForOp, segment: _Segment, new: Block) -> None:
        pairs: list[tuple[SSAValue, SSAValue]] = []
        for initial, argument, result in zip(op.initial, op.body.block.args[1:], op.results, strict=True):
            buffer = self.alloc(self._padded(array_type(initial)))
            stage = self._stage(initial, segment)
            segment.roots.append(Root(initial, stage, buffer=buffer))
            pairs.append((argument, buffer))
            self.buffers[argument] = buffer
            self.buffers[result] = buffer
        self.flush(segment, new)
        trips = int(op.trips.value.data)
        if trips == 0:
            return
        inner = Block(arg_types=[IndexType()])
        self.outer[op.body.block.args[0]] = inner.args[0]
        self.lower_block(op.body.block, inner, pairs)
        inner.add_op(tile.YieldOp.make([], {}, []))
        new.add_op(tile.ForOp.make([], {"trips": trips}, [], [Region(inner)]))

    def _lower_if(self, op: tile.IfOp, segment: _Segment, new: Block) -> None:
        condition = self._materialise(op.condition, segment)
        outputs = [self.alloc(self._padded(array_type(r))) for r in op.results]
        self.flush(segment, new)
        load = tile.LoadOp.make([condition], {"map": AffineMapAttr(AffineMap(0, 0, ()))}, [op.condition.type])
        new.add_op(load)
        regions: list[Region] = []
        for region in (op.then, op.otherwise):
            inner = Block()
            before = dict(self.buffers)
            self.lower_block(region.block, inner, list(zip(op.results, outputs, strict=True)))
            self.buffers = before  # what one branch stored is there only if that branch ran
            inner.add_op(tile.YieldOp.make([], {}, []))
            regions.append(Region(inner))
        new.add_op(tile.IfOp.make([load.result], {}, [], regions))
        self.buffers.update(zip(op.results, outputs, strict=True))

    def _lower_yield(
        self, op: tile.YieldOp, segment: _Segment, new: Block, carried: Sequence[tuple[SSAValue, SSAValue]]
    ) -> None:
        """Write carried tiles for the next trip, directly where no later nest reads the old value."""
        delayed: list[tuple[SSAValue, SSAValue]] = []
        spares: dict[SSAValue, SSAValue] = {}
        carried_tiles = {argument for argument, _ in carried}
        for value, (argument, buffer) in zip(op.operands, carried, strict=True):
            if value is argument or self.buffers.get(value) is buffer:
                continue
            if value in carried_tiles:
                # Another carried tile, whose own buffer is written too: all are set aside before any is.
                delayed.append((value, buffer))
                if value not in spares:
                    spares[value] = self.alloc(array_type(value))
                    segment.roots.append(Root(value, 0, buffer=spares[value]))
                continue
            if value in self.buffers or not self._may_overwrite(argument, value, segment, carried):
                delayed.append((value, buffer))
                self._materialise(value, segment)
                continue
            segment.roots.append(Root(value, self._stage(value, segment), buffer=buffer))
        self.flush(segment, new)
        self.buffers.update(spares)
        copies = _Segment()
        copies.roots = [Root(value, 0, buffer=buffer) for value, buffer in delayed]
        self.flush(copies, new)

    def _may_overwrite(
        self,
        argument: SSAValue,
        value: SSAValue,
        segment: _Segment,
        carried: Sequence[tuple[SSAValue, SSAValue]],
    ) -> bool:
        """Whether every read of the old tile in this segment happens in the writing nest, at the same element, and the
        first of them before the write."""
        if not isinstance(argument.owner, Block):
            return True
        stage, shape = self._stage(value, segment), array_type(value).shape
        feeds_value = feeds_others = False
        pending, seen = [argument], set[SSAValue]()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            for use in current.uses:
                user = use.operation
                if isinstance(user, tile.YieldOp):
                    feeds_value |= current is value
                    feeds_others |= current is not value
                    continue
                if user not in segment.ops and not self._runs_again(user, argument.owner, segment):
                    continue
                if not isinstance(user, STRICT) or array_type(user.results[0]).shape != shape:
                    return False
                if user.results[0] in self.buffers or self._stage(user.results[0], segment) != stage:
                    return False
                pending.append(user.results[0])
        return feeds_value or not feeds_others

    def _runs_again(self, op: Operation, block: Block, segment: _Segment) -> bool:
        """Whether an operation before the last segment of a block runs again in it, as no buffer kept its result."""
        pending, seen = [op], set[Operation]()
        while pending:
            current = pending.pop()
            if current in segment.ops or current is block.last_op:
                return True
            kept = any(r in self.buffers and r not in segment.written for r in current.results)
            if current in seen or kept or isinstance(current, BARRIERS) or current.parent_block() is not block:
                continue
            seen.add(current)
            pending.extend(use.operation for result in current.results for use in result.uses)
        return False

    # ---- products -----------------------------------------------------------------------------------------------

    def _lower_dot(
        self, op: tile.DotOp, segment: _Segment, new: Block, carried: Sequence[tuple[SSAValue, SSAValue]]
    ) -> None:
        accumulator = array_type(op.accumulator)
        rows, columns = accumulator.shape
        depth = array_type(op.left).shape[1]
        micro = self.micro(accumulator)
        left, depth_bound = _strip_depth_padding(op.left, 1)
        right, right_bound = _strip_depth_padding(op.right, 0)
        if right_bound is not None and not _same_bound(depth_bound, right_bound):
            right = op.right  # the product skips what the left operand says, so other padding stays
        symbols: list[SSAValue] = []
        left_ref = self._pack_left(left, segment, micro[0])
        left_map = AffineMap(2, 0, (AffineExpr.dimension(0), AffineExpr.dimension(1)))
        attributes: dict[str, Any] = {"extents": (rows, columns, depth), "micro": micro}
        direct = _array_operand(right, micro[1], depth_is_bounded=depth_bound is not None)
        if direct is not None and direct[0].source not in self.conflicts:
            load, permuted = direct
            right_ref = self.outer[load.source]
            symbols = [self.outer[s] for s in load.symbols]
            right_map = permuted
        else:
            right_ref = self._pack_right(right, segment, micro[1])
            right_map = AffineMap(2, 0, (AffineExpr.dimension(0), AffineExpr.dimension(1)))
        if depth_bound is not None:
            position, limit = depth_bound
            start = len(symbols)
            symbols.extend(self.outer[s] for s in position.symbols)
            attributes["depth_map"] = AffineMapAttr(_shifted(position.map.data, start, len(symbols)))
            attributes["depth_limit"] = limit
        attributes["left_map"] = AffineMapAttr(AffineMap(2, len(symbols), left_map.results))
        attributes["right_map"] = AffineMapAttr(AffineMap(2, len(symbols), right_map.results))
        target, accumulate = self._accumulator(op, segment, carried)
        attributes["accumulate"] = accumulate
        self.flush(segment, new)
        new.add_op(scheduled.DotOp.make([left_ref, right_ref, target, *symbols], attributes, []))
        self.buffers[op.result] = target

    def _accumulator(
        self, op: tile.DotOp, segment: _Segment, carried: Sequence[tuple[SSAValue, SSAValue]]
    ) -> tuple[SSAValue, bool]:
        """The buffer that the product adds to, holding the accumulator's value; False when it starts from zero."""
        value = op.accumulator
        if isinstance(value.owner, tile.FullOp) and decode(value.owner.value) == 0:
            return self.alloc(self._padded(array_type(value))), False
        for argument, buffer in carried:
            if self._carries(op, argument, carried) and self._only_feeds(argument, op, segment):
                if value is not argument:
                    segment.roots.append(Root(value, self._stage(value, segment), buffer=buffer))
                return buffer, True
        buffer = self.alloc(self._padded(array_type(value)))
        segment.roots.append(Root(value, self._stage(value, segment), buffer=buffer))
        return buffer, True

    def _carries(self, op: tile.DotOp, argument: SSAValue, carried: Sequence[tuple[SSAValue, SSAValue]]) -> bool:
        """Whether the product's result is what the next trip gets for `argument`."""
        block = op.parent_block()
        if block is None or not isinstance(block.last_op, tile.YieldOp) or not isinstance(argument.owner, Block):
            return False
        position = [a for a, _ in carried].index(argument)
        return position < len(block.last_op.operands) and block.last_op.operands[position] is op.result

    def _only_feeds(self, argument: SSAValue, op: tile.DotOp, segment: _Segment) -> bool:
        """Whether a carried tile is used for nothing but the accumulator of `op`, elementwise, and the accumulator for
        nothing but `op`."""
        value = op.accumulator
        shape = array_type(value).shape
        pending = [argument]
        while pending:
            current = pending.pop()
            if current is value:
                continue
            for use in current.uses:
                user = use.operation
                if user not in segment.ops or not isinstance(user, STRICT):
                    return False
                if array_type(user.results[0]).shape != shape or user.results[0] in self.buffers:
                    return False
                pending.append(user.results[0])
        return all(use.operation is op for use in value.uses)

    def _pack_left(self, value: SSAValue, segment: _Segment, micro_rows: int) -> SSAValue:
        """Rows one after the other, an odd number of cache lines apart so that a column of them spreads over sets."""
        type = array_type(value)
        line = max(1, self.machine.memory("l1").line_bytes // type.dtype.itemsize)
        stride = _round_up(type.shape[1], line)
        if (stride // line) % 2 == 0:
            stride += line
        buffer = self.alloc(ArrayType((_round_up(type.shape[0], micro_rows), stride), type.dtype))
        segment.roots.append(Root(value, self._stage(value, segment), buffer=buffer))
        return buffer

    def _pack_right(self, value: SSAValue, segment: _Segment, micro_columns: int) -> SSAValue:
        type = array_type(value)
        padded = ArrayType((type.shape[0], _round_up(type.shape[1], micro_columns)), type.dtype)
        buffer = self.alloc(padded, str(panels(padded.shape, 1, micro_columns)))
        segment.roots.append(Root(value, self._stage(value, segment), buffer=buffer))
        return buffer

    def _lower_ordered(self, op: Operation, segment: _Segment, new: Block) -> None:
        sources = [self._materialise(o, segment) for o in op.operands]
        self.flush(segment, new)
        block = Block()
        loads: list[SSAValue] = []
        for operand, source in zip(op.operands, sources, strict=True):
            load = tile.LoadOp.make([source], {"map": AffineMapAttr(identity_map(operand))}, [operand.type])
            block.add_op(load)
            loads.append(load.result)
        copy = op.clone()
        copy.operands = loads
        block.add_op(copy)
        for old, result in zip(op.results, copy.results, strict=True):
            buffer = self.alloc(array_type(result))
            store = tile.StoreOp.make([result, buffer], {"map": AffineMapAttr(identity_map(result))}, [])
            block.add_op(store)
            self.buffers[old] = buffer
        block.add_op(scheduled.EndOp.make([], {}, []))
        new.add_op(scheduled.NestOp.make([], {}, [], [Region(block)]))


def _nests(segment: _Segment) -> list[list[Root]]:
    """Roots by nest: one stage, one shape, one set of reduced axes (plain roots join the first reduction)."""
    buckets: dict[tuple[int, tuple[int, ...]], dict[tuple[int, ...] | None, list[Root]]] = {}
    for root in segment.roots:
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


def _root_values(root: Root) -> Sequence[SSAValue]:
    if root.store is not None:
        return [o for o in root.store.operands if not is_place(o)]
    return root.effect.operands if root.effect is not None else [root.value]


def _keeps_shape(op: Operation) -> bool:
    return len(op.results) == 1 and isinstance(op, STRICT)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _strip_depth_padding(value: SSAValue, depth_dim: int) -> tuple[SSAValue, tuple[tile.FillPaddingOp, int] | None]:
    """An operand without the zero fill of its depth tail: the product skips those positions instead."""
    inner, dim = value, depth_dim
    if isinstance(inner.owner, tile.TransposeOp):
        dim = inner.owner.attributes_of()["permutation"][depth_dim]
        inner = inner.owner.operands[0]
    op = inner.owner
    if not isinstance(op, tile.FillPaddingOp) or decode(op.value) != 0:
        return value, None
    map = op.map.data
    if map.results[0] != _counting(map, dim) or any(not is_place(s) for s in op.symbols):
        return value, None
    stripped = op.source
    if inner is value:
        return stripped, (op, int(op.limit.value.data))
    return _Permuted.of(value, stripped), (op, int(op.limit.value.data))


class _Permuted:
    """Rebuilds a transpose on another operand, beside the original."""

    @staticmethod
    def of(transposed: SSAValue, operand: SSAValue) -> SSAValue:
        op = transposed.owner
        if not isinstance(op, tile.TransposeOp):
            return operand
        copy = op.clone()
        copy.operands = [operand]
        block = op.parent_block()
        if block is not None:
            block.insert_op_after(copy, op)
        return copy.results[0]


def _counting(map: AffineMap, dim: int) -> AffineExpr:
    """The expression of the map if it counts along `dim` by ones from a start made of symbols."""
    result = map.results[0]
    form = linear_form(result, tuple(Index(d) for d in range(map.num_dims)))
    return result if form is not None and form.dims == ((dim, 1),) else AffineExpr.constant(-1)


def _same_bound(a: tuple[tile.FillPaddingOp, int] | None, b: tuple[tile.FillPaddingOp, int]) -> bool:
    """Whether two operands' depths end at the same place."""
    if a is None or a[1] != b[1] or list(a[0].symbols) != list(b[0].symbols):
        return False
    return _shifted(a[0].map.data, 0, len(a[0].symbols)) == _shifted(b[0].map.data, 0, len(b[0].symbols))


def _shifted(map: AffineMap, start: int, total: int) -> AffineMap:
    """The map's start (its dims at 0), with symbols moved up by `start`."""
    symbols = [AffineExpr.symbol(start + i) for i in range(map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols([AffineExpr.constant(0)] * map.num_dims, symbols) for e in map.results)
    return AffineMap(0, total, results)


def _array_operand(
    value: SSAValue, micro_columns: int, *, depth_is_bounded: bool
) -> tuple[tile.LoadOp, AffineMap] | None:
    """The load behind a right operand that is a plain window of an array starting at a whole panel, and its map from
    (depth, column)."""
    permutation = (0, 1)
    if isinstance(value.owner, tile.TransposeOp):
        permutation = value.owner.attributes_of()["permutation"]
        value = value.owner.operands[0]
    if isinstance(value.owner, tile.CastOp):
        value = value.owner.operands[0]
    load = value.owner
    if not isinstance(load, tile.LoadOp) or any(not isinstance(s.type, IndexType) for s in load.symbols):
        return None
    inverse: list[AffineExpr] = [AffineExpr.constant(0)] * 2
    for position, source in enumerate(permutation):
        inverse[source] = AffineExpr.dimension(position)
    map = load.map.data
    symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols(inverse, symbols) for e in map.results)
    if not _is_window(results, micro_columns) or not _stays_inside(load, results, depth_is_bounded):
        return None
    return load, AffineMap(2, map.num_symbols, results)


def _stays_inside(load: tile.LoadOp, results: Sequence[AffineExpr], depth_is_bounded: bool) -> bool:
    """Whether a product may read the array itself: it skips columns beyond the end, and depths where it is told to."""
    if load.fill is None:
        return True
    if decode(load.fill) != 0:
        return False
    depth = array_type(load.result).shape[0]
    for expression, size in zip(results, tile.ref_type(load.source).shape, strict=True):
        form = linear_form(expression, (Index(0), Index(1)))
        if form is None:
            return False
        low = high = form.constant
        for position, coefficient in form.symbols:
            last = coefficient * (_trips(load.symbols[position]) - 1)
            low, high = low + min(0, last), high + max(0, last)
        if form.coefficient(0):
            high += depth - 1
        skipped = form.coefficient(1) or (form.coefficient(0) and depth_is_bounded)
        if low < 0 or (high >= size and not skipped):
            return False
    return True


def _trips(index: SSAValue) -> int:
    """How many values a grid index or loop counter has."""
    if not isinstance(index, BlockArgument):
        raise CompilerBug("an index scalar that no grid or loop defines")
    owner = index.owner.parent_op()
    if isinstance(owner, tile.ForOp):
        return int(owner.trips.value.data)
    if isinstance(owner, tile.KernelOp):
        return owner.grid_shape[index.index - len(owner.effect_names)]
    raise CompilerBug("an index scalar that no grid or loop defines")


def _is_window(results: Sequence[AffineExpr], micro_columns: int) -> bool:
    """One array dimension runs along the depth and another along the columns, each by ones."""
    runs: dict[int, int] = {}
    at = (Index(0), Index(1))
    for expression in results:
        form = linear_form(expression, at)
        if form is None or len(form.dims) > 1:
            return False
        for dim, coefficient in form.dims:
            if coefficient != 1 or dim in runs:
                return False
            runs[dim] = 1
            offsets = [form.constant, *(c for _, c in form.symbols)]
            if dim == 1 and any(o % micro_columns for o in offsets):
                return False
    return set(runs) == {0, 1}
