"""Scans, sorts and the largest elements on a grid of cores."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cores.comparing import EXACT, bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, simulated
from tests.programs import Program
from tilewright import dtypes
from tilewright.semantics.array import PRIMITIVES

Array = np.ndarray[Any, Any]
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i32": np.int32}


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """Many of them equal."""
    x = np.random.default_rng(0).integers(-9, 10, shape)
    return x.astype(np.int32) if dtype == "i32" else (x / 8).astype(NUMPY[dtype])


def results(op: str, x: Array, number: int, **attributes: Any) -> tuple[list[Array], list[Array]]:
    """Those of a grid in some variant, and by definition."""
    program = Program("main")
    program.outputs = list(program.add(op, [program.array(*x.shape, dtype=dtypes.from_numpy(x.dtype))], **attributes))
    got = simulated(program, [x], MACHINES[number % 2], VARIANTS[number % len(VARIANTS)])
    expected = PRIMITIVES[op]([x], attributes)
    return got, list(expected) if isinstance(expected, tuple) else [np.asarray(expected)]


SHAPES = [((70,), 0), ((33, 40), 0), ((33, 40), 1), ((3, 5, 34), 1), ((1, 1), 1), ((1500, 3), 0), ((2, 1100), 1)]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_scans(number: int, dtype: str) -> None:
    shape, axis = SHAPES[number]
    for place, fn in enumerate(("add", "maximum", "minimum")):
        x = numbers(shape, dtype)
        got, wanted = results("scan", x, number + place, fn=fn, axis=axis, reverse=bool((number + place) % 2))
        type = dtypes.from_numpy(x.dtype)
        check(got[0], wanted[0], type, bounds_of(type, 4) if fn == "add" else EXACT)


def test_bits_and_bools_are_scanned() -> None:
    x = np.random.default_rng(1).integers(-(2**31), 2**31, (35, 40)).astype(np.int32)
    for number, fn in enumerate(("bitwise_and", "bitwise_or", "bitwise_xor")):
        (got,), (wanted,) = results("scan", x, number, fn=fn, axis=number % 2, reverse=False)
        np.testing.assert_array_equal(got, wanted)
        (got,), (wanted,) = results("scan", x > 2**30, number, fn=fn, axis=1, reverse=True)
        np.testing.assert_array_equal(got, wanted)


def test_products_are_scanned_in_their_order() -> None:
    """Where parts overflow, the whole does not."""
    x = np.tile(np.array([1e-30, 1e30, 1e8, 1e-8], np.float32), 20)
    (got,), (wanted,) = results("scan", x, 0, fn="multiply", axis=0, reverse=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_sorts_and_largest_elements(number: int, dtype: str) -> None:
    shape, axis = SHAPES[number]
    x = numbers(shape, dtype)
    if dtype != "i32" and x.size > 9:
        x.reshape(-1)[[1, 7]] = np.nan
        x.reshape(-1)[[2, 8]] = -np.inf, np.inf
    for descending in (False, True):
        (got,), (wanted,) = results("sort", x, number, axis=axis, descending=descending)
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
    count = min(5, shape[-1])
    for mine, theirs in zip(*results("top_k", x, number + 1, k=count), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine.astype(np.float64), theirs.astype(np.float64))


def test_what_is_carried_along_a_sort_stays_in_order() -> None:
    keys = numbers((40, 50), "i32")
    places = np.broadcast_to(np.arange(50, dtype=np.int32), (40, 50)).copy()
    program = Program("main")
    operands = [program.array(40, 50, dtype=dtypes.i32) for _ in range(2)]
    program.outputs = list(program.add("sort", operands, axis=1, descending=False))
    _, got = simulated(program, [keys, places], "wormhole")
    np.testing.assert_array_equal(got, np.argsort(keys, axis=1, kind="stable"))
