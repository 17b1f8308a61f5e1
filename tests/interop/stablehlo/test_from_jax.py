"""`tw.from_jax`: what it takes, containers, keys, arguments that JAX drops, and errors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ShapeError, UnsupportedOperatorError

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

_X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _both(tree: Any, scale: Any) -> Any:
    return {"sum": tree["a"] + tree["b"][0], "scaled": [tree["a"] * scale]}


def test_containers_go_in_and_out() -> None:
    tree = {"a": _X, "b": (_X + 1, _X)}
    found = tw.from_jax(_both, tree, 2.0)(tree, 2.0)
    expected = jax.jit(_both)(tree, 2.0)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    np.testing.assert_array_equal(found["sum"], expected["sum"])
    np.testing.assert_array_equal(found["scaled"][0], expected["scaled"][0])


def test_keywords_are_arguments_too() -> None:
    function = lambda x, *, scale: x * scale  # noqa: E731
    np.testing.assert_array_equal(tw.from_jax(function, _X, scale=3.0)(_X, scale=3.0), 3 * _X)


def test_shapes_are_enough_to_lower_for() -> None:
    function = tw.from_jax(jnp.sin, jax.ShapeDtypeStruct((2, 3), np.float32))
    np.testing.assert_allclose(function(_X), np.sin(_X), rtol=1e-5, atol=1e-6)


def test_fixed_values_are_bound_or_static() -> None:
    def power(x: Any, n: int) -> Any:
        return x**n

    np.testing.assert_allclose(tw.from_jax(functools.partial(power, n=3), _X)(_X), _X**3, rtol=1e-6)
    staged = jax.jit(power, static_argnums=1)
    np.testing.assert_allclose(tw.from_jax(staged.lower(_X, 3))(_X), _X**3, rtol=1e-6)


@pytest.mark.parametrize("kind", ["function", "staged", "lowered", "exported"])
def test_arguments_that_are_not_used_are_taken(kind: str) -> None:
    staged = jax.jit(lambda x, unused, y: x - y)
    arguments = (_X, np.ones(7, np.float32), _X + 2)
    given = {
        "function": lambda: tw.from_jax(lambda x, unused, y: x - y, *arguments),
        "staged": lambda: tw.from_jax(staged, *arguments),
        "lowered": lambda: tw.from_jax(staged.lower(*arguments)),
        "exported": lambda: tw.from_jax(jax.export.export(staged)(*arguments)),
    }
    np.testing.assert_array_equal(given[kind]()(*arguments), np.full((2, 3), -2, np.float32))


def test_keys_go_in_and_out() -> None:
    key = jax.random.key(5)
    first, second = tw.from_jax(lambda k: tuple(jax.random.split(k)), key)(key)
    expected = jax.random.split(key)
    assert jnp.array_equal(jax.random.key_data(first), jax.random.key_data(expected[0]))
    assert jax.random.uniform(second) == jax.random.uniform(expected[1])


def test_numbers_of_64_bits_are_narrowed_as_jax_does() -> None:
    function = tw.from_jax(lambda x, n: x * n, _X.astype(np.float64), np.int64(3))
    found = function(_X.astype(np.float64), np.int64(3))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, 3 * _X)


def test_functions_of_jax_are_called_inside_traced_functions() -> None:
    function = tw.from_jax(lambda x: {"y": jnp.tanh(x)}, _X)
    np.testing.assert_allclose(tw.jit(lambda x: function(x)["y"] * 2.0)(_X), 2 * np.tanh(_X), rtol=1e-6)


def test_captured_arrays_are_constants() -> None:
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32))
    np.testing.assert_allclose(tw.from_jax(lambda x: x @ weights, _X)(_X), _X @ np.asarray(weights), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_aggregated", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_approximate_top_k_is_exact(axis: int, is_aggregated: bool, largest: bool) -> None:
    x = np.random.default_rng(5).permutation(700).astype(np.float32).reshape(20, 35)
    approximate = jax.lax.approx_max_k if largest else jax.lax.approx_min_k
    function = functools.partial(approximate, k=4, reduction_dimension=axis, aggregate_to_topk=is_aggregated)
    values, indices = (np.take(part, range(4), axis) for part in tw.from_jax(function, x)(x))
    order = np.argsort(-x if largest else x, axis).take(range(4), axis)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


def test_callbacks_to_python_are_refused_with_what_to_remove() -> None:
    def noisy(x: Any) -> Any:
        jax.debug.print("x = {}", x)
        return x + 1

    with pytest.raises(UnsupportedOperatorError, match="callback") as caught:
        tw.from_jax(noisy, _X)
    assert "`jax.debug.print`" in (caught.value.help or "")


def test_arguments_are_checked() -> None:
    function = tw.from_jax(lambda tree: tree["a"], {"a": _X})
    with pytest.raises(ArgumentError, match="was lowered for"):
        function({"b": _X})
    with pytest.raises(ShapeError):
        function({"a": _X.T})
    with pytest.raises(ArgumentError, match="`from_jax` of a int"):
        tw.from_jax(3)
    with pytest.raises(ArgumentError, match="takes no arguments"):
        tw.from_jax(jax.jit(jnp.sin).lower(_X), _X)


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"custom call `lapack\w*` \(1\)"):
        tw.from_jax(jax.lax.linalg.schur, _X[:, :2])
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), np.float32))
    with pytest.raises(UnsupportedOperatorError, match="a size that is not known"):
        tw.from_jax(exported)
