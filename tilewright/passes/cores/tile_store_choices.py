"""Mask memory accesses in the branches of a select: lanes of the branch that is not taken get an index out of bounds.

Both branches are computed where a choice is made element by element. A store of a branch that is not taken must not
touch the array: another grid point may store there at the same time. Nor may a load of an array that is stored to.
Stores whose conditions follow from indices are left: a mover decides by itself.

Before (wormhole):
    func.func @main(%x: tensor<32x32xf32>, %n: tensor<i32>) -> tensor<32x32xf32> {
      %y = array.call(%x, %n) {callee = "double"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "double", grid = array<i64>, effects = ["inout", "in"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %n: !tile.ref<tensor<i32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      %b = tile.load(%n) {map = affine_map<() -> ()>} : tensor<i32>
      %zero = tile.full() {value = 0 : index} : tensor<i32>
      %is_some = tile.map(%b, %zero) {fn = "greater"} : tensor<i1>
      tile.if(%is_some) do {
        %c = tile.map(%a, %a) {fn = "add"} : tensor<32x32xf32>
        tile.store(%c, %x) {map = affine_map<(d0, d1) -> (d0, d1)>}
        tile.yield()
      } do {
        tile.yield()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xf32>, %n: tensor<i32>) -> tensor<32x32xf32> {
      %y = array.call(%x, %n) {callee = "double"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "double", grid = array<i64>, effects = ["inout", "in"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %n: !tile.ref<tensor<i32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      %b = tile.load(%n) {map = affine_map<() -> ()>} : tensor<i32>
      %zero = tile.full() {value = 0 : index} : tensor<i32>
      %is_some = tile.map(%b, %zero) {fn = "greater"} : tensor<i1>
      tile.if(%is_some) do {
        %c = tile.map(%a, %a) {fn = "add"} : tensor<32x32xf32>
        %inside = tile.full() {value = 0 : index} : tensor<32x32xi32>
        %outside = tile.full() {value = 1073741824 : index} : tensor<32x32xi32>
        %taken = tile.broadcast(%is_some) {axes = array<i64>} : tensor<32x32xi1>
        %offset = tile.map(%taken, %inside, %outside) {fn = "select"} : tensor<32x32xi32>
        tile.store(%c, %x, %offset) {map = affine_map<(d0, d1)[s0] -> (d0 + s0, d1)>}
        tile.yield()
      } do {
        tile.yield()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import block_of
from tilewright.passes.base import Unit
from tilewright.passes.cores.conditions import choices_of, is_of_places
from tilewright.primitives import ArrayType

# An offset that puts an index outside of every array, and whose sum with one has room in 32 bits.
_OUTSIDE = 1 << 30


class TileStoreChoicesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-store-choices"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            stores = [op for op in kernel.walk() if isinstance(op, tile.StoreOp)]
            stored = {op.destination for op in stores}
            loads = [op for op in kernel.walk() if isinstance(op, tile.LoadOp) and op.source in stored]
            for op in [*stores, *loads]:
                choices = choices_of(op)
                # A mover knows by itself whether it stores at a grid point.
                if choices and not (isinstance(op, tile.StoreOp) and is_of_places(op)):
                    _access_where_taken(op, choices)


def _access_where_taken(op: tile.StoreOp | tile.LoadOp, choices: list[tuple[SSAValue, bool]]) -> None:
    """Add an offset to the first index of an access: 0 where all its branches are taken, else one past every array."""
    map = op.map
    block = block_of(op)
    if not map.results:
        if isinstance(op, tile.StoreOp):
            for condition, is_then in choices:
                _store_what_is_there(op, condition, is_then)
        return
    shape = array_type(op.value if isinstance(op, tile.StoreOp) else op.result).shape
    whole = tensor(ArrayType(shape, dtypes.i32))
    inside, outside = (tile.FullOp(value=number, result=whole) for number in (0, _OUTSIDE))
    made: list[Operation] = [inside, outside]
    offset: SSAValue = inside.results[0]
    for condition, is_then in choices:
        taken = tile.BroadcastOp(arguments=[condition], axes=(), outputs=[tensor(ArrayType(shape, dtypes.bool_))])
        chosen = [offset, outside.results[0]] if is_then else [outside.results[0], offset]
        select = tile.MapOp(arguments=[taken.results[0], *chosen], fn="select", outputs=[whole])
        made += [taken, select]
        offset = select.results[0]
    for each in made:
        each.location = op.location
    block.insert_ops_before(made, op)
    first = map.results[0] + AffineExpr.symbol(map.num_symbols)
    op.map = AffineMap(map.num_dims, map.num_symbols + 1, (first, *map.results[1:]))
    op.operands = [*op.operands, offset]
    if isinstance(op, tile.LoadOp) and op.fill is None:
        # Nothing uses what a branch that is not taken loads; what it computes with it is defined all the same.
        op.fill = 0.0 if array_type(op.result).dtype.is_float else 0


def _store_what_is_there(op: tile.StoreOp, condition: SSAValue, is_then: bool) -> None:
    """Choose between the new element and the old one of an array without axes, which has no index to put outside."""
    block = block_of(op)
    type = array_type(op.value)
    whole = tensor(ArrayType(type.shape, dtypes.bool_))
    old = tile.LoadOp(source=op.destination, symbols=op.symbols, map=op.map, result=op.value.type)
    taken = tile.BroadcastOp(arguments=[condition], axes=(), outputs=[whole])
    chosen = [op.value, old.results[0]] if is_then else [old.results[0], op.value]
    new = tile.MapOp(arguments=[taken.results[0], *chosen], fn="select", outputs=[op.value.type])
    for made in (old, taken, new):
        made.location = op.location
        block.insert_op_before(made, op)
    op.operands[0] = new.results[0]
