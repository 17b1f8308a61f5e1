"""The measuring process of a hunt, which is started again after a crash or a program that takes too long."""

from __future__ import annotations

import selectors
import subprocess

import msgspec

from tilewright.cli import worker_process
from tilewright.cli.bench_worker import Request
from tilewright.cli.hunt.program import Program, Record


class Measurer:
    """Measures programs one after another; used as a context."""

    def __init__(self, request: Request, limit_s: float) -> None:
        self._command = worker_process.command("tilewright.cli.hunt.worker", request)
        self._environment = worker_process.environment(request)
        self._limit_s = limit_s
        self._worker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def record(self, program: Program) -> Record:
        """The record of a program; one with an `error` where the process died of it, or took too long."""
        worker = self._worker or self._started()
        try:
            if worker.stdin is not None:
                worker.stdin.write(msgspec.json.encode(program) + b"\n")
                worker.stdin.flush()
            line = self._line(worker)
        except BrokenPipeError:
            line = b""
        if line:
            return msgspec.json.decode(line)
        if line is None:
            reason = f"not done in {self._limit_s:.0f} s"
        else:
            reason = f"the process ended with status {worker.wait(self._limit_s)}"
        self._stop()
        return {"case": str(program), "error": reason, "agrees": False}

    def _started(self) -> subprocess.Popen[bytes]:
        with worker_process.interrupts_held():
            self._worker = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
            )
        return self._worker

    def _line(self, worker: subprocess.Popen[bytes]) -> bytes | None:
        """The next line of the process; empty where it ended, None where the time is over."""
        if worker.stdout is None:
            return b""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            if not selector.select(self._limit_s):
                return None
        return worker.stdout.readline()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None
