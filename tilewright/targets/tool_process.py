"""A tool in a process of its own, which may crash: requests in, answers out, over pipes.

A tool is a script with a function `answer(document, text)` from a JSON document and a text to bytes, which raises
RuntimeError with the reason for what it refuses. This file, run as a script, serves one; so it imports nothing of ours.

A request is a header, the sizes of a JSON document and of a text, then both. An answer is a status, the seconds that it
took, a size and the digest of the request that it answers, then a result or an error message. A process that is ready
sends an answer to the empty request.

An exception between a request and its answer, such as a KeyboardInterrupt, would leave the answer in the pipe for the
next request. So such a process is killed, and the digest proves that an answer belongs to its request.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import struct
import sys
import time
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import subprocess

REQUEST = struct.Struct("<QQ")
ANSWER = struct.Struct("<?dQ16s")


class Answer(NamedTuple):
    """The outcome of a request: whether the tool succeeded, its seconds, and its result or an error message."""

    good: bool
    seconds: float
    content: bytes


class ToolProcessEnded(Exception):
    """A tool's process ended before it answered; `how` names the signal or the exit status."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class ToolProcessNotReady(ToolProcessEnded):
    """A tool's process ended before it took requests."""


def request_digest(request: bytes) -> bytes:
    """The digest that an answer repeats: 16 bytes of BLAKE2b over the request's document and text."""
    return hashlib.blake2b(request, digest_size=16).digest()


def read_answer(process: subprocess.Popen[bytes]) -> tuple[Answer, bytes]:
    """Read one answer and the digest of the request that it answers.

    Raises:
        EOFError: the process has ended.
    """
    stream: Any = process.stdout
    header = stream.read(ANSWER.size)
    if len(header) < ANSWER.size:
        raise EOFError
    good, seconds, nbytes, digest = ANSWER.unpack(header)
    content = stream.read(nbytes)
    if len(content) < nbytes:
        raise EOFError
    return Answer(good, seconds, content), digest


class ToolProcess:
    """A process that serves a tool's script and finds packages where this one does.

    `with_site`: packages may look for other packages, which adds 10 ms to the start. A context: the process is killed
    at its end.

    Raises:
        OSError: the system starts no process, or this interpreter is part of another program.
        ToolProcessNotReady: the process ended before it was ready.
    """

    def __init__(self, script: str, *, with_site: bool = False) -> None:
        import subprocess  # not at the top: most programs start no process

        if "python" not in os.path.basename(sys.executable or ""):
            raise FileNotFoundError("there is no Python interpreter to start")
        run = f"exec(compile({text_of(__file__)!r}, {__file__!r}, 'exec'), {{'__name__': '__main__'}})"
        code = f"import sys; sys.path[:] = {sys.path!r}; {run}"
        self._process = subprocess.Popen(
            [sys.executable, *([] if with_site else ["-S"]), "-E", "-c", code, script, text_of(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            with self._killed_on_error():
                self._read_answer(b"")
        except ToolProcessEnded as ending:
            raise ToolProcessNotReady(ending.how) from None

    def __enter__(self) -> ToolProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, document: object, text: bytes) -> Answer:
        """Send one request and read its answer. After any exception the process is dead.

        Raises:
            ToolProcessEnded: the process ended, or its answer is not for this request.
        """
        import json

        header = json.dumps(document).encode()
        body = header + text
        stream: Any = self._process.stdin
        with self._killed_on_error():
            stream.write(REQUEST.pack(len(header), len(text)) + body)
            stream.flush()
            return self._read_answer(body)

    def kill(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What was not written yet cannot be flushed to a dead process.
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  both are pipes

    def _read_answer(self, request: bytes) -> Answer:
        answer, digest = read_answer(self._process)
        if digest != request_digest(request):
            raise ToolProcessEnded("an answer to another request")
        return answer

    @contextlib.contextmanager
    def _killed_on_error(self) -> Generator[None]:
        try:
            yield
        except (OSError, EOFError):
            how = self._ending()
            self.kill()
            raise ToolProcessEnded(how) from None
        except BaseException:
            self.kill()
            raise

    def _ending(self) -> str:
        """Describe how the process ended. One that closed its pipe is given a moment to end by itself."""
        import subprocess

        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "a closed pipe"
        return f"signal {-status}" if status < 0 else f"status {status}"


class ToolPool:
    """Processes of one tool, which are started on demand and kept for later requests.

    Each request has a process to itself, so that threads, and a signal handler in the middle of another request, never
    share a pipe; no lock is held meanwhile. A forked child starts processes of its own: the pipes that it inherits
    belong to its parent.
    """

    MOST_IDLE = 2

    def __init__(self, script: str, *, with_site: bool = False) -> None:
        self._script = script
        self._with_site = with_site
        self._idle: list[ToolProcess] = []
        _pools.add(self)

    def ask(self, document: object, text: bytes) -> Answer:
        """Send one request to an idle process, or to a new one, and read its answer.

        Raises:
            OSError: the system starts no process.
            ToolProcessEnded: the process ended before it answered.
        """
        process, answer = self._take(), None
        if process is not None:
            # One that was killed a moment ago may not look so yet; a crash of the tool itself happens again.
            with contextlib.suppress(ToolProcessEnded):
                answer = process.ask(document, text)
        if process is None or answer is None:
            process = ToolProcess(self._script, with_site=self._with_site)
            answer = process.ask(document, text)
        if len(self._idle) < self.MOST_IDLE:
            self._idle.append(process)
        else:
            process.kill()
        return answer

    def close(self) -> None:
        """End the idle processes."""
        while (process := self._pop()) is not None:
            process.kill()

    def forget(self) -> None:
        """Leave the idle processes to the parent of this forked process."""
        _inherited.extend(self._idle)
        self._idle = []

    def _take(self) -> ToolProcess | None:
        """An idle process that runs; None where there is none."""
        # A process may have been killed since its last request, for example for the memory that it held.
        while (process := self._pop()) is not None:
            if process.is_running:
                return process
            process.kill()
        return None

    def _pop(self) -> ToolProcess | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None


_pools: weakref.WeakSet[ToolPool] = weakref.WeakSet()
# Closing an inherited pipe would flush what the parent had begun to write.
_inherited: list[ToolProcess] = []


def _forget_all() -> None:
    for pool in _pools:
        pool.forget()


def text_of(path: str) -> str:
    """The text of a file in this folder, which may be inside an archive.

    Raises:
        OSError: it is not there, as in an application that holds compiled files alone.
    """
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return file.read()
    loader: Any = globals().get("__loader__")
    return loader.get_data(path).decode()


def _serve(script: str, text: str) -> None:
    import json

    # Ctrl-C at a terminal reaches the whole process group; the process that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    names: dict[str, Any] = {"__name__": "tool", "__file__": script}
    exec(compile(text, script, "exec"), names)
    tool = names["answer"]

    def answer(good: bool, seconds: float, content: bytes, request: bytes) -> None:
        answers.write(ANSWER.pack(good, seconds, len(content), request_digest(request)) + content)
        answers.flush()

    answer(True, 0.0, b"", b"")
    while header := requests.read(REQUEST.size):
        document_bytes, text_bytes = REQUEST.unpack(header)
        request = requests.read(document_bytes + text_bytes)
        document, content = json.loads(request[:document_bytes]), request[document_bytes:]
        begun = time.perf_counter()
        try:
            content, good = tool(document, content.decode()), True
        except RuntimeError as error:
            content, good = str(error).encode(), False
        answer(good, time.perf_counter() - begun, content, request)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
else:
    os.register_at_fork(after_in_child=_forget_all)
