"""Print a scheduled kernel as an LLVM module for NVPTX.

`BlockEmitter` emits the operations that all targets with warps share; asynchronous copies and MMAs, tensor memory,
roles and zones are NVIDIA's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.passes.vectors.nest_segments import round_up
from tilewright.passes.warps.tile_lower_to_warps import parsed
from tilewright.passes.warps.warp_space import SCALAR
from tilewright.records import dataclass
from tilewright.runtime.cuda.steps import TensorMap
from tilewright.runtime.zones import Zones
from tilewright.targets.cuda.atoms.copies import emit_commit, emit_copy, emit_wait
from tilewright.targets.cuda.atoms.hopper import TensorMapParameter, compute_before, fence_shared_writes
from tilewright.targets.cuda.atoms.matrices import Matrices, is_stored_by_matrices, words_of
from tilewright.targets.cuda.atoms.mma import Operand, emit_mma
from tilewright.targets.cuda.atoms.tensor_memory import TensorMemory, TensorOp
from tilewright.targets.cuda.atoms.wgmma import emit_wgmma, emit_wgmma_wait
from tilewright.targets.cuda.emit_roles import Roles, UseOp
from tilewright.targets.cuda.emit_zones import ZoneWriter
from tilewright.targets.cuda.intrinsics import NVIDIA
from tilewright.targets.simt.emit import BlockEmitter
from tilewright.targets.simt.emit_memory import SHARED_SPACE, Memory
from tilewright.targets.simt.emit_tiles import Held
from tilewright.targets.simt.fragments import Fragment, Value, i32, table_of
from tilewright.targets.simt.vectors import WIDEST_BYTES


@dataclass(frozen=True)
class KernelCode:
    """A kernel as LLVM text, and what launching it takes: blocks, threads of each, bytes of shared memory, in whole
    vectors, as LLVM reads them, the tensor maps that are parameters after its refs, what it records, and how many
    blocks are a cluster."""

    name: str
    text: str
    blocks: int
    threads: int
    shared_bytes: int
    tensor_maps: tuple[TensorMap, ...] = ()
    zones: Zones | None = None
    cluster: int = 1


def emit_kernel(kernel: tile.KernelOp, machine: Machine) -> KernelCode:
    """The LLVM module of a scheduled kernel.

    Raises:
        UnsupportedOnTargetError: an operation or an array that the target does not do.
    """
    (region,) = (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp))
    warps = 1 if region.warps is None else region.warps
    emitter = _Emitter(kernel, region, machine, warps, NVIDIA)
    emitter.emit()
    return KernelCode(
        kernel.sym_name,
        str(emitter.module),
        prod(region.shape),
        emitter.roles.threads,
        round_up(emitter.shared_bytes, WIDEST_BYTES),
        emitter.roles.tensor_maps,
        emitter.zones.zones,
        region.blocks_of_cluster,
    )


@dataclass
class _Emitter(BlockEmitter):
    # The registers that asynchronous matmuls read, by their results.
    reads: dict[SSAValue, Sequence[Value]] = field(init=False, default_factory=dict[SSAValue, Sequence[Value]])

    def __post_init__(self) -> None:
        lanes, residency = self.machine.axes["lane"], self.machine.residency
        registers = self.warps * lanes * self.machine.axes["reg"]
        shares = residency is not None and registers > residency.registers
        self.roles = Roles(self.kernel, self.region, self.warps, lanes, shares)
        self.tensor_memory = TensorMemory()
        self.zones = ZoneWriter.of(self.kernel, self.machine.clock_hertz)

    def _more_parameters(self) -> list[ir.Type]:
        return [TensorMapParameter() for _ in self.roles.tensor_maps]

    def _begin_function(self, function: Any) -> None:
        self.roles.begin(function)

    def _shared_alignment(self) -> int:
        """Buffers of tensor copies and of the MMAs of warpgroups are aligned to the period of swizzles."""
        by_warpgroups = any(
            isinstance(op, scheduled.MmaWaitOp | asynchronous.TensorCopyOp) for op in self.kernel.walk()
        )
        return scheduled.BUFFER_ALIGNMENT_BYTES if by_warpgroups else super()._shared_alignment()

    # ---- operations -------------------------------------------------------------------------------------------------

    def _op(self, op: Operation) -> None:
        if isinstance(op, scheduled.CopyOp):
            self._copy(op)
        elif isinstance(op, scheduled.CommitOp | scheduled.WaitOp | asynchronous.FenceOp):
            self._order(op)
        elif isinstance(op, asynchronous.TensorStoreOp | asynchronous.StoreWaitOp):
            self._store_by_the_machine(op)
        elif isinstance(op, scheduled.RoleOp | scheduled.SetRegistersOp | asynchronous.MbarrierOp | UseOp):
            self._by_roles(op)
        elif isinstance(op, tensor_memory.TensorPutOp):
            self.tensor_memory.put(self.threads, op, self._fragment(op.value))
        elif isinstance(op, TensorOp):
            self.tensor_memory.emit(self.threads, op, self.memories, self.indices, self._place)
        elif isinstance(op, scheduled.RecordOp):
            self._record(op)
        else:
            super()._op(op)

    def _by_roles(self, op: scheduled.RoleOp | scheduled.SetRegistersOp | asynchronous.MbarrierOp | UseOp) -> None:
        """Roles, and what they wait for and share."""
        if isinstance(op, scheduled.RoleOp):
            self.roles.run(self.threads, op, lambda: self._block(op.body.block))
        elif isinstance(op, scheduled.SetRegistersOp):
            self.roles.set_registers(self.builder, op)
        elif isinstance(op, asynchronous.MbarrierOp):
            self._mbarriers(op)
        else:
            self.roles.use(self.threads, op, self.memories, self.indices)

    def _record(self, op: scheduled.RecordOp) -> None:
        is_first = self.roles.notes(self.threads, op)
        self.zones.emit(self.builder, op, self.memories[op.records].pointer, is_first)

    def _order(self, op: scheduled.CommitOp | scheduled.WaitOp | asynchronous.FenceOp) -> None:
        """Emit fences, commits and waits."""
        match op:
            case scheduled.CommitOp():
                emit_commit(self.builder)
            case scheduled.WaitOp():
                emit_wait(self.builder, op.pending)
            case asynchronous.FenceOp():
                fence_shared_writes(self.builder)

    def _barrier(self, op: scheduled.BarrierOp) -> None:
        self.roles.barrier(self.builder, op)
        self.tensor_memory.meet(self.builder, op.scope)

    def _tile(self, op: Operation) -> Held:
        match op:
            case tensor_memory.TensorLoadOp():
                return self.tensor_memory.load(self.threads, op)
            case scheduled.MmaWaitOp():
                computed = [value for each in op.computed for value in self._fragment(each).values.values()]
                compute_before(self.builder, computed)
                accumulator, reads = self._fragment(op.accumulator), self.reads.get(op.accumulator, ())
                return emit_wgmma_wait(self.threads, accumulator, op.pending, reads)
            case _:
                return super()._tile(op)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _copy(self, op: scheduled.CopyOp) -> None:
        symbols = [self._symbol(symbol) for symbol in op.symbols]
        emit_copy(self.threads, op, self.memories[op.source], self.memories[op.destination], symbols)

    def _store_by_the_machine(self, op: asynchronous.TensorStoreOp | asynchronous.StoreWaitOp) -> None:
        """Tensor stores, and waits for them."""
        if isinstance(op, asynchronous.TensorStoreOp):
            self.roles.store(self.threads, op, self.memories[op.source], self.indices)
        else:
            self.roles.wait_for_stores(self.threads)

    def _place(self, op: asynchronous.MbarrierOp | tensor_memory.TensorAllocOp) -> Value:
        """The shared memory address of an object that is no buffer."""
        if op.offset_bytes is None:
            raise CompilerBug(f"the result of `{op.name}` has no address")
        offset_bytes = op.offset_bytes
        self.shared_bytes = max(self.shared_bytes, offset_bytes + op.bytes)
        return self.builder.gep(self.shared, [i32(offset_bytes)], source_etype=ir.IntType(8))

    def _mbarriers(self, op: asynchronous.MbarrierOp) -> None:
        start = self._place(op)
        self.memories[op.result] = Memory.of(start, tile.ref_type(op.result), None, SHARED_SPACE)
        self.roles.make(self.threads, op, start)

    def _store_fragment(self, op: tile.StoreOp, fragment: Fragment) -> None:
        """Store a tile: by matrices where the chip and the layouts have them."""
        memory = self.memories[op.destination]
        if self._is_stored_by_matrices(op, memory):
            Matrices(self.threads, memory, fragment.layout).store(words_of(self.builder, fragment))
        else:
            super()._store_fragment(op, fragment)

    def _is_stored_by_matrices(self, op: tile.StoreOp, memory: Memory) -> bool:
        """Whether all of a buffer is stored, by all warps."""
        of_block = tile.ref_type(op.destination).space.data == scheduled.BLOCK
        layout = self._layout(op.value)
        return (
            self.machine.stores_matrices
            and of_block
            and memory.dtype.bits == 16
            and op.map == AffineMap.identity(len(memory.shape))
            and memory.shape == layout.static_shape
            and not self.threads.unheld(table_of(layout))
            and is_stored_by_matrices(layout, memory.layout)
        )

    # ---- matmuls ----------------------------------------------------------------------------------------------------

    def _mma(self, op: scheduled.MmaOp) -> Held:
        if op.atom == SCALAR:
            return super()._mma(op)
        left, right = (self._operand(v, f) for v, f in zip((op.left, op.right), op.fragments, strict=True))
        if op.asynchronous and not isinstance(left, Matrices) and isinstance(right, Memory):
            begun = emit_wgmma(self.threads, left, right, self._fragment(op.accumulator))
            self.reads[op.result] = begun.reads
            return begun.sums
        return emit_mma(self.threads, op.atom, left, right, self._fragment(op.accumulator))

    def _operand(self, value: SSAValue, fragment: str) -> Operand:
        if not isinstance(value.type, tile.RefType):
            return self._fragment(value)
        memory = self.memories[value]
        return Matrices(self.threads, memory, parsed(fragment)) if fragment else memory
