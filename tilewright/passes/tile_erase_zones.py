"""Remove zone markers when tracing is off.

Before:
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "twice"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "twice", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4xf32>>, %out: !tile.ref<tensor<4xf32>>):
      tile.zone() {label = "load", edge = "begin"}
      %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<4xf32>
      tile.zone() {label = "load", edge = "end"}
      %b = tile.map(%a, %a) {fn = "add"} : tensor<4xf32>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "twice"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "twice", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4xf32>>, %out: !tile.ref<tensor<4xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<4xf32>
      %b = tile.map(%a, %a) {fn = "add"} : tensor<4xf32>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tilewright.dialects import tile
from tilewright.options import current
from tilewright.passes.base import Remark, Unit


class TileEraseZonesPass(msgspec.Struct, frozen=True):
    """`unless_traced`: they stay where the option `trace_file` is set."""

    name: ClassVar[str] = "tile-erase-zones"
    unless_traced: bool = False

    def apply(self, unit: Unit) -> None:
        is_traced = current().trace_file is not None
        if is_traced and self.unless_traced:
            return
        reason = f"the target {unit.machine.target} records none" if is_traced else "no trace is recorded"
        for kernel in unit.kernels():
            zones = [op for op in kernel.walk() if isinstance(op, tile.ZoneOp)]
            for op in zones:
                op.detach()
                op.erase()
            if zones:
                labels = ", ".join(dict.fromkeys(f"`{op.label}`" for op in zones))
                unit.remarks.append(Remark(self.name, kernel.sym_name, f"zones left out: {labels}", reason))
