"""Stores in the branches of a choice store always: what is there already, where the branch is not taken.

Both branches are computed where a choice is made element by element; what a branch does to arrays has to be chosen,
too.

Before:
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
        %old = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
        %taken = tile.broadcast(%is_some) {axes = array<i64>} : tensor<32x32xi1>
        %new = tile.map(%taken, %c, %old) {fn = "select"} : tensor<32x32xf32>
        tile.store(%new, %x) {map = affine_map<(d0, d1) -> (d0, d1)>}
        tile.yield()
      } do {
        tile.yield()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.errors import CompilerBug
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


@dataclass(frozen=True)
class TileStoreChoicesPass:
    name: ClassVar[str] = "tile-store-choices"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in [op for op in kernel.walk() if isinstance(op, tile.StoreOp)]:
                for condition, is_then in _choices(op):
                    _store_choice(op, condition, is_then)


def _choices(op: tile.StoreOp) -> list[tuple[SSAValue, bool]]:
    """The conditions of the branches that a store is in, from the inside, and whether it is where they hold."""
    found: list[tuple[SSAValue, bool]] = []
    inner: Operation = op
    outer = inner.parent_op()
    while outer is not None:
        if isinstance(outer, tile.IfOp):
            found.append((outer.condition, inner.parent_block() is outer.then.block))
        inner, outer = outer, outer.parent_op()
    return found


def _store_choice(op: tile.StoreOp, condition: SSAValue, is_then: bool) -> None:
    block = op.parent_block()
    if block is None:
        raise CompilerBug("a store in no block")
    type = array_type(op.value)
    whole = tensor(ArrayType(type.shape, dtypes.bool_))
    old = tile.LoadOp.make([op.destination, *op.symbols], {"map": op.map}, [op.value.type])
    taken = tile.BroadcastOp.make([condition], {"axes": ()}, [whole])
    chosen = [op.value, old.results[0]] if is_then else [old.results[0], op.value]
    new = tile.MapOp.make([taken.results[0], *chosen], {"fn": "select"}, [op.value.type])
    for made in (old, taken, new):
        made.location = op.location
        block.insert_op_before(made, op)
    op.operands[0] = new.results[0]
