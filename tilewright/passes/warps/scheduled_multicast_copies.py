"""Pair CTAs that read the same operand panel: each loads half of it and multicasts it to both.

Blocks with consecutive ids compute tiles of the same rows or of the same columns, and so read the same panel of one
operand: a pair loads it from the second-level cache once. A stage is copied again when it is empty in both blocks, so a
reader signals it in both; and a block does not exit before all copies that the other one writes to its shared memory
have arrived. The pass applies if loads from the cache bound a step, which then takes less time. A remark gives the
reason if a kernel does not fit.

Before (sm_90a):
    func.func @main(%0: tensor<64x48xf16>, %1: tensor<48x32xf16>) -> tensor<64x32xf32> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<64x32xf32>
      func.return %2 : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<64x48xf16>>, %1: !tile.ref<tensor<48x32xf16>>, %2: !tile.ref<tensor<64x32xf32>>):
      scheduled.parallel() {extents = array<i64: 1, 2>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for() {trips = 3 : index} do {
          ^bb0(%9: index):
            scheduled.await(%8, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> (((s0
                floordiv 2) + -1))>}
            scheduled.expect(%7, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, bytes = 2560 : index}
            %10 = scheduled.stage(%5, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
                "block",
                "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%0, %10, %7, %9, %3) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s1 * 64)), (d1 +
                (s0 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            %11 = scheduled.stage(%6, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
                "block",
                "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%1, %11, %7, %9, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 +
                (s1 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.end()
        }
        %12 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %13 = tile.relayout(%12) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
            false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %14 = tile.for(%13) {trips = 3 : index} do {
        ^bb0(%15: index, %16: tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          scheduled.await(%7, %15) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> ((s0
              floordiv 2))>}
          %17 = scheduled.stage(%5, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
              "block", "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %18 = scheduled.stage(%6, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block", "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %19 = scheduled.mma(%17, %18, %16) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %20 = scheduled.mma_wait(%19) {pending = 1 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%8, %15) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, trip = affine_map<()[s0] -> ((s0
              + -1))>}
          tile.yield(%20)
        } : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %21 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%21, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%0: tensor<64x48xf16>, %1: tensor<48x32xf16>) -> tensor<64x32xf32> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<64x32xf32>
      func.return %2 : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<64x48xf16>>, %1: !tile.ref<tensor<48x32xf16>>, %2: !tile.ref<tensor<64x32xf32>>):
      scheduled.parallel() {extents = array<i64: 1, 2>, grain = 1 : index, warps = 4 : index, cluster = 2 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 2 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.barrier() {scope = "cluster"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for() {trips = 3 : index} do {
          ^bb0(%9: index):
            scheduled.await(%8, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> (((s0
                floordiv 2) + -1))>}
            scheduled.expect(%7, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, bytes = 2560 : index}
            %10 = scheduled.stage(%5, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
                "block",
                "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%0, %10, %7, %9, %3) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s1 * 64)), (d1 +
                (s0 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>, multicast = array<i64: 2, 0>}
            %11 = scheduled.stage(%6, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
                "block",
                "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%1, %11, %7, %9, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 +
                (s1 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.await(%8) {number = affine_map<() -> (1)>, phase = affine_map<() -> (0)>}
          scheduled.await(%8) {number = affine_map<() -> (0)>, phase = affine_map<() -> (1)>}
          scheduled.end()
        }
        %12 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %13 = tile.relayout(%12) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
            false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %14 = tile.for(%13) {trips = 3 : index} do {
        ^bb0(%15: index, %16: tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          scheduled.await(%7, %15) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> ((s0
              floordiv 2))>}
          %17 = scheduled.stage(%5, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
              "block", "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %18 = scheduled.stage(%6, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block", "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %19 = scheduled.mma(%17, %18, %16) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %20 = scheduled.mma_wait(%19) {pending = 1 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%8, %15) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, trip = affine_map<()[s0] -> ((s0
              + -1))>, everywhere = true}
          tile.yield(%20)
        } : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %21 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        scheduled.arrive(%8) {number = affine_map<() -> (0)>, everywhere = true}
        tile.store(%21, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import msgspec
import numpy as np
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import asynchronous, tensor_memory, tile_order
from tilewright.layout import Layout
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import COPIES, MULTIPLIES
from tilewright.passes.warps.operand_rings import with_symbols
from tilewright.passes.warps.tensor_windows import boxes_of
from tilewright.passes.warps.tile_grids import symbols_used
from tilewright.primitives import ArrayType
from tilewright.semantics.tile import evaluate_map

Numbers = np.ndarray[Any, np.dtype[np.int64]]
# Blocks of a cluster, and the axis of a machine that has some.
PAIR, CLUSTERS = 2, "cta"
# What a step may take of its time without, for pairs of blocks wait for each other.
_WORTH = 0.95


class ScheduledMulticastCopiesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-multicast-copies"

    def apply(self, unit: Unit) -> None:
        if unit.machine.axes.get(CLUSTERS, 1) < PAIR:
            return
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                if any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
                    self._apply(unit, kernel, region)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp) -> None:
        try:
            feed = _feed_of(region)
            shared = _shared_copies(region, feed)
            before, after = _step_seconds(feed, [copy for copy, _ in shared], unit.machine)
        except Refused as reason:
            unit.remarks.append(Remark(self.name, kernel.sym_name, "no multicast", str(reason)))
            return
        _Pairs(region, feed, shared).write()
        bytes_shared = sum(_bytes(copy) for copy, _ in shared)
        decision = f"pairs of blocks multicast {bytes_shared} bytes of a step"
        reason = f"a step loads in {after * 1e9:.0f} ns instead of {before * 1e9:.0f}"
        unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))


def may_be_pairs(region: scheduled.ParallelOp, machine: Machine) -> bool:
    """Whether blocks that follow each other may share what a warp copies, if their tiles are in an order for that:
    there are two for each pair, in each turn, and it is worth it to share the larger panel."""
    blocks = prod(region.shape)
    if machine.axes.get(CLUSTERS, 1) < PAIR or blocks % PAIR or (blocks > machine.cores and machine.cores % PAIR):
        return False
    if not any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
        return False
    try:
        feed = _feed_of(region)
        _step_seconds(feed, [max(feed.copies, key=_bytes)], machine)
    except Refused:
        return False
    return True


# ---- what can be done -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Feed:
    """The role that copies for one matmul: it waits for barrier `empty` of a stage in each trip of `loops`, the outer
    one first. `says`: the event that signals that barrier that a stage was read."""

    role: scheduled.RoleOp
    loops: Sequence[tile.ForOp]
    waits: asynchronous.AwaitOp
    empty: asynchronous.MbarrierOp
    copies: Sequence[asynchronous.TensorCopyOp]
    says: Sequence[asynchronous.ArriveOp | tensor_memory.MmaCommitOp]
    product: scheduled.MmaOp | tensor_memory.TensorMmaOp


def _feed_of(region: scheduled.ParallelOp) -> _Feed:
    """The parts of a region in which a role copies for one matmul.

    Raises:
        Refused: it has others.
    """
    roles = [op for op in region.body.block.ops if isinstance(op, scheduled.RoleOp)]
    if [role.role for role in roles] not in ([COPIES], [COPIES, MULTIPLIES]):
        raise Refused(f"there are the roles {', '.join(role.role for role in roles)}")
    inside = list(roles[0].walk())
    copies = [op for op in inside if isinstance(op, asynchronous.TensorCopyOp)]
    waits = [op for op in inside if isinstance(op, asynchronous.AwaitOp)]
    products = [op for op in region.walk() if isinstance(op, scheduled.MmaOp | tensor_memory.TensorMmaOp)]
    if len(waits) != 1 or len(products) != 1 or len({copy.mbarrier for copy in copies}) != 1:
        raise Refused("several matmuls, or stages of several kinds")
    if any(isinstance(op, scheduled.CopyOp) for op in region.walk()) or region.registers is not None:
        raise Refused("compute threads copy as well")
    loops = _loops_around(waits[0])
    counters = [loop.body.block.args[0] for loop in loops]
    if not 1 <= len(loops) <= 2 or any(symbol not in counters for symbol in waits[0].symbols):
        raise Refused("the copied window is no function of the tile and step indices")
    if loops[-1].end is not None:
        raise Refused("the number of steps of a tile is not known at launch")
    empty = waits[0].mbarrier.owner
    assert isinstance(empty, asynchronous.MbarrierOp)
    users = [use.operation for use in empty.result.uses]
    says = [op for op in users if isinstance(op, asynchronous.ArriveOp | tensor_memory.MmaCommitOp)]
    return _Feed(roles[0], loops, waits[0], empty, copies, says, products[0])


def _loops_around(op: Operation) -> list[tile.ForOp]:
    found: list[tile.ForOp] = []
    around = op.parent_op()
    while isinstance(around, tile.ForOp):
        found.insert(0, around)
        around = around.parent_op()
    return found


def _shared_copies(region: scheduled.ParallelOp, feed: _Feed) -> list[tuple[asynchronous.TensorCopyOp, int]]:
    """The copies that are the same for both blocks of a pair, and the dim along which each of them takes a half.

    Raises:
        Refused: there are none, or blocks of a pair do not go through as many tiles.
    """
    if prod(region.shape) % PAIR:
        raise Refused(f"{prod(region.shape)} blocks are no pairs")
    for loop in feed.loops:
        _check_same_trips(region, loop)
    found: list[tuple[asynchronous.TensorCopyOp, int]] = []
    reason = Refused("consecutive blocks share no operand panel")
    for copy in feed.copies:
        symbols = set(symbols_used(copy.map, copy.symbols))
        if not all(_is_common(region, symbol) for symbol in symbols):
            continue
        try:
            found.append((copy, _dim_of_halves(copy)))
        except Refused as other:
            reason = other
    if not found or len(found) == len(feed.copies):
        raise reason
    return found


def _check_same_trips(region: scheduled.ParallelOp, loop: tile.ForOp) -> None:
    """Both blocks of each pair take as many trips.

    Raises:
        Refused: they do not, or it is not known.
    """
    if loop.end is None:
        return
    if not all(_is_argument(region, symbol) for symbol in loop.operands) or len(region.shape) != 1:
        raise Refused("the number of tiles of a block is not known")
    numbers = np.arange(prod(region.shape))
    (trips,) = evaluate_map(loop.end, numbers.shape, [numbers for _ in loop.operands])
    if not _is_same_in_pairs(np.minimum(trips, loop.trips)):
        raise Refused("consecutive blocks have different numbers of tiles")


def _is_argument(region: scheduled.ParallelOp, value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) and value.owner is region.body.block


def _is_common(region: scheduled.ParallelOp, symbol: SSAValue) -> bool:
    """Whether a symbol is the same for both blocks of each pair, in each trip."""
    if isinstance(symbol, BlockArgument):
        if symbol.owner is not region.body.block:
            return True  # the number of a trip
        coordinates = np.indices(region.shape).reshape(len(region.shape), -1)
        return _is_same_in_pairs(coordinates[symbol.index])
    if not isinstance(symbol, OpResult) or not isinstance(point := symbol.op, tile_order.PointOp):
        return False
    return _is_number_in_pairs(region, point) and _is_same_in_pairs(_points(point.order)[:, symbol.index])


@lru_cache(maxsize=16)
def _points(order: tile_order.GroupedOrder) -> Numbers:
    return np.array([order.point(number) for number in range(order.count)])


def _is_number_in_pairs(region: scheduled.ParallelOp, point: tile_order.PointOp) -> bool:
    """Whether the points of both blocks of a pair are a pair: numbers are those of blocks, and an even number more in
    each trip."""
    if point.order.count % PAIR or not all(isinstance(symbol, BlockArgument) for symbol in point.symbols):
        return False
    is_block = [_is_argument(region, symbol) for symbol in point.symbols]
    for trip in range(PAIR + 1):
        values = [np.array([0, 1]) if own else np.array([trip, trip]) for own in is_block]
        (numbers,) = evaluate_map(point.map, (PAIR,), values)
        if numbers[0] % PAIR or numbers[1] != numbers[0] + 1:
            return False
    return len(region.shape) == 1


def _is_same_in_pairs(values: Numbers) -> bool:
    return len(values) % PAIR == 0 and bool((values[::PAIR] == values[1::PAIR]).all())


def _dim_of_halves(copy: asynchronous.TensorCopyOp) -> int:
    """A dim along which halves of a window are boxes of their own.

    Raises:
        Refused: there is none.
    """
    type = tile.ref_type(copy.destination)
    layout, reason = Layout.parse(type.layout.data), Refused("a stage cannot be halved")
    # The longest dim first: of it the boxes of a half are fewest.
    for dim in sorted(range(len(type.shape)), key=lambda dim: -type.shape[dim]):
        try:
            boxes_of(copy.map, tile.ref_type(copy.source), layout, (PAIR, dim))
        except Refused as other:
            reason = other
        else:
            return dim
    raise reason


def _bytes(copy: asynchronous.TensorCopyOp) -> int:
    type = tile.ref_type(copy.destination)
    return prod(type.shape) * type.dtype.itemsize


def _step_seconds(feed: _Feed, shared: Sequence[asynchronous.TensorCopyOp], machine: Machine) -> tuple[float, float]:
    """The time in which the windows of a step come from the second-level cache, without and with pairs.

    Raises:
        Refused: the matmul of a step takes nearly as long anyway.
    """
    near = machine.memories[1].bytes_per_second
    brought = sum(_bytes(copy) for copy in feed.copies)
    less = sum(map(_bytes, shared)) * (PAIR - 1) // PAIR
    before, after = brought / near, (brought - less) / near
    multiplied = _product_seconds(feed.product, machine)
    if max(after, multiplied) > _WORTH * max(before, multiplied):
        raise Refused(
            f"a step is multiplied in {multiplied * 1e9:.0f} ns; what it reads comes in {before * 1e9:.0f}, "
            f"in pairs in {after * 1e9:.0f}"
        )
    return before, after


def _product_seconds(product: scheduled.MmaOp | tensor_memory.TensorMmaOp, machine: Machine) -> float:
    """The time of the instructions of a step."""
    left, right, total = (_held(each) for each in (product.left, product.right, product.accumulator))
    atom = machine.atom_of(product.atom.partition(",")[0], left.dtype, right.dtype, total.dtype)
    if atom is None:
        raise Refused(f"the machine has no {product.atom} of {left.dtype}")
    (rows, depth), columns = left.shape, right.shape[1]
    instructions = -(-rows // atom.rows) * -(-columns // atom.columns) * -(-depth // atom.depth)
    return instructions * atom.cycles / machine.clock_hertz


def _held(value: SSAValue) -> ArrayType:
    return array_type(value.type.array if isinstance(value.type, tile.RefType) else value)


# ---- what is written ------------------------------------------------------------------------------------------------


@dataclass
class _Pairs:
    """Makes pairs of the blocks of a region."""

    region: scheduled.ParallelOp
    feed: _Feed
    shared: Sequence[tuple[asynchronous.TensorCopyOp, int]]

    def write(self) -> None:
        feed = self.feed
        self.region.cluster = PAIR
        for copy, dim in self.shared:
            copy.multicast = (PAIR, dim)
        feed.empty.arrivals = PAIR * feed.empty.arrivals
        self._say_last()
        for op in feed.empty.result.uses:
            if isinstance(op.operation, asynchronous.ArriveOp | tensor_memory.MmaCommitOp):
                op.operation.everywhere = True
        self._meet()
        self._wait_for_all()

    def _meet(self) -> None:
        """Barriers in memory are there before the other block uses them."""
        block = self.region.body.block
        made = next(op for op in block.ops if isinstance(op, scheduled.BarrierOp) and op.scope == scheduled.EVERY_ROLE)
        block.insert_op_after(scheduled.BarrierOp(scope=scheduled.CLUSTER), made)

    def _say_last(self) -> None:
        """Signal the last stage as empty after all matmuls, if the loop does not."""
        feed = self.feed
        if any(isinstance(op, tensor_memory.MmaCommitOp) or op.trip is None for op in feed.says):
            return
        block = self.region.body.block
        (wait,) = (op for op in block.ops if isinstance(op, scheduled.MmaWaitOp))
        last = (feed.loops[-1].trips - 1) % feed.empty.count
        number = AffineMap(0, 0, (AffineExpr.constant(last),))
        block.insert_op_after(asynchronous.ArriveOp(mbarrier=feed.empty.result, number=number), wait)

    def _wait_for_all(self) -> None:
        """The role that copies ends when all stages are empty in both blocks: what copying to each once more would wait
        for."""
        role = self.feed.role.body.block
        last = role.last_op
        assert last is not None
        for more in range(self.feed.empty.count):
            role.insert_op_before(self._wait_behind(more), last)

    def _wait_behind(self, more: int) -> asynchronous.AwaitOp:
        """The phase that step `more` of one further tile would wait for."""
        waits, loops = self.feed.waits, self.feed.loops
        end = loops[0].end
        number = [] if end is None else list(loops[0].operands)
        trips = AffineExpr.constant(loops[0].trips) if end is None else end.results[0]
        counters: dict[SSAValue, AffineExpr]
        if len(loops) == 1:
            counters = {loops[0].body.block.args[0]: trips + more}
        else:
            counters = {loops[0].body.block.args[0]: trips, loops[1].body.block.args[0]: AffineExpr.constant(more)}
        by = [counters[symbol] for symbol in waits.symbols]
        return asynchronous.AwaitOp(
            mbarrier=waits.mbarrier,
            symbols=number,
            number=with_symbols(waits.number, by, len(number)),
            phase=with_symbols(waits.phase, by, len(number)),
        )
