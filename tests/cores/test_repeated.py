"""Functions of tiles that larger ones repeat are computed once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cores.compiling import MACHINES, compiled
from tests.programs import Program
from tilewright.cost.cores.model import cost_of
from tilewright.targets.grid.runtime import Simulation


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [32, 64, 256])
def test_what_a_row_repeats_is_multiplied_once(columns: int, machine: str) -> None:
    """All pages of a row add the same column, which is a product."""
    x = np.random.default_rng(columns).standard_normal((32, columns)).astype(np.float32)
    program = Program("main")
    value = program.array(32, columns)
    total = program.reduce(value, "add", (1,))
    square = program.map("multiply", total, total)
    program.outputs = [program.map("add", value, program.broadcast(square, (32, columns), (0,)))]
    unit = compiled(program, machine)
    (got,) = Simulation(unit, whole_outputs=True).run([x])
    wanted = x + x.astype(np.float64).sum(1, keepdims=True) ** 2
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)
    (kernel,) = unit.kernels()
    cost = cost_of(kernel, unit.machine.core_grid)
    assert cost is not None
    assert sum(kind.tiles for kind in cost.kinds if kind.kind == "vector multiply") == 1
