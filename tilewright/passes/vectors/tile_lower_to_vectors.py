"""Assign every tile value a layout and storage: registers inside a loop nest, or a buffer.

Layouts come from layout inference: which dim of a nest is in vectors, how operands of matmuls are packed, which block
of a matmul is in registers. The grid becomes a parallel region, matmuls become `scheduled.dot` on buffers. From here on
every buffer and loop can be seen, so that a target only prints.

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
        scheduled.nest() {layout = "(8) : [8@simd]"} do {
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
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, rebuilt
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.layout import Layout
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts
from tilewright.passes.layouts.layout_rules import ELEMENTWISE
from tilewright.passes.layouts.layout_spaces import Atom
from tilewright.passes.vectors.nest_segments import Places, Segment, round_up
from tilewright.passes.vectors.nest_writer import identity_map
from tilewright.passes.vectors.ordered_accesses import ORDERED, Ordered, axis_of, direct_load, direct_store, is_position
from tilewright.passes.vectors.product_atoms import block_of, cast_operands
from tilewright.passes.vectors.product_nests import ProductNest, matmul_in, product_nest
from tilewright.passes.vectors.product_operands import (
    DepthBound,
    any_left_window,
    extent_along,
    left_window,
    result_store,
    right_window,
    same_bound,
    shifted,
    strip_depth_padding,
    with_symbols_from,
)
from tilewright.passes.vectors.vector_space import VectorSpace
from tilewright.primitives import ArrayType

BARRIERS = (tile.ForOp, tile.IfOp, tile.DotOp, *ORDERED)

# A tile read as it is.
IDENTITY = AffineMap(2, 0, (AffineExpr.dimension(0), AffineExpr.dimension(1)))

# Carried arguments of a loop, or results of an `if`, with their buffers.
Carried = Sequence[tuple[SSAValue, SSAValue]]


class TileLowerToVectorsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-lower-to-vectors"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            inferred = infer_layouts(kernel, VectorSpace(unit.machine))
            for product in inferred.products:
                chosen = Remark(
                    self.name, kernel.sym_name, str(inferred.atom(product)), "lowest predicted time for its size"
                )
                unit.remarks.append(chosen)
            scheduled_kernel = lower_kernel(kernel, unit.machine, inferred)
            insert_before(kernel, scheduled_kernel)
            erase(kernel)


def lower_kernel(kernel: tile.KernelOp, machine: Machine, inferred: Inference) -> tile.KernelOp:
    """The scheduled form of one kernel: its grid becomes a parallel region."""
    types = [tile.ref_type(r) for r in kernel.refs]
    result = tile.kernel(kernel.sym_name, (), types, kernel.effects)
    body = Block(arg_types=[IndexType() for _ in kernel.grid])
    layouts = {value: layout for value in inferred.variables if (layout := inferred.layout(value)) is not None}
    atoms = {product: inferred.atom(product) for product in inferred.products}
    _drop_pins(kernel, layouts)
    cast_operands(kernel, atoms, layouts)
    blocks = [(array_type(product.result), block_of(atom)) for product, atom in atoms.items()]
    places = Places(machine, body, _conflicting_refs(kernel), layouts, blocks)
    places.outer.update(zip(kernel.refs, result.refs, strict=True))
    places.outer.update(zip(kernel.indices, body.args, strict=True))
    _Lowering(places, atoms).lower_block(kernel.body.block, body)
    body.add_op(scheduled.EndOp())
    parallel = scheduled.ParallelOp(extents=kernel.grid, grain=1, in_order=kernel.in_order, body=Region(body))
    result.body.block.add_op(parallel)
    result.body.block.add_op(tile.YieldOp())
    return result


def _drop_pins(kernel: tile.KernelOp, layouts: dict[SSAValue, Layout]) -> None:
    """A pinned tile is its operand, computed as the pin states."""
    for op in list(kernel.walk()):
        if isinstance(op, tile.RelayoutOp):
            if op.result in layouts:
                layouts[op.source] = layouts[op.result]
            op.result.replace_all_uses_with(op.source)
            erase(op)


def _conflicting_refs(kernel: tile.KernelOp) -> set[SSAValue]:
    """Refs that the kernel both loads and stores, or stores in several places: the order of their accesses matters."""
    loaded = {op.source for op in kernel.walk() if isinstance(op, tile.LoadOp)}
    stored = Counter(op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp))
    return {ref for ref, count in stored.items() if count > 1 or ref in loaded}


class _Lowering:
    """Walks over blocks: what is between two barriers becomes the nests of a segment, the barriers keep their order.
    Matmuls work in place on their accumulator where nothing else reads it."""

    def __init__(self, places: Places, atoms: Mapping[tile.DotOp, Atom]) -> None:
        self.places = places
        self.atoms = atoms
        self.stored: set[Operation] = set()  # stores that products and ordered operations do themselves

    # ---- blocks -------------------------------------------------------------------------------------------------

    def lower_block(self, old: Block, new: Block, carried: Carried = ()) -> None:
        """Lower the operations of a block; `carried` pairs its carried arguments with their buffers."""
        segment = Segment(self.places)
        for op in old.ops:
            if isinstance(op, tile.YieldOp):
                self._lower_yield(op, segment, new, carried)
                return
            unread = isinstance(op, ORDERED) and not any(list(result.uses) for result in op.results)
            if op in self.stored or unread:
                continue
            if not isinstance(op, BARRIERS):
                segment.add(op)
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
            segment = Segment(self.places)

    # ---- control ------------------------------------------------------------------------------------------------

    def _lower_for(self, op: tile.ForOp, segment: Segment, new: Block) -> None:
        nest = self._product_nest(op)
        if nest is not None:
            self._lower_nest(op, nest, segment, new)
            return
        pairs: list[tuple[SSAValue, SSAValue]] = []
        for initial, argument, result in zip(op.initial, op.body.block.args[1:], op.results, strict=True):
            buffer = self.places.alloc(self.places.padded(array_type(initial)))
            segment.put(initial, buffer)
            pairs.append((argument, buffer))
            self.places.buffers[argument] = buffer
            self.places.buffers[result] = buffer
        segment.flush(new)
        trips = op.trips
        if trips == 0:
            return
        inner = Block(arg_types=[IndexType()])
        self.places.outer[op.body.block.args[0]] = inner.args[0]
        self.lower_block(op.body.block, inner, pairs)
        inner.add_op(tile.YieldOp())
        symbols = [self.places.outer[s] for s in op.symbols]
        new.add_op(rebuilt(op, symbols, [], [Region(inner)]))

    def _lower_if(self, op: tile.IfOp, segment: Segment, new: Block) -> None:
        condition = segment.materialise(op.condition)
        outputs = [self._output_of_if(op, number) for number in range(len(op.results))]
        segment.flush(new)
        load = tile.LoadOp(source=condition, map=AffineMap(0, 0, ()), result=op.condition.type)
        new.add_op(load)
        regions: list[Region] = []
        for region in (op.then, op.otherwise):
            inner = Block()
            before = dict(self.places.buffers)
            self.lower_block(region.block, inner, list(zip(op.results, outputs, strict=True)))
            self.places.buffers = before  # what one branch stored is there only if that branch ran
            inner.add_op(tile.YieldOp())
            regions.append(Region(inner))
        new.add_op(rebuilt(op, [load.result], [], regions))
        self.places.buffers.update(zip(op.results, outputs, strict=True))

    def _output_of_if(self, op: tile.IfOp, number: int) -> SSAValue:
        """The buffer of one result: if it is the only one, that of a value which a branch passes on, where nothing else
        reads it any more."""
        for region in (op.then, op.otherwise):
            last = region.block.last_op
            passed = () if last is None or len(op.results) > 1 else (last.operands[number],)
            found = next((v for v in passed if v in self.places.buffers and self._dies_in(v, op)), None)
            if found is not None:
                return self.places.buffers[found]
        return self.places.alloc(self.places.padded(array_type(op.results[number])))

    def _dies_in(self, value: SSAValue, op: tile.IfOp) -> bool:
        """Whether a value computed before an `if` in the same block is read before the `if` and, inside, only
        elementwise on the way to its yields. A result without a buffer is computed from the value wherever it is
        read."""
        if not isinstance(value.owner, Operation) or value.owner.parent_block() is not op.parent_block():
            return False
        pending, inside = [use.operation for use in value.uses], set[Operation]()
        while pending:
            user = pending.pop()
            is_before = user.parent_block() is op.parent_block() and user.is_before_in_block(op)
            if is_before and all(result in self.places.buffers for result in user.results):
                continue
            if not is_before and user.parent_op() is not op:
                return False
            if isinstance(user, tile.YieldOp) or user in inside:
                continue
            if not isinstance(user, ELEMENTWISE) or array_type(user.results[0]).shape != array_type(value).shape:
                return False
            inside.add(user)
            pending.extend(use.operation for use in user.results[0].uses)
        return True

    def _lower_yield(self, op: tile.YieldOp, segment: Segment, new: Block, carried: Carried) -> None:
        """Write carried tiles for the next trip, directly where no later nest reads the old value."""
        delayed: list[tuple[SSAValue, SSAValue]] = []
        spares: dict[SSAValue, SSAValue] = {}
        carried_tiles = {argument for argument, _ in carried}
        for value, (argument, buffer) in zip(op.operands, carried, strict=True):
            if value is argument or self.places.buffers.get(value) is buffer:
                continue
            if value in carried_tiles:
                # Another carried tile, whose own buffer is written too: all are set aside before any is.
                delayed.append((value, buffer))
                if value not in spares:
                    spares[value] = self.places.alloc(array_type(value))
                    segment.put(value, spares[value], 0)
                continue
            if value in self.places.buffers or not self._may_overwrite(argument, value, segment):
                delayed.append((value, buffer))
                segment.materialise(value)
                continue
            segment.put(value, buffer)
        segment.flush(new)
        self.places.buffers.update(spares)
        copies = Segment(self.places)
        for value, buffer in delayed:
            copies.put(value, buffer, 0)
        copies.flush(new)

    def _may_overwrite(self, argument: SSAValue, value: SSAValue, segment: Segment) -> bool:
        """Whether every read of the old tile in this segment happens in the writing nest, at the same element, and the
        first of them before the write."""
        if not isinstance(argument.owner, Block):
            return True
        stage, shape = segment.stage(value), array_type(value).shape
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
                if not isinstance(user, ELEMENTWISE) or array_type(user.results[0]).shape != shape:
                    return False
                if user.results[0] in self.places.buffers or segment.stage(user.results[0]) != stage:
                    return False
                pending.append(user.results[0])
        return feeds_value or not feeds_others

    def _runs_again(self, op: Operation, block: Block, segment: Segment) -> bool:
        """Whether an operation before the last segment of a block runs again in it, as no buffer kept its result."""
        pending, seen = [op], set[Operation]()
        while pending:
            current = pending.pop()
            if current in segment.ops or current is block.last_op:
                return True
            kept = any(r in self.places.buffers and r not in segment.written for r in current.results)
            if current in seen or kept or isinstance(current, BARRIERS) or current.parent_block() is not block:
                continue
            seen.add(current)
            pending.extend(use.operation for result in current.results for use in result.uses)
        return False

    # ---- products -----------------------------------------------------------------------------------------------

    def _product_nest(self, loop: tile.ForOp) -> ProductNest | None:
        """Loops that are summed dims of one matmul without a matrix instruction."""
        dot = matmul_in(loop)
        if dot is None or self.atoms[dot].instruction is not None:
            return None
        return product_nest(loop, dot, self.places.conflicts, block_of(self.atoms[dot]).static_shape[1])

    def _lower_nest(self, loop: tile.ForOp, nest: ProductNest, segment: Segment, new: Block) -> None:
        """One matmul, which keeps its accumulators in registers across all loops."""
        symbols: list[SSAValue] = []
        left, left_map = self._window(nest.left.source, nest.left.map, nest.left.symbols, symbols)
        right, right_map = self._window(nest.right.source, nest.right.map, nest.right.symbols, symbols)
        target: SSAValue
        accumulator_map: AffineMap | None = None
        if nest.target is not None:
            window = nest.target.window
            target, accumulator_map = self._window(window.source, window.map, window.symbols, symbols)
            self.stored.add(nest.target.store)
        else:
            target = self.places.alloc(self.places.padded(array_type(loop.results[0])))
            self.places.buffers[loop.results[0]] = target
        segment.flush(new)
        rows, columns = array_type(nest.dot.accumulator).shape
        dot = scheduled.DotOp(
            left=left,
            right=right,
            accumulator=target,
            symbols=symbols,
            extents=(rows, columns, array_type(nest.dot.left).shape[1]),
            steps=nest.steps,
            block=str(block_of(self.atoms[nest.dot])),
            left_map=_with_symbols(left_map, len(symbols)),
            right_map=_with_symbols(right_map, len(symbols)),
            accumulator_map=None if accumulator_map is None else _with_symbols(accumulator_map, len(symbols)),
            accumulate=False,
        )
        new.add_op(dot)

    def _lower_dot(self, op: tile.DotOp, segment: Segment, new: Block, carried: Carried) -> None:
        accumulator = array_type(op.accumulator)
        rows, columns = accumulator.shape
        depth = array_type(op.left).shape[1]
        atom = self.atoms[op]
        left, depth_bound = strip_depth_padding(op.left, 1)
        right, right_bound = strip_depth_padding(op.right, 0)
        if right_bound is not None and not same_bound(depth_bound, right_bound):
            right = op.right  # the product skips what the left operand says, so other padding stays
        symbols: list[SSAValue] = []
        left_ref, left_map = self._left(left, segment, atom, depth_bound, symbols)
        right_ref, right_map = self._right(right, segment, atom, depth_bound, symbols)
        instruction = atom.instruction
        in_parts = instruction is not None and instruction.parts > 1
        depth_map: AffineMap | None = None
        # Parts of operands are zeros beyond the end of the depth.
        if depth_bound is not None and not in_parts:
            position = depth_bound[0]
            start = len(symbols)
            symbols.extend(self.places.outer[s] for s in position.symbols)
            depth_map = shifted(position.map, start, len(symbols))
        store = self._own_store(op, left_ref, left_map, right_ref, right_map, symbols)
        accumulator_map: AffineMap | None = None
        if store is not None:
            target, accumulator_map = self._window(store.destination, store.map, store.symbols, symbols)
            accumulate = False
            self.stored.add(store)
        else:
            target, accumulate = self._accumulator(op, segment, carried)
            self.places.buffers[op.result] = target
        segment.flush(new)
        dot = scheduled.DotOp(
            left=left_ref,
            right=right_ref,
            accumulator=target,
            symbols=symbols,
            extents=(rows, columns, depth),
            block=str(block_of(atom)),
            parts=instruction.parts if instruction is not None and in_parts else None,
            scale=instruction.scale if instruction is not None and in_parts else None,
            depth_map=None if depth_map is None else _with_symbols(depth_map, len(symbols)),
            depth_limit=None if depth_map is None or depth_bound is None else depth_bound[1],
            accumulator_map=None if accumulator_map is None else _with_symbols(accumulator_map, len(symbols)),
            left_map=_with_symbols(left_map, len(symbols)),
            right_map=_with_symbols(right_map, len(symbols)),
            accumulate=accumulate,
        )
        new.add_op(dot)

    def _own_store(
        self,
        op: tile.DotOp,
        left: SSAValue,
        left_map: AffineMap,
        right: SSAValue,
        right_map: AffineMap,
        symbols: Sequence[SSAValue],
    ) -> tile.StoreOp | None:
        """The store that a matmul does itself: of all it computes, to an array with no more rows and columns than its
        operands have."""
        height, width = block_of(self.atoms[op]).static_shape
        store = result_store(op.results[0], width)
        starts_from_zero = isinstance(op.accumulator.owner, tile.FullOp) and op.accumulator.owner.value == 0
        if store is None or store.destination in self.places.conflicts or not starts_from_zero:
            return None
        places = [self.places.outer[s] for s in store.symbols]
        ref = tile.ref_type(store.destination)
        for operand, map, dim in ((left, left_map, 0), (right, right_map, 1)):
            type = tile.ref_type(operand)
            own = extent_along(store.map, places, ref, dim)
            if not type.space.data and extent_along(map, symbols, type, dim) != own:
                return None
        if not self.atoms[op].has_whole_blocks:
            return store
        # A matrix instruction writes whole blocks.
        rows, columns = array_type(op.result).shape
        lengths = [own[0] for dim in (0, 1) if (own := extent_along(store.map, places, ref, dim)) is not None]
        whole = zip((rows, columns, *lengths), (height, width, height, width), strict=True)
        return store if all(n % block == 0 for n, block in whole) else None

    def _accumulator(self, op: tile.DotOp, segment: Segment, carried: Carried) -> tuple[SSAValue, bool]:
        """The buffer that the matmul adds to, holding the accumulator's value; False when it starts from zero."""
        value = op.accumulator
        if isinstance(value.owner, tile.FullOp) and value.owner.value == 0:
            return self.places.alloc(self.places.padded(array_type(value))), False
        for argument, buffer in carried:
            if self._carries(op, argument, carried) and self._only_feeds(argument, op, segment):
                if value is not argument:
                    segment.put(value, buffer)
                return buffer, True
        buffer = self.places.alloc(self.places.padded(array_type(value)))
        segment.put(value, buffer)
        return buffer, True

    def _carries(self, op: tile.DotOp, argument: SSAValue, carried: Carried) -> bool:
        """Whether the matmul's result is what the next trip gets for `argument`."""
        block = op.parent_block()
        if block is None or not isinstance(block.last_op, tile.YieldOp) or not isinstance(argument.owner, Block):
            return False
        position = [a for a, _ in carried].index(argument)
        return position < len(block.last_op.operands) and block.last_op.operands[position] is op.result

    def _only_feeds(self, argument: SSAValue, op: tile.DotOp, segment: Segment) -> bool:
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
                if user not in segment.ops or not isinstance(user, ELEMENTWISE):
                    return False
                if array_type(user.results[0]).shape != shape or user.results[0] in self.places.buffers:
                    return False
                pending.append(user.results[0])
        return all(use.operation is op for use in value.uses)

    def _left(
        self, value: SSAValue, segment: Segment, atom: Atom, bound: DepthBound | None, symbols: list[SSAValue]
    ) -> tuple[SSAValue, AffineMap]:
        """A left operand and its map: the array that feeds it where that has the depth running inside, else a buffer. A
        matrix instruction reads whole blocks of rows, whatever is in those beyond the operand's."""
        whole = block_of(atom).static_shape[0] if atom.has_whole_blocks else 1
        in_parts = atom.instruction is not None and atom.instruction.parts > 1
        direct = any_left_window(value, bound) if in_parts else left_window(value, bound, whole)
        if direct is not None and self._reads(direct[0], array_type(value)):
            return self._array(*direct, symbols)
        return self._pack_left(value, segment, atom.left, whole), IDENTITY

    def _right(
        self, value: SSAValue, segment: Segment, atom: Atom, bound: DepthBound | None, symbols: list[SSAValue]
    ) -> tuple[SSAValue, AffineMap]:
        """A right operand and its map: the array that feeds it, to be packed as a whole, else panels of its own. The
        words of a matrix instruction are made later, from an array or a buffer."""
        block_columns = block_of(atom).static_shape[1]
        direct = right_window(value, block_columns, bound)
        if direct is not None and direct[0].source not in self.places.conflicts:
            source = tile.ref_type(direct[0].source).dtype
            if atom.instruction is None or source == array_type(value).dtype:
                return self._array(*direct, symbols)
        if atom.instruction is not None:
            return segment.materialise(value), IDENTITY
        return self._pack_right(value, segment, atom.right, block_columns), IDENTITY

    def _reads(self, load: tile.LoadOp, operand: ArrayType) -> bool:
        """Whether a matmul can read an array as it is."""
        return load.source not in self.places.conflicts and tile.ref_type(load.source).dtype == operand.dtype

    def _array(self, load: tile.LoadOp, map: AffineMap, symbols: list[SSAValue]) -> tuple[SSAValue, AffineMap]:
        """The array that feeds an operand; its map counts on in the matmul's symbols."""
        return self._window(load.source, map, load.symbols, symbols)

    def _window(
        self, array: SSAValue, map: AffineMap, own: Sequence[SSAValue], symbols: list[SSAValue]
    ) -> tuple[SSAValue, AffineMap]:
        """An array, and the map of a window of it, which counts on in a matmul's symbols."""
        start = len(symbols)
        symbols.extend(self.places.outer[s] for s in own)
        return self.places.outer[array], with_symbols_from(map, start)

    def _pack_left(self, value: SSAValue, segment: Segment, layout: Layout, whole: int) -> SSAValue:
        """Rows as far apart as the layout has them, with room for a multiple of `whole`."""
        type = array_type(value)
        pitch = layout.shard[0][0].stride if layout.shard[0] else type.shape[1]
        buffer = self.places.alloc(ArrayType((round_up(type.shape[0], whole), pitch), type.dtype))
        segment.put(value, buffer)
        return buffer

    def _pack_right(self, value: SSAValue, segment: Segment, layout: Layout, block_columns: int) -> SSAValue:
        """Panels, the last of them whole."""
        type = array_type(value)
        padded = ArrayType((type.shape[0], round_up(type.shape[1], block_columns)), type.dtype)
        buffer = self.places.alloc(padded, str(replace(layout, shape=padded.shape)))
        segment.put(value, buffer)
        return buffer

    # ---- ordered operations -------------------------------------------------------------------------------------

    def _lower_ordered(self, op: Ordered, segment: Segment, new: Block) -> None:
        """A nest of its own, which reads arrays and writes them itself where it can, and buffers otherwise."""
        for operand in op.operands:
            if not is_position(op, operand) and direct_load(op, operand, self.places.conflicts) is None:
                segment.materialise(operand)
        segment.flush(new)
        block = Block()
        loads = [self._ordered_operand(op, operand, block) for operand in op.operands]
        copy = op.clone()
        copy.operands = loads
        block.add_op(copy)
        for old, result in zip(op.results, copy.results, strict=True):
            if list(old.uses):
                self._ordered_result(op, old, result, block)
        block.add_op(scheduled.EndOp())
        new.add_op(scheduled.NestOp(body=Region(block)))

    def _ordered_operand(self, op: Ordered, operand: SSAValue, block: Block) -> SSAValue:
        type = array_type(operand)
        direct = direct_load(op, operand, self.places.conflicts)
        if is_position(op, operand):
            along = AffineMap(type.rank, 0, (AffineExpr.dimension(axis_of(op)),))
            load: Operation = tile.IotaOp(map=along, result=operand.type)
        elif direct is not None:
            load = direct.clone()
            load.operands = [self.places.outer[o] for o in direct.operands]
        else:
            source = self.places.buffers[operand]
            load = tile.LoadOp(source=source, map=identity_map(operand), result=operand.type)
        block.add_op(load)
        return load.results[0]

    def _ordered_result(self, op: Ordered, old: SSAValue, result: SSAValue, block: Block) -> None:
        direct = direct_store(op, old, self.places.conflicts)
        if direct is not None:
            places = [self.places.outer[o] for o in direct.operands[1:]]
            block.add_op(tile.StoreOp(value=result, destination=places[0], symbols=places[1:], map=direct.map))
            self.stored.add(direct)
            return
        buffer = self.places.alloc(array_type(result))
        block.add_op(tile.StoreOp(value=result, destination=buffer, map=identity_map(result)))
        self.places.buffers[old] = buffer


def _with_symbols(map: AffineMap, count: int) -> AffineMap:
    """The map with more symbols, which it does not use."""
    return AffineMap(map.num_dims, count, map.results)
