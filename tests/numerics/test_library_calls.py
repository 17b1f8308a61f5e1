"""Library calls as native code and in the interpreter, against NumPy in double precision and factors multiplied."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.api.lifting import emit_all
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    LinearAlgebraError,
    ResourceUnavailable,
    ShapeError,
    UnsupportedOnTargetError,
)
from tilewright.runtime.cpu import library_functions

Array = np.ndarray[Any, Any]
# Each program costs a compilation, so f32 has one batch, whose matrices threads share.
BATCHES = [((), np.float64), ((2, 40), np.float64), ((3, 30), np.float32)]
# Matrices for loops, and for LAPACK.
SIZES = [7, 20]


def call(routine: str, *arrays: Array, target: str = "cpu", **attributes: Any) -> list[Array]:
    def program(*operands: Any) -> Any:
        return emit_all("library_call", *operands, routine=routine, **attributes)

    results = tw.jit(program, target=target)(*arrays)
    return [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]


def random(seed: int, *shape: int, dtype: Any = np.float64) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(found: Array, expected: Array) -> None:
    tolerance = 1e-3 if np.float32 in (found.dtype, expected.dtype) else 1e-10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("batch", "dtype"), BATCHES)
def test_definite_matrices(batch: tuple[int, ...], dtype: Any, n: int) -> None:
    a = random(0, *batch, n, n, dtype=dtype)
    definite = (a @ turned(a) + np.eye(n)).astype(dtype)
    lower, info = call("potrf", np.tril(definite), lower=True)
    near(lower, np.linalg.cholesky(definite.astype(np.float64)))
    assert not info.any()
    assert info.shape == batch
    upper, _ = call("potrf", np.triu(definite), lower=False)
    near(upper, turned(lower))
    vectors, values, info = call("syevd", np.tril(definite), lower=True, vectors=True)
    near(vectors * values[..., None, :] @ turned(vectors), definite)
    near(turned(vectors) @ vectors, np.broadcast_to(np.eye(n), definite.shape))
    near(call("syevd", np.triu(definite), lower=False, vectors=False)[0], values)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("batch", "dtype"), BATCHES)
def test_systems(batch: tuple[int, ...], dtype: Any, n: int) -> None:
    a, b = random(1, *batch, n, n, dtype=dtype), random(2, *batch, n, 3, dtype=dtype)
    solution, info = call("gesv", a, b, must_succeed=True)
    near(solution, np.linalg.solve(a.astype(np.float64), b))
    inverse, _ = call("getri", a)
    near(inverse, np.linalg.inv(a.astype(np.float64)))
    assert not info.any()
    for shape in ((n, n), (n, 4), (4, n)):
        x = a[..., : shape[0], : shape[1]]
        factors, pivots, _ = call("getrf", x)
        (permutation,) = call("lu_permutation", pivots, size=shape[0])
        least = min(shape)
        lower = np.tril(factors[..., :least], -1) + np.eye(shape[0], least)
        near(lower @ np.triu(factors[..., :least, :]), np.take_along_axis(x, permutation[..., None], -2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_triangular_systems(dtype: Any) -> None:
    a = random(3, 2, 5, 5, dtype=dtype) / 5 + 2 * np.eye(5, dtype=dtype)
    columns, rows = random(4, 2, 5, 3, dtype=dtype), random(5, 2, 3, 5, dtype=dtype)
    flags = list(itertools.product((False, True), repeat=4))

    def program(a: Any, columns: Any, rows: Any) -> Any:
        names = ("left", "lower", "transposed", "unit")
        settings = [dict(zip(names, flag, strict=True)) for flag in flags]
        return [emit_all("library_call", a, columns if s["left"] else rows, routine="trsm", **s)[0] for s in settings]

    for (left, lower, transposed, unit), x in zip(flags, tw.jit(program)(a, columns, rows), strict=True):
        matrix = np.tril(a) if lower else np.triu(a)
        if unit:
            matrix = matrix - matrix * np.eye(5) + np.eye(5)
        matrix = turned(matrix) if transposed else matrix
        near(matrix @ x if left else x @ matrix, columns if left else rows)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((6, 4), np.float64), ((4, 6), np.float64), ((1, 5), np.float64), ((3, 20, 5), np.float32)]
)
def test_rectangular_matrices(shape: tuple[int, ...], dtype: Any) -> None:
    a = random(5, *shape, dtype=dtype)
    rows, columns = shape[-2:]
    packed, tau = call("geqrf", a)
    least = min(rows, columns)
    (basis,) = call("orgqr", packed[..., :least], tau)
    near(basis @ np.triu(packed[..., :least, :]), a)
    near(turned(basis) @ basis, np.broadcast_to(np.eye(least), (*shape[:-2], least, least)))
    for full in (False, True):
        left, values, right, info = call("gesdd", a, full=full, vectors=True)
        near(left[..., :least] * values[..., None, :] @ right[..., :least, :], a)
        near(turned(left) @ left, np.broadcast_to(np.eye(left.shape[-1]), (*shape[:-2], *[left.shape[-1]] * 2)))
        assert not info.any()
    near(call("gesdd", a, full=False, vectors=False)[0], np.linalg.svd(a.astype(np.float64), compute_uv=False))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eigenvalues_of_any_matrix(dtype: Any) -> None:
    a = random(6, 4, 7, 7, dtype=dtype)
    values, vectors, info = call("geev", a, vectors=True)
    values, vectors = (x.astype(np.float64).view(np.complex128)[..., 0] for x in (values, vectors))
    assert abs(values.imag).any()
    assert not info.any()
    np.testing.assert_allclose(a @ vectors, vectors * values[..., None, :], atol=1e-4 if dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("length", "dtype"),
    [(1, np.float64), (2, np.float64), (12, np.float64), (101, np.float64), (5, np.float32), (12, np.float32)],
)
def test_fourier_transforms(length: int, dtype: Any) -> None:
    def program(pairs: Any, half: Any) -> Any:
        def transform(name: str, x: Any, **attributes: Any) -> Any:
            return emit_all("library_call", x, routine=f"fft.{name}", **attributes)[0]

        return (
            transform("c2c", pairs, inverse=False, scale=0.5),
            transform("c2c", pairs, inverse=True, scale=1 / length),
            transform("r2c", pairs[..., 0], scale=1.0),
            transform("c2r", half, size=length, scale=1 / length),
        )

    def numbers(found: Array) -> Array:
        return np.ascontiguousarray(found, np.float64).view(np.complex128)[..., 0]

    pairs = random(7, 3, 30, length, 2, dtype=dtype)
    half = pairs[..., : length // 2 + 1, :]
    wide = numbers(pairs)
    expected = np.fft.fft(wide) / 2, np.fft.ifft(wide), np.fft.rfft(wide.real), np.fft.irfft(numbers(half), length)
    tolerance = (1e-5 if dtype == np.float32 else 1e-13) * length
    *found, back = tw.jit(program)(pairs, half)
    for ours, theirs in zip([*map(numbers, found), back], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_operands_of_other_layouts_and_fusions_around() -> None:
    """Transposed operands are stored row-major; what follows a call fuses into kernels of its own."""

    def program(x: Any, y: Any) -> Any:
        solution, _ = emit_all("library_call", (x * 2.0).mT + tw.eye(5, dtype=x.dtype), y.mT, routine="gesv")
        return tw.exp(solution.mT) + 1.0, tw.sum(solution)

    x, y = random(8, 5, 5), random(9, 2, 5)
    found = tw.jit(program)(x, y)
    solution = np.linalg.solve((2 * x).T + np.eye(5), y.T)
    near(found[0], np.exp(solution.T) + 1)
    near(found[1], np.asarray(solution.sum()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_systems_of_all_sizes(dtype: Any) -> None:
    for n, columns in ((1, 1), (2, 1), (3, 5), (4, 32), (5, 33), (16, 1), (16, 32), (17, 3)):
        a, b = random(n, 6, n, n, dtype=dtype), random(columns, 6, n, columns, dtype=dtype)
        a[0] = np.eye(n)[::-1]  # Every row is exchanged.
        a[1] *= 1e-30 if dtype == np.float64 else 1e-15
        solution, info = call("gesv", a, b)
        expected = np.linalg.solve(a.astype(np.float64), b)
        error = np.abs(solution - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
        assert (error <= 8 * n * np.finfo(dtype).eps * np.linalg.cond(a.astype(np.float64))).all()
        assert not info.any()


def test_small_matrices_of_zeros_and_numbers_that_are_none() -> None:
    a = np.array([[[0.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 5.0]], [[1.0, 2.0], [2.0, 4.0]], [[np.nan, 1], [1, 1]]])
    factors, pivots, info = call("getrf", a)
    np.testing.assert_array_equal(info, [0, 1, 2, 0])
    np.testing.assert_array_equal(pivots[:3], [[2, 2], [1, 2], [2, 2]])
    np.testing.assert_array_equal(factors[:3], [[[3, 4], [0, 2]], [[0, 0], [0, 5]], [[2, 4], [0.5, 0]]])
    assert np.isnan(factors[3]).any()
    _, info = call(
        "potrf", np.array([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]], [[np.nan, 0], [1, 1]]]), lower=True
    )
    np.testing.assert_array_equal(info, [2, 1, 1])
    assert call("gesv", np.ones((2, 3, 3)), np.ones((2, 3, 0)))[1].tolist() == [2, 2]


@pytest.mark.parametrize("n", [3, 20])
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_failures(target: str, n: int) -> None:
    singular = np.stack([np.eye(n), np.ones((n, n)), 2 * np.eye(n)])
    inverse, info = call("getri", singular, target=target)
    assert np.isnan(inverse[1]).all()
    near(inverse[[0, 2]], np.linalg.inv(singular[[0, 2]]))
    assert [bool(i) for i in info] == [False, True, False]
    indefinite = np.array([[1.0, 2.0], [2.0, 1.0]])
    factor, info = call("potrf", indefinite, lower=True, target=target)
    assert np.isnan(factor).all()
    assert info != 0
    for routine, operands, attributes in (
        ("getri", (singular,), {}),
        ("gesv", (singular, singular), {}),
        ("potrf", (indefinite,), {"lower": False}),
    ):
        with pytest.raises(LinearAlgebraError) as caught:
            call(routine, *operands, target=target, must_succeed=True, **attributes)
        assert isinstance(caught.value, np.linalg.LinAlgError)
        assert caught.value.help is not None


def test_a_branch_that_fails_is_not_taken() -> None:
    """Constants are not folded to a failure that the program may never come to."""
    singular = np.ones((2, 2))

    def program(flag: Any) -> Any:
        def inverse() -> Any:
            return emit_all("library_call", tw.asarray(singular), routine="getri", must_succeed=True)[0]

        return tw.cond(flag, inverse, lambda: tw.zeros((2, 2), dtype=tw.f64))

    compiled = tw.jit(program)
    assert not np.asarray(compiled(np.asarray(False))).any()
    with pytest.raises(LinearAlgebraError):
        compiled(np.asarray(True))


def test_matrices_without_elements() -> None:
    for rows, columns in ((0, 0), (0, 3), (3, 0)):
        empty = np.zeros((2, rows, columns))
        left, values, right, info = call("gesdd", empty, full=True, vectors=True)
        np.testing.assert_array_equal(left, np.broadcast_to(np.eye(rows), (2, rows, rows)))
        np.testing.assert_array_equal(right, np.broadcast_to(np.eye(columns), (2, columns, columns)))
        assert values.shape == (2, 0)
        assert not info.any()
        assert not call("getrf", empty)[2].any()
    assert not call("potrf", np.zeros((2, 0, 0)), lower=True, must_succeed=True)[1].any()
    assert call("gesv", np.eye(2)[None][:0], np.eye(2)[None][:0])[0].shape == (0, 2, 2)


def test_saved_programs_name_the_functions_that_they_call(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        return emit_all("library_call", x, routine="potrf", lower=True)[0]

    a = 2 * np.eye(20)
    compiled = tw.jit(program).lower(a).compile()
    compiled.save(str(tmp_path / "factor.twp"))
    loaded = tw.load(str(tmp_path / "factor.twp"))
    assert loaded.manifest.library_functions == ("lapack.dpotrf",)
    near(np.asarray(loaded(a)), np.sqrt(2) * np.eye(20))

    monkeypatch.setitem(sys.modules, "scipy.linalg.cython_lapack", None)
    library_functions.address.cache_clear()
    with pytest.raises(ResourceUnavailable, match="LAPACK through SciPy") as caught:
        tw.load(str(tmp_path / "factor.twp"))
    assert caught.value.help == "pip install 'tilewright[linalg]'"


def test_transforms_and_small_matrices_need_no_scipy() -> None:
    code = """
import sys
sys.modules["scipy"] = None
import numpy as np, tilewright as tw
from tilewright.api.lifting import emit_all
f = tw.jit(lambda x: emit_all("library_call", x, routine="fft.r2c", scale=1.0)[0])
print(f(np.arange(4.0)).tolist())
print(tw.jit(tw.linalg.inv)(np.array([[0.0, 2.0], [4.0, 0.0]])).tolist())
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["[[6.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]", "[[0.0, 0.25], [0.5, 0.0]]"]


@pytest.mark.parametrize("target", ["cuda:sm_90a", "grid:wormhole"])
def test_other_targets_name_the_routine(target: str) -> None:
    with pytest.raises(UnsupportedOnTargetError, match="`potrf` is a routine of a library") as caught:
        call("potrf", np.eye(3, dtype=np.float32), target=target, lower=True)
    assert 'target="cpu"' in (caught.value.help or "")
    assert caught.value.location is not None


def test_calls_that_do_not_fit_are_refused() -> None:
    square = np.eye(3)
    for error, arguments, attributes in (
        (ArgumentError, ("potri", square), {}),
        (ArgumentError, ("potrf", square), {}),
        (ArgumentError, ("trsm", square), {"left": True, "lower": True, "transposed": False, "unit": False}),
        (ArgumentError, ("geqrf", square), {"must_succeed": True}),
        (DTypeError, ("getri", square.astype(np.int32)), {}),
        (ShapeError, ("getri", square[:2]), {}),
        (ShapeError, ("getri", square[0]), {}),
        (ShapeError, ("gesv", square, square[:2]), {}),
        (ShapeError, ("gesv", square, square[None]), {}),
        (ShapeError, ("fft.c2c", square), {"inverse": False, "scale": 1.0}),
        (ShapeError, ("fft.c2r", square[:, :2]), {"size": 6, "scale": 1.0}),
    ):
        with pytest.raises(error):
            call(*arguments, **attributes)
