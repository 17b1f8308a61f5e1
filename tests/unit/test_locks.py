"""Forks beside threads that import modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# A thread imports the module `takes_time` from the folder of the first argument, and the process forks meanwhile.
FORKS = """
    import os, signal, sys, threading, time
    import tilewright, tilewright.locks
    sys.path.insert(0, sys.argv[1])
    forked = threading.Event()

    def first_import():
        import takes_time

    def child_of_fork():
        signal.alarm(20)
        {child}

    {before}
    thread = threading.Thread(target=first_import)
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        os._exit(child_of_fork())
    forked.set()
    thread.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FIRST_CALL = """
    import os, signal, sys, threading, time
    import numpy as np
    import tilewright as tw

    x = np.arange(8, dtype=np.float32)
    thread = threading.Thread(target=lambda: tw.jit(lambda x: tw.cumulative_sum(x) + 1)(x))
    thread.start()
    time.sleep(float(sys.argv[1]))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(7 if np.array_equal(tw.jit(lambda x: x * 2)(x), x * 2) else 1)
    thread.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _exit_code(script: str, argument: str) -> int:
    line = [sys.executable, "-c", textwrap.dedent(script), argument]
    return subprocess.run(line, timeout=120, check=False).returncode


def test_a_child_imports_what_another_thread_was_importing(tmp_path: Path) -> None:
    (tmp_path / "takes_time.py").write_text("import time\ntime.sleep(0.4)\nvalue = 7\n")
    script = FORKS.format(before="", child="import takes_time; return takes_time.value")
    assert _exit_code(script, str(tmp_path)) == 7


@pytest.mark.parametrize("before", ["", "import logging"], ids=["logging first", "locks first"])
def test_a_child_imports_what_gets_a_logger_meanwhile(before: str, tmp_path: Path) -> None:
    """`logging` holds its lock over a fork: the import would wait for the fork, and that for the import."""
    text = "import time\ntime.sleep(0.3)\nimport logging\nlogging.getLogger('late')\nvalue = 7\n"
    (tmp_path / "takes_time.py").write_text(text)
    child = "import logging, takes_time; logging.getLogger('child').warning('heard'); return takes_time.value"
    patient = "tilewright.locks._IMPORTS_PATIENCE_S = 10.0"
    script = FORKS.format(before=f"{before}; {patient}" if before else patient, child=child)
    if not before:
        script = "    import logging\n" + script
    started = time.monotonic()
    assert _exit_code(script, str(tmp_path)) == 7
    assert time.monotonic() - started < 8


@pytest.mark.parametrize("delay", ["0.05", "0.4"])
def test_a_child_of_a_process_whose_first_call_is_under_way(delay: str) -> None:
    assert _exit_code(FIRST_CALL, delay) == 7


def test_a_fork_does_not_wait_for_ever(tmp_path: Path) -> None:
    """The thread that forks may be what the import waits for."""
    (tmp_path / "takes_time.py").write_text("import __main__\n__main__.forked.wait()\nvalue = 7\n")
    script = FORKS.format(before="tilewright.locks._IMPORTS_PATIENCE_S = 0.3", child="return 7")
    assert _exit_code(script, str(tmp_path)) == 7


def test_a_child_imports_anew_what_was_not_ready(tmp_path: Path) -> None:
    """Such as a module that waits, in a function of its own before a fork, for the end of that."""
    text = "import os, __main__\nif os.getpid() == __main__.parent:\n    __main__.forked.wait()\nvalue = 7\n"
    (tmp_path / "takes_time.py").write_text(text)
    before = "parent = os.getpid(); tilewright.locks._IMPORTS_PATIENCE_S = 0.3"
    script = FORKS.format(before=before, child="import takes_time; return takes_time.value")
    assert _exit_code(script, str(tmp_path)) == 7


CACHED = """
    import os, signal, sys, threading
    from tilewright.cached import cached_property

    entered, forked = threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def value(self):
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                forked.wait()
            return object()

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        slow = Slow()
        os._exit(0 if slow.value is slow.value else 1)
    forked.set()
    thread.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_computes_cached_properties_that_another_thread_was_computing() -> None:
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(CACHED)]).returncode == 0


def test_the_package_has_no_cached_properties_with_locks() -> None:
    package = Path(__file__).parents[2] / "tilewright"
    locking = re.compile(r"functools\.cached_property|from functools import [^\n]*\bcached_property")
    users = {path.name for path in package.rglob("*.py") if locking.search(path.read_text())}
    assert users == {"cached.py", "identity.py"}  # its model, and those of users


BARRIERS = """
    import os, threading
    from tilewright.locks import ForkBarrier

    one, other = ForkBarrier(), ForkBarrier()
    within, crossed, done = threading.Event(), threading.Event(), threading.Event()

    def work():
        with one:
            within.set()
            crossed.wait(0.2)
            with other:  # as a signal handler may, which interrupts the thread behind a barrier
                done.set()

    thread = threading.Thread(target=work)
    thread.start()
    within.wait()
    child = os.fork()
    was_done = done.is_set()
    if child == 0:
        with one, other:
            os._exit(7 if was_done else 1)
    thread.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if was_done else 2)
"""


@pytest.mark.parametrize("order", ["one, other", "other, one"])
def test_a_fork_waits_for_a_thread_that_crosses_two_barriers(order: str) -> None:
    script = "import sys\n" + textwrap.dedent(BARRIERS).replace("one, other = ", f"{order} = ")
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7
