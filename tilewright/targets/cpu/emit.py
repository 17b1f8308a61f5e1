"""Print a scheduled program as LLVM modules: one per kernel, a driver and a function per parallel region, and `main`.

    i32 tw_main(ptr buffers, ptr arena, ptr parallel, i32 threads)

`buffers` is a table of pointers: inputs, outputs, constants. A region's function gets a table of its own: the kernel's
refs, the kernel's shared memory, the workers' scratch memory, and how many bytes each worker has of that. A kernel's
module does not state what it is called: equal kernels are equal texts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator

import msgspec
from llvmlite import ir
from xdsl.ir import Block, Operation, SSAValue

from tilewright.cost.vectors.kernel import Work, block_work
from tilewright.dialects import array, scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import storage_elements
from tilewright.passes.base import Unit
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import MemoryPlan
from tilewright.runtime.manifest import Message
from tilewright.targets.cpu.clocks import Clocks
from tilewright.targets.cpu.context import FunctionContext, Scratch, round_up
from tilewright.targets.cpu.emit_main import Cores, Memory, MustSucceed, print_main
from tilewright.targets.cpu.emit_nest import emit_nest
from tilewright.targets.cpu.in_order import Turn, clear_turns, passed_on, taken_points, turns_bytes
from tilewright.targets.cpu.loops import I8, I32, I64, POINTER, i64, loop, minimum, offset_pointer
from tilewright.targets.cpu.ordered_nest import ordered_op
from tilewright.targets.cpu.past_caches import fence_stores
from tilewright.targets.cpu.regions import (
    DRIVER,
    KERNEL,
    PARALLEL,
    REGION,
    FunctionPointer,
    chunk_count,
    first_point,
    launch,
)
from tilewright.targets.llvm.text import module_text
from tilewright.targets.llvm.values import Builder, Value, builder_of, declare_features


class NativeModule(msgspec.Struct, eq=False):
    """The result of emission: LLVM texts by name, those of kernels and last that of `main`; constants in the order of
    the buffer table, memory needs, predicted work."""

    texts: dict[str, str]
    constants: list[str]
    arena_bytes: int
    worker_bytes: int
    messages: tuple[Message, ...] = ()
    library_functions: tuple[str, ...] = ()
    work: dict[str, Work] = msgspec.field(default_factory=dict)

    @property
    def text(self) -> str:
        """All modules, to be looked at."""
        return "\n".join(f"; ---- {name}\n{text}" for name, text in self.texts.items())


class _Kernel(msgspec.Struct, eq=False):
    function: ir.Function
    shared_bytes: int


# Takes the name and the text of a module; gives the number of its object.
Submit = Callable[[str, str], int]


def emit_program(
    unit: Unit, plan: MemoryPlan, triple: str, submit: Submit | None = None, clocks: Clocks | None = None
) -> NativeModule:
    """Emit the kernels and `main`; each module goes to `submit` as soon as it is there. `clocks`: what counts how long
    the kernels take, in a constant that is called `COUNTS`."""
    numbers = itertools.count()
    return _Emitter(unit, plan, triple, submit or (lambda name, text: next(numbers)), clocks).emit()


class _Emitter:
    def __init__(self, unit: Unit, plan: MemoryPlan, triple: str, submit: Submit, clocks: Clocks | None) -> None:
        self.unit = unit
        self.clocks = clocks
        self.triple = triple
        self.submit = submit
        self.texts: dict[str, str] = {}
        self.declared: dict[str, ir.Function] = {}
        self.machine: Machine = unit.machine
        self.plan = plan
        self.module = self._new_module()
        self.scratch = Scratch()
        self.kernels: dict[str, _Kernel] = {}
        self.library_kernels: dict[Hashable, tuple[str, _Kernel]] = {}
        self.library_calls: dict[array.LibraryCallOp, str] = {}
        self.must_succeed: dict[str, MustSucceed] = {}
        self.library_functions: dict[str, None] = {}
        self.work: dict[str, Work] = {}

    def emit(self) -> NativeModule:
        main = self.module
        for kernel in self.unit.timed_kernels("emission"):
            self.kernels[kernel.sym_name] = self._emit_kernel(kernel, main)
        for op in self.unit.main.walk():
            if isinstance(op, array.LibraryCallOp):
                self.library_calls[op] = self._emit_library_call(op, main)
        self.module = main
        kernels = self.kernels | dict(self.library_kernels.values())
        shared_start = round_up(self.plan.arena_bytes)
        memory = Memory(shared_start, max((k.shared_bytes for k in kernels.values()), default=0), self.scratch.bytes)
        host = host_program(self.unit, self.plan, list(kernels), self.library_calls)
        functions = {name: kernel.function for name, kernel in kernels.items()}
        cores = Cores(self.machine, self.unit.threads)
        printed = print_main(main, host, functions, memory, self.must_succeed, self.clocks, cores)
        self._finish_module("main")
        return NativeModule(
            self.texts,
            printed.constants,
            memory.arena_bytes,
            self.scratch.bytes,
            printed.messages,
            tuple(self.library_functions),
            self.work,
        )

    def _new_module(self) -> ir.Module:
        module = ir.Module("program")
        module.triple = self.triple
        declare_features(module, self.machine.llvm_features)
        return module

    def _finish_module(self, name: str) -> int:
        """Hand the module over; gives the number of its object."""
        self.texts[name] = module_text(self.module)
        return self.submit(name, self.texts[name])

    # ---- kernels ------------------------------------------------------------------------------------------------

    def _emit_kernel(self, kernel: tile.KernelOp, main: ir.Module) -> _Kernel:
        """`void tw_kernel(ptr table, ptr parallel, i32 threads)`: its regions in order; the end of each is a barrier.

        Gives its declaration in the module of `main`.
        """
        name = kernel.sym_name
        self.module = self._new_module()
        function = ir.Function(self.module, DRIVER, KERNEL)
        builder = builder_of(function)
        table, parallel, threads = function.args
        shared: dict[SSAValue, int] = {}
        shared_bytes = 0
        total = Work()
        for op in kernel.body.block.ops:
            if isinstance(op, scheduled.AllocOp):
                shared[op.result] = shared_bytes
                shared_bytes += _ref_bytes(op.result)
            elif isinstance(op, scheduled.ParallelOp) and op.in_order:
                region = self._emit_region(kernel, op, shared, shared_bytes)
                memory = self._table_entry(builder, table, len(kernel.refs))
                turns = offset_pointer(builder, memory, i64(shared_bytes), 1)
                total += self._launch_in_order(builder, op, region, table, parallel, threads, turns)
                shared_bytes += turns_bytes(math.prod(op.shape))
            elif isinstance(op, scheduled.ParallelOp):
                region = self._emit_region(kernel, op, shared)
                total += self._launch(builder, op, region, table, parallel, threads)
            elif not isinstance(op, scheduled.BarrierOp | tile.YieldOp):
                raise CompilerBug(f"{op.name} outside a parallel region")
        builder.ret_void()
        return self._finished_kernel(name, main, total, shared_bytes)

    def _finished_kernel(self, name: str, main: ir.Module, work: Work, shared_bytes: int) -> _Kernel:
        """The kernel whose module is complete, declared in the module of `main`."""
        self.work[name] = work
        symbol = f"{KERNEL}.{self._finish_module(name)}"
        if symbol not in self.declared:
            self.declared[symbol] = ir.Function(main, DRIVER, symbol)
        return _Kernel(self.declared[symbol], shared_bytes)

    def _emit_library_call(self, op: array.LibraryCallOp, main: ir.Module) -> str:
        """The module of a call of a library: a function like a kernel's, whose name is returned."""
        from tilewright.targets.cpu.library_call import emit_library_call  # few programs call libraries

        key = (tuple(sorted(op.properties.items())), tuple(o.type for o in op.operands))
        if key not in self.library_kernels:
            name = f"{op.routine}_{len(self.library_kernels)}"
            self.module = self._new_module()
            emitted = emit_library_call(self.module, op, self.machine, self.unit.threads)
            self.scratch.require(emitted.worker_bytes)
            self.library_functions.update(dict.fromkeys(emitted.functions))
            kernel = self._finished_kernel(name, main, emitted.work, emitted.shared_bytes)
            self.library_kernels[key] = name, kernel
            if op.must_succeed:
                self.must_succeed[name] = MustSucceed(op.routine, array_type(op.results[-1]).size)
        return self.library_kernels[key][0]

    def _launch(
        self,
        builder: Builder,
        op: scheduled.ParallelOp,
        region: ir.Function,
        table: Value,
        parallel: Value,
        threads: Value,
    ) -> Work:
        points = math.prod(op.shape)
        point = block_work(op.body.block, self.machine)
        total = point.times(points)
        if points == 0:
            return Work()
        chunks = chunk_count(points, point.times(points).seconds(self.machine), self.unit.threads)
        launch(builder, region, table, parallel, threads, chunks, total.seconds(self.machine))
        return total

    def _launch_in_order(
        self,
        builder: Builder,
        op: scheduled.ParallelOp,
        region: ir.Function,
        table: Value,
        parallel: Value,
        threads: Value,
        turns: Value,
    ) -> Work:
        """A chunk for each thread, which takes points until there are none left."""
        points = math.prod(op.shape)
        total = block_work(op.body.block, self.machine).times(points)
        clear_turns(builder, turns, points)
        several = builder.icmp_signed(">", threads, ir.Constant(I32, 1))
        count = builder.select(several, builder.sext(threads, I64), i64(1))
        builder.call(FunctionPointer(parallel, PARALLEL), [region, table, count, threads])
        return total

    def _emit_region(
        self, kernel: tile.KernelOp, op: scheduled.ParallelOp, shared: dict[SSAValue, int], turns_at: int | None = None
    ) -> ir.Function:
        """`void region(ptr table, i64 chunk, i32 worker)`: the points of one chunk, or those whose turn it is, counted
        in shared memory from `turns_at` on."""
        function = ir.Function(self.module, REGION, self.module.get_unique_name("region"))
        function.linkage = "internal"
        builder = builder_of(function)
        table, chunk, worker = function.args
        refs = len(kernel.refs)
        size = builder.load(offset_pointer(builder, table, i64(refs + 2), 8), typ=I64)
        base = self._table_entry(builder, table, refs + 1)
        scratch = builder.gep(base, [builder.mul(builder.zext(worker, I64), size)], source_etype=I8)
        context = FunctionContext(builder, self.machine, scratch, self.scratch, 0, self._effect)
        for i, ref in enumerate(kernel.refs):
            context.pointers[ref] = self._table_entry(builder, table, i)
        shared_base = self._table_entry(builder, table, refs)
        for ref, offset in shared.items():
            context.pointers[ref] = offset_pointer(builder, shared_base, i64(offset), 1)
        self._place_buffers(context, op.body.block)
        points = math.prod(op.shape)
        seconds = block_work(op.body.block, self.machine).times(points).seconds(self.machine)
        chunks = chunk_count(points, seconds, self.unit.threads)
        if turns_at is not None:
            turns = offset_pointer(builder, shared_base, i64(turns_at), 1)
            with taken_points(builder, turns, points) as point:
                self._emit_point(context, op, point, turns)
        elif chunks == points:
            self._emit_point(context, op, chunk)
        else:
            start = first_point(builder, chunk, points, chunks)
            end = first_point(builder, builder.add(chunk, i64(1)), points, chunks)
            with loop(builder, start, end, 1, "point", hidden=True) as point:
                self._emit_point(context, op, point)
        if context.past_caches:
            fence_stores(builder)
        builder.ret_void()
        return function

    def _table_entry(self, builder: Builder, table: Value, index: int) -> Value:
        return builder.load(offset_pointer(builder, table, i64(index), 8), typ=POINTER)

    def _place_buffers(self, context: FunctionContext, block: Block) -> None:
        """Worker buffers one after the other in the thread's scratch memory."""
        for op in block.walk():
            if isinstance(op, scheduled.AllocOp):
                start = i64(context.used_bytes)
                context.pointers[op.result] = offset_pointer(context.builder, context.worker, start, 1)
                context.used_bytes += _ref_bytes(op.result)
        context.scratch.require(context.used_bytes)

    def _emit_point(
        self, context: FunctionContext, op: scheduled.ParallelOp, point: Value, turns: Value | None = None
    ) -> None:
        """Split the linear point into the region's indices, the last one fastest."""
        builder = context.builder
        rest = point
        for argument, n in reversed(list(zip(op.body.block.args, op.shape, strict=True))):
            context.bounds[argument] = n
            if n == 1:
                context.scalars[argument] = i64(0)
                continue
            context.scalars[argument] = builder.urem(rest, i64(n))
            rest = builder.udiv(rest, i64(n))
        turn = None
        if turns is not None:
            place = context.scalars[op.body.block.args[-1]]
            turn = Turn(builder, turns, point, place, self.machine.architecture, passed_on(op))
        self._emit_block(context, op.body.block, turn)

    def _emit_block(self, context: FunctionContext, block: Block, turn: Turn | None = None) -> None:
        operations = list(block.ops)
        for place, op in enumerate(operations):
            if isinstance(op, scheduled.NestOp):
                before, after = _inside_nests(operations[:place]), _inside_nests(operations[place + 1 :])
                context.loaded = [o for o in before if isinstance(o, tile.LoadOp) and _is_array(o.source)]
                context.upcoming = [o for o in after if isinstance(o, tile.StoreOp) and _is_array(o.destination)]
                context.turn = _turn(op)
                if turn is not None:
                    turn.before(op)
                ordered = ordered_op(op)
                if ordered is not None:
                    # Imported with the sorts and scans that it emits, which most programs have none of.
                    from tilewright.targets.cpu.emit_ordered import emit_ordered

                    emit_ordered(context, op, ordered)
                else:
                    emit_nest(context, op)
                if turn is not None:
                    turn.after(op)
            elif isinstance(op, scheduled.DotOp):
                _emit_dot(context, op)
            elif isinstance(op, scheduled.ViewOp):
                context.pointers[op.result] = context.pointers[op.source]
            elif isinstance(op, tile.ForOp):
                self._emit_for(context, op)
            elif isinstance(op, tile.IfOp):
                self._emit_if(context, op)
            elif isinstance(op, tile.LoadOp):
                raw = context.builder.load(context.pointers[op.source], typ=I8)
                context.scalars[op.result] = context.builder.icmp_unsigned("!=", raw, ir.Constant(I8, 0))
            elif not isinstance(op, scheduled.AllocOp | scheduled.EndOp | tile.YieldOp):
                raise CompilerBug(f"no emission for {op.name}")

    def _emit_for(self, context: FunctionContext, op: tile.ForOp) -> None:
        trips = op.trips
        if trips == 0:
            return
        counter = op.body.block.args[0]
        context.bounds[counter] = trips
        last: Value = i64(trips)
        if op.end is not None:
            last = minimum(context.builder, last, context.expression(op.end.results[0], op.symbols))
        with loop(context.builder, i64(0), last, 1, "trip", hidden=True) as index:
            context.scalars[counter] = index
            self._emit_block(context, op.body.block)

    def _emit_if(self, context: FunctionContext, op: tile.IfOp) -> None:
        condition = context.scalars[op.condition]
        with context.builder.if_else(condition) as (then, otherwise):
            with then:
                self._emit_block(context, op.then.block)
            with otherwise:
                self._emit_block(context, op.otherwise.block)

    def _effect(self, context: FunctionContext, op: Operation, value: Value, mask: Value | None) -> None:
        raise UnsupportedOnTargetError(
            f"`{op.name.removeprefix('tile.')}` inside a kernel does not run on the cpu target",
            help='run the kernel with target="interp" to print tiles and check assertions',
        )


def _emit_dot(context: FunctionContext, op: scheduled.DotOp) -> None:
    # Imported by the programs that have matmuls: the micro-kernels take as long to import as a small kernel to emit.
    from tilewright.targets.cpu.emit_dot import emit_dot
    from tilewright.targets.cpu.emit_row_dot import emit_row_dot, lies_along_depth

    (emit_row_dot if lies_along_depth(op) else emit_dot)(context, op)


def _inside_nests(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Operations inside the nests among some operations."""
    return (inner for op in operations if isinstance(op, scheduled.NestOp) for inner in op.body.block.ops)


def _turn(nest: scheduled.NestOp) -> SSAValue | None:
    """The counter of the loop in which a nest and the matmul right before it take turns."""
    product = nest.prev_op
    if not isinstance(product, scheduled.DotOp) or product.turn is None:
        return None
    position: int = product.turn[0]
    return product.symbols[position]


def _is_array(ref: SSAValue) -> bool:
    """Whether a ref is an array, and no buffer."""
    return not tile.ref_type(ref).space.data


def _ref_bytes(ref: SSAValue) -> int:
    type = tile.ref_type(ref)
    return round_up(storage_elements(type) * type.dtype.itemsize)
