"""Expand top-k into a sort with indices.

Before (wormhole):
    func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x3xf32>, tensor<4x3xi64>) {
      %y, %i = array.call(%x) {callee = "largest"} : tensor<4x3xf32>, tensor<4x3xi64>
      func.return %y, %i : tensor<4x3xf32>, tensor<4x3xi64>
    }
    tile.kernel() {sym_name = "largest", grid = array<i64>, effects = ["in", "out", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4x3xf32>>, %places: !tile.ref<tensor<4x3xi64>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xf32>
      %b, %c = tile.top_k(%a) {k = 3 : index} : tensor<4x3xf32>, tensor<4x3xi64>
      tile.store(%b, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.store(%c, %places) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x3xf32>, tensor<4x3xi64>) {
      %y, %i = array.call(%x) {callee = "largest"} : tensor<4x3xf32>, tensor<4x3xi64>
      func.return %y, %i : tensor<4x3xf32>, tensor<4x3xi64>
    }
    tile.kernel() {sym_name = "largest", grid = array<i64>, effects = ["in", "out", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4x3xf32>>, %places: !tile.ref<tensor<4x3xi64>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xf32>
      %place = tile.iota() {map = affine_map<(d0, d1) -> (d1)>} : tensor<4x8xi64>
      %sorted, %from = tile.sort(%a, %place) {axis = 1 : index, descending = true} : tensor<4x8xf32>, tensor<4x8xi64>
      %b = tile.slice(%sorted) {starts = array<i64: 0, 0>, limits = array<i64: 4, 3>, strides = array<i64: 1, 1>}
        : tensor<4x3xf32>
      %c = tile.slice(%from) {starts = array<i64: 0, 0>, limits = array<i64: 4, 3>, strides = array<i64: 1, 1>}
        : tensor<4x3xi64>
      tile.store(%b, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.store(%c, %places) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


class TileExpandTopKPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-expand-top-k"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in [op for op in kernel.body.block.walk() if isinstance(op, tile.TopKOp)]:
                _expand(op)


def _expand(op: tile.TopKOp) -> None:
    source = array_type(op.operands[0])
    axis = source.rank - 1
    places = ArrayType(source.shape, dtypes.i64)
    map = AffineMap(source.rank, 0, (AffineExpr.dimension(axis),))
    place = tile.IotaOp(map=map, result=tensor(places))
    in_order = tile.SortOp(
        arguments=[op.operands[0], place.result],
        axis=axis,
        descending=True,
        outputs=[tensor(source), tensor(places)],
    )
    starts, limits, strides = (0,) * source.rank, array_type(op.results[0]).shape, (1,) * source.rank
    slices = [
        tile.SliceOp(arguments=[whole], starts=starts, limits=limits, strides=strides, outputs=[result.type])
        for whole, result in zip(in_order.results, op.results, strict=True)
    ]
    for made in (place, in_order, *slices):
        insert_like(op, made)
    for result, made in zip(op.results, slices, strict=True):
        result.replace_all_uses_with(made.results[0])
    erase(op)
