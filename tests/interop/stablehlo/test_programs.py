"""Programs that a user would bring, compared with JAX on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from tests.interop.stablehlo.programs import compare  # noqa: E402
from tests.interop.stablehlo.programs import networks as programs  # noqa: E402

_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _assert_alike(found: Any, expected: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def test_steps_of_training_a_transformer() -> None:
    params = programs.transformer(vocabulary=61, width=32, heads=4, layers=2)
    state = programs.adam_state(params)
    step = functools.partial(programs.train_step, heads=4)
    tokens = _RANDOM.integers(0, 61, (3, 17)).astype(np.int32)
    ours, reference = tw.from_jax(step, params, state, tokens), jax.jit(step)
    mine, theirs = (params, state), (params, state)
    losses: list[float] = []
    for _ in range(4):
        *mine, loss = ours(*mine, tokens)
        *theirs, expected = reference(*theirs, tokens)
        losses.append(float(loss))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    # Adam divides by the root of squares of gradients: those near zero amplify rounding.
    _assert_alike(mine[0], theirs[0], rtol=1e-3, atol=2e-4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (programs.lstm, (programs.lstm_params(5, 8), _normal(7, 3, 5))),
        (programs.lstm_gradient, (programs.lstm_params(5, 8), _normal(7, 3, 5))),
        (programs.convnet, (programs.convnet_params(), _normal(2, 16, 16, 3))),
        (
            programs.convnet_gradient,
            (programs.convnet_params(), _normal(2, 16, 16, 3), np.array([1, 7], np.int32)),
        ),
        (
            jax.vmap(programs.lstm_gradient, in_axes=(None, 0)),
            (programs.lstm_params(5, 8), _normal(2, 4, 3, 5)),
        ),
        (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), (_normal(9),)),
        (programs.dropout, (jax.random.key(3), _normal(11, 5))),
    ],
    ids=["lstm", "lstm-gradient", "convnet", "convnet-gradient", "vmapped", "rematerialised", "dropout"],
)
def test_programs(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    _assert_alike(tw.from_jax(function, *arguments)(*arguments), jax.jit(function)(*arguments), 5e-5, 1e-5)


def test_a_gated_unit_from_an_export() -> None:
    params = {"wx": _normal(4, 12), "wh": _normal(6, 12), "cx": _normal(4, 6), "ch": _normal(6, 6)}
    xs = _normal(5, 2, 4)
    exported = jax.export.export(jax.jit(programs.gru))(params, xs)
    _assert_alike(tw.from_jax(exported)(params, xs), jax.jit(programs.gru)(params, xs))


# A few of those that `python -m tests.interop.stablehlo.programs` runs, which has more than 45.
_SAMPLE = ("analytic_signal", "mandelbrot", "newton_fractal", "poisson", "value_iteration")


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_sample_of_published_programs(name: str) -> None:
    found = compare.outcome(compare.programs()[name])
    assert (found.status, found.message) == ("agrees", "")


def test_programs_of_every_kind_are_there() -> None:
    assert len(compare.programs()) >= 45
