"""Complex arrays: values against NumPy in a wider type, what goes in and out of programs, and control flow."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError

_RANDOM = np.random.default_rng(0)
_FUNCTIONS = (
    *("abs", "exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh"),
    *("acosh", "atanh", "expm1", "log1p", "log2", "log10", "square", "reciprocal", "sign", "conj", "angle"),
)
_NUMPY_NAMES = {name: f"arc{name[1:]}" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
# In units of the last place of the magnitude.
_BOUND = 4.0


def _of_numpy(name: str) -> Any:
    return getattr(np, _NUMPY_NAMES.get(name, name))


def _numbers(*shape: int, dtype: Any = np.complex128) -> Any:
    return (_RANDOM.standard_normal(shape) + 1j * _RANDOM.standard_normal(shape)).astype(dtype)


def _samples(dtype: Any) -> Any:
    """Numbers of all sizes and angles, and near the unit circle, the axes and the branch points."""
    angles = _RANDOM.uniform(-np.pi, np.pi, 1500)
    wide = np.exp(_RANDOM.uniform(-6, 6, 1000)) * np.exp(1j * angles[:1000])
    circle = (1 + 1e-3 * _RANDOM.standard_normal(500)) * np.exp(1j * angles[1000:])
    near = np.array([1, -1, 1j, -1j])[:, None] + 1e-4 * _numbers(4, 50)
    return np.concatenate([wide, circle, near.ravel(), wide.real[:100] + 1e-5j]).astype(dtype)


# Formulas are the same on every target: one type is enough as native code, which takes long to make.
@pytest.mark.parametrize(("dtype", "target"), [(np.complex64, "cpu"), (np.complex128, "interp")])
def test_functions_are_exact_to_a_few_units(dtype: Any, target: str) -> None:
    z = _samples(dtype)
    found = tw.jit(lambda z: [getattr(tw, name)(z) for name in _FUNCTIONS], target=target)(z)
    epsilon, largest = np.finfo(dtype).eps, np.finfo(dtype).max
    with np.errstate(all="ignore"):
        for name, result in zip(_FUNCTIONS, found, strict=True):
            exact = _of_numpy(name)(z.astype(np.clongdouble))
            counts = (
                np.isfinite(exact) & (np.abs(exact) < largest / 2) & (np.abs(exact) > np.finfo(dtype).tiny / epsilon)
            )
            units = np.abs(result - exact)[counts] / np.abs(exact)[counts] / epsilon
            assert units.max() <= _BOUND, (name, z[counts][units.argmax()])


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_arithmetic_is_exact_to_a_few_units(dtype: Any) -> None:
    x, y = _samples(dtype), _RANDOM.permutation(_samples(dtype))
    sums, product, quotient, power = tw.jit(lambda x, y: ((x + y, x - y), x * y, x / y, x**y))(x, y)
    wide, other = x.astype(np.clongdouble), y.astype(np.clongdouble)
    epsilon = np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        for found, exact in ((product, wide * other), (quotient, wide / other)):
            assert (np.abs(found - exact) <= 2 * epsilon * np.abs(exact)).all()
        exact = np.exp(other * np.log(wide))
        counts = np.isfinite(exact) & (np.abs(exact) < np.finfo(dtype).max / 2) & (np.abs(exact) > np.finfo(dtype).tiny)
        bound = 6 * epsilon * (1 + np.abs(other * np.log(wide))) * np.abs(exact)
        assert (np.abs(power - exact) <= bound)[counts].all()
    np.testing.assert_array_equal(sums, (x + y, x - y))


# Not functions of products, whose sums NumPy's vector code rounds once, and those that NumPy has otherwise than C99.
_SPECIAL = (
    "abs",
    "exp",
    "log",
    "sqrt",
    "cos",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "asinh",
    "acosh",
    "atanh",
    "sign",
    "conj",
)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_infinities_and_signed_zeros_are_those_of_numpy(dtype: Any) -> None:
    parts = (0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf)
    z = np.array([complex(a, b) for a, b in itertools.product(parts, parts)], dtype)
    found = tw.jit(lambda z: [getattr(tw, name)(z) for name in _SPECIAL], target="interp")(z)
    with np.errstate(all="ignore"):
        for name, result in zip(_SPECIAL, found, strict=True):
            expected = _of_numpy(name)(z)
            for part in ("real", "imag"):
                a, b = getattr(result, part), getattr(expected, part)
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7, err_msg=name)
                is_sure = (b != 0) & ~np.isnan(b)
                assert (np.signbit(a) == np.signbit(b))[is_sure].all(), name


def test_large_and_small_numbers_neither_overflow_nor_vanish() -> None:
    for dtype, top in ((np.complex64, 2e38), (np.complex128, 1e308)):
        z = np.array([top + top * 1j, 1 / top + 1j / top, top * 1j, -1e-45 + 1e-40j], dtype)
        root, size, quotient, power = tw.jit(lambda z: (tw.sqrt(z), tw.abs(z * 0.5), z / z, tw.exp(tw.log(z))))(z)
        np.testing.assert_allclose(root, np.sqrt(z.astype(np.clongdouble)).astype(dtype), rtol=1e-6)
        np.testing.assert_allclose(size, np.abs(z.astype(np.clongdouble) * 0.5).astype(size.dtype), rtol=1e-6)
        np.testing.assert_allclose(quotient[2:3], 1, rtol=1e-6)
        np.testing.assert_allclose(power[1:3], z[1:3], rtol=1e-4 if dtype == np.complex64 else 1e-12)


# ---- arrays ---------------------------------------------------------------------------------------------------------


def test_elements_move_as_those_of_real_arrays() -> None:
    z = _numbers(3, 4)

    def moves(xp: Any, z: Any) -> Any:
        joined = xp.concatenate([z, z]) if xp is np else xp.concat([z, z])
        return z.T, z[::-1, 1:3], z.reshape(2, 6), joined, xp.roll(z, 1, axis=1), xp.where(z.real > 0, z, 1j), z[[2, 0]]

    for found, expected in zip(tw.jit(lambda z: moves(tw, z))(z), moves(np, z), strict=True):
        np.testing.assert_array_equal(found, expected)
    updated = tw.jit(lambda z: (z.at[0].set(1j), z.at[[0, 0], 1].add(2), tw.pad(z, 1), tw.take(z, [1], axis=1)))(z)
    expected = z.copy()
    expected[0] = 1j
    np.testing.assert_array_equal(updated[0], expected)
    np.testing.assert_array_equal(updated[1][0, 1], z[0, 1] + 4)
    np.testing.assert_array_equal(updated[2], np.pad(z, 1))
    np.testing.assert_array_equal(updated[3], z[:, [1]])


def test_sums_and_products() -> None:
    z, w, x = _numbers(3, 5), _numbers(5, 2), _RANDOM.standard_normal((4, 3))

    def reductions(z: Any) -> Any:
        totals = (tw.sum(z), tw.sum(z, axis=0, keepdims=True), tw.mean(z, axis=1), tw.var(z), tw.std(z, axis=0))
        return *totals, tw.prod(z, axis=1), tw.cumulative_sum(z, axis=1), tw.cumulative_prod(z, axis=1)

    expected = (z.sum(), z.sum(0, keepdims=True), z.mean(1), z.var(), z.std(0), z.prod(1), z.cumsum(1), z.cumprod(1))
    for found, wanted in zip(tw.jit(reductions)(z), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)

    def products(z: Any, w: Any, x: Any) -> Any:
        return z @ w, x @ z, z.T @ x.T, tw.vecdot(z, z), tw.einsum("ij,jk->ki", z, w), tw.any(z), tw.all(z * 0)

    wanted = (z @ w, x @ z, z.T @ x.T, (z.conj() * z).sum(1), (z @ w).T, True, False)
    for found, value in zip(tw.jit(products)(z, w, x), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-13, atol=1e-14)


def test_types_meet_as_in_the_standard() -> None:
    f, d, i = np.ones(2, np.float32), np.ones(2), np.ones(2, np.int32)
    c = np.ones(2, np.complex64)
    found = tw.jit(lambda f, d, i, c: (f * 1j, d * 1j, i * 1j, c + d, c + f, c * 2.5, c + i, 1j * tw.asarray(2.0)))(
        f, d, i, c
    )
    names = ["complex64", "complex128", "complex64", "complex128", *["complex64"] * 4]
    assert [str(result.dtype) for result in found] == names
    made = tw.jit(
        lambda f: (tw.astype(f, tw.complex128), tw.asarray([1j, 2]), tw.zeros(2, dtype=tw.complex64), tw.full(2, 1j))
    )(f)
    for result, value in zip(made, ([1, 1], [1j, 2], [0, 0], [1j, 1j]), strict=True):
        np.testing.assert_array_equal(result, value)
    assert tw.isdtype(tw.complex64, "complex floating")
    assert tw.can_cast(tw.f32, tw.complex64)
    assert not tw.can_cast(tw.complex64, tw.f32)
    assert tw.finfo(tw.complex64).bits == 32


def test_eigenvalues_of_general_matrices() -> None:
    a = _RANDOM.standard_normal((2, 4, 4))
    (values, vectors), alone = tw.jit(lambda a: (tw.linalg.eig(a), tw.linalg.eigvals(a)))(a)
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], atol=1e-12)
    np.testing.assert_allclose(np.sort_complex(alone), np.sort_complex(np.linalg.eigvals(a)), atol=1e-12)


# ---- loops and branches ---------------------------------------------------------------------------------------------


def test_loops_and_branches_carry_complex_arrays() -> None:
    z = _numbers(4) * 0.5

    def program(z: Any) -> Any:
        count, power = tw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * z), (0, z))
        total, partial = tw.scan(lambda c, x: (c + x, c), tw.asarray(0j, dtype=tw.complex128), z)
        chosen = tw.cond(tw.sum(tw.real(z)) > 0, lambda: {"z": z}, lambda: {"z": -z})
        return count, power, total, partial, chosen["z"], tw.fori_loop(0, 2, lambda i, c: c * 1j, z)

    _, power, total, partial, chosen, turned = tw.jit(program)(z)
    np.testing.assert_allclose(power, z**4, rtol=1e-13)
    np.testing.assert_allclose(total, z.sum(), rtol=1e-13)
    np.testing.assert_allclose(partial, np.cumsum(z) - z, atol=1e-13)
    np.testing.assert_array_equal(chosen, z if z.real.sum() > 0 else -z)
    np.testing.assert_allclose(turned, -z, rtol=1e-13)


# ---- arguments and results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_arguments_of_any_layout_and_results_of_their_kind(target: str) -> None:
    double = tw.jit(lambda z: {"z": z * 2, "size": tw.abs(z)}, target=target)
    whole = _numbers(6, 4, dtype=np.complex64)
    for z in (whole, whole[::-2, 1:], whole.T, whole[0, 0], whole[:0], np.asfortranarray(whole)):
        found = double(z)
        np.testing.assert_array_equal(found["z"], z * 2)
        assert found["z"].dtype == np.complex64
        np.testing.assert_allclose(found["size"], np.abs(z), rtol=1e-6)
    assert tw.jit(lambda z: z * 2, target=target)(1 + 2j) == 2 + 4j


def test_calls_after_the_first_take_other_types_apart() -> None:
    f = tw.jit(lambda x: x * 1j)
    real, number = np.ones((3, 2), np.float32), np.ones(3, np.complex64)
    for _ in range(3):
        np.testing.assert_array_equal(f(real), real * 1j)
        np.testing.assert_array_equal(f(number), number * 1j)
    compiled = f.lower(number).compile()
    np.testing.assert_array_equal(compiled(number), number * 1j)
    np.testing.assert_array_equal(f.lower(tw.ShapeDtype((3,), tw.complex64)).compile()(number), number * 1j)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    numbers = _numbers(3, dtype=np.complex64)
    z = module.from_numpy(numbers) if library == "torch" else module.numpy.asarray(numbers)
    found = tw.jit(lambda z: (z * 2, tw.abs(z)))(z)
    assert isinstance(found[0], type(z))
    np.testing.assert_array_equal(np.asarray(found[0]), numbers * 2)
    if library == "torch":
        np.testing.assert_array_equal(tw.jit(lambda z: z * 2)(z.conj()).numpy(), numbers.conj() * 2)


def test_what_complex_arrays_do_not_do_is_refused() -> None:
    z = _numbers(3)
    for call, error in (
        (lambda z: z < 1, DTypeError),
        (lambda z: tw.max(z), DTypeError),
        (lambda z: tw.sort(z), DTypeError),
        (lambda z: tw.floor(z), DTypeError),
        (lambda z: tw.astype(z, tw.f64), DTypeError),
        (lambda z: tw.bitcast(z, tw.i64), DTypeError),
        (lambda z: tw.zeros(2).at[0].set(1j), DTypeError),
        (lambda z: tw.iota((3,), dtype=tw.complex64), DTypeError),
    ):
        with pytest.raises(error) as caught:
            tw.jit(call, target="interp")(z)
        assert getattr(caught.value, "help", "help")
    with pytest.raises(DTypeError, match="`dims`"):
        tw.jit(lambda z: z * 2, dims={"z": (tw.Dim(1, 8),)})(z)
    with pytest.raises(ArgumentError):
        tw.jit(lambda z: tw.real(z), donate="z", target="interp")(z)
