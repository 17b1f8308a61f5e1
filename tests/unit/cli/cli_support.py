"""Running the command line in this process, and files for it to work on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import main

FUNCTIONS = """
import numpy as np
import tilewright as tw

EXAMPLE_ARGUMENTS = {
    "scale": (tw.ShapeDtype((6, 4), tw.f32),),
    "count": (tw.ShapeDtype((6, 4), tw.i32),),
}


@tw.jit
def scale(x):
    return tw.nn.softmax(x * 2.0, axis=-1)


@tw.jit
def count(x):
    return {"total": tw.sum(x, axis=0), "twice": x + x}


@tw.jit
def nested(parameters, pair):
    return parameters["w"] @ pair[0] + pair[1]


@tw.jit
def broken(x):
    return x + tw.zeros((5,))


def plain(x):
    return x
"""


@dataclass(frozen=True)
class Run:
    """What a command line printed and returned."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; anything beside it is an error."""
        return json.loads(self.stdout)


class CommandLine:
    """Calls `main`, with a compile cache of its own."""

    def __init__(self, capture: pytest.CaptureFixture[str], cache: Path) -> None:
        self._capture = capture
        self.cache = cache

    def __call__(self, *arguments: str | Path) -> Run:
        self._capture.readouterr()
        code = main([*map(str, arguments), "--cache-dir", str(self.cache)])
        printed = self._capture.readouterr()
        return Run(code, printed.out, printed.err)
