"""Sorts that GPUs have no code for are refused by name, however long the lines are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import UnsupportedOnTargetError

CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "sort": (tw.sort, (100,)),
    "sort of a long line": (tw.sort, (65536,)),
    "argsort of long lines": (lambda x: tw.argsort(x, axis=1), (3, 5000)),
    "sort of long columns": (lambda x: tw.sort(x, axis=0), (5000, 3)),
    "top-k": (lambda x: tw.top_k(x, 3), (100,)),
    "top-k of a long line": (lambda x: tw.top_k(x, 64), (65536,)),
}


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("name", CASES)
def test_a_sort_is_refused_by_name(name: str, chip: str) -> None:
    function, shape = CASES[name]
    lowered = tw.jit(function).lower(tw.ShapeDtype(shape, tw.f32))
    with pytest.raises(UnsupportedOnTargetError, match=r"`(sort|top_k)` is not compiled for GPUs yet"):
        lowered.compile(target=f"cuda:{chip}").ir("llvm")
