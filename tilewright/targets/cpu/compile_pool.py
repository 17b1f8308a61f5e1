"""Compile a program's modules, the first of them while others are still emitted.

Small programs are compiled in this process. Once more text is waiting than a process costs to start, compiler processes
take it up: LLVM lets one thread in at a time. They are started anew, not forked, because this process has threads, and
import LLVM alone; a crash of LLVM in one of them becomes an error that names the kernel.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque

import msgspec

from tilewright import events
from tilewright.errors import ToolFailure
from tilewright.machines.machine import Machine
from tilewright.runtime.shared_objects import SharedObjects
from tilewright.targets.cpu import machine_code as compiler
from tilewright.targets.cpu.codegen import compile_object, llvm_target, rejection
from tilewright.targets.tool_process import ToolProcess, ToolProcessEnded

# A process is ready after 60 to 100 ms; LLVM takes about 0.45 s a megabyte of text.
WORTH_A_PROCESS_BYTES = 150_000
MOST_PROCESSES = 3


class CompiledModule(msgspec.Struct, frozen=True):
    """One module's object, and how long LLVM took."""

    object_bytes: bytes
    seconds: float


class _Job(msgspec.Struct, frozen=True):
    number: int
    name: str
    text: str


class CompilePool:
    """Modules in, objects out, in the order in which they were submitted. `threads` may compile at once. Objects that
    are in `shared` are not compiled; others are added to it. A context: at its end nothing is left running."""

    def __init__(self, machine: Machine, threads: int, shared: SharedObjects | None = None) -> None:
        self._machine = machine
        self._processes = min(threads - 1, MOST_PROCESSES)
        self._shared = shared
        self._numbers: dict[str, int] = {}
        self._found: set[int] = set()
        self._waiting: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._condition = threading.Condition()
        self._closed = False
        self._results: dict[int, CompiledModule | ToolFailure] = {}
        self._threads_started = 0
        self._threads_running = 0

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
            while self._threads_running:
                self._condition.wait()

    def submit(self, name: str, text: str) -> int:
        """The number of a module's object; equal modules have one."""
        if text in self._numbers:
            return self._numbers[text]
        number = self._numbers[text] = len(self._numbers)
        found = None if self._shared is None else self._shared.find(text)
        if found is not None:
            self._found.add(number)
            self._results[number] = CompiledModule(found, 0.0)
            return number
        with self._condition:
            self._waiting.append(_Job(number, name, text))
            self._waiting_bytes += len(text)
            self._condition.notify()
        if self._waiting_bytes > WORTH_A_PROCESS_BYTES and self._threads_started < self._processes:
            self._waiting_bytes = 0
            self._start_thread()
        return number

    def finish(self) -> list[CompiledModule]:
        """All objects, once they are there.

        Raises:
            ToolFailure: LLVM rejected a module, or crashed.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        while not self._is_done():
            while (job := self._take()) is not None:
                self._results[job.number] = self._compile_here(job)
        compiled: list[CompiledModule] = []
        for _, result in sorted(self._results.items()):
            if isinstance(result, ToolFailure):
                raise result
            compiled.append(result)
        if self._shared is not None:
            made = {text: compiled[n].object_bytes for text, n in self._numbers.items() if n not in self._found}
            self._shared.put(made)
            events.emit("compile.modules", compiled=len(made), found=len(self._found))
        return compiled

    def _take(self) -> _Job | None:
        """The next job; None when there will be no more."""
        with self._condition:
            while not self._waiting and not self._closed:
                self._condition.wait()
            return self._waiting.popleft() if self._waiting else None

    def _is_done(self) -> bool:
        """Whether all jobs have results, once no thread works on one; a thread may give its job back."""
        with self._condition:
            while self._threads_running and not self._waiting:
                self._condition.wait()
            return not self._waiting

    def _compile_here(self, job: _Job) -> CompiledModule | ToolFailure:
        start = time.perf_counter()
        try:
            return CompiledModule(compile_object(job.text, self._machine), time.perf_counter() - start)
        except ToolFailure as failure:
            return failure

    def _start_thread(self) -> None:
        """Start a thread that feeds a process; without one this thread compiles all.

        `threading.Thread.start` would wait forever for a thread that ends before it runs, for lack of memory.
        """
        self._threads_started += 1
        try:
            _thread.start_new_thread(self._run, ())
        except (RuntimeError, MemoryError) as error:
            events.emit("compile.no_process", reason=str(error))

    def _run(self) -> None:
        with self._condition:
            if self._closed and not self._waiting:
                return
            self._threads_running += 1
        try:
            self._feed()
        except (OSError, ToolProcessEnded, MemoryError) as error:
            events.emit("compile.no_process", reason=str(error))
        finally:
            with self._condition:
                self._threads_running -= 1
                self._condition.notify_all()

    def _feed(self) -> None:
        """Start a compiler process and give it jobs for as long as it lives."""
        with ToolProcess(compiler.__file__) as process:
            while (job := self._take()) is not None:
                try:
                    self._results[job.number] = self._ask(process, job)
                except BaseException:
                    self._give_back(job)
                    raise
                if not process.is_running:
                    return

    def _give_back(self, job: _Job) -> None:
        with self._condition:
            self._waiting.append(job)
            self._condition.notify()

    def _ask(self, process: ToolProcess, job: _Job) -> CompiledModule | ToolFailure:
        try:
            answer = process.ask(llvm_target(self._machine), job.text.encode())
        except ToolProcessEnded as ending:
            return ToolFailure(
                f"LLVM crashed on `{job.name}`: its process ended with {ending.how}",
                help="look at the text with the option `dump_dir`, and report it",
            )
        return CompiledModule(answer.content, answer.seconds) if answer.good else rejection(answer.content.decode())
