"""Expand exclusive-or reductions of bools into the parity of a count.

Before (wormhole):
    func.func @main(%x: tensor<4x8xi1>) -> tensor<4xi1> {
      %y = array.call(%x) {callee = "parity"} : tensor<4xi1>
      func.return %y : tensor<4xi1>
    }
    tile.kernel() {sym_name = "parity", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xi1>>, %out: !tile.ref<tensor<4xi1>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xi1>
      %b = tile.reduce(%a) {fn = "bitwise_xor", axes = array<i64: 1>} : tensor<4xi1>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xi1>) -> tensor<4xi1> {
      %y = array.call(%x) {callee = "parity"} : tensor<4xi1>
      func.return %y : tensor<4xi1>
    }
    tile.kernel() {sym_name = "parity", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xi1>>, %out: !tile.ref<tensor<4xi1>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xi1>
      %0 = tile.cast(%a) : tensor<4x8xi32>
      %1 = tile.reduce(%0) {fn = "add", axes = array<i64: 1>} : tensor<4xi32>
      %2 = tile.full() {value = 1 : index} : tensor<4xi32>
      %3 = tile.map(%1, %2) {fn = "bitwise_and"} : tensor<4xi32>
      %b = tile.cast(%3) : tensor<4xi1>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dtypes import DType
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


class TileExpandParitiesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-expand-parities"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in [op for op in kernel.body.block.walk() if isinstance(op, tile.ReduceOp | tile.ScanOp)]:
                if op.fn == "bitwise_xor" and array_type(op.operands[0]).dtype.is_bool:
                    _expand(op)


def _expand(op: tile.ReduceOp | tile.ScanOp) -> None:
    block = block_of(op)
    shape = array_type(op.results[0]).shape

    def added(made: Operation) -> SSAValue:
        made.location = op.location
        block.insert_op_before(made, op)
        return made.results[0]

    def cast(value: SSAValue, dtype: DType) -> SSAValue:
        return added(tile.CastOp(arguments=[value], outputs=[tensor(ArrayType(array_type(value).shape, dtype))]))

    type = tensor(ArrayType(shape, dtypes.i32))
    counted = cast(op.operands[0], dtypes.i32)
    counting = rebuilt(op, [counted], [type])
    counting.fn = "add"
    count = added(counting)
    one = added(tile.FullOp(value=1, result=type))
    last = added(tile.MapOp(arguments=[count, one], fn="bitwise_and", outputs=[type]))
    op.results[0].replace_all_uses_with(cast(last, dtypes.bool_))
    erase(op)
