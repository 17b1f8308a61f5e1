"""Expand argmin and argmax into two reductions.

The best element is found first, then the least index of those that equal it. A NaN is the best there is, and equals
nothing.

Before:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4xi64> {
      %y = array.call(%x) {callee = "best"} : tensor<4xi64>
      func.return %y : tensor<4xi64>
    }
    tile.kernel() {sym_name = "best", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4xi64>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xf32>
      %b = tile.arg_reduce(%a) {fn = "maximum", axis = 1 : index} : tensor<4xi64>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4xi64> {
      %y = array.call(%x) {callee = "best"} : tensor<4xi64>
      func.return %y : tensor<4xi64>
    }
    tile.kernel() {sym_name = "best", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4xi64>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xf32>
      %most = tile.reduce(%a) {fn = "maximum", axes = array<i64: 1>} : tensor<4xf32>
      %each = tile.broadcast(%most) {axes = array<i64: 0>} : tensor<4x8xf32>
      %equal = tile.map(%a, %each) {fn = "equal"} : tensor<4x8xi1>
      %none = tile.map(%a) {fn = "isnan"} : tensor<4x8xi1>
      %is_best = tile.map(%equal, %none) {fn = "bitwise_or"} : tensor<4x8xi1>
      %place = tile.iota() {map = affine_map<(d0, d1) -> (d1)>} : tensor<4x8xi64>
      %short = tile.cast(%place) : tensor<4x8xi32>
      %far = tile.full() {value = 2147483647 : index} : tensor<4x8xi32>
      %chosen = tile.map(%is_best, %short, %far) {fn = "select"} : tensor<4x8xi32>
      %first = tile.reduce(%chosen) {fn = "minimum", axes = array<i64: 1>} : tensor<4xi32>
      %b = tile.cast(%first) : tensor<4xi64>
      tile.store(%b, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dtypes import DType
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


class TileExpandArgReducePass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-expand-arg-reduce"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in [op for op in kernel.body.block.walk() if isinstance(op, tile.ArgReduceOp)]:
                _expand(op)


def _expand(op: tile.ArgReduceOp) -> None:
    source = op.operands[0]
    axis = op.axis
    made = _Made(op, array_type(source).shape)
    best = made.reduced(source, op.fn, axis)
    is_best = made.mapped("equal", source, made.spread(best, axis))
    if array_type(source).dtype.is_float:
        is_best = made.mapped("bitwise_or", is_best, made.mapped("isnan", source))
    index = made.index(axis)
    chosen = made.mapped("select", is_best, index, made.filled(int(dtypes.i32.highest), dtypes.i32))
    first = made.reduced(chosen, "minimum", axis)
    result = made.cast(first, array_type(op.results[0]).dtype)
    op.results[0].replace_all_uses_with(result)
    erase(op)


@dataclass
class _Made:
    """Operations on tiles of one shape, put before another operation."""

    before: tile.ArgReduceOp
    shape: tuple[int, ...]

    def reduced(self, value: SSAValue, fn: str, axis: int) -> SSAValue:
        kept = tuple(size for dim, size in enumerate(self.shape) if dim != axis)
        type = tensor(ArrayType(kept, array_type(value).dtype))
        return self._add(tile.ReduceOp(arguments=[value], fn=fn, axes=(axis,), outputs=[type]))

    def spread(self, value: SSAValue, axis: int) -> SSAValue:
        """The value along an axis that was reduced."""
        axes = tuple(dim for dim in range(len(self.shape)) if dim != axis)
        type = tensor(ArrayType(self.shape, array_type(value).dtype))
        return self._add(tile.BroadcastOp(arguments=[value], axes=axes, outputs=[type]))

    def mapped(self, fn: str, *values: SSAValue) -> SSAValue:
        dtype = array_type(values[-1]).dtype if fn == "select" else dtypes.bool_
        return self._add(tile.MapOp(arguments=list(values), fn=fn, outputs=[tensor(ArrayType(self.shape, dtype))]))

    def index(self, axis: int) -> SSAValue:
        """The position along an axis, in 32 bits: no tile is larger."""
        map = AffineMap(len(self.shape), 0, (AffineExpr.dimension(axis),))
        position = self._add(tile.IotaOp(map=map, result=tensor(ArrayType(self.shape, dtypes.i64))))
        return self.cast(position, dtypes.i32)

    def filled(self, value: int, dtype: DType) -> SSAValue:
        return self._add(tile.FullOp(value=value, result=tensor(ArrayType(self.shape, dtype))))

    def cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self._add(tile.CastOp(arguments=[value], outputs=[tensor(ArrayType(array_type(value).shape, dtype))]))

    def _add(self, op: Operation) -> SSAValue:
        op.location = self.before.location
        block = block_of(self.before)
        block.insert_op_before(op, self.before)
        return op.results[0]
