"""Print a scheduled kernel of warps as an LLVM module: one entry, its parameters the kernel's refs in order.

A thread holds the elements of each tile that its layout states (`fragments.py`); computation on them is in
`emit_tiles.py`. A point of the kernel's grid is a thread block: the block id counts points, the last dim fastest.
A target derives its emitter from `BlockEmitter`, and adds the operations that only its chips do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import tile_order
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.layout import Layout
from tilewright.machines.machine import Machine
from tilewright.passes.warps.tile_lower_to_warps import layout_of, parsed
from tilewright.passes.warps.warp_space import SCALAR
from tilewright.records import dataclass
from tilewright.targets.llvm.conversions import load_form, narrow, widen
from tilewright.targets.llvm.values import declare_features
from tilewright.targets.simt.emit_memory import (
    ANY,
    GLOBAL_SPACE,
    SHARED_SPACE,
    Memory,
    Window,
    evaluated,
    load,
    range_of,
    store,
)
from tilewright.targets.simt.emit_multiply import multiply_and_add
from tilewright.targets.simt.emit_points import emit_point
from tilewright.targets.simt.emit_tiles import Held, Lazy, TileEmitter, numbers_of, of_value, row_major
from tilewright.targets.simt.fragments import I32, Coordinates, Fragment, Threads, Value, computed, held_form, i32
from tilewright.targets.simt.functions import ChipBuilder
from tilewright.targets.simt.intrinsics import Intrinsics
from tilewright.targets.simt.vectors import vector_of

# Offsets are counted in 32 bits.
MOST_ELEMENTS = 1 << 31


@dataclass
class BlockEmitter(TileEmitter):
    """Code of the warps of one thread block, by the instructions of a chip."""

    kernel: tile.KernelOp
    region: scheduled.ParallelOp
    machine: Machine
    warps: int
    intrinsics: Intrinsics
    module: Any = field(init=False)
    memories: dict[SSAValue, Memory] = field(init=False, default_factory=dict[SSAValue, Memory])
    shared_bytes: int = field(init=False, default=0)
    # Whether the operations at hand are those of a loop over tiles.
    _is_over_tiles: bool = field(init=False, default=False)

    def emit(self) -> None:
        self._begin()
        numbers = self.intrinsics.block_index(self.builder)
        for argument, extent in reversed(list(zip(self.region.body.block.args, self.region.shape, strict=True))):
            self.indices[argument] = self.builder.urem(numbers, i32(extent))
            self.ranges[argument] = (0, extent - 1)
            numbers = self.builder.udiv(numbers, i32(extent))
        self._block(self.region.body.block)
        self.builder.ret_void()

    def _begin(self) -> None:
        self.module = ir.Module(name=self.kernel.sym_name)
        self.module.triple = self.intrinsics.triple
        declare_features(self.module, self.machine.converts)
        parameters = [*(ir.PointerType(addrspace=GLOBAL_SPACE) for _ in self.kernel.refs), *self._more_parameters()]
        type_of = ir.FunctionType(ir.VoidType(), parameters)
        function: Value = ir.Function(self.module, type_of, self.kernel.sym_name)
        function.calling_convention = self.intrinsics.calling_convention
        self.builder = ChipBuilder(function.append_basic_block("entry"), self.intrinsics)
        self._begin_function(function)
        for ref, pointer in zip(self.kernel.refs, function.args, strict=False):
            type = tile.ref_type(ref)
            if prod(type.shape) >= MOST_ELEMENTS:
                raise UnsupportedOnTargetError(
                    f"an array of {prod(type.shape)} elements", help="use arrays of fewer than 2**31 elements"
                )
            self.memories[ref] = Memory.of(pointer, type, None, GLOBAL_SPACE)
        self.threads = self._threads(self.intrinsics.thread_index(self.builder), None)
        shared: Value = ir.GlobalVariable(
            self.module, ir.ArrayType(ir.IntType(8), 0), "tw_shared", addrspace=SHARED_SPACE
        )
        shared.linkage, shared.align = "external", self._shared_alignment()
        # A pointer that says nothing of what it points to.
        self.shared: Value = ir.FormattedConstant(ir.PointerType(addrspace=SHARED_SPACE), shared.get_reference())

    def _threads(self, thread: Value, home: Any) -> Threads:
        lanes = self.machine.axes["lane"]
        numbers = {"lane": self.builder.urem(thread, i32(lanes)), "warp": self.builder.udiv(thread, i32(lanes))}
        return Threads(self.builder, numbers, {"lane": lanes, "warp": self.warps}, home)

    # ---- what a target may add --------------------------------------------------------------------------------------

    def _more_parameters(self) -> list[ir.Type]:
        """The types of parameters after the kernel's refs."""
        return []

    def _begin_function(self, function: Any) -> None:
        """Annotate the function, before anything is appended to it."""

    def _shared_alignment(self) -> int:
        """The alignment of shared memory in bytes."""
        return 128

    def _barrier(self, op: scheduled.BarrierOp) -> None:
        self.intrinsics.barrier(self.builder, op.scope)

    def _mma(self, op: scheduled.MmaOp) -> Held:
        """The sum of a matmul. MMA instructions are a target's own."""
        left, right = self.memories.get(op.left), self.memories.get(op.right)
        if op.atom != SCALAR or left is None or right is None:
            raise CompilerBug(f"the atom `{op.atom}` does not take its operands there")
        return multiply_and_add(self.threads, left, right, self._fragment(op.accumulator))

    def _store_fragment(self, op: tile.StoreOp, fragment: Fragment) -> None:
        """Store a tile: each thread its own elements."""
        window, vector = self._window(op, op.value)
        store(window, vector, fragment.values)

    # ---- operations -------------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, scheduled.EndOp | tile.YieldOp):
                return
            self._op(op)

    def _op(self, op: Operation) -> None:
        match op:
            case scheduled.AllocOp():
                self._alloc(op)
            case scheduled.StageOp():
                self._stage(op)
            case tile_order.PointOp():
                self._point(op)
            case scheduled.BarrierOp():
                self._barrier(op)
            case tile.StoreOp():
                self._store(op)
            case tile.ForOp():
                self._for(op)
            case tile.IfOp():
                self._if(op)
            case _:
                self.tiles[op.results[0]] = self._tile(op)

    def _point(self, op: tile_order.PointOp) -> None:
        for result, value, extent in zip(
            op.results, emit_point(self.builder, op, self.indices), op.order.extents, strict=True
        ):
            self.indices[result] = value
            self.ranges[result] = (0, extent - 1)

    def _tile(self, op: Operation) -> Held:
        """The result of an operation that has one."""
        match op:
            case tile.LoadOp():
                return self._load(op)
            case tile.FullOp():
                return self._full(op)
            case tile.IotaOp():
                return self._iota(op)
            case tile.RelayoutOp():
                return self._relayout(op)
            case scheduled.TermsOp():
                return self._renamed(op.source, op.result)
            case scheduled.MmaOp():
                return self._mma(op)
            case tile.TransposeOp() | tile.ReshapeOp() | tile.BroadcastOp():
                return self._view(op)
            case tile.ReduceOp():
                return self._reduce(op)
            case tile.ScanOp():
                return self._scan(op)
            case tile.BitcastOp() if op.operands[0].type == op.results[0].type:
                return self.tiles[op.operands[0]]
            case tile.MapOp() | tile.CastOp() | tile.BitcastOp() | tile.FillPaddingOp():
                return self._elementwise(op)
            case _:
                raise UnsupportedOnTargetError(f"`{op.name}` is not compiled for GPUs yet", help="use the cpu target")

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _alloc(self, op: scheduled.AllocOp) -> None:
        type = tile.ref_type(op.result)
        layout = parsed(type.layout.data)
        if op.offset_bytes is None:
            raise CompilerBug("a buffer has no address")
        offset_bytes = op.offset_bytes
        self.shared_bytes = max(self.shared_bytes, offset_bytes + op.bytes)
        start = self.builder.gep(self.shared, [i32(offset_bytes)], source_etype=ir.IntType(8))
        self.memories[op.result] = Memory.of(start, type, layout, SHARED_SPACE)

    def _stage(self, op: scheduled.StageOp) -> None:
        """A stage is a memory of its own."""
        if not isinstance(op.ring.owner, scheduled.AllocOp):
            raise CompilerBug("a stage of a ring that is no buffer")
        ring = self.memories[op.ring]
        symbols = [self.indices[symbol] for symbol in op.symbols]
        number = evaluated(self.builder, op.map.results[0], [], symbols)
        offset = self.builder.mul(number, i32(op.ring.owner.stage_bytes))
        start = self.builder.gep(ring.pointer, [offset], source_etype=ir.IntType(8))
        self.memories[op.result] = replace(ring, pointer=start)

    def _window(self, op: tile.LoadOp | tile.StoreOp, value: SSAValue) -> tuple[Window, Sequence[int]]:
        ref = op.source if isinstance(op, tile.LoadOp) else op.destination
        coordinates = Coordinates(self.threads, self._layout(value))
        symbols = [self._symbol(symbol) for symbol in op.symbols]
        window = Window(self.builder, self.memories[ref], coordinates, list(op.map.results), symbols)
        if not all(isinstance(symbol.type, IndexType) for symbol in op.symbols):
            return window, (0,)
        return window, vector_of(window)

    def _load(self, op: tile.LoadOp) -> Held:
        type = array_type(op.result)
        if not type.shape:
            return self._load_scalar(op)
        window, vector = self._window(op, op.result)
        fill = None if op.fill is None else op.fill
        return Fragment(self._layout(op.result), type.dtype, load(window, vector, fill))

    def _scalar_place(self, op: tile.LoadOp | tile.StoreOp, memory: Memory) -> tuple[Value, Value | None]:
        """How far into the memory the one element is, and whether it is there."""
        symbols = [self._index_of(symbol, []) for symbol in op.symbols]
        ranges = [self.ranges.get(symbol, ANY) for symbol in op.symbols]
        offset: Value = i32(0)
        there: Value | None = None
        for expression, size, step in zip(op.map.results, memory.shape, row_major(memory.shape), strict=True):
            place = evaluated(self.builder, expression, [], symbols)
            low, high = range_of(expression, [], ranges)
            if low < 0 or high >= size:
                inside = self.builder.icmp_unsigned("<", place, i32(size))
                there = inside if there is None else self.builder.and_(there, inside)
            offset = self.builder.add(offset, self.builder.mul(place, i32(step)))
        return offset, there

    def _load_scalar(self, op: tile.LoadOp) -> Held:
        memory, dtype = self.memories[op.source], array_type(op.result).dtype
        offset, there = self._scalar_place(op, memory)
        if there is not None:
            offset = self.builder.select(there, offset, i32(0))
        pointer = self.builder.gep(memory.pointer, [offset], source_etype=load_form(dtype))
        value = widen(self.builder, self.builder.load(pointer, typ=load_form(dtype), align=dtype.itemsize), dtype)
        if there is not None and op.fill is not None:
            value = self.builder.select(there, value, ir.Constant(value.type, op.fill))
        return of_value(dtype, value)

    def _store(self, op: tile.StoreOp) -> None:
        if array_type(op.value).shape:
            self._store_tile(op)
            return
        memory, dtype = self.memories[op.destination], array_type(op.value).dtype
        offset, there = self._scalar_place(op, memory)
        first = self.builder.icmp_unsigned("==", self._thread(), i32(0))
        there = first if there is None else self.builder.and_(first, there)
        raw = narrow(self.builder, self._element(op.value, ()), dtype)
        pointer = self.builder.gep(memory.pointer, [offset], source_etype=load_form(dtype))
        with self.builder.if_then(there):
            self.builder.store(raw, pointer, align=dtype.itemsize)

    def _store_tile(self, op: tile.StoreOp) -> None:
        fragment = self._fragment(op.value)
        if fragment.layout.partial:
            raise CompilerBug(f"threads store the terms of {fragment.layout} to the same addresses")
        self._store_fragment(op, fragment)

    def _thread(self) -> Value:
        numbers = self.threads.numbers
        warp = self.builder.mul(numbers["warp"], i32(self.threads.extents["lane"]))
        return self.builder.add(warp, numbers["lane"])

    # ---- control ----------------------------------------------------------------------------------------------------

    def _for(self, op: tile.ForOp) -> None:
        builder, block = self.builder, op.body.block
        most = op.trips
        end: Value = i32(most)
        if op.end is not None:
            found = evaluated(builder, op.end.results[0], [], [self.indices[s] for s in op.symbols])
            end = builder.select(builder.icmp_signed("<", found, end), found, end)
        initial = [
            {number: self._held(value, number) for number in numbers_of(layout_of(argument))}
            for value, argument in zip(op.initial, block.args[1:], strict=True)
        ]
        before = builder.block
        header, body = builder.append_basic_block("loop"), builder.append_basic_block("body")
        after = builder.append_basic_block("after")
        builder.branch(header)
        builder.position_at_end(header)
        counter = builder.phi(I32)
        counter.add_incoming(i32(0), before)
        self.indices[block.args[0]] = counter
        self.ranges[block.args[0]] = (0, max(0, most - 1))
        carried = [self._phis(values, a, before) for values, a in zip(initial, block.args[1:], strict=True)]
        builder.cbranch(builder.icmp_signed("<", counter, end), body, after)
        builder.position_at_end(body)
        threads, is_over_tiles = self.threads, self._is_over_tiles
        self._is_over_tiles = isinstance(block.first_op, tile_order.PointOp)
        self._block(block)
        self.threads, self._is_over_tiles = threads, is_over_tiles
        last = block.last_op
        for phis, following in zip(carried, last.operands if last is not None else (), strict=True):
            for number, phi in phis.items():
                phi.add_incoming(self._held(following, number), builder.block)
        counter.add_incoming(builder.add(counter, i32(1)), builder.block)
        builder.branch(header)
        builder.position_at_end(after)
        for argument, result in zip(block.args[1:], op.results, strict=True):
            self.tiles[result] = self.tiles[argument]
        if self._is_over_tiles:
            self._find_thread_again()

    def _find_thread_again(self) -> None:
        """Read the thread id again for code after the matmuls of a tile: addresses from before the loop over tiles
        would stay in registers during the matmuls, next to the accumulators."""
        self.threads = self._threads(self.intrinsics.thread_index_anew(self.builder), self.builder.block)

    def _phis(self, initial: Mapping[int, Value], argument: SSAValue, before: Any) -> dict[int, Any]:
        """The phi nodes of a carried tile at the head of a loop: the registers of its layout, or the one of a
        scalar."""
        type, layout = array_type(argument), layout_of(argument)
        phis: dict[int, Any] = {}
        for number, value in initial.items():
            phis[number] = self.builder.phi(held_form(type.dtype))
            phis[number].add_incoming(value, before)
        self.tiles[argument] = self._of_phis(type.dtype, layout, phis)
        return phis

    def _of_phis(self, dtype: DType, layout: Layout | None, phis: Mapping[int, Value]) -> Held:
        if layout is not None:
            return Fragment(layout, dtype, phis)
        return Lazy(dtype, lambda index, operands: computed(self.builder, phis[0], dtype))

    def _if(self, op: tile.IfOp) -> None:
        builder = self.builder
        condition = self._element(op.condition, ())
        blocks = [builder.append_basic_block(name) for name in ("then", "otherwise")]
        after = builder.append_basic_block("joined")
        builder.cbranch(condition, *blocks)
        ends: list[tuple[Any, list[dict[int, Value]]]] = []
        for start, region in zip(blocks, (op.then, op.otherwise), strict=True):
            builder.position_at_end(start)
            self._block(region.block)
            last = region.block.last_op
            given = last.operands if last is not None else ()
            found = [
                {number: self._held(value, number) for number in numbers_of(layout_of(result))}
                for value, result in zip(given, op.results, strict=True)
            ]
            ends.append((builder.block, found))
            builder.branch(after)
        builder.position_at_end(after)
        for position, result in enumerate(op.results):
            type, layout = array_type(result), layout_of(result)
            phis: dict[int, Any] = {number: builder.phi(held_form(type.dtype)) for number in numbers_of(layout)}
            for block, values in ends:
                for number, phi in phis.items():
                    phi.add_incoming(values[position][number], block)
            self.tiles[result] = self._of_phis(type.dtype, layout, phis)
