"""Expand integer matmuls into matmuls of 8-bit digits, for a matrix unit of floats.

Operands are cut into digits of a few bits, which are exact as floats of 16 bits. A matmul of digits is a sum of
integers that a float of 32 bits holds exactly, as long as the sums of all digits of one weight stay below 2^24; digits
are as wide as that allows. Digits of weight 2^32 or more are left out, since integers wrap around. Digits of 8 bits
take 10 matmuls of 16 bits, a tenth of the time that the vector unit would take, element by element.

Before (wormhole):
    func.func @main(%x: tensor<4x8xi32>, %y: tensor<8x4xi32>) -> tensor<4x4xi32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<4x4xi32>
      func.return %z : tensor<4x4xi32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xi32>>, %y: !tile.ref<tensor<8x4xi32>>, %out: !tile.ref<tensor<4x4xi32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xi32>
      %b = tile.load(%y) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x4xi32>
      %start = tile.full() {value = 0 : i32} : tensor<4x4xi32>
      %c = tile.dot(%a, %b, %start) : tensor<4x4xi32>
      tile.store(%c, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xi32>, %y: tensor<8x4xi32>) -> tensor<4x4xi32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<4x4xi32>
      func.return %z : tensor<4x4xi32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xi32>>, %y: !tile.ref<tensor<8x4xi32>>, %out: !tile.ref<tensor<4x4xi32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xi32>
      %b = tile.load(%y) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x4xi32>
      %start = tile.full() {value = 0 : i32} : tensor<4x4xi32>
      %0 = tile.full() {value = 255 : index} : tensor<4x8xi32>
      %1 = tile.map(%a, %0) {fn = "bitwise_and"} : tensor<4x8xi32>
      %2 = tile.cast(%1) : tensor<4x8xbf16>
      %3 = tile.full() {value = 8 : index} : tensor<4x8xi32>
      %4 = tile.map(%a, %3) {fn = "shift_right"} : tensor<4x8xi32>
      %5 = tile.map(%4, %0) {fn = "bitwise_and"} : tensor<4x8xi32>
      %6 = tile.cast(%5) : tensor<4x8xbf16>
      %7 = tile.full() {value = 16 : index} : tensor<4x8xi32>
      %8 = tile.map(%a, %7) {fn = "shift_right"} : tensor<4x8xi32>
      %9 = tile.map(%8, %0) {fn = "bitwise_and"} : tensor<4x8xi32>
      %10 = tile.cast(%9) : tensor<4x8xbf16>
      %11 = tile.full() {value = 24 : index} : tensor<4x8xi32>
      %12 = tile.map(%a, %11) {fn = "shift_right"} : tensor<4x8xi32>
      %13 = tile.map(%12, %0) {fn = "bitwise_and"} : tensor<4x8xi32>
      %14 = tile.cast(%13) : tensor<4x8xbf16>
      %15 = tile.full() {value = 255 : index} : tensor<8x4xi32>
      %16 = tile.map(%b, %15) {fn = "bitwise_and"} : tensor<8x4xi32>
      %17 = tile.cast(%16) : tensor<8x4xbf16>
      %18 = tile.full() {value = 8 : index} : tensor<8x4xi32>
      %19 = tile.map(%b, %18) {fn = "shift_right"} : tensor<8x4xi32>
      %20 = tile.map(%19, %15) {fn = "bitwise_and"} : tensor<8x4xi32>
      %21 = tile.cast(%20) : tensor<8x4xbf16>
      %22 = tile.full() {value = 16 : index} : tensor<8x4xi32>
      %23 = tile.map(%b, %22) {fn = "shift_right"} : tensor<8x4xi32>
      %24 = tile.map(%23, %15) {fn = "bitwise_and"} : tensor<8x4xi32>
      %25 = tile.cast(%24) : tensor<8x4xbf16>
      %26 = tile.full() {value = 24 : index} : tensor<8x4xi32>
      %27 = tile.map(%b, %26) {fn = "shift_right"} : tensor<8x4xi32>
      %28 = tile.map(%27, %15) {fn = "bitwise_and"} : tensor<8x4xi32>
      %29 = tile.cast(%28) : tensor<8x4xbf16>
      %30 = tile.full() {value = 0.000000e+00 : f64} : tensor<4x4xf32>
      %31 = tile.dot(%14, %17, %30) : tensor<4x4xf32>
      %32 = tile.dot(%10, %17, %30) : tensor<4x4xf32>
      %33 = tile.dot(%10, %21, %31) : tensor<4x4xf32>
      %34 = tile.dot(%6, %17, %30) : tensor<4x4xf32>
      %35 = tile.dot(%6, %21, %32) : tensor<4x4xf32>
      %36 = tile.dot(%6, %25, %33) : tensor<4x4xf32>
      %37 = tile.dot(%2, %17, %30) : tensor<4x4xf32>
      %38 = tile.dot(%2, %21, %34) : tensor<4x4xf32>
      %39 = tile.dot(%2, %25, %35) : tensor<4x4xf32>
      %40 = tile.dot(%2, %29, %36) : tensor<4x4xf32>
      %41 = tile.cast(%37) : tensor<4x4xi32>
      %42 = tile.cast(%38) : tensor<4x4xi32>
      %43 = tile.cast(%39) : tensor<4x4xi32>
      %44 = tile.cast(%40) : tensor<4x4xi32>
      %45 = tile.full() {value = 8 : index} : tensor<4x4xi32>
      %46 = tile.map(%44, %45) {fn = "shift_left"} : tensor<4x4xi32>
      %47 = tile.map(%46, %43) {fn = "add"} : tensor<4x4xi32>
      %48 = tile.map(%47, %45) {fn = "shift_left"} : tensor<4x4xi32>
      %49 = tile.map(%48, %42) {fn = "add"} : tensor<4x4xi32>
      %50 = tile.map(%49, %45) {fn = "shift_left"} : tensor<4x4xi32>
      %51 = tile.map(%50, %41) {fn = "add"} : tensor<4x4xi32>
      %c = tile.map(%start, %51) {fn = "add"} : tensor<4x4xi32>
      tile.store(%c, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.cost.cores.tiles import digits_of
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dtypes import DType
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


class TileExpandIntegerProductsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-expand-integer-products"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in [op for op in kernel.body.block.walk() if isinstance(op, tile.DotOp)]:
                if not array_type(op.result).dtype.is_float:
                    _expand(op)


def _expand(op: tile.DotOp) -> None:
    dtype, depth = array_type(op.result).dtype, array_type(op.left).shape[1]
    bits, count = digits_of(depth)
    made = _Made(op, dtype)
    left, right = (made.digits(operand, bits, count) for operand in (op.left, op.right))
    sums = made.products(left, right)
    # Horner's rule, from the digits of the largest weight on.
    total = sums.pop()
    while sums:
        shifted = made.mapped("shift_left", total, made.filled(bits, total))
        total = made.mapped("add", shifted, sums.pop())
    op.result.replace_all_uses_with(made.mapped("add", op.accumulator, total))
    erase(op)


@dataclass
class _Made:
    """Operations that are put before a matmul of integers of a type."""

    before: tile.DotOp
    dtype: DType
    _filled: dict[tuple[int, tuple[int, ...]], SSAValue] = field(default_factory=dict)

    def digits(self, operand: SSAValue, bits: int, count: int) -> list[SSAValue]:
        """The digits of an operand, the lowest first, in bf16."""
        whole = operand if array_type(operand).dtype == self.dtype else self.cast(operand, self.dtype)
        found: list[SSAValue] = []
        for place in range(count):
            moved = whole
            if place:
                moved = self.mapped("shift_right", whole, self.filled(place * bits, whole))
            digit = self.mapped("bitwise_and", moved, self.filled(2**bits - 1, whole))
            found.append(self.cast(digit, dtypes.bf16))
        return found

    def products(self, left: list[SSAValue], right: list[SSAValue]) -> list[SSAValue]:
        """For each weight the sum of the matmuls of digits whose places add up to it. Each digit of the left operand is
        done with before the next one is needed."""
        type = tensor(ArrayType(array_type(self.before.result).shape, dtypes.f32))
        sums = [self._add(tile.FullOp(value=0.0, result=type))] * len(left)
        for place, digit in reversed([*enumerate(left)]):
            for weight in range(place, len(left)):
                sums[weight] = self._add(
                    tile.DotOp(left=digit, right=right[weight - place], accumulator=sums[weight], result=type)
                )
        return [self.cast(each, self.dtype) for each in sums]

    def mapped(self, fn: str, left: SSAValue, right: SSAValue) -> SSAValue:
        return self._add(tile.MapOp(arguments=[left, right], fn=fn, outputs=[left.type]))

    def filled(self, value: int, like: SSAValue) -> SSAValue:
        key = value, array_type(like).shape
        if key not in self._filled:
            self._filled[key] = self._add(tile.FullOp(value=value, result=like.type))
        return self._filled[key]

    def cast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self._add(tile.CastOp(arguments=[value], outputs=[tensor(ArrayType(array_type(value).shape, dtype))]))

    def _add(self, op: Operation) -> SSAValue:
        op.location = self.before.location
        block = block_of(self.before)
        block.insert_op_before(op, self.before)
        return op.results[0]
