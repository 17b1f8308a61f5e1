"""Interleave the epilogue of a matmul with its register blocks, while each block is in cache.

A matmul writes its result to a buffer where more is to be done with it than to store it. A whole tile of results leaves
the nearest cache before the nest that follows reads it again; a register block of them does not. So the matmul and the
nest run in turns: panel by panel of the right operand, and in each block by block of rows. The last rows have code of
their own.

Before:
    func.func @main(%x: tensor<194x8xf32>, %w: tensor<8x48xf32>, %b: tensor<48xf32>) -> tensor<194x48xf32> {
      %y = array.call(%x, %w, %b) {callee = "contract_0"} : tensor<194x48xf32>
      func.return %y : tensor<194x48xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<194x8xf32>>, %w: !tile.ref<tensor<8x48xf32>>, %b: !tile.ref<tensor<48xf32>>,
         %out: !tile.ref<tensor<194x48xf32>>):
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<97x48xf32>, "worker">
        scheduled.dot(%x, %w, %total, %i)
          {extents = array<i64: 97, 48, 8>, block = "(4, 24) : [4@reg*3 | 3@reg 8@simd]",
          left_map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 97, d1)>, right_map = affine_map<(d0, d1)[s0] -> (d0, d1)>,
          accumulate = false}
        scheduled.nest() {layout = "(97, 48) : [97@reg*6 | 6@reg 8@simd]"} do {
          %t = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<97x48xf32>
          %bias = tile.load(%b) {map = affine_map<(d0) -> (d0)>} : tensor<48xf32>
          %rows = tile.broadcast(%bias) {axes = array<i64: 1>} : tensor<97x48xf32>
          %y = tile.map(%t, %rows) {fn = "add"} : tensor<97x48xf32>
          tile.store(%y, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 97, d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<194x8xf32>, %w: tensor<8x48xf32>, %b: tensor<48xf32>) -> tensor<194x48xf32> {
      %y = array.call(%x, %w, %b) {callee = "contract_0"} : tensor<194x48xf32>
      func.return %y : tensor<194x48xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<194x8xf32>>, %w: !tile.ref<tensor<8x48xf32>>,
         %b: !tile.ref<tensor<48xf32>>, %out: !tile.ref<tensor<194x48xf32>>):
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%i: index):
        %block = scheduled.alloc() : !tile.ref<tensor<4x24xf32>, "worker">
        tile.for() {trips = 2 : index} do {
        ^bb0(%panel: index):
          tile.for() {trips = 24 : index} do {
          ^bb0(%rows: index):
            scheduled.dot(%x, %w, %block, %i, %panel, %rows)
              {extents = array<i64: 4, 24, 8>, block = "(4, 24) : [4@reg*3 | 3@reg 8@simd]",
              left_map = affine_map<(d0, d1)[s0, s1, s2] -> (((d0 + (s2 * 4)) + (s0 * 97)), d1)>,
              right_map = affine_map<(d0, d1)[s0, s1, s2] -> (d0, (d1 + (s1 * 24)))>,
              accumulate = false, turn = array<i64: 2, 24>}
            scheduled.nest() {layout = "(4, 24) : [4@reg*3 | 3@reg 8@simd]"} do {
              %t = tile.load(%block) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x24xf32>
              %bias = tile.load(%b, %panel, %rows)
                {map = affine_map<(d0)[s0, s1] -> ((d0 + (s0 * 24)))>} : tensor<24xf32>
              %spread = tile.broadcast(%bias) {axes = array<i64: 1>} : tensor<4x24xf32>
              %y = tile.map(%t, %spread) {fn = "add"} : tensor<4x24xf32>
              tile.store(%y, %out, %i, %panel, %rows)
                {map = affine_map<(d0, d1)[s0, s1, s2] -> (((d0 + (s2 * 4)) + (s0 * 97)), (d1 + (s1 * 24)))>}
              scheduled.end()
            }
            tile.yield()
          }
          scheduled.dot(%x, %w, %block, %i, %panel)
            {extents = array<i64: 1, 24, 8>, block = "(4, 24) : [4@reg*3 | 3@reg 8@simd]",
            left_map = affine_map<(d0, d1)[s0, s1] -> (((d0 + 96) + (s0 * 97)), d1)>,
            right_map = affine_map<(d0, d1)[s0, s1] -> (d0, (d1 + (s1 * 24)))>, accumulate = false}
          scheduled.nest() {layout = "(1, 24) : [1 | 3@reg 8@simd]"} do {
            %t = tile.load(%block) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<1x24xf32>
            %bias = tile.load(%b, %panel) {map = affine_map<(d0)[s0] -> ((d0 + (s0 * 24)))>} : tensor<24xf32>
            %spread = tile.broadcast(%bias) {axes = array<i64: 1>} : tensor<1x24xf32>
            %y = tile.map(%t, %spread) {fn = "add"} : tensor<1x24xf32>
            tile.store(%y, %out, %i, %panel)
              {map = affine_map<(d0, d1)[s0, s1] -> (((d0 + 96) + (s0 * 97)), (d1 + (s1 * 24)))>}
            scheduled.end()
          }
          tile.yield()
        }
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.layout import Layout
from tilewright.layout.catalogue import register_block
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.primitives import ArrayType

# Operations that compute each element of their result from the operands' elements at the same place.
_ELEMENTWISE = (tile.MapOp, tile.CastOp, tile.BitcastOp, tile.LoadOp, tile.IotaOp, tile.FullOp)
# The dimensions of a product's result; a dim of size 1 that is repeated runs along none of them.
_ROWS, _COLUMNS, _REPEATED = 0, 1, -1
_WHOLE = (_ROWS, _COLUMNS)

# For each tile of a nest, the dimension of the product's result that each of its own runs along.
Dims = dict[SSAValue, tuple[int, ...]]


class ScheduledBlockEpiloguesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-block-epilogues"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                epilogue = _epilogue(op, unit.machine) if isinstance(op, scheduled.DotOp) else None
                if epilogue is not None:
                    epilogue.interleave()
                    subject = f"epilogue of {kernel.sym_name}"
                    unit.remarks.append(Remark(self.name, subject, "block by block", "a tile leaves the nearest cache"))


class _Block(msgspec.Struct, frozen=True):
    """The block at hand: its sizes along rows and columns, where they start, and the counters in that."""

    sizes: tuple[int, int]
    starts: tuple[AffineExpr, AffineExpr]
    counters: tuple[SSAValue, ...]

    def shape(self, dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 if d == _REPEATED else self.sizes[d] for d in dims)

    def moved(self, map: AffineMap, dims: Sequence[int], counted: int) -> AffineMap:
        """A map of the whole tile as one of this block: dims start where it does, counters are symbols from `counted`
        on."""
        symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
        counters = [AffineExpr.symbol(counted + i) for i in range(len(self.counters))]
        positions: list[AffineExpr] = []
        for i, d in enumerate(dims):
            position: AffineExpr = AffineExpr.dimension(i)
            if d != _REPEATED:
                position = position + self.starts[d].replace_dims_and_symbols([], counters)
            positions.append(position)
        results = tuple(e.replace_dims_and_symbols(positions, symbols) for e in map.results)
        return AffineMap(map.num_dims, counted + len(counters), results)


def _epilogue(dot: scheduled.DotOp, machine: Machine) -> _Epilogue | None:
    """The epilogue of a matmul: the nest right after it, if that is the result's only user, is elementwise, and the
    result does not fit the nearest cache."""
    rows, columns, depth = dot.shape
    height, width = dot.micro_tile
    types = [tile.ref_type(ref).dtype for ref in (dot.left, dot.right, dot.accumulator)]
    small = rows * columns * types[2].itemsize <= machine.memories[0].bytes // 2 or rows <= height
    if dot.is_split or small or columns % width or machine.matrix_atom_of_words(*types, depth=depth) is not None:
        return None
    nest, alloc = dot.next_op, dot.accumulator.owner
    if not isinstance(nest, scheduled.NestOp) or not isinstance(alloc, scheduled.AllocOp) or dot.accumulate:
        return None
    users = {use.operation for use in dot.accumulator.uses} - {dot}
    written = {op.destination for op in nest.body.block.ops if isinstance(op, tile.StoreOp)}
    if written & {dot.left, dot.right} or any(user.parent_op() is not nest for user in users):
        return None
    dims = _dims_of(nest, dot)
    if dims is None or (nest.layout is not None and _lanes(nest.layout) is None):
        return None
    return _Epilogue(dot, nest, alloc, dims)


def _lanes(layout: str) -> int | None:
    """How many columns a layout deals to one vector."""
    digits = Layout.parse(layout).shard[_COLUMNS]
    dealt = [digit.extent for digit in digits if digit.axis == "simd" and digit.stride == 1]
    return next((lanes for lanes in dealt if isinstance(lanes, int)), None)


def _dims_of(nest: scheduled.NestOp, dot: scheduled.DotOp) -> Dims | None:
    """Along which dims of a matmul the tiles of a nest run; None where they are not computed at the same position."""
    found: Dims = {}
    for op in reversed(list(nest.body.block.ops)):
        if isinstance(op, scheduled.EndOp):
            continue
        dims = _stored_dims(op, dot) if isinstance(op, tile.StoreOp) else found.get(op.results[0])
        if dims is None:
            return None
        if isinstance(op, tile.LoadOp) and op.source is dot.accumulator and (dims != _WHOLE or not _plain(op)):
            return None
        if isinstance(op, tile.BroadcastOp):
            dims = _before_broadcast(op, dims)
        elif not isinstance(op, (*_ELEMENTWISE, tile.StoreOp)):
            return None
        for operand in op.operands:
            if isinstance(operand.type, TensorType) and found.setdefault(operand, dims) != dims:
                return None
    return found


def _stored_dims(store: tile.StoreOp, dot: scheduled.DotOp) -> tuple[int, ...] | None:
    """The dims of a store of the whole result; None for a tile of another shape, which is a part of the result or
    unrelated to it."""
    return _WHOLE if array_type(store.value).shape == dot.shape[:2] else None


def _plain(load: tile.LoadOp) -> bool:
    return load.map == AffineMap(2, 0, (AffineExpr.dimension(0), AffineExpr.dimension(1)))


def _before_broadcast(op: tile.BroadcastOp, dims: tuple[int, ...]) -> tuple[int, ...]:
    sizes, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    axes: tuple[int, ...] = op.axes
    return tuple(_REPEATED if n == 1 and result[a] != 1 else dims[a] for n, a in zip(sizes, axes, strict=True))


class _Epilogue(msgspec.Struct, frozen=True):
    """A matmul and the nest that alone uses its result; `dims` are those of the nest's tiles."""

    dot: scheduled.DotOp
    nest: scheduled.NestOp
    alloc: scheduled.AllocOp
    dims: Dims

    def interleave(self) -> None:
        small = ArrayType(self.dot.micro_tile, tile.ref_type(self.dot.accumulator).dtype)
        accumulators = scheduled.AllocOp(result=tile.ref(small, scheduled.WORKER))
        insert_before(self.alloc, accumulators)
        insert_before(self.dot, self._panels(accumulators.result))
        for op in (self.nest, self.dot, self.alloc):
            erase(op)

    def _panels(self, accumulators: SSAValue) -> tile.ForOp:
        """Loops over all panels, and in each over whole blocks of rows, then the rows that are left."""
        rows, columns, _ = self.dot.shape
        height, width = self.dot.micro_tile
        body = Block(arg_types=[IndexType()])
        panel, column = body.args[0], AffineExpr.symbol(0) * width
        blocks, rest = divmod(rows, height)
        inner = Block(arg_types=[IndexType()])
        row = AffineExpr.symbol(1) * height
        inner.add_ops(self._block(_Block((height, width), (row, column), (panel, inner.args[0])), accumulators))
        body.add_op(_loop(blocks, inner))
        if rest:
            last = _Block((rest, width), (AffineExpr.constant(rows - rest), column), (panel,))
            body.add_ops(self._block(last, accumulators))
        return _loop(columns // width, body)

    def _block(self, block: _Block, accumulators: SSAValue) -> list[Operation]:
        return [self._product(block, accumulators), self._nest(block, accumulators)]

    def _product(self, block: _Block, accumulators: SSAValue) -> scheduled.DotOp:
        counted = len(self.dot.symbols)
        dot = rebuilt(self.dot, [self.dot.left, self.dot.right, accumulators, *self.dot.symbols, *block.counters])
        dot.extents = (*block.sizes, self.dot.shape[2])
        steps = [_REPEATED] * len(self.dot.outer_steps)
        dot.left_map = block.moved(self.dot.left_map, (_ROWS, _REPEATED, *steps), counted)
        dot.right_map = block.moved(self.dot.right_map, (_REPEATED, _COLUMNS, *steps), counted)
        if len(block.counters) == 2:  # of panels, then of blocks of rows
            dot.turn = (counted + 1, self.dot.shape[0] // self.dot.micro_tile[0])
        elif self.dot.keep is not None:
            dot.keep = False  # the rows before the last ones kept it
        if self.dot.depth_map is not None:
            dot.depth_map = block.moved(self.dot.depth_map, (), counted)
        return dot

    def _nest(self, block: _Block, accumulators: SSAValue) -> scheduled.NestOp:
        values: dict[SSAValue, SSAValue] = {}
        body = Block()
        for op in self.nest.body.block.ops:
            copy = self._copy(op, block, accumulators, values)
            values.update(zip(op.results, copy.results, strict=True))
            body.add_op(copy)
        layout = self.nest.layout
        if layout is not None:
            # Vectors of narrow results have more lanes than a block may have columns.
            lanes = math.gcd(_lanes(layout) or 1, block.sizes[_COLUMNS])
            layout = str(register_block(block.sizes, lanes))
        return scheduled.NestOp(layout=layout, body=Region(body))

    def _copy(
        self, op: Operation, block: _Block, accumulators: SSAValue, values: dict[SSAValue, SSAValue]
    ) -> Operation:
        """An operation of the nest, for one block."""
        if isinstance(op, tile.LoadOp) and op.source is self.dot.accumulator:
            return rebuilt(op, [accumulators], [self._type(op.result, block)])
        if isinstance(op, scheduled.EndOp):
            return scheduled.EndOp()
        operands = [values.get(operand, operand) for operand in op.operands]
        types = [self._type(result, block) for result in op.results]
        if isinstance(op, tile.LoadOp | tile.StoreOp | tile.IotaOp):
            dims = _WHOLE if isinstance(op, tile.StoreOp) else self.dims[op.result]
            moved = rebuilt(op, [*operands, *block.counters], types)
            moved.map = block.moved(op.map, dims, len(op.symbols))
            return moved
        return rebuilt(op, operands, types)

    def _type(self, value: SSAValue, block: _Block) -> TensorType[Any]:
        return tensor(ArrayType(block.shape(self.dims[value]), array_type(value).dtype))


def _loop(trips: int, body: Block) -> tile.ForOp:
    body.add_op(tile.YieldOp())
    return tile.ForOp(trips=trips, body=Region(body))
