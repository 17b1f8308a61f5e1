"""Select the matmuls that accumulate in tensor memory, fed by tensor copies.

The pass takes loops that only accumulate matmuls of two windows of arrays, in the form of tensor copies. A matmul that
fits gets the atom, unless it declares another one. If it does not fit, a remark gives the reason, and layout inference
chooses its atom.

Before (sm_100a):
    func.func @main(%x: tensor<128x48xf16>, %y: tensor<48x32xf16>) -> tensor<128x32xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<128x32xf32>
      func.return %z : tensor<128x32xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64: 1, 1>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<128x48xf16>>, %y: !tile.ref<tensor<48x32xf16>>, %out: !tile.ref<tensor<128x32xf32>>,
        %i: index, %j: index):
      %zero = tile.full() {value = 0.0 : f64} : tensor<128x32xf32>
      %sum = tile.for(%zero) {trips = 3 : index} do {
      ^bb1(%t: index, %s: tensor<128x32xf32>):
        %a = tile.load(%x, %i, %t) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 128, d1 + s1 * 16)>,
            fill = 0.0 : f64} : tensor<128x16xf16>
        %b = tile.load(%y, %t, %j) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 16, d1 + s1 * 32)>,
            fill = 0.0 : f64} : tensor<16x32xf16>
        %p = tile.dot(%a, %b, %s) : tensor<128x32xf32>
        tile.yield(%p)
      } : tensor<128x32xf32>
      tile.store(%sum, %out, %i, %j) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 128, d1 + s1 * 32)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<128x48xf16>, %y: tensor<48x32xf16>) -> tensor<128x32xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<128x32xf32>
      func.return %z : tensor<128x32xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64: 1, 1>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<128x48xf16>>, %y: !tile.ref<tensor<48x32xf16>>, %out: !tile.ref<tensor<128x32xf32>>,
        %i: index, %j: index):
      %zero = tile.full() {value = 0.0 : f64} : tensor<128x32xf32>
      %sum = tile.for(%zero) {trips = 3 : index} do {
      ^bb1(%t: index, %s: tensor<128x32xf32>):
        %a = tile.load(%x, %i, %t) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 128, d1 + s1 * 16)>,
            fill = 0.0 : f64} : tensor<128x16xf16>
        %b = tile.load(%y, %t, %j) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 16, d1 + s1 * 32)>,
            fill = 0.0 : f64} : tensor<16x32xf16>
        %p = tile.dot(%a, %b, %s) {atom = "tcgen05, 1 warpgroup"} : tensor<128x32xf32>
        tile.yield(%p)
      } : tensor<128x32xf32>
      tile.store(%sum, %out, %i, %j) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 128, d1 + s1 * 32)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import msgspec
from xdsl.ir import BlockArgument, Operation

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import tensor_memory, tile_order
from tilewright.machines.machine import AtomFamily, Machine, MatrixAtom
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copied_windows import Refused, is_point
from tilewright.passes.warps.tensor_operands import tensor_operand
from tilewright.passes.warps.warp_space import SHARED

# What barriers in memory and the places of buffers take of the memory of a block beside the operands.
_BESIDE_BYTES = 1024
# Results of a thread that leave it registers.
_MOST_RESULTS = 128


class TileMultiplyInTensorMemoryPass(msgspec.Struct, frozen=True):
    """`warps`: how many share a point of the grid, where a kernel does not state it."""

    name: ClassVar[str] = "tile-multiply-in-tensor-memory"
    warps: int = 4

    def apply(self, unit: Unit) -> None:
        if tensor_memory.COLUMN not in unit.machine.axes:
            return
        for kernel in unit.timed_kernels(self.name):
            dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
            for dot in dots if not _are_a_chain(dots, unit.machine) else ():
                self._decide(unit, kernel, dot)

    def _decide(self, unit: Unit, kernel: tile.KernelOp, dot: tile.DotOp) -> None:
        is_named = dot.atom is not None
        types = (array_type(value).dtype for value in dot.operands)
        found = unit.machine.group_atom_of(*types)
        if unit.fallbacks.level_of(kernel.sym_name) and not is_named:
            return
        if found is None or (dot.atom is not None and not unit.machine.sums_in_tensor_memory(dot.atom)):
            return
        family, atom = found
        warps = self.warps if kernel.warps is None else kernel.warps
        try:
            loop = _loop_of(dot, kernel)
            _check_tile(dot, family, atom, warps)
            _check_operands(dot, loop, unit.machine)
        except Refused as reason:
            unit.remarks.append(Remark(self.name, kernel.sym_name, "not in tensor memory", str(reason)))
            if is_named:
                del dot.properties["atom"]
            return
        dot.atom = family.by_groups(warps // family.warps)


def _are_a_chain(dots: Sequence[tile.DotOp], machine: Machine) -> bool:
    """Whether several matmuls state that they are to be in tensor memory: whoever states it knows that they can be."""
    return len(dots) > 1 and all(dot.atom is not None and machine.sums_in_tensor_memory(dot.atom) for dot in dots)


def _loop_of(dot: tile.DotOp, kernel: tile.KernelOp) -> tile.ForOp:
    """The loop that adds up a matmul from zero.

    Raises:
        Refused: there is none, or it adds up more.
    """
    loop = dot.parent_op()
    if not isinstance(loop, tile.ForOp) or loop.parent_op() is not kernel:
        raise Refused("the matmul is not in a loop of its own")
    if loop.end is not None:
        raise Refused("the trip count of the loop is not known at block start")
    if sum(isinstance(op, tile.DotOp) for op in kernel.walk()) > 1:
        raise Refused("the kernel has more than one matmul")
    last = loop.body.block.last_op
    carried = list(loop.body.block.args[1:])
    alone = all(len(list(value.uses)) == 1 for value in (dot.accumulator, dot.result))
    if last is None or carried != [dot.accumulator] or list(last.operands) != [dot.result] or not alone:
        raise Refused("the loop does more than accumulate matmuls")
    start = loop.initial[0].owner
    if not isinstance(start, tile.FullOp) or start.value:
        raise Refused("the accumulator does not start at zero")
    return loop


def _check_tile(dot: tile.DotOp, family: AtomFamily, atom: MatrixAtom, warps: int) -> None:
    """Whether instructions give the tile, and some warps can take it out.

    Raises:
        Refused: they do not.
    """
    rows, columns = array_type(dot.result).shape
    depth = array_type(dot.left).shape[1]
    if rows != atom.rows or columns % atom.columns or depth % atom.depth or columns > tensor_memory.COLUMNS // 2:
        raise Refused(f"a tile of {rows} x {columns} x {depth} is not one of {atom.rows} rows and some columns")
    groups = warps // family.warps
    if warps % family.warps or columns % groups or rows * columns // (32 * warps) > _MOST_RESULTS:
        raise Refused(f"{warps} warps do not take {rows} x {columns} results out of tensor memory")


def _check_operands(dot: tile.DotOp, loop: tile.ForOp, machine: Machine) -> None:
    """Whether the machine copies both operands, the loop has nothing else, and two stages have room.

    Raises:
        Refused: not so.
    """
    brought: set[Operation] = {dot}
    for side in (dot.left, dot.right):
        window, _ = tensor_operand(side, loop, side is dot.left)
        for symbol in window.load.symbols:
            around = symbol.owner.parent_op() if isinstance(symbol, BlockArgument) else None
            if around not in (loop, loop.parent_op()) and not is_point(symbol):
                raise Refused("the offset of a window is not known at the start of the block")
        brought.update(window.moves)
    beside = tile.YieldOp, tile.ZoneOp, tile_order.PointOp
    if any(op not in brought and not isinstance(op, beside) for op in loop.body.block.ops):
        raise Refused("the loop does more than accumulate matmuls")
    types = [array_type(side) for side in (dot.left, dot.right)]
    needed = 2 * sum(prod(type.shape) * type.dtype.itemsize for type in types) + _BESIDE_BYTES
    if needed > machine.memory_of(SHARED).bytes:
        raise Refused(f"two stages need {needed} bytes of {SHARED}")
