"""What work takes, told in ways that a busy machine does not change much."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

R = TypeVar("R")


def calls_of(work: Callable[[], R]) -> tuple[R, int]:
    """What `work()` returns, and the number of calls of functions that it makes: the same on any machine."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return result, calls


def is_within(limit_s: float, work: Callable[[], object], attempts: int = 10) -> bool:
    """Whether one of several attempts at `work()` takes less than the limit; others may hold some of them up."""
    for _ in range(attempts):
        start_s = time.perf_counter()
        work()
        if time.perf_counter() - start_s < limit_s:
            return True
    return False
