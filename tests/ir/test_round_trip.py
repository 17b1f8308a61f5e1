"""Every phase of every program prints as text that parses to the same text, and verifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from tests.programs import PROGRAMS, build, matmul_epilogue
from tilewright.dialects.array import Array
from tilewright.dialects.cores import Cores
from tilewright.dialects.func import Func
from tilewright.dialects.scheduled import Scheduled
from tilewright.dialects.tile import Tile
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.pipelines import run_passes


def context() -> Context:
    made = Context()
    for dialect in (Builtin, Func, Array, Tile, Scheduled, Cores):
        made.load_dialect(dialect)
    return made


def stages(make: Callable[..., Any]) -> dict[str, str]:
    program = build(make)
    return run_passes(Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_text_round_trips_in_every_phase(make: Callable[..., Any]) -> None:
    for phase, text in stages(make).items():
        module = Parser(context(), text).parse_module()
        module.verify()
        assert str(module) == text, phase


@pytest.mark.parametrize(
    ("phase", "old", "new"),
    [
        ("array", '{fn = "sigmoid"}', '{fn = "less"}'),
        ("array", "right_contract = array<i64: 0>", "right_contract = array<i64: 1>"),
        ("tile", "tensor<70x48xf32>", "tensor<71x48xf32>"),
        ("tile", '{fn = "multiply"}', '{fn = "bitwise_and"}'),
        ("scheduled", "accumulate = false", "accumulate = 3 : index"),
        ("scheduled", '"worker">', '"elsewhere">'),
    ],
)
def test_a_broken_program_does_not_verify(phase: str, old: str, new: str) -> None:
    text = stages(matmul_epilogue)[phase]
    assert old in text
    with pytest.raises(VerifyException):
        Parser(context(), text.replace(old, new)).parse_module().verify()
