"""Schedules of kernels that the user wrote: warps and stages, on machines that have such."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.interop.targets import running
from tilewright import schedules
from tilewright.errors import ScheduleError


@tw.kernel
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N", tw.f32], *, side: int = 32, schedule: int = 0):
    for i, j in tw.grid(c, (side, side)):
        acc = tw.zeros((side, side), tw.f32)
        for k in tw.steps(a, axis=1, size=side):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


@tw.kernel
def doubled(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 64):
        y[i] = x[i] * 2.0


def test_warps_and_stages_of_a_kernel_that_the_user_wrote() -> None:
    a, b = (np.random.default_rng(n).integers(-3, 4, (64, 96)).astype(np.float16) for n in range(2))
    b = b.T.copy()
    types = (*(tw.ShapeDtype(x.shape, tw.f16) for x in (a, b)), tw.ShapeDtype((64, 64), tw.f32))
    with running("cuda:sm_80"), tw.options(cache=False):
        program = matmul.lower(*types, schedule=3)  # a parameter of the kernel
        compiled = program.compile("cuda:sm_80", schedule=schedules.TileKernel(warps=2, stages=2))
        assert list(compiled.schedules.values()) == [schedules.TileKernel(warps=2, stages=2)]
        decisions = [remark.decision for remark in compiled.executable.unit.remarks]
        assert "2 windows copied ahead, 2 stages" in decisions
        result = np.zeros((64, 64), np.float32)
        compiled(a, b, result)
        np.testing.assert_array_equal(result, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize(
    ("target", "schedule", "text"),
    [
        ("cuda:sm_80", schedules.TileKernel(warps=3), "warps=3"),
        ("cuda:sm_80", schedules.TileKernel(stages=4), "stages=4"),
        ("cpu", schedules.TileKernel(warps=4), "no kernel of the program admits"),
        ("cpu", schedules.Loop(tile=(64,)), "no kernel of the program admits"),
        ("grid:wormhole", schedules.TileKernel(warps=4), "no kernel of the program admits"),
    ],
    ids=str,
)
def test_kernels_without_such_a_decision_refuse_it(target: str, schedule: schedules.Schedule, text: str) -> None:
    types = [tw.ShapeDtype((256,), tw.f32)] * 2
    with pytest.raises(ScheduleError) as caught:
        doubled.lower(*types, schedule=schedule).compile(target)
    assert text in caught.value.message
