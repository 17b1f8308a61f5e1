"""Flatten the loops around a matmul whose operands a producer warp copies.

A contraction over several dimensions has one loop for each. The producer continues from stage to stage of a single
loop: its trips are the points of the loops' grid.

Before (sm_90a):
    func.func @main(%x: tensor<64x3x64xbf16>, %w: tensor<3x64x16xbf16>) -> tensor<64x16xf32> {
      %y = array.call(%x, %w) {callee = "product"} : tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x3x64xbf16>>, %1: !tile.ref<tensor<3x64x16xbf16>>, %2: !tile.ref<tensor<64x16xf32>>):
      %3 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
      %4 = tile.for(%3) {trips = 3 : index} do {
      ^bb1(%5: index, %6: tensor<64x16xf32>):
        %7 = tile.for(%6) {trips = 2 : index} do {
        ^bb2(%8: index, %9: tensor<64x16xf32>):
          %10 = tile.load(%0, %5, %8) {map = affine_map<(d0, d1)[s0, s1] -> (d0, s0, (d1 + (s1 * 32)))>}
            : tensor<64x32xbf16>
          %11 = tile.load(%1, %5, %8) {map = affine_map<(d0, d1)[s0, s1] -> (s0, (d0 + (s1 * 32)), d1)>}
            : tensor<32x16xbf16>
          %12 = tile.dot(%10, %11, %9) {atom = "wgmma, 1 warpgroup"} : tensor<64x16xf32>
          tile.yield(%12)
        } : tensor<64x16xf32>
        tile.yield(%7)
      } : tensor<64x16xf32>
      tile.store(%4, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x3x64xbf16>, %w: tensor<3x64x16xbf16>) -> tensor<64x16xf32> {
      %y = array.call(%x, %w) {callee = "product"} : tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x3x64xbf16>>, %1: !tile.ref<tensor<3x64x16xbf16>>, %2: !tile.ref<tensor<64x16xf32>>):
      %3 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
      %4 = tile.for(%3) {trips = 6 : index} do {
      ^bb1(%5: index, %6: tensor<64x16xf32>):
        %7, %8 = scheduled.point(%5) {map = affine_map<()[s0] -> (s0)>, extents = array<i64: 3, 2>, group = 1 : index}
          : index, index
        %9 = tile.load(%0, %7, %8) {map = affine_map<(d0, d1)[s0, s1] -> (d0, s0, (d1 + (s1 * 32)))>}
          : tensor<64x32xbf16>
        %10 = tile.load(%1, %7, %8) {map = affine_map<(d0, d1)[s0, s1] -> (s0, (d0 + (s1 * 32)), d1)>}
          : tensor<32x16xbf16>
        %11 = tile.dot(%9, %10, %6) {atom = "wgmma, 1 warpgroup"} : tensor<64x16xf32>
        tile.yield(%11)
      } : tensor<64x16xf32>
      tile.store(%4, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Region
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import tile
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dialects.scheduled import tile_order
from tilewright.machines.machine import Machine
from tilewright.passes.base import Unit


class TileFlattenLoopsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-flatten-loops"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.body.block.ops):
                if (
                    isinstance(op, tile.ForOp)
                    and len(nest := _nest(op)) > 1
                    and _has_one_product(nest[-1], unit.machine)
                ):
                    _flatten(nest)


def _nest(loop: tile.ForOp) -> list[tile.ForOp]:
    """A loop and those in it, each of which is all that the one around it does."""
    ops = list(loop.body.block.ops)
    if len(ops) != 2 or not isinstance(inner := ops[0], tile.ForOp) or inner.end is not None or loop.end is not None:
        return [loop]
    carried = list(loop.body.block.args[1:]), list(ops[1].operands)
    is_passed_on = carried == (list(inner.initial), list(inner.results))
    return [loop, *_nest(inner)] if is_passed_on else [loop]


def _has_one_product(loop: tile.ForOp, machine: Machine) -> bool:
    """By instructions whose operands a warp of its own has copied."""
    dots = [op for op in loop.body.walk() if isinstance(op, tile.DotOp)]
    return len(dots) == 1 and dots[0].atom is not None and machine.is_asynchronous(dots[0].atom)


def _flatten(nest: Sequence[tile.ForOp]) -> None:
    outer, inner = nest[0], nest[-1]
    around = block_of(outer)
    trips = [loop.trips for loop in nest]
    body = Block(arg_types=[IndexType(), *(arg.type for arg in outer.body.block.args[1:])])
    number = AffineMap(0, 1, (AffineExpr.symbol(0),))
    places = [IndexType() for _ in nest]
    point = tile_order.PointOp(symbols=[body.args[0]], map=number, extents=tuple(trips), group=1, coordinates=places)
    body.add_op(point)
    for loop, place in zip(nest, point.results, strict=True):
        loop.body.block.args[0].replace_all_uses_with(place)
    for old, new in zip(inner.body.block.args[1:], body.args[1:], strict=True):
        old.replace_all_uses_with(new)
    for op in list(inner.body.block.ops):
        op.detach()
        body.add_op(op)
    flat = tile.ForOp(
        arguments=list(outer.initial), trips=prod(trips), outputs=[r.type for r in outer.results], body=Region(body)
    )
    flat.location = outer.location
    around.insert_op_before(flat, outer)
    for old, new in zip(outer.results, flat.results, strict=True):
        old.replace_all_uses_with(new)
    erase(outer)
