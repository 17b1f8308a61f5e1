"""Random programs of nested loops and branches on the emulated device, and by definition, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests import host_programs
from tests.cuda.running import CHIP
from tests.emulators.cuda_driver import FakeDriver
from tests.sampling import sampled
from tilewright.driver.by_definition import DefinedExecutable
from tilewright.targets.base import Executable

pytestmark = pytest.mark.usefixtures("no_assembler")


def executable(case: host_programs.Case) -> Executable:
    return tw.jit(case.function, donate=case.donated).lower(*case.arrays).compile(CHIP).executable


@pytest.mark.parametrize("seed", sampled(range(120), 12, first=1))
def test_loops_and_branches(seed: int, driver: FakeDriver) -> None:
    case = host_programs.case(seed)
    program = executable(case)
    for _ in range(2):
        for found, expected in zip(program(*[array.copy() for array in case.arrays]), case.expected, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", sampled(range(120), 12, first=2))
def test_loops_and_branches_by_definition(seed: int) -> None:
    case = host_programs.case(seed)
    program = DefinedExecutable(executable(case), seed)
    arrays = [array.copy() for array in case.arrays]
    for found, expected in zip(program(*arrays), case.expected, strict=True):
        np.testing.assert_array_equal(found, expected)
    for array, given in zip(case.arrays, arrays, strict=True):
        np.testing.assert_array_equal(array, given)
