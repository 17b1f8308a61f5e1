"""Programs compiled for NVIDIA chips: their PTX, run by an emulator, agrees with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cuda.chips import KINDS, by_definition, emulated
from tests.cuda.test_runtime import LONG
from tests.numerics.test_phases import close, expected_of
from tests.programs import PROGRAMS
from tilewright.errors import UnsupportedOnTargetError
from tilewright.frontend.build import build_module
from tilewright.pipelines import compile_module

# What warps cannot do yet: sorts and the largest k.
UNSUPPORTED = ("ordered",)
SUPPORTED = [make for make in PROGRAMS if make.__name__ not in UNSUPPORTED]


# Shared by all chips is how; what differs are numbers, and so tiles and layouts.
ON_ALL_KINDS = ("softmax_columns", "layer_norm", "moved")
# The long ones run on the same emulator in `test_runtime`, and long scans at other sizes in `test_ordered`.
CASES = [
    (make, chip)
    for make in SUPPORTED
    for chip in KINDS
    if (chip == "sm_90a" and make.__name__ not in (*LONG, "ordered_long")) or make.__name__ in ON_ALL_KINDS
]


@pytest.mark.parametrize(("make", "chip"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_emulated_code_agrees_with_numpy(make: Callable[..., Any], chip: str) -> None:
    program, arrays, expected = expected_of(make)
    compiled = compile_module(build_module(program), program.constants, f"cuda:{chip}")
    close(emulated(compiled, arrays), expected)


@pytest.mark.parametrize("make", SUPPORTED, ids=lambda make: make.__name__)
def test_schedules_are_in_order(make: Callable[..., Any]) -> None:
    """By the definitions of the scheduled operations, which check what warps and copies do to the memory of a block."""
    program, arrays, expected = expected_of(make)
    unit = compile_module(build_module(program), program.constants, "cuda:sm_90a").unit
    close(by_definition(unit, arrays), expected)


@pytest.mark.parametrize("make", [m for m in PROGRAMS if m.__name__ in UNSUPPORTED], ids=lambda make: make.__name__)
def test_what_is_not_there_yet_is_said(make: Callable[..., Any]) -> None:
    program, _, _ = expected_of(make)
    with pytest.raises(UnsupportedOnTargetError, match="for GPUs yet"):
        compile_module(build_module(program), program.constants, "cuda:sm_90a")
