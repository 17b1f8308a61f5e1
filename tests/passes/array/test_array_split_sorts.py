"""Sorts of one long line, which `array-split-sorts` makes of sorts of halves."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import check_meaning, check_unchanged, remarks
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.passes.array.array_split_sorts import LEAST_ELEMENTS, ArraySplitSortsPass

PASS = ArraySplitSortsPass()


def sorted_line(shape: str, dtype: str, axis: int, descending: bool = False) -> str:
    type, order = f"tensor<{shape}x{dtype}>", "true" if descending else "false"
    return f"""
    func.func @main(%x: {type}) -> {type} {{
      %z = array.sort(%x) {{axis = {axis} : index, descending = {order}}} : {type}
      func.return %z : {type}
    }}
    """


def drawn(count: int, dtype: tw.DType) -> np.ndarray:
    generator = np.random.default_rng(count)
    if dtype.is_float:
        x = (generator.standard_normal(count) * 20).astype(dtype.numpy)
        x[::31], x[::37], x[::1001], x[::503], x[::777] = 0.0, -0.0, np.nan, np.inf, -np.inf
        return x
    return generator.integers(int(dtype.lowest), int(dtype.highest), count, dtype=dtype.numpy, endpoint=True)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ("16384", 0, dtypes.f32),
        ("16385", 0, dtypes.f32),
        ("1x20001x1", 1, dtypes.f32),
        ("20001", 0, dtypes.f16),
        ("20000x1", 0, dtypes.f64),
        ("16387", 0, dtypes.i8),
        ("16387", 0, dtypes.u64),
    ],
)
def test_halves_are_sorted_and_merged(shape: str, axis: int, dtype: tw.DType, descending: bool) -> None:
    sizes = [int(n) for n in shape.split("x")]
    x = drawn(int(np.prod(sizes)), dtype).reshape(sizes)
    name = dtype.name if dtype.is_float or dtype.is_signed else f"ui{dtype.bits}"
    text = sorted_line(shape, name, axis, descending)
    unit = check_meaning(PASS, text, inputs=[x])
    sorts = [op for op in unit.main.body.block.ops if isinstance(op, array.SortOp)]
    assert [op.runs for op in sorts] == [1, 2]
    assert [decision for decision, _ in remarks(unit, "array-split-sorts")] == ["of halves, then merged"]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        (str(LEAST_ELEMENTS - 1), 0, "f32"),
        (f"{LEAST_ELEMENTS}x2", 0, "f32"),
        (f"1x{LEAST_ELEMENTS}", 0, "f32"),
        (str(LEAST_ELEMENTS + 1), 0, "f8E4M3FN"),
    ],
)
def test_other_sorts_stay(shape: str, axis: int, dtype: str) -> None:
    check_unchanged(PASS, sorted_line(shape, dtype, axis))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("count", [LEAST_ELEMENTS, 40001, 600002])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.i16, dtypes.u32], ids=repr)
def test_merged_lines_in_native_code(dtype: tw.DType, count: int, descending: bool) -> None:
    x = drawn(count, dtype)
    found = np.asarray(tw.jit(lambda x: tw.sort(x, descending=descending))(x))
    keys = x.astype(np.float64) if dtype.is_float else x
    order = np.argsort(keys, kind="stable")
    if descending:
        order = count - 1 - np.argsort(keys[::-1], kind="stable")[::-1]
    expected = x[order]
    assert found.dtype == x.dtype
    is_nan = keys[order] != keys[order]
    assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()
    assert all(value != value for value in found[is_nan])
