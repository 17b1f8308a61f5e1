"""A target outside the package: a scalar machine whose code is Python. The page "add a target" refers to it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.toy_target.target import ScalarProgram
from tilewright.machines.machine import Machine, parse
from tilewright.targets.base import Target


@cache
def _machine_named(name: str) -> Machine:
    return parse((Path(__file__).parent / "scalar.toml").read_text())


TARGET = Target("toy", True, False, _machine_named, ScalarProgram, scheduled=False)
