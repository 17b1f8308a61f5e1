"""Products of matrices written by hand with the emitters of Hopper and Blackwell: a warp copies, others multiply.

C (M x N, f32) = A (M x K, bf16) @ B, a tile of 128 x 128 a block, 64 of K a step, three stages. Edges are left to the
tensor copies. `right_major`: "k" for B stored as (N, K), "mn" as (K, N).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from tilewright import dtypes
from tilewright.layout.catalogue import shared_matrix
from tilewright.targets.cuda.atoms import blackwell, hopper
from tilewright.targets.cuda.atoms.descriptors import OperandFields, descriptor_of, matrix_descriptor

Value = Any
I32, I8 = ir.IntType(32), ir.IntType(8)
TILE, DEPTH, STAGES = 128, 64, 3
OPERAND_BYTES, RESULT_BYTES = TILE * DEPTH * 2, TILE * TILE * 4
STAGE_BYTES = 2 * OPERAND_BYTES
BARRIERS = STAGES * STAGE_BYTES + RESULT_BYTES
SHARED_BYTES = BARRIERS + 128
SHARED = ir.PointerType(addrspace=3)
CONSUMERS, TCGEN05_THREADS = 2, 192
WGMMA_THREADS = 128 * CONSUMERS + 32


def i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def operand(major: str) -> OperandFields:
    """A tile of an operand as tensor copies of 128-byte lines leave it."""
    layout = shared_matrix((TILE, DEPTH), 16, 128, contiguous_dim=1 if major == "k" else 0)
    fields = descriptor_of(layout, dtypes.bf16)
    assert isinstance(fields, OperandFields)
    return fields


class Kernel:
    """A kernel under construction: parameters are the tensor maps of A, B and C; grid (tiles of N, tiles of M)."""

    def __init__(self, name: str, threads: int, right_major: str) -> None:
        self.module = ir.Module(name=name)
        self.module.triple = "nvptx64-nvidia-cuda"
        types = [hopper.TensorMapParameter()] * 3
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), types), name)
        function.calling_convention = "ptx_kernel"
        function.attributes.add("nounwind")
        self.builder: Any = ir.IRBuilder(function.append_basic_block("entry"))
        self.maps = [hopper.tensor_map(argument) for argument in function.args]
        shared = ir.GlobalVariable(self.module, ir.ArrayType(I8, 0), "tw_shared", addrspace=3)
        shared.linkage, shared.align = "external", 1024
        self.base = ir.FormattedConstant(SHARED, shared.get_reference())
        self.thread = self.special("tid.x")
        self.warp, self.lane = self.builder.udiv(self.thread, i32(32)), self.builder.urem(self.thread, i32(32))
        self.row = self.builder.mul(self.special("ctaid.y"), i32(TILE))
        self.column = self.builder.mul(self.special("ctaid.x"), i32(TILE))
        self.left, self.right = operand("k"), operand(right_major)
        self.threads = threads

    def special(self, name: str) -> Value:
        return hopper.chip(self.builder, f"read.ptx.sreg.{name}", I32)

    def at(self, offset: Value) -> Value:
        """A place in shared memory."""
        offset = i32(offset) if isinstance(offset, int) else offset
        return self.builder.gep(self.base, [offset], source_etype=I8)

    def barrier(self, number: Value) -> Value:
        """Numbers 0 on: a stage is full; STAGES on: a stage is empty."""
        number = i32(number) if isinstance(number, int) else number
        return self.at(self.builder.add(self.builder.mul(number, i32(8)), i32(BARRIERS)))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition):
            yield

    def loop(self, count: int, values: list[Value], body: Callable[[Value, list[Value]], list[Value]]) -> list[Value]:
        """`body` gives the values of the next step from the number of the step and its values."""
        builder, before = self.builder, self.builder.block
        block, after = builder.append_basic_block("loop"), builder.append_basic_block("after_loop")
        builder.branch(block)
        builder.position_at_end(block)
        step, carried = builder.phi(I32), [builder.phi(value.type) for value in values]
        results = body(step, carried)
        following = builder.add(step, i32(1))
        for phi, first, later in zip([step, *carried], [i32(0), *values], [following, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, builder.block)
        builder.cbranch(builder.icmp_unsigned("<", following, i32(count)), block, after)
        builder.position_at_end(after)
        return results

    def stage(self, step: Value) -> tuple[Value, Value]:
        """The stage of a step, and the parity of its use."""
        return self.builder.urem(step, i32(STAGES)), self.builder.and_(self.builder.udiv(step, i32(STAGES)), i32(1))

    def init_barriers(self, empties: int, others: int = 0) -> None:
        with self.when(self.builder.icmp_unsigned("==", self.thread, i32(0))):
            for number in range(2 * STAGES + others):
                arrivals = empties if STAGES <= number < 2 * STAGES else 1
                hopper.mbarrier_init(self.builder, self.barrier(number), arrivals)
            hopper.fence_mbarrier_init(self.builder)

    def copy_tiles(self, steps: int) -> None:
        """The warp that copies: one lane fills stage after stage, once it is empty."""
        builder = self.builder

        def body(step: Value, _: list[Value]) -> list[Value]:
            stage, parity = self.stage(step)
            hopper.mbarrier_wait(builder, self.barrier(builder.add(stage, i32(STAGES))), builder.xor(parity, i32(1)))
            full, start = self.barrier(stage), builder.mul(stage, i32(STAGE_BYTES))
            hopper.mbarrier_expect(builder, full, STAGE_BYTES)
            k = builder.mul(step, i32(DEPTH))
            hopper.tensor_copy_in(builder, self.at(start), self.maps[0], [k, self.row], full)
            self._copy_right(builder.add(start, i32(OPERAND_BYTES)), k, full)
            return []

        with self.when(hopper.elect_one(builder)):
            self.loop(steps, [], body)

    def _copy_right(self, start: Value, k: Value, full: Value) -> None:
        """A box of lines along K, or one for each 64 of N."""
        builder = self.builder
        if self.right.major == "k":
            hopper.tensor_copy_in(builder, self.at(start), self.maps[1], [k, self.column], full)
            return
        for part in range(2):
            place = self.at(builder.add(start, i32(part * OPERAND_BYTES // 2)))
            column = builder.add(self.column, i32(part * TILE // 2))
            hopper.tensor_copy_in(builder, place, self.maps[1], [column, k], full)

    def descriptors(self, stage: Value, fixed: str, line: Value = 0) -> list[tuple[Value, Value]]:
        """Of A, from a line on, and of B for each 16 of K of a stage."""
        builder = self.builder
        base = builder.add(builder.ptrtoint(self.base, I32), builder.mul(stage, i32(STAGE_BYTES)))
        left = builder.add(base, line) if not isinstance(line, int) else base
        right = builder.add(base, i32(OPERAND_BYTES))
        return [
            tuple(
                matrix_descriptor(builder, getattr(fields, fixed), builder.add(start, i32(fields.start(step))))
                for fields, start in ((self.left, left), (self.right, right))
            )
            for step in range(len(self.left.offsets))
        ]

    def copy_result(self, barrier: int, threads: int) -> None:
        """What `threads` stored goes to global memory."""
        hopper.fence_shared_writes(self.builder)
        hopper.barrier_sync(self.builder, barrier, threads)
        with self.when(self.builder.icmp_unsigned("==", self.thread, i32(0))):
            result = self.at(STAGES * STAGE_BYTES)
            hopper.tensor_copy_out(self.builder, self.maps[2], [self.column, self.row], result)
            hopper.bulk_commit(self.builder)
            hopper.bulk_wait(self.builder, 0, only_read=True)

    def store(self, row: Value, column: Value, values: list[Value]) -> None:
        """Neighbours in a row of the result in shared memory."""
        builder = self.builder
        place = builder.add(builder.mul(row, i32(TILE)), column)
        pointer = self.at(builder.add(builder.mul(place, i32(4)), i32(STAGES * STAGE_BYTES)))
        vector: Value = ir.Constant(ir.VectorType(values[0].type, len(values)), None)
        for number, value in enumerate(values):
            vector = builder.insert_element(vector, value, i32(number))
        builder.store(vector, pointer, align=4 * len(values))

    def text(self) -> str:
        """The module."""
        self.builder.ret_void()
        return str(self.module)


def wgmma_gemm(steps: int, right_major: str = "k") -> str:
    """LLVM text for sm_90a: warps 0 to 7 are two warpgroups that multiply 64 rows each, warp 8 copies."""
    kernel = Kernel("wgmma_gemm", WGMMA_THREADS, right_major)
    builder = kernel.builder
    kernel.init_barriers(CONSUMERS)
    hopper.barrier_sync(builder, 0, WGMMA_THREADS)
    with builder.if_else(builder.icmp_unsigned("==", kernel.warp, i32(4 * CONSUMERS))) as (copies, multiplies):
        with copies:
            kernel.copy_tiles(steps)
        with multiplies:
            _multiply_by_warpgroups(kernel, steps)
    return kernel.text()


def _multiply_by_warpgroups(kernel: Kernel, steps: int) -> None:
    builder = kernel.builder
    kind = hopper.Wgmma(TILE, "bf16", "bf16", "f32", right_major=kernel.right.major)
    group = builder.udiv(kernel.warp, i32(4))
    leads = builder.icmp_unsigned("==", builder.urem(kernel.thread, i32(128)), i32(0))
    line = builder.mul(group, i32(kernel.left.start(0, 64)))

    def release(step: Value) -> None:
        with kernel.when(leads):
            hopper.mbarrier_arrive(builder, kernel.barrier(builder.add(kernel.stage(step)[0], i32(STAGES))))

    def body(step: Value, sums: list[Value]) -> list[Value]:
        stage, parity = kernel.stage(step)
        hopper.mbarrier_wait(builder, kernel.barrier(stage), parity)
        operands = kernel.descriptors(stage, "hopper", line)
        sums = hopper.wgmma_fence(builder, sums)
        lefts, rights = [[left] for left, _ in operands], [right for _, right in operands]
        sums = hopper.wgmma(builder, kind, sums, lefts, rights, ir.Constant(hopper.I1, 1))
        hopper.wgmma_commit(builder)
        # The products of this step go on while the next step is waited for; those of the step before are done.
        sums = hopper.wgmma_wait(builder, 1, sums)
        with kernel.when(builder.icmp_unsigned("!=", step, i32(0))):
            release(builder.sub(step, i32(1)))
        return sums

    zeros = [ir.Constant(ir.FloatType(), 0.0)] * kind.accumulators
    sums = kernel.loop(steps, zeros, body)
    sums = hopper.wgmma_wait(builder, 0, sums)
    row = builder.add(builder.mul(kernel.warp, i32(16)), builder.udiv(kernel.lane, i32(4)))
    first = builder.mul(builder.urem(kernel.lane, i32(4)), i32(2))
    for pair in range(kind.accumulators // 2):
        column = builder.add(first, i32(pair // 2 * 8))
        kernel.store(builder.add(row, i32(pair % 2 * 8)), column, sums[2 * pair : 2 * pair + 2])
    kernel.copy_result(1, 128 * CONSUMERS)


def tcgen05_gemm(steps: int, right_major: str = "k") -> str:
    """LLVM text for sm_100a: warps 0 to 3 take the result out of tensor memory, warp 4 copies, warp 5 multiplies."""
    kernel = Kernel("tcgen05_gemm", TCGEN05_THREADS, right_major)
    builder, done = kernel.builder, 2 * STAGES
    kernel.init_barriers(1, others=1)
    multiplies = builder.icmp_unsigned("==", kernel.warp, i32(5))
    slot = kernel.at(BARRIERS + 8 * (done + 1))
    with kernel.when(multiplies):
        blackwell.tmem_alloc(builder, slot, TILE)
        blackwell.tmem_relinquish(builder)
    hopper.barrier_sync(builder, 0, TCGEN05_THREADS)
    sums = builder.load(slot, typ=I32, align=4)
    with kernel.when(builder.icmp_unsigned("==", kernel.warp, i32(4))):
        kernel.copy_tiles(steps)
    with kernel.when(multiplies):
        _multiply_by_one_thread(kernel, steps, sums, done)
    with kernel.when(builder.icmp_unsigned("<", kernel.warp, i32(4))):
        _take_out(kernel, sums, done)
    hopper.barrier_sync(builder, 0, TCGEN05_THREADS)
    with kernel.when(multiplies):
        blackwell.tmem_dealloc(builder, sums, TILE)
    return kernel.text()


def _multiply_by_one_thread(kernel: Kernel, steps: int, sums: Value, done: int) -> None:
    builder = kernel.builder
    kind = blackwell.Tcgen05(TILE, TILE, "bf16", "bf16", "f32", right_major=kernel.right.major)

    def body(step: Value, _: list[Value]) -> list[Value]:
        stage, parity = kernel.stage(step)
        hopper.mbarrier_wait(builder, kernel.barrier(stage), parity)
        blackwell.tcgen05_fence_after(builder)
        for number, (left, right) in enumerate(kernel.descriptors(stage, "blackwell")):
            adds = builder.icmp_unsigned("!=", step, i32(0)) if number == 0 else ir.Constant(hopper.I1, 1)
            blackwell.tcgen05_mma(builder, kind, sums, left, right, adds)
        blackwell.tcgen05_commit(builder, kernel.barrier(builder.add(stage, i32(STAGES))))
        return []

    with kernel.when(hopper.elect_one(builder)):
        kernel.loop(steps, [], body)
        blackwell.tcgen05_commit(builder, kernel.barrier(done))


def _take_out(kernel: Kernel, sums: Value, done: int) -> None:
    """Each warp the 32 rows of its lanes of tensor memory."""
    builder, columns = kernel.builder, 32
    hopper.mbarrier_wait(builder, kernel.barrier(done), 0)
    blackwell.tcgen05_fence_after(builder)
    lanes = builder.add(sums, builder.shl(builder.mul(kernel.warp, i32(32)), i32(16)))
    for first in range(0, TILE, columns):
        values = blackwell.tmem_load(builder, builder.add(lanes, i32(first)), columns)
        for number in range(0, columns, 4):
            kernel.store(kernel.thread, i32(first + number), values[number : number + 4])
    blackwell.tcgen05_fence_before(builder)
    kernel.copy_result(1, 128)
