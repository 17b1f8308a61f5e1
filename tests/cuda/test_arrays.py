"""Small array programs as PTX on an emulator, against NumPy in float64: edges of shapes, element types, functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import KINDS, built, emulated
from tests.sampling import alternating
from tilewright import dtypes

Tensor = np.ndarray[Any, Any]


def run(function: Callable[..., Any], *arrays: Tensor, chip: str = "sm_90a") -> Tensor:
    """The one output of a program on the emulator."""
    (result,) = emulated(built(tw.jit(function).lower(*arrays), f"cuda:{chip}"), arrays)
    return result


def random(*shape: int, dtype: str = "f32", seed: int = 0) -> Tensor:
    """Whole numbers from -4 to 4, which products add exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtypes.by_name(dtype).numpy)


PRODUCTS = [
    ((17, 33), (33, 1)),
    ((1, 64), (64, 65)),
    ((3, 1, 8), (3, 8, 16)),
    ((1, 1), (1, 1)),
    ((5, 7), (7, 9)),
    ((3, 5), (5,)),
    ((5,), (5,)),
    ((70, 33), (33, 40)),
]
BROADCASTS = [((5, 1, 7), (3, 1)), ((7, 1), (7, 17)), ((1,), (4, 1)), ((), (3, 2))]


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [(*shapes, dtype) for shapes, dtype in alternating(PRODUCTS, ("f32", "f16", "bf16", "f64", "i32"))],
    ids=str,
)
def test_products_of_any_shape(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = random(*left, dtype=dtype), random(*right, dtype=dtype, seed=1)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(run(lambda x, y: x @ y, a, b), expected.astype(a.dtype))


@pytest.mark.parametrize("chip", KINDS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8"])
def test_products_on_tensor_cores(chip: str, dtype: str) -> None:
    a, b = random(70, 96, dtype=dtype), random(96, 40, dtype=dtype, seed=1)
    product = (lambda x, y: tw.matmul(x, y, dtype=tw.i32)) if dtype == "i8" else (lambda x, y: x @ y)
    got = run(product, a, b, chip=chip)
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))


def test_outer_products_have_one_step() -> None:
    a, b = random(9), random(20, seed=1)
    np.testing.assert_array_equal(run(lambda x, y: tw.einsum("i,j->ij", x, y), a, b), np.multiply.outer(a, b))


INDEXED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "one element": (lambda a, i: a[i], lambda a, i: a[i]),
    "taken": (lambda a, i: tw.take(a, i, axis=0), lambda a, i: np.take(a, i)),
    "loop": (lambda a, i: tw.fori_loop(0, 7, lambda n, s: s + a[n] * i, tw.zeros(())), lambda a, i: (a * i).sum()),
}


@pytest.mark.parametrize("name", INDEXED)
def test_elements_at_computed_places(name: str) -> None:
    ours, reference = INDEXED[name]
    a, index = random(7), np.int64(3)
    np.testing.assert_array_equal(run(ours, a, np.asarray(index)), reference(a, index).astype(np.float32))


@pytest.mark.parametrize("dtype", ["f32", "i8", "bool", "f64"])
@pytest.mark.parametrize(
    ("left", "right"), [((5, 1, 7), (3, 1)), ((7, 1), (7, 17)), ((1,), (4, 1)), ((), (3, 2))], ids=str
)
def test_broadcasts(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = random(*left, dtype=dtype), random(*right, dtype=dtype, seed=1)
    np.testing.assert_array_equal(run(lambda x, y: tw.where(x == y, x, y), a, b), np.where(a == b, a, b))


@pytest.mark.parametrize("size", [1, 3, 31, 33, 1000, 5000])
def test_sums_of_what_is_computed(size: int) -> None:
    x = random(size)
    assert run(lambda a: tw.sum(a + 1), x) == (x + 1).sum()


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (4, 300), (2, 5000)])
def test_softmax_of_any_width(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    got = run(lambda a: tw.nn.softmax(a, axis=-1), x)
    np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), rtol=1e-6)


def test_sorts_are_refused() -> None:
    with pytest.raises(tw.errors.UnsupportedOnTargetError, match="not compiled for GPUs yet"):
        run(tw.sort, random(40))


def test_windows_of_more_elements_than_registers() -> None:
    """Held in parts, of which each has its place among the padding."""
    x = random(1, 2, 30, 40)
    sums = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (4, 4), (9, 9))), (20, 21), axis=(2, 3))
    expected = sums[:, :, ::9, ::12].astype(np.float64).mean(axis=(-2, -1))
    found = run(lambda x: tw.nn.avg_pool(x, (20, 21), stride=(9, 12), padding=((4, 4), (9, 9))), x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
