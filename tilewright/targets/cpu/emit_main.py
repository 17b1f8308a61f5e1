"""Print the host program as the function `tw_main`: calls of kernels, copies, branches and loops.

    i32 tw_main(ptr buffers, ptr arena, ptr parallel, i32 threads)

`buffers` is a table of pointers: inputs, outputs, constants. Slots of the arena are offsets from `arena`; the kernels'
shared memory and the workers' scratch memory come after them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from llvmlite import ir

from tilewright.errors import LinearAlgebraError
from tilewright.machines.machine import Machine
from tilewright.routines import FAILURES
from tilewright.runtime.host_program import Copy, HostProgram, If, Launch, Step, While
from tilewright.runtime.manifest import Message
from tilewright.targets.cpu.clocks import COUNTS, Clocks
from tilewright.targets.cpu.copies import copy_chunks, copy_region, emit_copy
from tilewright.targets.cpu.launch_tables import TableLaunch, launch_from_table
from tilewright.targets.cpu.loops import I8, I32, POINTER, i64, loop, offset_pointer
from tilewright.targets.cpu.machine_code import MANY_LAUNCHES
from tilewright.targets.cpu.regions import MAIN, PARALLEL, FunctionPointer
from tilewright.targets.llvm.values import Builder, Value, builder_of


class Memory(msgspec.Struct, frozen=True):
    """The arena after its slots: the start and bytes of the kernels' shared memory, then the bytes of each worker's
    scratch memory."""

    shared_start: int
    shared_bytes: int
    worker_bytes: int

    @property
    def arena_bytes(self) -> int:
        return self.shared_start + self.shared_bytes


class MustSucceed(msgspec.Struct, frozen=True):
    """The program fails where a routine of a library does: its last buffer holds a status for each of the matrices."""

    routine: str
    matrices: int


class Cores(msgspec.Struct, frozen=True):
    """The machine, and how many of its cores the program runs on."""

    machine: Machine
    threads: int


class PrintedMain(msgspec.Struct, frozen=True):
    """The constants in the order of the buffer table, and the messages of a program that fails."""

    constants: list[str]
    messages: tuple[Message, ...]


def print_main(
    module: ir.Module,
    program: HostProgram,
    kernels: Mapping[str, ir.Function],
    memory: Memory,
    must_succeed: Mapping[str, MustSucceed],
    clocks: Clocks | None,
    cores: Cores,
) -> PrintedMain:
    """Print `tw_main` to the module that declares the kernels. `clocks` count the time of each kernel and of all, in
    a constant called `COUNTS`; `cores` share large copies."""
    function = ir.Function(module, MAIN, "tw_main")
    printer = _Printer(program, kernels, memory, must_succeed, clocks, cores, builder_of(function), function.args)
    with printer.counted():
        printer.print(program.steps)
    printer.builder.ret(ir.Constant(I32, 0))
    return PrintedMain(printer.constants, tuple(printer.messages.values()))


class _Printer:
    def __init__(
        self,
        program: HostProgram,
        kernels: Mapping[str, ir.Function],
        memory: Memory,
        must_succeed: Mapping[str, MustSucceed],
        clocks: Clocks | None,
        cores: Cores,
        builder: Builder,
        arguments: Sequence[Value],
    ) -> None:
        self.program = program
        self.kernels = kernels
        self.memory = memory
        self.must_succeed = must_succeed
        self.clocks = clocks
        self.cores = cores
        self.builder = builder
        self.buffers, self.arena, self.parallel, self.threads = arguments
        self.shared = offset_pointer(builder, self.arena, i64(memory.shared_start), 1)
        self.scratch = offset_pointer(builder, self.arena, i64(memory.arena_bytes), 1)
        self.constants = [*program.constants, *([] if clocks is None else [COUNTS])]
        self.messages: dict[str, Message] = {}

    def print(self, steps: Sequence[Step]) -> None:
        for is_plain, group in groupby(steps, self._is_plain_launch):
            run = list(group)
            if is_plain and len(run) >= MANY_LAUNCHES:
                self._launch_from_table([step for step in run if isinstance(step, Launch)])
            else:
                self._print_each(run)

    def _print_each(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Launch():
                    self._launch(step)
                case Copy():
                    self._copy(step)
                case While():
                    self._while(step)
                case If():
                    self._if(step)

    # ---- buffers --------------------------------------------------------------------------------------------------

    def _pointer(self, number: int) -> Value:
        first = self.program.first_slot
        if number < first:
            return self._entry(number)
        return offset_pointer(self.builder, self.arena, i64(self.program.arena[number - first].offset), 1)

    def _entry(self, number: int) -> Value:
        return self.builder.load(offset_pointer(self.builder, self.buffers, i64(number), 8), typ=POINTER)

    def _truth(self, flag: int) -> Value:
        raw = self.builder.load(self._pointer(flag), typ=I8)
        return self.builder.icmp_unsigned("!=", raw, ir.Constant(I8, 0))

    def _copy(self, step: Copy) -> None:
        source, target = self._pointer(step.source), self._pointer(step.target)
        chunks = copy_chunks(step.nbytes, self.cores.machine, self.cores.threads)
        if chunks == 1:
            emit_copy(self.builder, target, source, i64(step.nbytes))
            return
        region = copy_region(self.builder, step.nbytes, chunks, self.cores.machine)
        self.builder.call(
            FunctionPointer(self.parallel, PARALLEL), [region, self._table([target, source]), i64(chunks), self.threads]
        )

    # ---- kernels --------------------------------------------------------------------------------------------------

    def _launch(self, step: Launch) -> None:
        name = self.program.kernels[step.kernel]
        entries = [self._pointer(number) for number in step.buffers]
        table = self._table([*entries, *self._memory_entries()])
        with self.counted(name):
            self.builder.call(self.kernels[name], [table, self.parallel, self.threads])
        if name in self.must_succeed:
            self._leave_if_failed(self.must_succeed[name], step.buffers[-1])

    def _is_plain_launch(self, step: Step) -> bool:
        """Whether a step is a launch and nothing else, and the program has a buffer outside its arena."""
        if not isinstance(step, Launch) or self.clocks is not None or not self.program.first_slot:
            return False
        return self.program.kernels[step.kernel] not in self.must_succeed

    def _launch_from_table(self, steps: Sequence[Launch]) -> None:
        functions = [self.kernels[name] for name in self.program.kernels]
        launches = [TableLaunch(functions[step.kernel], tuple(map(self._code, step.buffers))) for step in steps]
        arguments = (self.parallel, self.threads)
        launch_from_table(self.builder, launches, self.buffers, self.arena, self._memory_entries(), arguments)

    def _code(self, number: int) -> int:
        """A buffer as launch tables have it."""
        first = self.program.first_slot
        return number if number < first else -1 - self.program.arena[number - first].offset

    def _memory_entries(self) -> list[Value]:
        """The kernels' shared memory, the workers' scratch memory and its size, as entries of a table."""
        scratch_bytes: Any = i64(self.memory.worker_bytes)
        return [self.shared, self.scratch, scratch_bytes.inttoptr(POINTER)]

    def _table(self, entries: Sequence[Value]) -> Value:
        with self.builder.goto_entry_block():
            table = self.builder.alloca(POINTER, len(entries))
        for i, entry in enumerate(entries):
            self.builder.store(entry, offset_pointer(self.builder, table, i64(i), 8))
        return table

    def counted(self, kernel: str | None = None) -> contextlib.AbstractContextManager[None]:
        """Count the time of what is printed next, that of a kernel or all, if it is to be known."""
        if self.clocks is None:
            return contextlib.nullcontext()
        counts = self._entry(self.program.inputs + self.program.outputs + self.constants.index(COUNTS))
        return self.clocks.counted(self.builder, counts, kernel)

    def _leave_if_failed(self, call: MustSucceed, statuses: int) -> None:
        if not call.matrices:
            return
        info = self._pointer(statuses)
        with loop(self.builder, i64(0), i64(call.matrices), 1, "matrix") as index:
            status = self.builder.load(offset_pointer(self.builder, info, index, 4), typ=I32)
            failed = self.builder.icmp_unsigned("!=", status, ir.Constant(I32, 0))
            with self.builder.if_then(failed, likely=False):
                self.builder.ret(ir.Constant(I32, self._failure_status(call.routine)))

    def _failure_status(self, routine: str) -> int:
        """The status by which a program states that a routine failed."""
        if routine not in self.messages:
            text, help = FAILURES[routine]
            self.messages[routine] = Message(len(self.messages) + 1, LinearAlgebraError.code, text, help)
        return self.messages[routine].status

    # ---- control flow ---------------------------------------------------------------------------------------------

    def _while(self, step: While) -> None:
        check = self.builder.append_basic_block("while")
        body = self.builder.append_basic_block("while.body")
        end = self.builder.append_basic_block("while.end")
        self.builder.branch(check)
        self.builder.position_at_end(check)
        self._leave_if_interrupted()
        self.print(step.condition)
        self.builder.cbranch(self._truth(step.flag), body, end)
        self.builder.position_at_end(body)
        self.print(step.body)
        self.builder.branch(check)
        self.builder.position_at_end(end)

    def _leave_if_interrupted(self) -> None:
        """Return if the call is to end: a job of no chunks indicates so."""
        nothing = ir.Constant(POINTER, None)
        stop = self.builder.call(FunctionPointer(self.parallel, PARALLEL), [nothing, nothing, i64(0), self.threads])
        with self.builder.if_then(self.builder.icmp_unsigned("!=", stop, ir.Constant(I32, 0)), likely=False):
            self.builder.ret(ir.Constant(I32, 0))

    def _if(self, step: If) -> None:
        with self.builder.if_else(self._truth(step.flag)) as (then, otherwise):
            with then:
                self.print(step.then)
            with otherwise:
                self.print(step.otherwise)
