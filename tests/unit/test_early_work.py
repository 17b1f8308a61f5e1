"""Work of every compilation that a thread does early: what it makes, and processes that end or fork in the meantime."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import os, sys
from tilewright.targets.cpu import early
from tilewright.targets.cpu.host import host_machine
early.start(host_machine())
"""
DIGEST = """
import hashlib
from tilewright.targets.cpu.support import support_object
print(hashlib.sha256(support_object()).hexdigest())
"""
FORK = """
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
import numpy as np, tilewright as tw
with tw.options(cache=False):
    assert (tw.jit(lambda x: x + 1)(np.ones(3)) == 2).all()
"""

FAILS = """
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.machine import load
from tilewright.targets.cpu import early, support
early.start(load("wormhole"))
try:
    support.support_object("tensix")
except UnsupportedOnTargetError:
    print("TW", end="")
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_thread_makes_the_object_that_is_made_without_it() -> None:
    assert run(START + DIGEST) == run(DIGEST)


@pytest.mark.parametrize("pause_s", [0, 0.02, 0.06])
def test_a_process_may_end_while_the_thread_works(pause_s: float) -> None:
    assert run(f"{START}\nimport time\ntime.sleep({pause_s})") == ""


@pytest.mark.parametrize("pause_s", [0, 0.02, 0.06])
def test_a_process_may_fork_while_the_thread_works(pause_s: float) -> None:
    run(f"{START}\nimport time\ntime.sleep({pause_s})\n{FORK}")


def test_an_architecture_without_support_is_an_error_where_the_object_is_needed() -> None:
    assert run(FAILS) == "TW"
