"""Epilogues of matmuls on warps: which of them leave registers for large tiles, and that the assembler agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.test_machine_code import check_clean

MATRIX, VECTOR = tw.ShapeDtype((4096, 4096), tw.bf16), tw.ShapeDtype((4096,), tw.bf16)
LIGHT: dict[str, Callable[..., Any]] = {
    "nothing": lambda a, b, v, m: a @ b,
    "bias": lambda a, b, v, m: a @ b + v,
    "bias and ReLU": lambda a, b, v, m: tw.maximum(a @ b + v, 0),
    "bias and residual": lambda a, b, v, m: a @ b + v + m,
    "ReLU6": lambda a, b, v, m: tw.clip(a @ b, 0, 6),
    "leaky": lambda a, b, v, m: tw.where(a @ b > 0, a @ b, 0.1 * (a @ b)),
    "two results": lambda a, b, v, m: (a @ b, a @ b + v),
}
HEAVY: dict[str, Callable[..., Any]] = {
    "GELU": lambda a, b, v, m: tw.nn.gelu(a @ b + v),
    "sigmoid": lambda a, b, v, m: tw.nn.sigmoid(a @ b),
    "quotient": lambda a, b, v, m: (a @ b) / v,
    "two residuals": lambda a, b, v, m: a @ b + m + m[::-1],
    "transposed residual": lambda a, b, v, m: a @ b + m.T,
}


def tile_of(function: Callable[..., Any]) -> tuple[int, ...]:
    compiled = tw.jit(function).lower(MATRIX, MATRIX, VECTOR, MATRIX).compile("cuda:sm_90a")
    (chosen,) = (each for each in compiled.schedules.values() if isinstance(each, tw.schedules.WarpMatmul))
    return chosen.tile


@pytest.mark.parametrize("name", LIGHT)
def test_light_epilogues_have_large_tiles_whose_registers_are_not_spilled(name: str) -> None:
    assert tile_of(LIGHT[name]) == (128, 256, 64)
    check_clean(built(tw.jit(LIGHT[name]).lower(MATRIX, MATRIX, VECTOR, MATRIX), "cuda:sm_90a"))


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_epilogues_have_smaller_tiles(name: str) -> None:
    assert tile_of(HEAVY[name]) == (128, 128, 64)


def test_heavy_prologues_are_no_epilogues() -> None:
    """Of a function of an operand, the matmul has what is stored."""
    assert tile_of(lambda a, b, v, m: tw.nn.gelu(a) @ b) == (128, 256, 64)
