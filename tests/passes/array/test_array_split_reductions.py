"""Reductions in parts: of long sums, and on GPUs of those with too few blocks for all SMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, emulated
from tilewright.cost.warps.loops import reduction_blocks
from tilewright.machines.machine import load
from tilewright.passes.array import array_split_reductions
from tilewright.passes.array.array_split_reductions import ArraySplitReductionsPass


def remarks(program: Any) -> list[str]:
    return [each.decision for each in program.unit.remarks if each.pass_name == ArraySplitReductionsPass.name]


def of_shape(function: Callable[..., Any], *shape: int, dtype: Any = tw.f32, target: str = "cuda:sm_90a") -> Any:
    return built(tw.jit(function).lower(tw.ShapeDtype(shape, dtype)), target)


@pytest.mark.parametrize(
    ("shape", "axis", "parts"),
    [
        ((8192, 8192), 0, ["8 parts"]),  # 128 blocks of 64 columns
        ((64, 1 << 20), 1, ["16 parts"]),  # a block for each row
        ((8192, 8192), 1, []),  # enough rows
        ((1024, 1024), 0, []),  # too small for a second kernel
        ((8191, 8192), 0, []),  # no equal parts
    ],
)
def test_reductions_of_few_blocks_have_parts(shape: tuple[int, ...], axis: int, parts: list[str]) -> None:
    program = of_shape(lambda x: tw.sum(x, axis=axis), *shape)
    assert [each for each in remarks(program) if "parts" in each] == parts


def test_all_sms_have_blocks() -> None:
    cores = load("sm_90a").cores
    program = of_shape(lambda x: tw.max(x, axis=0), 8192, 8192)
    assert reduction_blocks((8192, 8192), (0,), cores) < cores
    first = next(iter(program.unit.kernels()))
    assert np.prod(first.body.block.first_op.extents) >= 4 * cores


@pytest.mark.parametrize("function", [tw.sum, tw.max, tw.prod], ids=lambda f: f.__name__)
def test_results_in_parts(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_split_reductions, "LEAST_SHARED", 1)
    x = np.float32(2.0) ** np.random.default_rng(0).integers(-1, 2, (512, 70)).astype(np.float32)
    program = built(tw.jit(lambda x: function(-x, axis=0) + 1).lower(x), "cuda:sm_90a")
    assert [each for each in remarks(program) if "parts" in each] == ["4 parts"]
    reference = {"sum": np.sum, "max": np.max, "prod": np.prod}[function.__name__]
    expected = reference(-x.astype(np.float64), axis=0) + 1
    np.testing.assert_allclose(emulated(program, [x])[0], expected, rtol=1e-4)
