"""Filters, inference, clustering and optimisers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs.registry import f32, program


@program(lambda r: (r.standard_normal((15, 2)),), wide=True)
def kalman(observed: Any) -> Any:
    """A Kalman filter of positions and velocities, with gains by a factorisation of Cholesky written out."""
    transition = jnp.eye(4) + 0.1 * jnp.eye(4, k=2)
    seen = jnp.eye(2, 4)

    def inverse(s: Any) -> Any:
        a = jnp.sqrt(s[0, 0])
        b = s[1, 0] / a
        c = jnp.sqrt(s[1, 1] - b * b)
        root = jnp.array([[1 / a, 0.0], [-b / (a * c), 1 / c]])
        return root.T @ root

    def advance(state: Any, y: Any) -> Any:
        mean, covariance = state
        mean, covariance = transition @ mean, transition @ covariance @ transition.T + 0.01 * jnp.eye(4)
        spread = seen @ covariance @ seen.T + 0.5 * jnp.eye(2)
        gain = covariance @ seen.T @ inverse(spread)
        mean = mean + gain @ (y - seen @ mean)
        covariance = (jnp.eye(4) - gain @ seen) @ covariance
        return (mean, covariance), (mean, jnp.trace(covariance))

    return lax.scan(advance, (jnp.zeros(4), jnp.eye(4)), observed)


@program(lambda r: (f32(r.standard_normal((6, 4))), f32(r.standard_normal((4, 4))), f32(r.standard_normal((20, 6)))))
def hidden_markov(emission: Any, transition: Any, logits: Any) -> Any:
    """Likelihood, gradient, posteriors and the most likely path of a hidden Markov model."""
    moves = jax.nn.log_softmax(transition)
    seen = logits @ jax.nn.softmax(emission, 0)

    def forward(alpha: Any, e: Any) -> Any:
        alpha = jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + e
        return alpha, alpha

    def backward(beta: Any, e: Any) -> Any:
        return jax.nn.logsumexp(moves + (beta + e)[None], axis=1), beta

    def best(delta: Any, e: Any) -> Any:
        scores = delta[:, None] + moves
        return scores.max(0) + e, scores.argmax(0)

    _, alphas = lax.scan(forward, seen[0], seen[1:])
    alphas = jnp.concatenate([seen[:1], alphas])
    _, betas = lax.scan(backward, jnp.zeros(4), seen, reverse=True)
    final, back = lax.scan(best, seen[0], seen[1:])
    last = final.argmax()
    _, path = lax.scan(lambda state, row: (row[state], row[state]), last, back, reverse=True)
    gradient = jax.grad(lambda s: jax.nn.logsumexp(lax.scan(forward, s[0], s[1:])[0]))(seen)
    return jax.nn.softmax(alphas + betas), jnp.append(path, last), gradient


def _ctc(logits: Any, labels: Any) -> Any:
    blank = 0
    scores = jax.nn.log_softmax(logits)
    extended = jnp.full(2 * labels.size + 1, blank).at[1::2].set(labels)
    skips = (extended != blank) & (extended != jnp.roll(extended, 2))
    none = jnp.full(extended.size, -1e30)
    start = none.at[0].set(scores[0, blank]).at[1].set(scores[0, labels[0]])

    def advance(alpha: Any, row: Any) -> Any:
        one = jnp.concatenate([jnp.array([-1e30]), alpha[:-1]])
        two = jnp.where(skips, jnp.concatenate([jnp.array([-1e30, -1e30]), alpha[:-2]]), -1e30)
        return jnp.logaddexp(jnp.logaddexp(alpha, one), two) + row[extended], None

    final, _ = lax.scan(advance, start, scores[1:])
    return -jnp.logaddexp(final[-1], final[-2])


@program(lambda r: (f32(r.standard_normal((3, 12, 6))), r.integers(1, 6, (3, 4)).astype(np.int32)))
def ctc(logits: Any, labels: Any) -> Any:
    """Connectionist temporal classification: losses of a batch and their gradient."""
    return jax.value_and_grad(lambda x: jax.vmap(_ctc)(x, labels).mean())(logits)


@program(lambda r: (f32(r.standard_normal((60, 3)) + r.integers(0, 3, 60)[:, None] * 4), 3), bound=1e-5)
def k_means(points: Any, _: Any) -> Any:
    """Lloyd's algorithm until no point changes its centre."""

    def nearest(centres: Any) -> Any:
        return jnp.argmin(jnp.sum((points[:, None] - centres) ** 2, -1), axis=1)

    def advance(state: Any) -> Any:
        centres, members, _, n = state
        sums = jax.ops.segment_sum(points, members, 3)
        counts = jax.ops.segment_sum(jnp.ones(60), members, 3)
        centres = jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centres)
        after = nearest(centres)
        return centres, after, jnp.any(after != members), n + 1

    start = points[:3]
    return lax.while_loop(lambda s: s[2] & (s[3] < 50), advance, (start, nearest(start), True, 0))


@program(lambda r: (r.integers(0, 30, (2, 120)).astype(np.int32),), bound=1e-5)
def page_rank(edges: Any) -> Any:
    """Power iteration on the links of pages, and the pages of the highest ranks."""
    source, target = edges
    degree = jnp.zeros(30).at[source].add(1.0)

    def advance(state: Any) -> Any:
        rank, _, n = state
        flow = jnp.where(degree[source] > 0, rank[source] / jnp.maximum(degree[source], 1), 0)
        lost = jnp.sum(jnp.where(degree == 0, rank, 0))
        after = 0.15 / 30 + 0.85 * (jnp.zeros(30).at[target].add(flow) + lost / 30)
        return after, jnp.abs(after - rank).sum(), n + 1

    state = (jnp.full(30, 1 / 30), jnp.inf, 0)
    rank, _, _ = lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 100), advance, state)
    return rank, lax.top_k(rank, 5)


@program(lambda r: (f32(r.uniform(size=(12, 2))), f32(r.uniform(size=(15, 2)))), bound=1e-4, why="log and exp of sums")
def sinkhorn(a: Any, b: Any) -> Any:
    """Entropic optimal transport in the logarithmic domain, and the gradient of its cost."""

    def cost(a: Any) -> Any:
        distances = jnp.sum((a[:, None] - b) ** 2, -1) / 0.05

        def advance(state: Any, _: Any) -> Any:
            _, g = state
            f = -jax.nn.logsumexp(g - distances, axis=1) - jnp.log(12.0)
            return (f, -jax.nn.logsumexp(f[:, None] - distances, axis=0) - jnp.log(15.0)), None

        (f, g), _ = lax.scan(advance, (jnp.zeros(12), jnp.zeros(15)), None, length=20)
        plan = jnp.exp(f[:, None] + g - distances)
        return jnp.sum(plan * distances), plan

    (value, plan), slope = jax.value_and_grad(cost, has_aux=True)(a)
    return value, plan, slope


@program(lambda r: (np.array([-1.2, 1.0, 0.5]),), wide=True, bound=1e-6, why="the iteration ends at a gradient of 1e-5")
def bfgs(start: Any) -> Any:
    """The minimum of Rosenbrock's function by BFGS, with a line search in a loop within the loop."""

    def function(x: Any) -> Any:
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    def search(x: Any, direction: Any, slope: Any) -> Any:
        def too_far(size: Any) -> Any:
            return (function(x + size * direction) > function(x) + 1e-4 * size * slope @ direction) & (size > 1e-10)

        return lax.while_loop(too_far, lambda size: 0.5 * size, 1.0)

    def advance(state: Any) -> Any:
        x, slope, inverse, n = state
        direction = -inverse @ slope
        step = search(x, direction, slope) * direction
        after = jax.grad(function)(x + step)
        change = after - slope
        rho = 1 / (change @ step)
        left = jnp.eye(x.size) - rho * jnp.outer(step, change)
        return x + step, after, left @ inverse @ left.T + rho * jnp.outer(step, step), n + 1

    state = (start, jax.grad(function)(start), jnp.eye(start.size), 0)
    final, slope, _, n = lax.while_loop(lambda s: (jnp.linalg.norm(s[1]) > 1e-5) & (s[3] < 200), advance, state)
    return final, jnp.linalg.norm(slope) < 1e-5, n


@program(lambda r: (r.standard_normal((40, 5)), r.standard_normal(40)), wide=True)
def optimisers(x: Any, y: Any) -> Any:
    """Momentum, Adam, RMSProp, Adagrad and Lion on one regression."""

    def loss(w: Any) -> Any:
        return jnp.mean(jnp.log(jnp.cosh(x @ w - y)))

    def momentum(w: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
        m = 0.9 * m + g
        return w - 0.05 * m, m, v

    def adam(w: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return w - 0.05 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v

    def rmsprop(w: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
        v = 0.9 * v + 0.1 * g * g
        return w - 0.02 * g * lax.rsqrt(v + 1e-8), m, v

    def adagrad(w: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
        v = v + g * g
        return w - 0.1 * g / (jnp.sqrt(v) + 1e-8), m, v

    def lion(w: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
        return w - 0.01 * jnp.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g, v

    def run(rule: Any) -> Any:
        def advance(state: Any, t: Any) -> Any:
            w, m, v = state
            value, slope = jax.value_and_grad(loss)(w)
            return rule(w, m, v, slope, t), value

        zeros = jnp.zeros(5)
        (w, _, _), losses = lax.scan(advance, (zeros, zeros, zeros), jnp.arange(1.0, 25.0))
        return w, losses

    return [run(rule) for rule in (momentum, adam, rmsprop, adagrad, lion)]


@program(lambda r: (r.standard_normal(5), r.standard_normal((5, 5))), wide=True)
def transformations(x: Any, a: Any) -> Any:
    """`vmap`, `jvp`, `vjp`, `grad`, `hessian`, `jacfwd`, `jacrev`, `linearize` and custom rules together."""

    @jax.custom_jvp
    def softplus(x: Any) -> Any:
        return jnp.logaddexp(x, 0.0)

    softplus.defjvp(lambda primals, tangents: (softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]))

    def function(x: Any) -> Any:
        return jnp.sum(softplus(a @ x) * jnp.sin(x)) + x @ a @ x

    value, pullback = jax.vjp(lambda x: jnp.tanh(a @ x), x)
    _, linear = jax.linearize(function, x)
    rows = jax.vmap(jax.grad(function))(a)
    return (
        (function(x), jax.grad(function)(x), jax.hessian(function)(x), jax.jvp(function, (x,), (x,))),
        (value, pullback(x), linear(x), rows, jax.jacfwd(jnp.outer)(x, x), jax.jacrev(lambda x: jnp.cumprod(x))(x)),
    )


@program(lambda r: (f32(r.standard_normal(50)), r.integers(0, 9, 50).astype(np.int32), f32(r.standard_normal((6, 7)))))
def sorting(x: Any, labels: Any, table: Any) -> Any:
    """Sorts by several keys, ranks, quantiles, top elements, unique values and bins."""
    order = jnp.lexsort((x, labels))
    values, counts = jnp.unique(labels, size=9, return_counts=True, fill_value=-1)
    return (
        (x[order], labels[order], jnp.argsort(-x), jnp.sort(table, axis=0), jnp.argsort(table, axis=1)),
        (
            lax.top_k(x, 7),
            jnp.median(table),
            jnp.quantile(x, jnp.array([0.1, 0.5, 0.9])),
            jnp.percentile(table, 30.0, 0),
        ),
        (values, counts, jnp.bincount(labels, length=9), jnp.histogram(x, 6)[0], jnp.searchsorted(jnp.sort(x), x[:5])),
        (jax.ops.segment_max(x, labels, 9), jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])), jnp.nanmax(table, 1)),
    )


@program(
    lambda r: (r.integers(0, 4, 12).astype(np.int32), r.integers(0, 4, 15).astype(np.int32), f32(r.standard_normal(10)))
)
def alignments(a: Any, b: Any, series: Any) -> Any:
    """Edit distance and dynamic time warping, by dynamic programming along rows."""

    def edit_row(before: Any, letter: Any) -> Any:
        first = before[0] + 1

        def cell(left: Any, inputs: Any) -> Any:
            diagonal, above, other = inputs
            best = jnp.minimum(jnp.minimum(left, above) + 1, diagonal + (letter != other))
            return best, best

        _, rest = lax.scan(cell, first, (before[:-1], before[1:], b))
        return jnp.append(first, rest), None

    distance, _ = lax.scan(edit_row, jnp.arange(b.size + 1), a)

    def warp(x: Any, y: Any) -> Any:
        def row(before: Any, value: Any) -> Any:
            def cell(left: Any, inputs: Any) -> Any:
                diagonal, above, other = inputs
                best = (value - other) ** 2 + jnp.minimum(jnp.minimum(left, above), diagonal)
                return best, best

            _, rest = lax.scan(cell, jnp.inf, (before[:-1], before[1:], y))
            return jnp.append(jnp.inf, rest), None

        start = jnp.full(y.size + 1, jnp.inf).at[0].set(0)
        return lax.scan(row, start, x)[0][-1]

    return distance[-1], jax.value_and_grad(warp)(series, series[::-1] * 0.5)


@program(lambda r: (f32(r.uniform(size=(4, 16, 4))),), bound=1e-4, why="the iteration ends at a change of 1e-4")
def value_iteration(rewards: Any) -> Any:
    """The best policy of a grid world, for several of them by `vmap` over a loop of unequal trips."""

    def solve(rewards: Any) -> Any:
        place = jnp.arange(16)
        row, column = place // 4, place % 4
        steps = ((-1, 0), (1, 0), (0, -1), (0, 1))
        targets = jnp.stack([jnp.clip(row + i, 0, 3) * 4 + jnp.clip(column + j, 0, 3) for i, j in steps], 1)

        def advance(state: Any) -> Any:
            values, _ = state
            after = jnp.max(rewards + 0.8 * values[targets], 1)
            return after, jnp.max(jnp.abs(after - values))

        values, _ = lax.while_loop(lambda s: s[1] > 1e-4, advance, (jnp.zeros(16), jnp.inf))
        return values, jnp.argmax(rewards + 0.8 * values[targets], 1)

    return jax.vmap(solve)(rewards)
