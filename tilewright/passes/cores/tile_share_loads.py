"""Merge equal loads of read-only arrays: each load takes a queue of the core.

Loads that a matmul multiplies stay apart: a matmul takes its operands from queues in an order of its own.

Before (wormhole):
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "square"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "square", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %y: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      %b = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      %c = tile.map(%a, %b) {fn = "multiply"} : tensor<32x32xf32>
      tile.store(%c, %y) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "square"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "square", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %y: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      %c = tile.map(%a, %a) {fn = "multiply"} : tensor<32x32xf32>
      tile.store(%c, %y) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import msgspec
from xdsl.ir import Block, SSAValue

from tilewright.dialects import tile
from tilewright.dialects.rewriting import block_of, erase
from tilewright.passes.base import Unit


class TileShareLoadsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-share-loads"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            pairs = zip(kernel.refs, kernel.effects, strict=True)
            read_only: set[SSAValue] = {ref for ref, effect in pairs if effect == tile.IN}
            for block in {block_of(op): None for op in kernel.walk() if isinstance(op, tile.LoadOp)}:
                _share(block, read_only)


def _share(block: Block, read_only: set[SSAValue]) -> None:
    known: dict[Hashable, tile.LoadOp] = {}
    for op in list(block.ops):
        if not isinstance(op, tile.LoadOp) or op.source not in read_only or _is_multiplied(op):
            continue
        first = known.setdefault((op.source, tuple(op.symbols), op.map, op.fill, op.result.type), op)
        if first is not op:
            op.result.replace_all_uses_with(first.result)
            erase(op)


def _is_multiplied(op: tile.LoadOp) -> bool:
    """Whether a matmul reads what is loaded, or a transpose of it."""
    pending, seen = [op.result], set[SSAValue]()
    while pending:
        value = pending.pop()
        seen.add(value)
        for use in value.uses:
            if isinstance(use.operation, tile.DotOp):
                return True
            if isinstance(use.operation, tile.TransposeOp | tile.ReshapeOp | tile.CastOp):
                pending.extend(r for r in use.operation.results if r not in seen)
    return False
