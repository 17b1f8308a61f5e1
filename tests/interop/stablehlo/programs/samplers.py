"""Markov chains, filters of particles, and random numbers. Draws are JAX's own, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs.registry import f32, program


def _log_density(x: Any) -> Any:
    """Of a banana."""
    return -0.5 * (x[0] ** 2 / 4 + (x[1] - x[0] ** 2 / 4) ** 2)


@program(lambda r: (jax.random.key(1), f32([0.5, -0.5])), bound=1e-4, why="errors add over steps")
def metropolis(key: Any, start: Any) -> Any:
    """A random walk with the acceptance rate."""

    def advance(state: Any, key: Any) -> Any:
        x, density = state
        first, second = jax.random.split(key)
        proposed = x + 0.8 * jax.random.normal(first, x.shape)
        other = _log_density(proposed)
        accepted = jnp.log(jax.random.uniform(second)) < other - density
        state = jnp.where(accepted, proposed, x), jnp.where(accepted, other, density)
        return state, (state[0], accepted)

    _, (samples, accepted) = lax.scan(advance, (start, _log_density(start)), jax.random.split(key, 50))
    return samples, accepted.mean()


@program(lambda r: (jax.random.key(2), r.standard_normal((3, 2))), wide=True, bound=1e-9, why="errors add over steps")
def hamiltonian(key: Any, starts: Any) -> Any:
    """Hamiltonian Monte Carlo of several chains by `vmap`, with leapfrog steps."""
    slope = jax.grad(_log_density)

    def leapfrog(_: Any, state: Any) -> Any:
        x, p = state
        p = p + 0.05 * slope(x)
        x = x + 0.1 * p
        return x, p + 0.05 * slope(x)

    def advance(x: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        p = jax.random.normal(first, x.shape, x.dtype)
        y, q = lax.fori_loop(0, 8, leapfrog, (x, p))
        gain = _log_density(y) - _log_density(x) + 0.5 * (p @ p - q @ q)
        x = jnp.where(jnp.log(jax.random.uniform(second, dtype=x.dtype)) < gain, y, x)
        return x, x

    def chain(key: Any, x: Any) -> Any:
        return lax.scan(advance, x, jax.random.split(key, 12))[1]

    return jax.vmap(chain)(jax.random.split(key, 3), starts)


@program(lambda r: (jax.random.key(3), f32(np.concatenate([r.normal(-2, 1, 30), r.normal(3, 1, 20)]))), bound=1e-4)
def gibbs_mixture(key: Any, data: Any) -> Any:
    """Gibbs sampling of the means of two Gaussians and of their shares."""

    def advance(means: Any, key: Any) -> Any:
        first, second, third = jax.random.split(key, 3)
        members = jax.random.categorical(first, -0.5 * (data[:, None] - means) ** 2)
        chosen = jax.nn.one_hot(members, 2)
        count = chosen.sum(0)
        centre = (chosen * data[:, None]).sum(0) / (count + 0.1)
        means = centre + jax.random.normal(second, (2,)) / jnp.sqrt(count + 0.1)
        return means, (means, jax.random.beta(third, 1 + count[0], 1 + count[1]))

    return lax.scan(advance, jnp.array([-1.0, 1.0]), jax.random.split(key, 8))[1]


@program(lambda r: (jax.random.key(4), f32(np.cumsum(r.standard_normal(10)))), bound=1e-4, why="errors add over steps")
def particle_filter(key: Any, observed: Any) -> Any:
    """A bootstrap filter with systematic resampling."""
    count = 64

    def advance(particles: Any, inputs: Any) -> Any:
        key, y = inputs
        first, second = jax.random.split(key)
        particles = particles + jax.random.normal(first, particles.shape)
        weights = jax.nn.softmax(-0.5 * (y - particles) ** 2)
        places = (jnp.arange(count) + jax.random.uniform(second)) / count
        chosen = jnp.clip(jnp.searchsorted(jnp.cumsum(weights), places), 0, count - 1)
        return particles[chosen], (weights @ particles, 1 / jnp.sum(weights**2))

    keys = jax.random.split(key, observed.size)
    return lax.scan(advance, jnp.zeros(count), (keys, observed))[1]


@program(lambda r: (jax.random.key(5), f32(r.standard_normal((20, 4))), f32(r.uniform(size=20) > 0.5)), bound=1e-4)
def langevin(key: Any, x: Any, y: Any) -> Any:
    """Stochastic gradient Langevin dynamics of a logistic regression, with batches drawn without replacement."""

    def loss(w: Any, rows: Any) -> Any:
        logits = x[rows] @ w
        return jnp.sum(jax.nn.softplus(logits) - y[rows] * logits) + 0.5 * w @ w

    def advance(w: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        rows = jax.random.permutation(first, 20)[:8]
        w = w - 0.01 * jax.grad(loss)(w, rows) + 0.1 * jax.random.normal(second, w.shape)
        return w, w

    return lax.scan(advance, jnp.zeros(4), jax.random.split(key, 15))[1]


@program(lambda r: (jax.random.key(6),), bound=2e-4, why="rejection and inverse functions of f32")
def distributions(key: Any) -> Any:
    """Draws of many distributions, as programs for tests of statistics have them."""
    keys = iter(jax.random.split(key, 24))
    draw = jax.random
    return (
        (draw.uniform(next(keys), (5,)), draw.normal(next(keys), (5,)), draw.bernoulli(next(keys), 0.3, (5,))),
        (draw.randint(next(keys), (5,), -3, 9), draw.bits(next(keys), (3,)), draw.choice(next(keys), 10, (4,))),
        (draw.permutation(next(keys), 12), draw.exponential(next(keys), (5,)), draw.laplace(next(keys), (5,))),
        (draw.cauchy(next(keys), (5,)), draw.gumbel(next(keys), (5,)), draw.logistic(next(keys), (5,))),
        (
            draw.truncated_normal(next(keys), -1, 2, (5,)),
            draw.rademacher(next(keys), (5,)),
            draw.t(next(keys), 4.0, (3,)),
        ),
        (draw.gamma(next(keys), 2.5, (4,)), draw.beta(next(keys), 2.0, 3.0, (3,)), draw.poisson(next(keys), 3.5, (6,))),
        (
            draw.dirichlet(next(keys), jnp.array([1.0, 2.0, 3.0])),
            draw.categorical(next(keys), jnp.arange(5.0), shape=(4,)),
        ),
        (
            draw.maxwell(next(keys), (3,)),
            draw.pareto(next(keys), 3.0, (3,)),
            draw.weibull_min(next(keys), 1.0, 2.0, (3,)),
        ),
    )
