"""Floats of 8 bits on NVIDIA chips: conversions, arithmetic and products on an emulator, and their machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import KINDS, built, emulated
from tests.sampling import alternating
from tilewright import dtypes
from tilewright.cli.bench_suites.cuda_static import figures
from tilewright.dtypes import DType

Tensor = np.ndarray[Any, Any]
E4M3, E5M2 = dtypes.f8e4m3fn, dtypes.f8e5m2
# One chip that converts by instructions, one that does not.
CONVERTING = ("sm_80", "sm_89")
# A chip with products of f16 alone, one with its own, one whose assembler makes them of f16 for single warps.
MULTIPLYING = {"sm_80": "HMMA", "sm_89": "QMMA", "sm_90a": "HMMA", "sm_120a": "QMMA"}


def whole(shape: tuple[int, ...], dtype: DType, seed: int) -> Tensor:
    """Whole numbers that products add exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype.numpy)


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal in type and every bit, but that any NaN is any other."""
    assert actual.dtype == expected.dtype
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(a, b)
    finite = ~np.isnan(b)
    np.testing.assert_array_equal(np.signbit(a[finite]), np.signbit(b[finite]))


@pytest.mark.parametrize("chip", CONVERTING)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=repr)
def test_every_code_is_its_number(chip: str, dtype: DType) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    program = built(tw.jit(lambda x: x.astype(tw.f32)).lower(codes), f"cuda:{chip}")
    assert ("cvt.rn.f16x2." in "".join(program.ptx.values())) == (chip != "sm_80")
    same(emulated(program, [codes])[0], codes.astype(np.float32))


@pytest.mark.parametrize("chip", CONVERTING)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=repr)
def test_rounding(chip: str, dtype: DType) -> None:
    """Every fifth bf16 number, all middles of neighbours, and the f32 numbers beside them."""
    numbers = np.unique(np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    step = numbers[-1] - numbers[-2]
    middles = np.concatenate([(numbers[1:] + numbers[:-1]) / 2, [numbers[-1] + step / 2, -numbers[-1] - step / 2]])
    beside = [np.nextafter(middles, np.float32(to)) for to in (np.inf, -np.inf)]
    others = (np.arange(0, 2**16, 5, dtype=np.uint32) << 16).view(np.float32)
    values = np.concatenate([others, middles, *beside])
    program = built(tw.jit(lambda x: x.astype(dtype)).lower(values), f"cuda:{chip}")
    assert ("cvt.rn.satfinite." in "".join(program.ptx.values())) == (chip != "sm_80")
    with np.errstate(all="ignore"):
        expected = values.astype(dtype.numpy)
    same(emulated(program, [values])[0], expected)


@pytest.mark.parametrize("chip", CONVERTING)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=repr)
def test_each_operation_rounds_once(chip: str, dtype: DType) -> None:
    generator = np.random.default_rng(0)
    x, y = (generator.normal(0, scale, (9, 21)).astype(dtype.numpy) for scale in (30, 300))

    def function(x: Any, y: Any) -> tuple[Any, ...]:
        other = E5M2 if dtype == E4M3 else E4M3
        sums, wide = tw.sum(x, axis=0), y.astype(tw.f64)
        return x + y * 2, x.astype(other), wide.astype(dtype), sums, tw.max(y, axis=1), x.mT, x.astype(tw.i32)

    expected = tw.jit(function, target="interp")(x, y)
    program = built(tw.jit(function).lower(x, y), f"cuda:{chip}")
    for ours, reference in zip(emulated(program, [x, y]), expected, strict=True):
        same(ours, reference)


@pytest.mark.parametrize(("chip", "left", "right"), alternating(MULTIPLYING, (E4M3, E5M2), (E4M3, E5M2)), ids=str)
def test_products(chip: str, left: DType, right: DType) -> None:
    """Of odd shapes through registers, and of rows that are copied ahead."""
    for (rows, depth, columns), is_turned in (((21, 39, 13), False), ((24, 80, 24), True)):
        a, b = whole((rows, depth), left, 0), whole((columns, depth) if is_turned else (depth, columns), right, 1)
        exact = a.astype(np.float64) @ (b.T if is_turned else b).astype(np.float64)

        def product(x: Any, y: Any, is_turned: bool = is_turned) -> Any:
            return tw.matmul(x, y.T if is_turned else y, dtype=tw.f32)

        program = built(tw.jit(product).lower(a, b), f"cuda:{chip}")
        names = {dtypes.f16: "f16", E4M3: "e4m3", E5M2: "e5m2"}
        multiplied = (dtypes.f16, dtypes.f16) if chip == "sm_80" else (left, right)
        depth_of_one = 16 if chip == "sm_80" else 32
        instruction = f"mma.sync.aligned.m16n8k{depth_of_one}.row.col.f32.{'.'.join(names[d] for d in multiplied)}.f32"
        assert instruction in "".join(program.ptx.values())
        same(emulated(program, [a, b])[0], exact.astype(np.float32))


@pytest.mark.parametrize("chip", KINDS)
def test_results_of_8_bits_and_more_done_with_a_product(chip: str) -> None:
    a, b = whole((33, 64), E4M3, 0), whole((20, 64), E4M3, 1)
    exact = a.astype(np.float32) @ b.T.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = exact.astype(E4M3.numpy), (np.maximum(exact, 0) * np.float32(0.25)).astype(E5M2.numpy)

    def function(x: Any, y: Any) -> tuple[Any, Any]:
        return x @ y.T, (tw.nn.relu(tw.matmul(x, y.T, dtype=tw.f32)) * 0.25).astype(tw.f8e5m2)

    program = built(tw.jit(function).lower(a, b), f"cuda:{chip}")
    for ours, reference in zip(emulated(program, [a, b]), expected, strict=True):
        same(ours, reference)


@pytest.mark.parametrize("chip", MULTIPLYING)
def test_machine_code_of_products(chip: str) -> None:
    left, right = tw.ShapeDtype((1024, 1024), tw.f8e4m3fn), tw.ShapeDtype((1024, 1024), tw.f8e5m2)
    program = built(tw.jit(lambda x, y: tw.matmul(x, y.T, dtype=tw.f32)).lower(left, right), f"cuda:{chip}")
    counts = figures(program)  # raises on spills and subroutines
    if chip == "sm_90a":
        assert counts["QGMMA"] == 4
        assert counts["UTMALDG"] >= 2
        return
    assert counts[MULTIPLYING[chip]] > 0
    if chip != "sm_80":
        assert counts["LDGSTS"] > 0
        assert counts["LDSM"] > 0


def test_tile_kernels_multiply_both_formats() -> None:
    @tw.kernel
    def matmul(a: tw.In["M K"], b: tw.In["N K"], c: tw.Out["M N", tw.f32], *, size: int = 32):
        for i, j in tw.grid(c, (size, size)):
            total = tw.zeros((size, size), tw.f32)
            for k in tw.steps(a, axis=1, size=size):
                total = tw.dot(a[i, k], b[j, k].T, total)
            c[i, j] = total

    a, b = whole((40, 96), E4M3, 0), whole((50, 96), E5M2, 1)
    lowered = tw.jit(lambda x, y: matmul(x, y)).lower(a, b)
    program = built(lowered, "cuda:sm_89")
    assert "e4m3.e5m2" in "".join(program.ptx.values())
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    same(emulated(program, [a, b])[0], exact.astype(np.float32))
