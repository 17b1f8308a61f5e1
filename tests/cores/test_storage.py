"""Arrays stored as block floats: sixteen numbers share an exponent, which the user asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores.comparing import Bounds, bounds_of, check
from tilewright import dtypes
from tilewright.errors import ArgumentError, UnsupportedOnTargetError
from tilewright.semantics.cores.tile_formats import load_array, store_array

Array = np.ndarray[Any, Any]
# What is computed from stored numbers is rounded to bf16 once or twice.
ROUNDED = Bounds(2.0**-7, 8, 1 - 2.0**-10)
# A result that is itself stored keeps 7 bits beneath the largest of its sixteen.
STORED = Bounds(2.0**-6, 8, 1 - 2.0**-8)
MACHINES = ("grid:wormhole", "grid:blackhole")


def stored(x: Array) -> Array:
    """What is left of an array that was stored."""
    return load_array(store_array(x, "bfp8"), x.shape, dtypes.from_numpy(x.dtype), "bfp8")


def normal(*shape: int, dtype: Any = ml_dtypes.bfloat16, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_products_of_stored_operands(target: str, dtype: Any) -> None:
    a, b = normal(100, 150, dtype=dtype), normal(150, 70, dtype=dtype, seed=1)
    wanted = stored(a).astype(np.float64) @ stored(b).astype(np.float64)
    lowered = tw.jit(lambda a, b: a @ b).lower(a, b)
    both = lowered.compile(target=target, storage={"a": "bfp8", "b": "bfp8"})
    type = dtypes.from_numpy(np.dtype(dtype))
    check(np.asarray(both(a, b)), wanted, type, bounds_of(type, 8))
    result = lowered.compile(target=target, storage={"a": "bfp8", "b": "bfp8", "return": "bfp8"})
    got = np.asarray(result(a, b))
    check(got.astype(ml_dtypes.bfloat16), wanted, dtypes.bf16, STORED)
    np.testing.assert_array_equal(got, stored(got))


@pytest.mark.parametrize("target", MACHINES)
def test_sums_of_many_steps_are_stored(target: str) -> None:
    """What is added up in pages are other pages than those that the result is packed to."""
    a, b = normal(40, 1500), normal(1500, 70, seed=1)
    compiled = tw.jit(lambda a, b: a @ b).lower(a, b).compile(target=target, storage={"return": "bfp8"})
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    check(np.asarray(compiled(a, b)).astype(ml_dtypes.bfloat16), wanted, dtypes.bf16, STORED)


@pytest.mark.parametrize("target", MACHINES)
def test_one_stored_operand_of_two(target: str) -> None:
    x, w = normal(64, 96), normal(96, 160, seed=1)
    wanted = x.astype(np.float64) @ stored(w).astype(np.float64)
    compiled = tw.jit(lambda x, w: x @ w).lower(x, w).compile(target=target, storage={"w": "bfp8"})
    check(np.asarray(compiled(x, w)), wanted, dtypes.bf16, ROUNDED)


@pytest.mark.parametrize("shape", [(5,), (33, 40), (3, 20, 70)])
def test_what_is_computed_point_by_point_and_reduced(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    wide = stored(x).astype(np.float64)
    function = tw.jit(lambda x: tw.exp(x) + tw.sum(x, axis=-1, keepdims=True))
    compiled = function.lower(x).compile(target="grid:blackhole", storage={"x": "bfp8"})
    check(np.asarray(compiled(x)), np.exp(wide) + wide.sum(-1, keepdims=True), dtypes.bf16, ROUNDED)


def test_an_array_that_goes_through_keeps_what_storing_leaves_to_the_bit() -> None:
    x = normal(70, 40)
    x[3] = 0
    x[5, 7] = 1e9
    function = tw.jit(lambda x: -x)
    compiled = function.lower(x).compile(target="grid", storage={"x": "bfp8"})
    np.testing.assert_array_equal(np.asarray(compiled(x)), -stored(x))
    compiled = function.lower(x).compile(target="grid", storage={"return": "bfp8"})
    np.testing.assert_array_equal(np.asarray(compiled(x)), stored(-x))


def test_what_cannot_be_stored_so_is_said() -> None:
    x = normal(64, 64)
    negative = tw.jit(lambda x: -x).lower(x)
    with pytest.raises(UnsupportedOnTargetError, match="cpu does not store `bfp8`"):
        negative.compile(target="cpu", storage={"x": "bfp8"})
    with pytest.raises(ArgumentError, match="no argument `z`"):
        negative.compile(target="grid", storage={"z": "bfp8"})
    whole = tw.jit(lambda x: -x).lower(np.zeros((4, 4), np.int32))
    with pytest.raises(UnsupportedOnTargetError, match="i32 is not stored as bfp8"):
        whole.compile(target="grid", storage={"x": "bfp8"})


def test_an_operand_of_control_flow_is_refused_at_its_line() -> None:
    def program(x: Any) -> Any:
        first = tw.sum(x, axis=0)
        doubled = tw.while_loop(lambda c: tw.sum(c) < 1e3, lambda c: c * 2.0, x)  # refused
        return first, doubled

    lowered = tw.jit(program).lower(tw.ShapeDtype((40, 64), tw.f32))
    with pytest.raises(UnsupportedOnTargetError, match="operands of control flow are not stored as bfp8") as caught:
        lowered.compile("grid", storage={"x": "bfp8"})
    assert caught.value.location is not None
    assert "# refused" in Path(__file__).read_text().splitlines()[caught.value.location.line - 1]
