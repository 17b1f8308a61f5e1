"""Code blocks of documentation pages, and running them: Python in a namespace, commands as commands."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    first_line: int
    expected: str | None


def blocks(page: str) -> Iterator[Block]:
    """The code blocks, each with the text block that follows it at once."""
    found = list(_FENCE.finditer(page))
    for number, match in enumerate(found):
        if match[1] == "text":
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        expected = None
        if following is not None and following[1] == "text" and not page[match.end() : following.start()].strip():
            expected = following[2]
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 1, expected)


def run_python(block: Block, namespace: dict[str, Any], file: Path) -> str:
    # Empty lines in front give the code the page's line numbers, which tracebacks and tile kernels read.
    code = compile("\n" * block.first_line + block.text, str(file), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def run_shell(block: Block, folder: Path) -> str:
    printed = ""
    environment = os.environ | {"TW_CACHE_DIR": str(folder / "cache")}
    for line in block.text.splitlines():
        verb, *arguments = shlex.split(line)
        assert verb == "tilewright"
        command = [sys.executable, "-m", "tilewright.cli", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"`{line}`: {done.stderr}"
        printed += done.stdout
    return printed


def agrees(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
