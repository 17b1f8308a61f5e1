"""Scans and argument reductions by warps: their PTX, run by an emulator, agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.chips import KINDS, emulated
from tests.programs import Program
from tests.sampling import alternating
from tilewright import dtypes
from tilewright.errors import UnsupportedOnTargetError
from tilewright.frontend.build import build_module
from tilewright.pipelines import compile_module

Tensor = np.ndarray[Any, Any]
ACCUMULATED = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
# One element, lines within a vector, a warp's registers, of more than a block holds, and beside each other.
SHAPES = [((1,), 0), ((3, 5), 1), ((40, 33), 1), ((33, 40), 0), ((2, 9001), 1), ((9001, 2), 0), ((5, 130, 3), 1)]


def compiled_for(p: Program, chip: str) -> Any:
    return compile_module(build_module(p), p.constants, f"cuda:{chip}")


def accumulated(fn: str, x: Tensor, axis: int, reverse: bool) -> Tensor:
    wide = x if x.dtype.kind in "iu" else x.astype(np.float64)
    turned = np.flip(wide, axis) if reverse else wide
    found = ACCUMULATED[fn].accumulate(turned, axis=axis, dtype=wide.dtype)
    return np.flip(found, axis) if reverse else found


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_sums_along_lines(shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    p = Program()
    x = p.array(*shape)
    p.outputs = p.add("scan", [x], fn="add", axis=axis, reverse=reverse)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (found,) = emulated(compiled_for(p, "sm_90a"), [values])
    expected = accumulated("add", values, axis, reverse)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-7 * max(1.0, np.abs(expected).max()))


FLOATS, INTEGERS = ("f32", "f64", "bf16", "f16"), ("i32", "i64", "u8")
SCANS = [(fn, dtype) for fn in ACCUMULATED for dtype in (*FLOATS, *INTEGERS) if fn != "multiply" or dtype in INTEGERS]


@pytest.mark.parametrize(("fn", "dtype", "chip"), [(*scan, chip) for scan, chip in alternating(SCANS, KINDS)])
def test_every_function_and_type(fn: str, dtype: str, chip: str) -> None:
    kind = getattr(dtypes, dtype)
    p = Program()
    x = p.array(3, 70, dtype=kind)
    p.outputs = p.add("scan", [x], fn=fn, axis=1, reverse=False)
    generator = np.random.default_rng(1)
    # Products of few numbers beside 1, so that they stay within range.
    numbers = (
        np.where(generator.random((3, 70)) < 0.05, 2, 1) if fn == "multiply" else generator.integers(0, 3, (3, 70))
    )
    values = numbers.astype(kind.numpy)
    (found,) = emulated(compiled_for(p, chip), [values])
    expected = accumulated(fn, values, 1, reverse=False)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(kind.numpy).astype(np.float64))


def test_products_of_floats_are_refused() -> None:
    """Those of parts may overflow where those of whole lines do not."""
    p = Program()
    x = p.array(70)
    p.outputs = p.add("scan", [x], fn="multiply", axis=0, reverse=False)
    with pytest.raises(UnsupportedOnTargetError, match="cumulative products of floats"):
        compiled_for(p, "sm_90a")


@pytest.mark.parametrize("shape", [(4096,), (64, 4096), (4096, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_lines_fit_the_registers(dtype: str, shape: tuple[int, ...]) -> None:
    p = Program()
    x = p.array(*shape, dtype=getattr(dtypes, dtype))
    p.outputs = p.add("scan", [x], fn="add", axis=0, reverse=False)
    for kernel in compiled_for(p, "sm_90a").cost()["kernels"].values():
        assert kernel["spill_bytes"] == 0


@pytest.mark.parametrize(("fn", "peer"), [("maximum", np.argmax), ("minimum", np.argmin)], ids=["most", "least"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_the_first_of_the_best(fn: str, peer: Any, shape: tuple[int, ...], axis: int) -> None:
    """Many are equal, of either zero, and some lines have NaNs: the first of those is the best."""
    p = Program()
    x = p.array(*shape)
    p.outputs = p.add("arg_reduce", [x], fn=fn, axis=axis)
    generator = np.random.default_rng(2)
    values = generator.integers(-2, 3, shape).astype(np.float32) * generator.choice([-1.0, 1.0], shape)
    values[generator.random(shape) < 0.002] = np.nan
    (found,) = emulated(compiled_for(p, "sm_90a"), [values.astype(np.float32)])
    np.testing.assert_array_equal(found, peer(values, axis=axis))


@pytest.mark.parametrize("dtype", ["i32", "u8", "bf16", "f64"])
def test_the_best_of_other_types(dtype: str) -> None:
    kind = getattr(dtypes, dtype)
    p = Program()
    x = p.array(6, 50, dtype=kind)
    p.outputs = [p.add("arg_reduce", [x], fn=fn, axis=1)[0] for fn in ("maximum", "minimum")]
    values = np.random.default_rng(3).integers(0, 100, (6, 50)).astype(kind.numpy)
    most, least = emulated(compiled_for(p, "sm_80"), [values])
    np.testing.assert_array_equal(most, np.argmax(values.astype(np.float64), axis=1))
    np.testing.assert_array_equal(least, np.argmin(values.astype(np.float64), axis=1))


def test_a_line_of_what_all_lose_against() -> None:
    """The first of a line of infinities, in parts of which the last is not full."""
    p = Program()
    x = p.array(9001)
    p.outputs = p.add("arg_reduce", [x], fn="maximum", axis=0)
    (found,) = emulated(compiled_for(p, "sm_90a"), [np.full(9001, -np.inf, np.float32)])
    assert found == 0
