"""Reshapes that no group has taken in become kernels of their own where pages change: an array in pages has no views.

Before (wormhole):
    func.func @main(%x: tensor<64x128xf32>, %y: tensor<64x128xf32>) -> tensor<128x64xf32> {
      %sum = array.fused(%x, %y) {kind = "loop", why = "add"} do {
      ^bb0(%a: tensor<64x128xf32>, %b: tensor<64x128xf32>):
        %c = array.map(%a, %b) {fn = "add"} : tensor<64x128xf32>
        array.yield(%c)
      } : tensor<64x128xf32>
      %z = array.reshape(%sum) : tensor<128x64xf32>
      func.return %z : tensor<128x64xf32>
    }
After:
    func.func @main(%x: tensor<64x128xf32>, %y: tensor<64x128xf32>) -> tensor<128x64xf32> {
      %sum = array.fused(%x, %y) {kind = "loop", why = "add"} do {
      ^bb0(%a: tensor<64x128xf32>, %b: tensor<64x128xf32>):
        %c = array.map(%a, %b) {fn = "add"} : tensor<64x128xf32>
        array.yield(%c)
      } : tensor<64x128xf32>
      %z = array.fused(%sum) {kind = "reshape", why = "pages change"} do {
      ^bb0(%a: tensor<64x128xf32>):
        %b = array.reshape(%a) : tensor<128x64xf32>
        array.yield(%b)
      } : tensor<128x64xf32>
      func.return %z : tensor<128x64xf32>
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tilewright.passes.array.array_copy_reshapes import changes_pages
from tilewright.passes.array.fusion import make_group
from tilewright.passes.base import Unit, blocks_of


class ArrayGroupReshapesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-group-reshapes"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if changes_pages(op):
                    make_group(block, {op}, "reshape", "pages change")
