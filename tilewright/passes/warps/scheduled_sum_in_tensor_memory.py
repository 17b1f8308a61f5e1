"""Accumulate the matmuls of a chain in tensor memory; one thread of the consuming warps issues them.

Each matmul of the consuming warps that is not waited for at once has its own columns of tensor memory. Its initial sum
is stored there, a barrier signals the issuing thread that all warps are done with the columns and the operands, and a
commit completes a phase of an mbarrier; the wait for the matmul becomes a wait for that phase and a load of the sum.
Other matmuls and computation continue meanwhile.

Before (sm_100a):
    builtin.module {
      func.func @main(%0: tensor<128x16xf16>, %1: tensor<16x16xf16>) -> tensor<128xf32> {
        %2 = array.call(%0, %1) {callee = "chain"} : tensor<128xf32>
        func.return %2 : tensor<128xf32>
      }
      tile.kernel() {sym_name = "chain", grid = array<i64>, effects = ["in", "in", "out"]} do {
      ^bb0(%0: !tile.ref<tensor<128x16xf16>>, %1: !tile.ref<tensor<16x16xf16>>, %2: !tile.ref<tensor<128xf32>>):
        scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 4 : index} do {
          %3 = tile.load(%0) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<128x16xf16,
            "(128, 16) : [2@reg*8 4@warp 16@lane*2 | 2@lane 8@reg]">
          %4 = tile.load(%1) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<16x16xf16,
            "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %5 = tile.full() {value = 0.000000e+00 : f64} : tensor<128x16xf32>
          %6 = tile.relayout(%5) {layout = "(128, 16) : [4@warp 32@lane | 16@reg]", strict = false} :
            tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %7 = scheduled.alloc() : !tile.ref<tensor<128x16xf16>, "block",
            "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %8 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%3, %7) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%4, %8) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %9 = scheduled.mma(%7, %8, %6) {atom = "tcgen05, 1 warpgroup", asynchronous = true} : tensor<128x16xf32,
            "(128, 16) : [4@warp 32@lane | 16@reg]">
          %10 = scheduled.mma_wait(%9) {pending = 0 : index} : tensor<128x16xf32,
            "(128, 16) : [4@warp 32@lane | 16@reg]">
          %11 = tile.map(%10) {fn = "negative"} : tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %12 = scheduled.alloc() : !tile.ref<tensor<128x16xf16>, "block",
            "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %13 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%3, %12) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%4, %13) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %14 = scheduled.mma(%12, %13, %11) {atom = "tcgen05, 1 warpgroup", asynchronous = true} :
            tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %15 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<128x16xf32,
            "(128, 16) : [4@warp 32@lane | 16@reg]">
          %16 = tile.reduce(%15) {fn = "add", axes = array<i64: 1>} : tensor<128xf32,
            "(128) : [4@warp 32@lane] + partial[add 16@reg]">
          %17 = tile.relayout(%16) {layout = "(128) : [4@warp 32@lane]", strict = false} : tensor<128xf32,
            "(128) : [4@warp 32@lane]">
          tile.store(%17, %2) {map = affine_map<(d0) -> (d0)>}
          scheduled.end()
        }
        tile.yield()
      }
    }
After:
    builtin.module {
      func.func @main(%0: tensor<128x16xf16>, %1: tensor<16x16xf16>) -> tensor<128xf32> {
        %2 = array.call(%0, %1) {callee = "chain"} : tensor<128xf32>
        func.return %2 : tensor<128xf32>
      }
      tile.kernel() {sym_name = "chain", grid = array<i64>, effects = ["in", "in", "out"]} do {
      ^bb0(%0: !tile.ref<tensor<128x16xf16>>, %1: !tile.ref<tensor<16x16xf16>>, %2: !tile.ref<tensor<128xf32>>):
        scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 4 : index} do {
          %3 = scheduled.tensor_alloc() {columns = 32 : index} : !tile.ref<tensor<128x32xf32>, "tensor",
            "(128, 32) : [128@tmem.row | 32@tmem.col]">
          %4 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
          %5 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
          scheduled.barrier() {scope = "every role"}
          %6 = scheduled.tensor_part(%3) {column = 0 : index} : !tile.ref<tensor<128x16xf32>, "tensor",
            "(128, 16) : [128@tmem.row | 16@tmem.col]">
          %7 = scheduled.tensor_part(%3) {column = 16 : index} : !tile.ref<tensor<128x16xf32>, "tensor",
            "(128, 16) : [128@tmem.row | 16@tmem.col]">
          %8 = tile.load(%0) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<128x16xf16,
            "(128, 16) : [2@reg*8 4@warp 16@lane*2 | 2@lane 8@reg]">
          %9 = tile.load(%1) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<16x16xf16,
            "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %10 = scheduled.alloc() : !tile.ref<tensor<128x16xf16>, "block",
            "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %11 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%8, %10) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%9, %11) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          scheduled.tensor_fence() {side = "before"}
          scheduled.barrier() {scope = "block"}
          scheduled.tensor_fence() {side = "after"}
          scheduled.tensor_mma(%10, %11, %6) {atom = "tcgen05, 1 warpgroup", adds = affine_map<() -> (0)>}
          scheduled.mma_commit(%4) {number = affine_map<() -> (0)>}
          scheduled.await(%4) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
          scheduled.tensor_fence() {side = "after"}
          %12 = scheduled.tensor_load(%6) : tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %13 = tile.map(%12) {fn = "negative"} : tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %14 = scheduled.alloc() : !tile.ref<tensor<128x16xf16>, "block",
            "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %15 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%8, %14) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%9, %15) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          scheduled.tensor_put(%13, %7)
          scheduled.tensor_fence() {side = "before"}
          scheduled.barrier() {scope = "block"}
          scheduled.tensor_fence() {side = "after"}
          scheduled.tensor_mma(%14, %15, %7) {atom = "tcgen05, 1 warpgroup", adds = affine_map<() -> (1)>}
          scheduled.mma_commit(%5) {number = affine_map<() -> (0)>}
          scheduled.await(%5) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
          scheduled.tensor_fence() {side = "after"}
          %16 = scheduled.tensor_load(%7) : tensor<128x16xf32, "(128, 16) : [4@warp 32@lane | 16@reg]">
          %17 = tile.reduce(%16) {fn = "add", axes = array<i64: 1>} : tensor<128xf32,
            "(128) : [4@warp 32@lane] + partial[add 16@reg]">
          %18 = tile.relayout(%17) {layout = "(128) : [4@warp 32@lane]", strict = false} : tensor<128xf32,
            "(128) : [4@warp 32@lane]">
          tile.store(%18, %2) {map = affine_map<(d0) -> (d0)>}
          scheduled.tensor_fence() {side = "before"}
          scheduled.barrier() {scope = "block"}
          scheduled.tensor_free(%3)
          scheduled.end()
        }
        tile.yield()
      }
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import Operation
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.cost.warps.products import tensor_columns
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue import tensor_memory_accumulator
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copying_role import barriers
from tilewright.passes.warps.operand_rings import drop_unused
from tilewright.primitives import ArrayType


class ScheduledSumInTensorMemoryPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-sum-in-tensor-memory"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                ops = [op for op in region.walk() if isinstance(op, scheduled.MmaOp)]
                products = [op for op in ops if unit.machine.sums_in_tensor_memory(op.atom)]
                if products:
                    columns = _Writer(region, products).write()
                    decision = f"{len(products)} matmuls accumulate in tensor memory"
                    unit.remarks.append(Remark(self.name, kernel.sym_name, decision, f"{columns} columns"))


def _begins_with_zeros(product: scheduled.MmaOp) -> bool:
    value = product.accumulator
    while isinstance(value.owner, tile.RelayoutOp):
        value = value.owner.source
    return isinstance(value.owner, tile.FullOp) and not value.owner.value


def _wait_of(product: scheduled.MmaOp) -> scheduled.MmaWaitOp:
    users = [use.operation for use in product.result.uses]
    if len(users) != 1 or not isinstance(users[0], scheduled.MmaWaitOp):
        raise CompilerBug("a matmul in tensor memory is not waited for once")
    return users[0]


def _is_brought(product: scheduled.MmaOp) -> bool:
    """Whether no thread stores the operands: whoever has them copied waits for that."""
    for operand in (product.left, product.right):
        buffer = operand.owner.ring if isinstance(operand.owner, scheduled.StageOp) else operand
        if any(isinstance(use.operation, tile.StoreOp) for use in buffer.uses):
            return False
    return True


@dataclass
class _Writer:
    region: scheduled.ParallelOp
    products: Sequence[scheduled.MmaOp]

    def write(self) -> int:
        """Gives how many columns the sums take."""
        kinds = [(_begins_with_zeros(product), array_type(product.accumulator)) for product in self.products]
        # Products that begin with zeros follow each other, and those that go on with a sum do.
        starts: dict[tuple[bool, ArrayType], int] = {}
        taken = 0
        for kind in kinds:
            if kind not in starts:
                starts[kind] = taken
                taken += kind[1].shape[1]
        whole = self._allocated(kinds[0][1], taken)
        parts = {kind: _part(whole, kind[1], start) for kind, start in starts.items()}
        done = [barriers(1, 1) for _ in self.products]
        meeting = self._meeting()
        block = self.region.body.block
        block.insert_ops_before([whole, *done], meeting)
        block.insert_ops_after(list(parts.values()), meeting)
        used: set[tuple[bool, ArrayType]] = set()
        for product, kind, mbarrier in zip(self.products, kinds, done, strict=True):
            is_alone = kind not in used and product.parent_op() is self.region and kind[0] and _is_brought(product)
            used.add(kind)
            self._begin(product, parts[kind], mbarrier, adds=not kind[0], told=[] if is_alone else _told())
            self._wait(product, parts[kind], mbarrier)
            start = product.accumulator
            erase(product)
            drop_unused(start)
        end = block.last_op
        assert end is not None
        block.insert_ops_before([*_told(), tensor_memory.TensorFreeOp(tensor=whole.result)], end)
        return taken

    def _allocated(self, type: ArrayType, columns: int) -> tensor_memory.TensorAllocOp:
        all_columns = tensor_columns(columns)
        if all_columns > tensor_memory.COLUMNS:
            raise CompilerBug(f"matmuls of a chain take {columns} columns of tensor memory")
        shape = (type.shape[0], all_columns)
        result = tile.ref(ArrayType(shape, type.dtype), tensor_memory.TENSOR, str(tensor_memory_accumulator(shape)))
        return tensor_memory.TensorAllocOp(columns=all_columns, result=result)

    def _meeting(self) -> scheduled.BarrierOp:
        """The barrier of all roles, made if there is none."""
        block = self.region.body.block
        for op in block.ops:
            if isinstance(op, scheduled.BarrierOp) and op.scope == scheduled.EVERY_ROLE:
                return op
        made = scheduled.BarrierOp(scope=scheduled.EVERY_ROLE)
        first = block.first_op
        assert first is not None
        block.insert_op_before(made, first)
        return made

    def _begin(
        self,
        product: scheduled.MmaOp,
        part: tensor_memory.TensorPartOp,
        mbarrier: asynchronous.MbarrierOp,
        adds: bool,
        told: Sequence[Operation],
    ) -> None:
        """Issue a matmul after its initial sum is stored, if it `adds` to one. The operations in `told` signal that all
        warps are done with the previous contents."""
        put = [tensor_memory.TensorPutOp(value=product.accumulator, destination=part.result)] if adds else []
        begun = tensor_memory.TensorMmaOp(
            left=product.left,
            right=product.right,
            accumulator=part.result,
            atom=product.atom,
            adds=_number(int(adds)),
        )
        begun.location = product.location
        commit = tensor_memory.MmaCommitOp(mbarrier=mbarrier.result, number=_number(0))
        fences = [_fence(tensor_memory.AFTER)] if told else []
        insert_before(product, *put, *told, *fences, begun, commit)

    def _wait(
        self, product: scheduled.MmaOp, part: tensor_memory.TensorPartOp, mbarrier: asynchronous.MbarrierOp
    ) -> None:
        """A trip's matmul completes a phase of its own."""
        wait = _wait_of(product)
        loop = product.parent_op()
        trips = [loop.body.block.args[0]] if isinstance(loop, tile.ForOp) else []
        phase = AffineMap(0, len(trips), (AffineExpr.symbol(0) if trips else AffineExpr.constant(0),))
        loaded = tensor_memory.TensorLoadOp(source=part.result, result=wait.result.type)
        awaited = asynchronous.AwaitOp(
            mbarrier=mbarrier.result, symbols=trips, number=_number(0, len(trips)), phase=phase
        )
        insert_before(wait, awaited, _fence(tensor_memory.AFTER), loaded)
        wait.result.replace_all_uses_with(loaded.result)
        erase(wait)


def _part(whole: tensor_memory.TensorAllocOp, type: ArrayType, column: int) -> tensor_memory.TensorPartOp:
    result = tile.ref(type, tensor_memory.TENSOR, str(tensor_memory_accumulator(type.shape)))
    return tensor_memory.TensorPartOp(tensor=whole.result, column=column, result=result)


def _number(value: int, symbols: int = 0) -> AffineMap:
    return AffineMap(0, symbols, (AffineExpr.constant(value),))


def _fence(side: str) -> tensor_memory.TensorFenceOp:
    return tensor_memory.TensorFenceOp(side=side)


def _told() -> list[Operation]:
    """All warps indicate each other of what they did in tensor memory."""
    return [_fence(tensor_memory.BEFORE), scheduled.BarrierOp(scope=scheduled.BLOCK)]
