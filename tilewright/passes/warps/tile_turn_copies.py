"""Give a tile that is loaded along one dim and stored along another a layout for each.

A tile has one layout, by which it is loaded and stored. Of a transpose, which computes nothing in between, one of the
two would access memory element by element. A bitcast to its own type is a tile of its own: layout inference may choose
another layout for it, with an exchange in shared memory between them.

Before (sm_90a):
    func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<8x8xf32>
      func.return %y : tensor<8x8xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<8x8xf32>>, %y: !tile.ref<tensor<8x8xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d1, d0)>} : tensor<8x8xf32>
      tile.store(%a, %y) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<8x8xf32>
      func.return %y : tensor<8x8xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<8x8xf32>>, %y: !tile.ref<tensor<8x8xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d1, d0)>} : tensor<8x8xf32>
      %b = tile.bitcast(%a) : tensor<8x8xf32>
      tile.store(%b, %y) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tilewright.dialects import tile
from tilewright.dialects.rewriting import insert_before
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_windows import fastest_dim


class TileTurnCopiesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-turn-copies"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for store in [op for op in kernel.body.block.walk() if isinstance(op, tile.StoreOp)]:
                load = store.value.owner
                if isinstance(load, tile.LoadOp) and fastest_dim(load) != fastest_dim(store):
                    turned = tile.BitcastOp(arguments=[store.value], outputs=[store.value.type])
                    insert_before(store, turned)
                    store.operands[store.operands.index(store.value)] = turned.results[0]
