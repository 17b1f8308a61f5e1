"""Compile a program's modules, the first of them while others are still emitted.

Small programs are compiled in this process. Once more text is waiting than a process costs to start, compiler processes
take it up: LLVM lets one thread in at a time. They are started anew, not forked, because this process has threads, and
import LLVM alone; a crash of LLVM in one of them becomes an error that names the kernel.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from tilewright import events
from tilewright.errors import ToolFailure
from tilewright.machines.machine import Machine
from tilewright.targets.cpu import machine_code as compiler
from tilewright.targets.cpu.codegen import compile_object, llvm_target, rejection
from tilewright.targets.tool_process import ToolProcess, ToolProcessEnded

# A process is ready after 60 to 100 ms; LLVM takes about 0.45 s a megabyte of text.
WORTH_A_PROCESS_BYTES = 150_000
MOST_PROCESSES = 3


@dataclass(frozen=True)
class CompiledModule:
    """One module's object, and how long LLVM took."""

    object_bytes: bytes
    seconds: float


@dataclass(frozen=True)
class _Job:
    number: int
    name: str
    text: str


class CompilePool:
    """Modules in, objects out, in the order in which they were submitted. `threads` may compile at once. A context: at
    its end nothing is left running."""

    def __init__(self, machine: Machine, threads: int) -> None:
        self._machine = machine
        self._processes = min(threads - 1, MOST_PROCESSES)
        self._numbers: dict[str, int] = {}
        self._waiting: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._condition = threading.Condition()
        self._closed = False
        self._results: dict[int, CompiledModule | ToolFailure] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def submit(self, name: str, text: str) -> int:
        """The number of a module's object; equal modules have one."""
        if text in self._numbers:
            return self._numbers[text]
        number = self._numbers[text] = len(self._numbers)
        with self._condition:
            self._waiting.append(_Job(number, name, text))
            self._waiting_bytes += len(text)
            self._condition.notify()
        if self._waiting_bytes > WORTH_A_PROCESS_BYTES and len(self._threads) < self._processes:
            self._waiting_bytes = 0
            self._threads.append(threading.Thread(target=self._feed, daemon=True))
            self._threads[-1].start()
        return number

    def finish(self) -> list[CompiledModule]:
        """All objects, once they are there.

        Raises:
            ToolFailure: LLVM rejected a module, or crashed.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        while (job := self._take()) is not None:
            self._results[job.number] = self._compile_here(job)
        for thread in self._threads:
            thread.join()
        # What a process that did not start has given back.
        while (job := self._take()) is not None:
            self._results[job.number] = self._compile_here(job)
        compiled: list[CompiledModule] = []
        for _, result in sorted(self._results.items()):
            if isinstance(result, ToolFailure):
                raise result
            compiled.append(result)
        return compiled

    def _take(self) -> _Job | None:
        """The next job; None when there will be no more."""
        with self._condition:
            while not self._waiting and not self._closed:
                self._condition.wait()
            return self._waiting.popleft() if self._waiting else None

    def _compile_here(self, job: _Job) -> CompiledModule | ToolFailure:
        start = time.perf_counter()
        try:
            return CompiledModule(compile_object(job.text, self._machine), time.perf_counter() - start)
        except ToolFailure as failure:
            return failure

    def _feed(self) -> None:
        """Start a compiler process and give it jobs for as long as it lives."""
        try:
            process = ToolProcess(compiler.__file__)
        except (OSError, ToolProcessEnded) as error:
            events.emit("compile.no_process", reason=str(error))
            return
        with process:
            while (job := self._take()) is not None:
                self._results[job.number] = self._ask(process, job)
                if not process.is_running:
                    return

    def _ask(self, process: ToolProcess, job: _Job) -> CompiledModule | ToolFailure:
        try:
            answer = process.ask(llvm_target(self._machine), job.text.encode())
        except ToolProcessEnded as ending:
            return ToolFailure(
                f"LLVM crashed on `{job.name}`: its process ended with {ending.how}",
                help="look at the text with the option `dump_dir`, and report it",
            )
        return CompiledModule(answer.content, answer.seconds) if answer.good else rejection(answer.content.decode())
