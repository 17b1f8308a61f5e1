"""Random programs of nested loops and branches on CPUs, with donated arguments, against NumPy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tilewright as tw
from tests import host_programs
from tests.sampling import sampled
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.semantics.host import HostMemory, in_place
from tilewright.semantics.scheduled import run_call


@pytest.mark.parametrize("seed", sampled(range(120), 4))
def test_loops_and_branches(seed: int) -> None:
    """Several calls of one program: what an earlier call leaves in its arena does not matter."""
    case = host_programs.case(seed)
    with tw.options(cache=False, verify=2):
        compiled = tw.jit(case.function, donate=case.donated).lower(*case.arrays).compile("cpu")
    for _ in range(3):
        arrays = [array.copy() for array in case.arrays]
        found = compiled.executable(*arrays)
        for result, expected in zip(found, case.expected, strict=True):
            np.testing.assert_array_equal(result, expected)
        for n, array in enumerate(case.arrays):
            if f"x{n}" not in case.donated:
                np.testing.assert_array_equal(arrays[n], array)


@pytest.mark.parametrize("seed", sampled(range(120), 12, first=5))
def test_each_kernel_is_counted(seed: int) -> None:
    """Programs with clocks, whose counts are one more constant, count as many launches as an interpreter of the host
    program."""
    case = host_programs.case(seed)
    with tw.options(cache=False):
        compiled = tw.jit(case.function).lower(*case.arrays).compile("cpu")
        times = compiled.profile(*case.arrays, repeat=2)
    unit = compiled.executable.unit
    kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
    launches: Counter[str] = Counter()

    def run_kernel(kernel: tile.KernelOp, operands: list[np.ndarray]) -> list[np.ndarray]:
        launches[kernel.sym_name] += 1
        return run_call(kernel, operands, seed)

    host = host_program(unit, plan_memory(unit), list(kernels))
    types = [array_type(each) for each in unit.main.function_type.outputs]
    HostMemory(host, kernels, unit.constants, unit.donated, in_place(run_kernel)).run(case.arrays, types)
    assert {time.name: time.calls for time in times if time.calls} == dict(launches)
