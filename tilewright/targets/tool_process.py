"""A tool in a process of its own, which may crash: requests in, answers out, over pipes.

A tool is a script with a function `answer(document, text)` from a JSON document and a text to bytes, which raises
RuntimeError with the reason for what it refuses. This file, run as a script, serves one; so it imports nothing of ours.

A request is a header, the sizes of a JSON document and of a text, then both. An answer is a status, the seconds that it
took and a size, then a result or an error message. A process that is ready says so with an empty answer.
"""

from __future__ import annotations

import json
import os
import runpy
import struct
import subprocess
import sys
import time
from typing import Any, NamedTuple

REQUEST = struct.Struct("<QQ")
ANSWER = struct.Struct("<?dQ")


class Answer(NamedTuple):
    """What a tool gave: whether it succeeded, how long it took, and its result or an error message."""

    good: bool
    seconds: float
    content: bytes


def start(script: str, *, with_site: bool = False) -> subprocess.Popen[bytes]:
    """A process that serves a tool's script and finds packages where this one does; `with_site`: packages may ask where
    packages are, which takes 10 ms to find out.

    Raises:
        OSError: the system does not let it, or this interpreter is part of another program.
    """
    if "python" not in os.path.basename(sys.executable or ""):
        raise FileNotFoundError("there is no Python interpreter to start")
    code = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_path({__file__!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, *([] if with_site else ["-S"]), "-E", "-c", code, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def ask(process: subprocess.Popen[bytes], document: Any, text: bytes) -> Answer | None:
    """One request and its answer; None where the process has ended."""
    header = json.dumps(document).encode()
    try:
        process.stdin.write(REQUEST.pack(len(header), len(text)) + header + text)  # type: ignore[union-attr]  a pipe
        process.stdin.flush()  # type: ignore[union-attr]  a pipe
        return read_answer(process)
    except OSError:
        return None


def read_answer(process: subprocess.Popen[bytes]) -> Answer | None:
    """One answer; None where the process has ended."""
    stream: Any = process.stdout
    header = stream.read(ANSWER.size)
    if len(header) < ANSWER.size:
        return None
    good, seconds, nbytes = ANSWER.unpack(header)
    content = stream.read(nbytes)
    return Answer(good, seconds, content) if len(content) == nbytes else None


def ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, in words."""
    status = process.wait()
    return f"signal {-status}" if status < 0 else f"status {status}"


def _serve(script: str) -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    tool: Any = runpy.run_path(script)["answer"]

    def answer(good: bool, seconds: float, content: bytes) -> None:
        answers.write(ANSWER.pack(good, seconds, len(content)) + content)
        answers.flush()

    answer(True, 0.0, b"")
    while header := requests.read(REQUEST.size):
        document_bytes, text_bytes = REQUEST.unpack(header)
        document, text = json.loads(requests.read(document_bytes)), requests.read(text_bytes).decode()
        begun = time.perf_counter()
        try:
            content, good = tool(document, text), True
        except RuntimeError as error:
            content, good = str(error).encode(), False
        answer(good, time.perf_counter() - begun, content)


if __name__ == "__main__":
    _serve(sys.argv[1])
