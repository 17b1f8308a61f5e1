"""Convolutions on NVIDIA chips: a product of weights with shifted windows, by the instructions of matrix products."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import KINDS, built, by_definition, emulated
from tests.sampling import sampled
from tilewright import dtypes
from tilewright.cli.bench_suites.cuda_static import figures

Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """An image (2, channels, *spatial), and weights of a window; one number of the rest for each spatial dim."""

    channels: int
    outputs: int
    spatial: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def program(self, x: Any, w: Any) -> Any:
        return tw.nn.conv(x, w, stride=self.strides, padding=self.padding, dilation=self.dilation, groups=self.groups)

    def arrays(self, dtype: tw.DType) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(0)
        shapes = (2, self.channels, *self.spatial), (self.outputs, self.channels // self.groups, *self.window)
        x, w = (rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes)
        return x, w

    def exact(self, x: Tensor, w: Tensor) -> Tensor:
        """In float64: a sum over the window of what its position sees of the padded image."""
        image = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *self.padding])
        each = zip(image.shape[2:], self.window, self.dilation, self.strides, strict=True)
        sizes = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in each]
        image = image.reshape(2, self.groups, -1, *image.shape[2:])
        weights = w.astype(np.float64).reshape(self.groups, -1, *w.shape[1:])
        total = np.zeros((2, self.groups, weights.shape[1], *sizes))
        for place in itertools.product(*map(range, self.window)):
            starts = [p * d for p, d in zip(place, self.dilation, strict=True)]
            ends = zip(starts, sizes, self.strides, strict=True)
            seen = image[(..., *(slice(first, first + n * s, s) for first, n, s in ends))]
            total += np.einsum("goc,bgc...->bgo...", weights[(..., *place)], seen)
        return total.reshape(2, self.outputs, *sizes)

    def check(self, result: Tensor, x: Tensor, w: Tensor) -> None:
        """Within sums in f32, rounded once."""
        info = ml_dtypes.finfo(x.dtype)
        assert result.dtype == x.dtype
        exact, bound = self.exact(x, w), self.exact(abs(x), abs(w))
        assert result.shape == exact.shape
        rounding = float(info.eps) * abs(exact) + float(info.smallest_subnormal)
        assert (abs(result.astype(np.float64) - exact) <= rounding + 2.0**-20 * bound).all()


CASES = {
    "padded": Case(16, 24, (5, 12), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "odd": Case(5, 7, (6, 19), (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 3)),
    "groups": Case(12, 32, (3, 9), (2, 3), (1, 2), ((0, 1), (2, 0)), (1, 1), 2),
    "few in a group": Case(8, 24, (4, 18), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 4),
    "line": Case(20, 18, (37,), (4,), (2,), ((2, 1),), (2,)),
    "volume": Case(6, 16, (3, 4, 17), (2, 3, 2), (1, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 1)),
    "points": Case(18, 20, (3, 17), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
}
# All cases on one chip; what differs on others are numbers, and so tiles and layouts.
ON_CHIPS = [(name, chip) for name in CASES for chip in KINDS if chip == "sm_90a" or name == "odd"]


def compiled(case: Case, chip: str, *arrays: Any) -> Any:
    return built(tw.jit(case.program).lower(*arrays), f"cuda:{chip}")


@pytest.mark.parametrize(("name", "chip"), sampled(ON_CHIPS, 2), ids=str)
def test_emulated_code_agrees_with_numpy(name: str, chip: str) -> None:
    case = CASES[name]
    x, w = case.arrays(tw.bf16)
    program = compiled(case, chip, x, w)
    is_multiplied = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in "".join(program.ptx.values())
    assert is_multiplied == (name != "few in a group")
    case.check(emulated(program, [x, w])[0], x, w)


@pytest.mark.parametrize("name", CASES)
def test_schedules_are_in_order(name: str) -> None:
    case = CASES[name]
    x, w = case.arrays(tw.f16)
    unit = compiled(case, "sm_80", x, w).unit
    case.check(by_definition(unit, [x, w])[0], x, w)


def test_other_types() -> None:
    """What no instruction multiplies is multiplied in f32; floats of 8 bits as f16."""
    case = CASES["odd"]
    x, w = case.arrays(tw.f32)
    case.check(emulated(compiled(case, "sm_90a", x, w), [x, w])[0], x, w)
    x, w = case.arrays(tw.f8e4m3fn)
    program = compiled(case, "sm_80", x, w)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in "".join(program.ptx.values())
    case.check(emulated(program, [x, w])[0], x, w)


def test_known_weights_are_laid_out_when_compiled() -> None:
    case = CASES["odd"]
    x, w = case.arrays(tw.bf16)
    program = built(tw.jit(lambda image: case.program(image, tw.asarray(w))).lower(x), "cuda:sm_80")
    assert len(program.ptx) == 1
    assert len(compiled(case, "sm_80", x, w).ptx) == 2
    case.check(emulated(program, [x])[0], x, w)


@pytest.mark.parametrize("chip", KINDS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_machine_code(chip: str, dtype: str) -> None:
    types = [tw.ShapeDtype(shape, dtypes.by_name(dtype)) for shape in ((4, 32, 32, 32), (32, 32, 3, 3))]
    program = built(tw.jit(partial(tw.nn.conv, padding=1)).lower(*types), f"cuda:{chip}")
    counts = figures(program)  # raises on spills and subroutines
    assert counts["HMMA"] > 0
    assert counts["LDGSTS"] > 0  # weights, in rows
    assert "FFMA" not in counts
