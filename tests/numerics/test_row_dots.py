"""Matmuls of few rows whose right operand is read in place: along the depth, or 16-bit floats by long rows."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.sampling import alternating, sampled


@tw.jit(target="cpu")
def product(x, w):
    return x @ w.T


@pytest.mark.parametrize(
    ("rows", "dtype"), alternating([1, 2, 3, 4, 5, 7, 13, 16], ["float32", "int32", "float64", "int64"])
)
def test_few_rows(rows: int, dtype: str) -> None:
    generator = np.random.default_rng(rows)
    sizes = ((1, 7), (3, 16), (15, 1), (16, 33), (17, 128), (100, 1000), (257, 5))
    for columns, depth in sampled(sizes, 2, rows % 2):
        x, w = ((generator.standard_normal((n, depth)) * 4).astype(dtype) for n in (rows, columns))
        expected = x.astype(np.float64) @ w.T.astype(np.float64)
        error = 1e-6 * depth if dtype == "float32" else 1e-12 * depth
        np.testing.assert_allclose(product(x, w), expected, rtol=1e-5, atol=16 * error)


@tw.jit(target="cpu")
def by_columns(x, w):
    return x @ w


@pytest.mark.parametrize(
    ("batch", "rows", "dtype"), alternating([(), (3,)], [1, 2, 3, 4, 6], [ml_dtypes.bfloat16, np.float16]), ids=str
)
def test_few_rows_of_narrow_floats(batch: tuple[int, ...], rows: int, dtype: type) -> None:
    generator = np.random.default_rng(rows)
    for columns, depth in sampled(((1, 7), (15, 33), (512, 64), (513, 17), (777, 300), (600, 1), (1024, 999)), 3, rows):
        x, w = (((generator.random((*batch, *each)) - 0.5).astype(dtype)) for each in ((rows, depth), (depth, columns)))
        expected = x.astype(np.float64) @ w.astype(np.float64)
        turned = np.ascontiguousarray(np.swapaxes(w, -1, -2))
        products = by_columns(x, w), tw.jit(lambda x, w: x @ tw.matrix_transpose(w), target="cpu")(x, turned)
        # Sums are of f32, and rounded once.
        for found in products:
            error = 2e-6 * depth + float(ml_dtypes.finfo(dtype).eps) * np.abs(expected)
            assert (np.abs(found.astype(np.float64) - expected) <= error).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
@pytest.mark.parametrize("columns", [5, 7, 12, 16])
def test_few_columns(columns: int, dtype: str) -> None:
    """Whole numbers, the sums of which are exact; 1024 floats are a multiple of the caches' periods."""
    generator = np.random.default_rng(columns)
    for rows, depth in sampled(((17, 64), (33, 300), (129, 1024), (1000, 48), (300, 257)), 3, columns % 2):
        x, w = (generator.integers(-2, 3, shape).astype(dtype) for shape in ((rows, depth), (depth, columns)))
        expected = (x.astype(np.int64) @ w.astype(np.int64)).astype(dtype)
        np.testing.assert_array_equal(by_columns(x, w), expected)
        np.testing.assert_array_equal(product(x, np.ascontiguousarray(w.T)), expected)


def test_narrow_operands_are_not_copied() -> None:
    x, w = np.zeros((3, 640), ml_dtypes.bfloat16), np.zeros((640, 640), ml_dtypes.bfloat16)
    for function in (product, by_columns):
        text = function.lower(x, w).compile().ir("scheduled")
        assert "scheduled.barrier" not in text
        assert "tensor<640x640xf32>" not in text


def test_an_accumulator_is_added_to() -> None:
    """A depth of several blocks."""
    generator = np.random.default_rng(0)
    x, w = (generator.random((n, 20000), dtype=np.float32) for n in (2, 70))
    np.testing.assert_allclose(product(x, w), x.astype(np.float64) @ w.T.astype(np.float64), rtol=2e-6)


def test_the_right_operand_is_not_copied() -> None:
    wide, narrow = (product.lower(np.zeros((n, 640), "f4"), np.zeros((90, 640), "f4")).compile() for n in (1, 5000))
    assert "scheduled.barrier" not in wide.ir("scheduled")
    assert "scheduled.barrier" in narrow.ir("scheduled")


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
def test_machines_of_other_lanes_have_code(machine: str) -> None:
    """Vectors of two to eight float64, so with fewer lanes than rows and with as many."""
    for rows, dtype in ((1, "float32"), (3, "float64"), (4, "int64"), (4, "float64"), (7, "float32")):
        x, w = (np.zeros((n, 128), dtype) for n in (rows, 17))
        assert product.lower(x, w).compile(f"cpu:{machine}").asm()


@pytest.mark.parametrize("depth", [64, 1000, 7167])
@pytest.mark.parametrize("rows", [64, 333])
def test_a_matrix_times_a_column_reads_the_matrix_in_place(rows: int, depth: int) -> None:
    """The column's one element a row is a dim of size 1 inside the depth, which may be no multiple of a vector."""
    generator = np.random.default_rng(depth)
    x, w = generator.random((rows, depth), dtype=np.float32), generator.random((depth, 1), dtype=np.float32)
    with tw.options(threads=2):
        program = by_columns.lower(x, w).compile()
        text = program.ir("scheduled")
        assert "scheduled.barrier" not in text
        buffers = re.findall(r"scheduled.alloc\(\) : !tile.ref<tensor<(\d+)x(\d+)xf32", text)
        assert buffers
        assert all("1" in sizes for sizes in buffers)
        np.testing.assert_allclose(program(x, w), x.astype(np.float64) @ w.astype(np.float64), rtol=1e-5)
