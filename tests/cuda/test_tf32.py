"""Products of f32 whose operands are rounded to tf32: in each target the same rounding, and tensor cores on NVIDIA
chips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import CHIPS, KINDS, built, emulated
from tests.emulators.ptx.formats import narrowed
from tilewright.cli.bench_suites.cuda_static import figures
from tilewright.errors import ArgumentError, DTypeError

Tensor = np.ndarray[Any, Any]
# Rows, depth, columns; of odd shapes, of ones that are copied ahead, and of a vector, which no tensor core multiplies.
SHAPES = [(21, 39, 13), (24, 80, 24), (1, 40, 24)]


def random(*shape: int, seed: int) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_tf32(x: Tensor) -> Tensor:
    """By the emulator's rounding, which is float64 arithmetic."""
    return narrowed(x.astype(np.float64), "tf32", "rna").astype(np.float64)


def product(x: Any, y: Any) -> Any:
    return tw.matmul(x, y.T, precision="tf32")


def check(result: Tensor, a: Tensor, b: Tensor) -> None:
    """Within f32 sums of rounded operands, and not of the operands as they are."""
    exact, bound = in_tf32(a) @ in_tf32(b).T, np.abs(a) @ np.abs(b).T
    assert (np.abs(result - exact) <= bound * a.shape[1] * 2.0**-24).all()
    assert (np.abs(result - a.astype(np.float64) @ b.T.astype(np.float64)) > bound * a.shape[1] * 2.0**-24).any()


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("shape", [*SHAPES, (130, 300, 70)], ids=str)
def test_operands_are_rounded(target: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b = random(rows, depth, seed=0), random(columns, depth, seed=1)
    check(tw.jit(product, target=target)(a, b), a, b)
    weights = tw.jit(lambda x: product(x, tw.asarray(b)), target=target)
    check(weights(a), a, b)


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_rounding(target: str) -> None:
    """Ties go away from zero; what is no number stays what it is; sums that are split round as well."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 4096, np.uint64).astype(np.uint32)
    ties = (x & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    x = np.concatenate([x, ties, np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF], np.uint32)])
    x = x.view(np.float32)[:, None]
    with np.errstate(all="ignore"):
        expected = narrowed(x.astype(np.float64), "tf32", "rna")
        got = tw.jit(lambda v: tw.matmul(v, tw.ones((1, 1)), precision="tf32"), target=target)(x)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("chip", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_on_chips(chip: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b = random(rows, depth, seed=0), random(columns, depth, seed=1)
    program = built(tw.jit(product).lower(a, b), f"cuda:{chip}")
    assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in "".join(program.ptx.values())) == (rows > 1)
    check(emulated(program, [a, b])[0], a, b)


@pytest.mark.parametrize("shape", [(256, 32, 512)], ids=str)
def test_warpgroups_multiply_what_copies_rounded(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b = random(rows, depth, seed=0), random(columns, depth, seed=1)
    program = built(tw.jit(product).lower(a, b), "cuda:sm_90a")
    assert "k8.f32.tf32.tf32" in "".join(program.ptx.values())
    check(emulated(program, [a, b])[0], a, b)


def test_right_operands_in_rows_pass_through_registers() -> None:
    a, b = random(24, 80, seed=0), random(80, 24, seed=1)
    program = built(tw.jit(lambda x, y: tw.matmul(x, y, precision="tf32")).lower(a, b), "cuda:sm_90a")
    check(emulated(program, [a, b])[0], a, b.T)


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip in KINDS])
def test_machine_code(chip: str) -> None:
    square = tw.ShapeDtype((1024, 1024), tw.f32)
    program = built(tw.jit(product).lower(square, square), f"cuda:{chip}")
    counts = figures(program)  # raises on spills and subroutines
    if chip == "sm_100a":
        assert min(counts[name] for name in ("UTCHMMA", "UTMALDG", "LDTM")) > 0
        return
    if chip == "sm_90a":
        assert min(counts[name] for name in ("HGMMA", "UTMALDG")) > 0
        return
    assert "HMMA.1688.F32.TF32" in "".join(program.sass.values())
    assert counts["LDGSTS"] > 0
    assert counts["LDSM"] > 0


def test_tile_kernels_ask_for_tf32() -> None:
    @tw.kernel
    def matmul(a: tw.In["M K"], b: tw.In["N K"], c: tw.Out["M N"], *, size: int = 32):
        for i, j in tw.grid(c, (size, size)):
            total = tw.zeros((size, size), tw.f32)
            for k in tw.steps(a, axis=1, size=size):
                total = tw.dot(a[i, k], b[j, k].T, total, precision="tf32")
            c[i, j] = total

    a, b = random(40, 96, seed=0), random(50, 96, seed=1)
    for target in ("interp", "cpu"):
        check(tw.jit(lambda x, y: matmul(x, y), target=target)(a, b), a, b)
    program = built(tw.jit(lambda x, y: matmul(x, y)).lower(a, b), "cuda:sm_80")
    assert "tf32.tf32.f32" in "".join(program.ptx.values())
    check(emulated(program, [a, b])[0], a, b)


@pytest.mark.parametrize(
    ("dtype", "precision", "error", "text"),
    [("f32", "bf16x9", ArgumentError, "no precision 'bf16x9'"), ("f16", "tf32", DTypeError, "one of f32")],
)
def test_other_precisions_and_types_are_refused(dtype: str, precision: str, error: type, text: str) -> None:
    x = tw.ShapeDtype((4, 4), getattr(tw, dtype))
    with pytest.raises(error, match=text) as caught:
        tw.jit(lambda a: tw.matmul(a, a, precision=precision)).lower(x)
    assert caught.value.help
