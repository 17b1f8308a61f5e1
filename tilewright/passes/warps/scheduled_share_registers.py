"""Reallocate registers from the producer warp to the MMA warpgroups (setmaxnreg).

All threads of a block start with the same number of registers. If accumulators of several warpgroups leave few for the
other values, the producer warp becomes a warpgroup, of which three warps exit at once: only full warpgroups can release
and request registers. The producer keeps the fewest that the machine allows, the others share the rest.

Before (sm_90a):
    func.func @main(%x: tensor<128x16xf16>, %y: tensor<16x256xf16>) -> tensor<128x256xf32> {
      %r = array.call(%x, %y) {callee = "multiply"} : tensor<128x256xf32>
      func.return %r : tensor<128x256xf32>
    }
    tile.kernel() {sym_name = "multiply", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<128x16xf16>>, %1: !tile.ref<tensor<16x256xf16>>, %2: !tile.ref<tensor<128x256xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 8 : index} do {
        %3 = scheduled.alloc() : !tile.ref<tensor<16x256xf16>, "block",
            "(16, 256) : [16@mem.shared*256 | 256@mem.shared]">
        %4 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          scheduled.expect(%4) {number = affine_map<() -> (0)>, bytes = 8192 : index}
          scheduled.tensor_copy(%1, %3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>, number = affine_map<() -> (0)>}
          scheduled.end()
        }
        %5 = tile.load(%0) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<128x16xf16,
            "(128, 16) : [8@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %6 = tile.full() {value = 0.000000e+00 : f64} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        scheduled.await(%4) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
        %7 = scheduled.mma(%5, %3, %6) {atom = "wgmma, left in registers", asynchronous = true} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        %8 = scheduled.mma_wait(%7) {pending = 0 : index} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        tile.store(%8, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<128x16xf16>, %y: tensor<16x256xf16>) -> tensor<128x256xf32> {
      %r = array.call(%x, %y) {callee = "multiply"} : tensor<128x256xf32>
      func.return %r : tensor<128x256xf32>
    }
    tile.kernel() {sym_name = "multiply", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<128x16xf16>>, %1: !tile.ref<tensor<16x256xf16>>, %2: !tile.ref<tensor<128x256xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 8 : index, registers = 168 : index} do {
        %3 = scheduled.alloc() : !tile.ref<tensor<16x256xf16>, "block",
            "(16, 256) : [16@mem.shared*256 | 256@mem.shared]">
        %4 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 4 : index, leaving = 3 : index} do {
          scheduled.set_registers() {count = 24 : index}
          scheduled.expect(%4) {number = affine_map<() -> (0)>, bytes = 8192 : index}
          scheduled.tensor_copy(%1, %3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>, number = affine_map<() -> (0)>}
          scheduled.end()
        }
        scheduled.set_registers() {count = 240 : index}
        %5 = tile.load(%0) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<128x16xf16,
            "(128, 16) : [8@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %6 = tile.full() {value = 0.000000e+00 : f64} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        scheduled.await(%4) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
        %7 = scheduled.mma(%5, %3, %6) {atom = "wgmma, left in registers", asynchronous = true} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        %8 = scheduled.mma_wait(%7) {pending = 0 : index} : tensor<128x256xf32,
            "(128, 256) : [8@warp 2@reg*2 8@lane*4 | 32@reg*4 4@lane 2@reg]">
        tile.store(%8, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine, Residency
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copying_role import COPIES

# What a thread that multiplies needs beside the tiles of its products: addresses, rows' maxima, what is being computed
# of a tile. With 40 nothing is spilled in products of 128 x 256 by two warpgroups, nor in attention by 64 keys.
_OTHERS = 40


class ScheduledShareRegistersPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-share-registers"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                share = _share_of(region, unit.machine)
                if share is not None:
                    share.write()
                    unit.remarks.append(Remark(self.name, kernel.sym_name, share.decision, share.reason))


@dataclass(frozen=True)
class _Share:
    """`begin` registers of each thread when a block begins; those that multiply have `most` then, of which tiles of
    matmuls take `needed`, and the producer's have `fewest`."""

    region: scheduled.ParallelOp
    role: scheduled.RoleOp
    begin: int
    most: int
    needed: int
    fewest: int

    @property
    def decision(self) -> str:
        return f"MMA warpgroups have {self.most} registers a thread"

    @property
    def reason(self) -> str:
        return f"matmuls need {self.needed}; the producer keeps {self.fewest} of its initial {self.begin}"

    def write(self) -> None:
        """In the role and after it, first of all."""
        self.region.registers = self.begin
        self.role.warps = WARPGROUP
        self.role.leaving = WARPGROUP - 1
        first = self.role.body.block.first_op
        assert first is not None
        self.role.body.block.insert_op_before(_set(self.fewest), first)
        self.region.body.block.insert_op_after(_set(self.most), self.role)


def _set(count: int) -> scheduled.SetRegistersOp:
    return scheduled.SetRegistersOp(count=count)


def _share_of(region: scheduled.ParallelOp, machine: Machine) -> _Share | None:
    """The reallocation of registers; None if each thread has enough, or there is no producer."""
    roles = [op for op in region.body.block.ops if isinstance(op, scheduled.RoleOp)]
    warps = 1 if region.warps is None else region.warps
    residency, shares, lanes = machine.residency, machine.register_shares, machine.axes.get("lane", 1)
    if len(roles) != 1 or roles[0].role != COPIES or roles[0].working > 1 or warps % WARPGROUP:
        return None
    if residency is None or shares is None:
        return None
    needed = _of_products(region, warps * lanes)
    groups = warps // WARPGROUP
    begin = min(shares.most, _room(residency, (groups + 1) * WARPGROUP, lanes))
    most = min(shares.most, (begin * (groups + 1) - shares.fewest) // groups // shares.step * shares.step)
    enough = min(shares.most, _room(residency, warps + roles[0].warps, lanes))
    if needed + _OTHERS <= enough or most <= begin:
        return None
    return _Share(region, roles[0], begin, most, needed, shares.fewest)


def _room(residency: Residency, warps: int, lanes: int) -> int:
    """Registers of a thread where a block of so many warps is alone: each partition has some of them, whose registers
    are given out in units."""
    of_a_partition = -(-warps // residency.partitions)
    of_a_warp = residency.registers // residency.partitions // of_a_partition
    return of_a_warp // residency.register_unit * residency.register_unit // lanes


def _of_products(region: scheduled.ParallelOp, threads: int) -> int:
    """Registers of a thread that hold asynchronous MMAs, and what they read from registers: of the loop or, where there
    is none, of the block that has the most."""
    products = [op for op in region.walk() if isinstance(op, scheduled.MmaOp) and op.asynchronous]
    around = dict.fromkeys(op.parent_block() for op in products)
    together = ([op for op in products if op.parent_block() is block] for block in around)
    return max((_held(ops, threads) for ops in together), default=0)


def _held(products: Sequence[scheduled.MmaOp], threads: int) -> int:
    held: list[SSAValue] = [op.result for op in products]
    held += [op.left for op in products if not isinstance(op.left.type, tile.RefType)]
    types = [array_type(value) for value in held]
    return sum(-(-prod(type.shape) * type.dtype.itemsize // 4 // threads) for type in types)
