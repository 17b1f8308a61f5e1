"""Print a scheduled program as LLVM modules: one per kernel, a driver and a function per parallel region, and `main`.

    i32 tw_main(ptr buffers, ptr arena, ptr parallel, i32 threads)

`buffers` is a table of pointers: inputs, outputs, constants. A region's function gets a table of its own: the kernel's
refs, the kernel's shared memory, the workers' scratch memory, and how many bytes each worker has of that. A kernel's
module does not state what it is called: equal kernels are equal texts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright.cost.vectors.kernel import Work, block_work
from tilewright.dialects import array, scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.errors import CompilerBug, LinearAlgebraError, UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import storage_elements
from tilewright.passes.array.lifetimes import storage
from tilewright.passes.base import Unit
from tilewright.passes.program_memory import ARENA, CONSTANT, INPUT, OUTPUT, MemoryPlan
from tilewright.routines import FAILURES
from tilewright.runtime.manifest import Message
from tilewright.targets.cpu.clocks import COUNTS, Clocks
from tilewright.targets.cpu.context import FunctionContext, Scratch, round_up
from tilewright.targets.cpu.emit_dot import emit_dot
from tilewright.targets.cpu.emit_nest import emit_nest
from tilewright.targets.cpu.emit_ordered import emit_ordered
from tilewright.targets.cpu.emit_row_dot import emit_row_dot, lies_along_depth
from tilewright.targets.cpu.in_order import Turn, clear_turns, passed_on, taken_points, turns_bytes
from tilewright.targets.cpu.library_call import emit_library_call
from tilewright.targets.cpu.loops import I1, I8, I32, I64, POINTER, i64, loop, minimum, offset_pointer
from tilewright.targets.cpu.ordered_nest import ordered_op
from tilewright.targets.cpu.past_caches import fence_stores
from tilewright.targets.cpu.regions import DRIVER, KERNEL, MAIN, REGION, chunk_count, first_point, launch
from tilewright.targets.cpu.regions import Callable as PoolCallable
from tilewright.targets.llvm.values import Builder, Value, builder_of, declare_features


@dataclass(eq=False)
class NativeModule:
    """The result of emission: LLVM texts by name, those of kernels and last that of `main`; constants in the order of
    the buffer table, memory needs, predicted work."""

    texts: dict[str, str]
    constants: list[str]
    arena_bytes: int
    worker_bytes: int
    messages: tuple[Message, ...] = ()
    library_functions: tuple[str, ...] = ()
    work: dict[str, Work] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All modules, to be looked at."""
        return "\n".join(f"; ---- {name}\n{text}" for name, text in self.texts.items())


@dataclass(eq=False)
class _Kernel:
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
        self.constants: list[str] = []
        self.library_kernels: dict[Hashable, tuple[str, _Kernel]] = {}
        self.library_calls: dict[array.LibraryCallOp, tuple[str, _Kernel]] = {}
        self.library_functions: dict[str, None] = {}
        self.messages: dict[str, Message] = {}
        self.work: dict[str, Work] = {}

    def emit(self) -> NativeModule:
        main = self.module
        for kernel in self.unit.timed_kernels("emission"):
            self.kernels[kernel.sym_name] = self._emit_kernel(kernel, main)
        for op in self.unit.main.walk():
            if isinstance(op, array.LibraryCallOp):
                self.library_calls[op] = self._emit_library_call(op, main)
        self.module = main
        kernels = [*self.kernels.values(), *(kernel for _, kernel in self.library_calls.values())]
        shared = max((k.shared_bytes for k in kernels), default=0)
        shared_start = round_up(self.plan.arena_bytes)
        arena_bytes = shared_start + shared
        self._emit_main(shared_start, arena_bytes)
        self._finish_module("main")
        return NativeModule(
            self.texts,
            self.constants,
            arena_bytes,
            self.scratch.bytes,
            tuple(self.messages.values()),
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
        self.texts[name] = str(self.module)
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

    def _emit_library_call(self, op: array.LibraryCallOp, main: ir.Module) -> tuple[str, _Kernel]:
        """The module of a call of a library: a function like a kernel's."""
        key = (tuple(sorted(op.properties.items())), tuple(o.type for o in op.operands))
        if key not in self.library_kernels:
            name = f"{op.routine}_{len(self.library_kernels)}"
            self.module = self._new_module()
            emitted = emit_library_call(self.module, op, self.machine, self.unit.threads)
            self.scratch.require(emitted.worker_bytes)
            self.library_functions.update(dict.fromkeys(emitted.functions))
            kernel = self._finished_kernel(name, main, emitted.work, emitted.shared_bytes)
            self.library_kernels[key] = name, kernel
        return self.library_kernels[key]

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
        builder.call(PoolCallable(parallel), [region, table, count, threads])
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
            with loop(builder, start, end, 1, "point") as point:
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
                    emit_ordered(context, op, ordered)
                else:
                    emit_nest(context, op)
                if turn is not None:
                    turn.after(op)
            elif isinstance(op, scheduled.DotOp):
                (emit_row_dot if lies_along_depth(op) else emit_dot)(context, op)
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
        with loop(context.builder, i64(0), last, 1, "trip") as index:
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

    # ---- main ---------------------------------------------------------------------------------------------------

    def _emit_main(self, shared_start: int, arena_bytes: int) -> None:
        function = ir.Function(self.module, MAIN, "tw_main")
        builder = builder_of(function)
        buffers, arena, parallel, threads = function.args
        driver = _Driver(self, builder, buffers, arena, parallel, threads)
        driver.shared = offset_pointer(builder, arena, i64(shared_start), 1)
        driver.scratch = offset_pointer(builder, arena, i64(arena_bytes), 1)
        with driver.counted():
            driver.run(self.unit.main.body.block)
            driver.copy_results()
        builder.ret(ir.Constant(I32, 0))

    def failure_status(self, routine: str) -> int:
        """The status by which a program states that a routine failed."""
        if routine not in self.messages:
            text, help = FAILURES[routine]
            self.messages[routine] = Message(len(self.messages) + 1, LinearAlgebraError.code, text, help)
        return self.messages[routine].status

    def constant_index(self, name: str) -> int:
        if name not in self.constants:
            self.constants.append(name)
        return self.constants.index(name)


class _Driver:
    """Prints the calls, loops and copies of `main`."""

    def __init__(
        self, emitter: _Emitter, builder: Builder, buffers: Value, arena: Value, parallel: Value, threads: Value
    ) -> None:
        self.emitter = emitter
        self.builder = builder
        self.buffers, self.arena, self.parallel, self.threads = buffers, arena, parallel, threads
        self.shared: Value = arena
        self.scratch: Value = arena
        main = emitter.unit.main.body.block
        self.inputs = len(main.args)
        last = main.last_op
        self.outputs = len(last.operands) if isinstance(last, ReturnOp) else 0

    def run(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, array.CallOp):
                self._call(op)
            elif isinstance(op, array.LibraryCallOp):
                self._library_call(op)
            elif isinstance(op, array.WhileOp):
                self._while(op)
            elif isinstance(op, array.IfOp):
                self._if(op)
            elif not isinstance(op, array.ConstantOp | array.ReshapeOp | array.YieldOp | ReturnOp):
                raise CompilerBug(f"{op.name} was not lowered to a kernel")

    def pointer(self, value: SSAValue) -> Value:
        place = self.emitter.plan.places[storage(value)]
        if place.kind == ARENA:
            return offset_pointer(self.builder, self.arena, i64(place.index), 1)
        if place.kind == INPUT:
            return self._entry(place.index)
        if place.kind == CONSTANT:
            return self._entry(self.inputs + self.outputs + self.emitter.constant_index(place.constant))
        return self.output(place.index)

    def output(self, index: int) -> Value:
        return self._entry(self.inputs + index)

    def _entry(self, index: int) -> Value:
        return self.builder.load(offset_pointer(self.builder, self.buffers, i64(index), 8), typ=POINTER)

    def assign(self, source: SSAValue, target: SSAValue) -> None:
        """Copy an array to the memory of another, unless it is there."""
        if not self._shares_memory(source, target):
            self.copy(self.pointer(source), self.pointer(target), array_type(source).nbytes)

    def copy(self, source: Value, target: Value, nbytes: int) -> None:
        if nbytes == 0:
            return
        name = "llvm.memmove.p0.p0.i64"
        function = self.builder.module.globals.get(name)
        if function is None:
            type = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I1])
            function = ir.Function(self.builder.module, type, name)
        self.builder.call(function, [target, source, i64(nbytes), ir.Constant(I1, 0)])

    def copy_results(self) -> None:
        """Results that were not computed in place; those set aside in spare memory are saved before any is written."""
        plan = self.emitter.plan
        last = self.emitter.unit.main.body.block.last_op
        sources: list[Value] = []
        for position, (value, _) in enumerate(plan.copies):
            source = self.pointer(value)
            if last is not None and (last, position) in plan.spares:
                spare = offset_pointer(self.builder, self.arena, i64(plan.spares[(last, position)]), 1)
                self.copy(source, spare, array_type(value).nbytes)
                source = spare
            sources.append(source)
        for source, (value, index) in zip(sources, plan.copies, strict=True):
            self.copy(source, self.output(index), array_type(value).nbytes)

    def _call(self, op: array.CallOp) -> None:
        kernel = self.emitter.unit.kernel(op.callee)
        outputs = iter(op.results)
        inputs = iter(op.operands)
        entries: list[Value] = []
        for effect in kernel.effects:
            if effect == tile.IN:
                entries.append(self.pointer(next(inputs)))
                continue
            output = next(outputs)
            result = self.pointer(output)
            if effect == tile.INOUT:
                self.assign(next(inputs), output)
            entries.append(result)
        self._run_kernel(op.callee, self.emitter.kernels[op.callee], entries)

    def _run_kernel(self, name: str, kernel: _Kernel, entries: Sequence[Value]) -> None:
        scratch_bytes: Any = i64(self.emitter.scratch.bytes)
        table = self._table([*entries, self.shared, self.scratch, scratch_bytes.inttoptr(POINTER)])
        with self.counted(name):
            self.builder.call(kernel.function, [table, self.parallel, self.threads])

    def _library_call(self, op: array.LibraryCallOp) -> None:
        name, kernel = self.emitter.library_calls[op]
        self._run_kernel(name, kernel, [self.pointer(value) for value in (*op.operands, *op.results)])
        matrices = array_type(op.results[-1]).size
        if not op.must_succeed or not op.must_succeed or not matrices:
            return
        info = self.pointer(op.results[-1])
        with loop(self.builder, i64(0), i64(matrices), 1, "matrix") as index:
            status = self.builder.load(offset_pointer(self.builder, info, index, 4), typ=I32)
            failed = self.builder.icmp_unsigned("!=", status, ir.Constant(I32, 0))
            with self.builder.if_then(failed, likely=False):
                self.builder.ret(ir.Constant(I32, self.emitter.failure_status(op.routine)))

    def counted(self, kernel: str | None = None) -> contextlib.AbstractContextManager[None]:
        """Count the time of what is printed next, that of a kernel or all, if it is to be known."""
        clocks = self.emitter.clocks
        if clocks is None:
            return contextlib.nullcontext()
        counts = self._entry(self.inputs + self.outputs + self.emitter.constant_index(COUNTS))
        return clocks.counted(self.builder, counts, kernel)

    def _shares_memory(self, source: SSAValue, result: SSAValue) -> bool:
        """Whether a result is written over an array, such as the input that was donated for it."""
        places = self.emitter.plan.places
        a, b = places[storage(source)], places[storage(result)]
        donated = a.kind == INPUT and b.kind == OUTPUT and self.emitter.unit.donated.get(a.index) == b.index
        return a == b or donated

    def _table(self, entries: Sequence[Value]) -> Value:
        with self.builder.goto_entry_block():
            table = self.builder.alloca(POINTER, len(entries))
        for i, entry in enumerate(entries):
            self.builder.store(entry, offset_pointer(self.builder, table, i64(i), 8))
        return table

    def _while(self, op: array.WhileOp) -> None:
        for source, target in zip(op.operands, op.results, strict=True):
            self.assign(source, target)
        check = self.builder.append_basic_block("while")
        body = self.builder.append_basic_block("while.body")
        end = self.builder.append_basic_block("while.end")
        self.builder.branch(check)
        self.builder.position_at_end(check)
        self.leave_if_interrupted()
        self.run(op.condition.block)
        self.builder.cbranch(self._truth(yielded(op.condition.block)[0]), body, end)
        self.builder.position_at_end(body)
        self.run(op.body.block)
        self._rotate(op)
        self.builder.branch(check)
        self.builder.position_at_end(end)

    def leave_if_interrupted(self) -> None:
        """Return if the call is to end: a job of no chunks indicates so."""
        nothing = ir.Constant(POINTER, None)
        stop = self.builder.call(PoolCallable(self.parallel), [nothing, nothing, i64(0), self.threads])
        with self.builder.if_then(self.builder.icmp_unsigned("!=", stop, ir.Constant(I32, 0)), likely=False):
            self.builder.ret(ir.Constant(I32, 0))

    def _rotate(self, op: array.WhileOp) -> None:
        """The body's results become the carried arrays; those that move between places go through spare memory."""
        pairs = list(zip(yielded(op.body.block), op.results, strict=True))
        spares = self.emitter.plan.spares
        sources: list[Value] = []
        for position, (value, _) in enumerate(pairs):
            pointer = self.pointer(value)
            if (op, position) in spares:
                spare = offset_pointer(self.builder, self.arena, i64(spares[(op, position)]), 1)
                self.copy(pointer, spare, array_type(value).nbytes)
                pointer = spare
            sources.append(pointer)
        for source, (value, target) in zip(sources, pairs, strict=True):
            if not self._shares_memory(value, target):
                self.copy(source, self.pointer(target), array_type(value).nbytes)

    def _if(self, op: array.IfOp) -> None:
        with self.builder.if_else(self._truth(op.operands[0])) as (then, otherwise):
            for branch, region in ((then, op.then), (otherwise, op.otherwise)):
                with branch:
                    self.run(region.block)
                    for value, target in zip(yielded(region.block), op.results, strict=True):
                        self.assign(value, target)

    def _truth(self, value: SSAValue) -> Value:
        raw = self.builder.load(self.pointer(value), typ=I8)
        return self.builder.icmp_unsigned("!=", raw, ir.Constant(I8, 0))


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
