"""Store results from shared memory by tensor copies (TMA stores).

The pass applies to kernels with a producer warp, on machines with TMA. A store copies boxes, clipped to the array. The
buffer gets the rows and swizzle of TMA boxes, if lanes of a warp then write to different banks. If they would not, or
TMA does not store such a window, threads store it, and a remark gives the reason.

Before (sm_90a):
    func.func @main(%x: tensor<64x64xf16>) -> tensor<64x64xf16> {
      %y = array.call(%x) {callee = "copied"} : tensor<64x64xf16>
      func.return %y : tensor<64x64xf16>
    }
    tile.kernel() {sym_name = "copied", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x64xf16>>, %1: !tile.ref<tensor<64x64xf16>>):
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%2: index):
        scheduled.role() {role = "copies", warps = 1 : index} do {
          scheduled.end()
        }
        %3 = tile.load(%0, %2) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 64)), d1)>} : tensor<64x64xf16,
            "(64, 64) : [4@warp 2@reg*2 8@lane*4 | 8@reg*4 4@lane 2@reg]">
        %4 = scheduled.alloc() : !tile.ref<tensor<64x64xf16>, "block", "(64, 64) : [64@mem.shared*64 | 64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.barrier() {scope = "block"}
        %5 = tile.load(%4) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x64xf16,
            "(64, 64) : [4@reg*8 4@warp 4@lane*8 | 8@lane 8@reg]">
        tile.store(%5, %1, %2) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 64)), d1)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x64xf16>) -> tensor<64x64xf16> {
      %y = array.call(%x) {callee = "copied"} : tensor<64x64xf16>
      func.return %y : tensor<64x64xf16>
    }
    tile.kernel() {sym_name = "copied", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x64xf16>>, %1: !tile.ref<tensor<64x64xf16>>):
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%2: index):
        scheduled.role() {role = "copies", warps = 1 : index} do {
          scheduled.end()
        }
        %3 = tile.load(%0, %2) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 64)), d1)>} : tensor<64x64xf16,
            "(64, 64) : [4@warp 2@reg*2 8@lane*4 | 8@reg*4 4@lane 2@reg]">
        %4 = scheduled.alloc() : !tile.ref<tensor<64x64xf16>, "block",
            "(64, 64) : [8@mem.shared*512 8@mem.shared*64 | 64@mem.shared] + swizzle[mem.shared{3:6}^{6:9}]">
        scheduled.barrier() {scope = "block"}
        tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.fence()
        scheduled.barrier() {scope = "block"}
        scheduled.tensor_store(%4, %1, %2) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 64)), d1)>}
        scheduled.store_wait()
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dialects.scheduled import asynchronous
from tilewright.errors import LayoutError
from tilewright.layout import Layout
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.tensor_windows import boxes_of
from tilewright.passes.warps.tile_lower_to_warps import layout_of
from tilewright.passes.warps.warp_space import SHARED, matrix_buffer
from tilewright.primitives import ArrayType


class ScheduledStoreTensorsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-store-tensors"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                ops = list(region.body.block.ops)
                if any(isinstance(op, scheduled.RoleOp) for op in ops):
                    self._apply(unit, kernel, [trip for op in ops if (trip := _trip_of(op)) is not None])

    def _apply(self, unit: Unit, kernel: tile.KernelOp, trips: list[_Trip]) -> None:
        for trip in trips:
            try:
                buffer = _buffer(trip, unit.machine)
            except Refused as reason:
                unit.remarks.append(Remark(self.name, kernel.sym_name, "stored by threads", str(reason)))
                continue
            _write(trip, buffer)
            shape = " x ".join(map(str, buffer.static_shape))
            unit.remarks.append(Remark(self.name, kernel.sym_name, "stored by TMA", f"a tile of {shape}"))


@dataclass(frozen=True)
class _Trip:
    """A tile that is written to a buffer, read again and stored."""

    written: tile.StoreOp
    buffer: scheduled.AllocOp
    read: tile.LoadOp
    stored: tile.StoreOp


def _trip_of(op: object) -> _Trip | None:
    """The trip of which an operation is the end."""
    if not isinstance(op, tile.StoreOp) or not isinstance(op.destination, BlockArgument):
        return None
    read = op.value.owner
    if not isinstance(read, tile.LoadOp) or len(list(op.value.uses)) > 1:
        return None
    buffer = read.source.owner
    if not isinstance(buffer, scheduled.AllocOp) or buffer.stages is not None:
        return None
    users = [use.operation for use in buffer.result.uses]
    written = [user for user in users if isinstance(user, tile.StoreOp)]
    together = {each.parent_block() for each in (*users, buffer, op)}
    if len(users) != 2 or len(written) != 1 or len(together) != 1:
        return None
    whole = AffineMap.identity(len(tile.ref_type(buffer.result).shape))
    is_whole = read.map == whole and written[0].map == whole
    return _Trip(written[0], buffer, read, op) if is_whole else None


def _buffer(trip: _Trip, machine: Machine) -> Layout:
    """The layout of a buffer from which the machine stores.

    Raises:
        Refused: it does not.
    """
    type, target = tile.ref_type(trip.buffer.result), tile.ref_type(trip.stored.destination)
    item, map = type.dtype.itemsize, trip.stored.map
    if any(not isinstance(symbol.type, IndexType) for symbol in trip.stored.symbols):
        raise Refused("the result is scattered")
    if len(type.shape) != 2:
        raise Refused(f"a result of {len(type.shape)} dims is no matrix")
    last = linear_form(map.results[-1], (Index(0), Index(1)))
    if last is None or len(last.dims) != 1:
        raise Refused("neighbours in the array are not neighbours in the tile")
    try:
        buffer = matrix_buffer(type.shape, 8 * item, last.dims[0][0])
    except LayoutError as error:
        raise Refused(error.message) from error
    boxes_of(map, target, buffer)
    memory, held = machine.memory_of(SHARED), layout_of(trip.written.value)
    ports = MemoryPorts(memory.banks, memory.bank_bytes, memory.widest_bytes)
    access = None if held is None else register_access(held, buffer, item, ports)
    if access is None or not access.is_ideal:
        raise Refused("lanes would have bank conflicts")
    return buffer


def _write(trip: _Trip, layout: Layout) -> None:
    """The buffer gets the layout, and the machine takes it from there."""
    block = block_of(trip.read)
    held = tile.ref_type(trip.buffer.result)
    type = tile.ref(ArrayType(held.shape, held.dtype), scheduled.BLOCK, str(layout))
    buffer = scheduled.AllocOp(result=type)
    block.insert_op_before(buffer, trip.buffer)
    trip.written.operands[1] = buffer.result
    block.insert_op_after(asynchronous.FenceOp(), trip.written)
    stored = asynchronous.TensorStoreOp(
        source=buffer.result,
        destination=trip.stored.destination,
        symbols=trip.stored.symbols,
        map=trip.stored.map,
    )
    stored.location = trip.stored.location
    block.insert_ops_before([stored, asynchronous.StoreWaitOp()], trip.read)
    for op in (trip.stored, trip.read, trip.buffer):
        erase(op)
