"""Solvers of ordinary and partial differential equations, and simulations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs.registry import f32, program


@program(lambda r: (r.standard_normal((8, 3)), r.standard_normal((8, 3)) * 0.1, r.uniform(0.5, 2, 8)), wide=True)
def n_body(position: Any, velocity: Any, mass: Any) -> Any:
    """Gravity between all pairs, softened, by the leapfrog method; momentum and energy at the end."""

    def acceleration(x: Any) -> Any:
        distance = x[None] - x[:, None]
        cubes = (jnp.sum(distance**2, -1) + 0.01) ** 1.5
        return jnp.sum(mass[None, :, None] * distance / cubes[..., None], axis=1)

    def advance(state: Any, _: Any) -> Any:
        x, v, a = state
        x = x + 0.01 * v + 0.5 * 0.01**2 * a
        after = acceleration(x)
        v = v + 0.5 * 0.01 * (a + after)
        return (x, v, after), jnp.sum(mass[:, None] * v, 0)

    (x, v, _), momenta = lax.scan(advance, (position, velocity, acceleration(position)), None, length=20)
    return x, v, momenta, 0.5 * jnp.sum(mass * jnp.sum(v**2, -1))


def _lattice(r: np.random.Generator) -> Any:
    places = np.stack(np.meshgrid(*(np.arange(3),) * 3, indexing="ij"), -1).reshape(-1, 3) * 1.2
    return places + r.standard_normal(places.shape) * 0.02


@program(lambda r: (_lattice(r), r.standard_normal((27, 3)) * 0.1), wide=True)
def molecular_dynamics(position: Any, velocity: Any) -> Any:
    """Lennard-Jones particles in a periodic box: forces are gradients of the energy."""
    box, cutoff = 3.6, 1.7

    def energy(x: Any) -> Any:
        distance = x[:, None] - x[None]
        distance = distance - box * jnp.round(distance / box)
        squared = jnp.sum(distance**2, -1) + jnp.eye(x.shape[0]) * 100
        sixth = jnp.where(squared < cutoff**2, 1 / squared, 0.0) ** 3
        return 2 * jnp.sum(sixth**2 - sixth)

    forces = jax.grad(lambda x: -energy(x))

    def advance(_: Any, state: Any) -> Any:
        x, v, f = state
        x = (x + 0.002 * v + 0.5 * 0.002**2 * f) % box
        after = forces(x)
        return x, v + 0.5 * 0.002 * (f + after), after

    x, v, _ = lax.fori_loop(0, 15, advance, (position, velocity, forces(position)))
    return x, v, energy(x) + 0.5 * jnp.sum(v**2)


@program(lambda r: (np.array([1.0, 1.0, 1.0]),), wide=True, bound=1e-8, why="the system is chaotic")
def lorenz(start: Any) -> Any:
    """An adaptive Runge-Kutta method (Bogacki and Shampine) in a loop whose trips depend on the data."""

    def slope(x: Any) -> Any:
        return jnp.array([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])

    def advance(state: Any) -> Any:
        t, x, h, accepted, tried = state
        a = slope(x)
        b = slope(x + 0.5 * h * a)
        c = slope(x + 0.75 * h * b)
        y = x + h * (2 * a + 3 * b + 4 * c) / 9
        d = slope(y)
        error = jnp.max(jnp.abs(h * (-5 * a / 72 + b / 12 + c / 9 - d / 8)) / (1e-4 + 1e-4 * jnp.abs(y)))
        good = error <= 1
        step = h * jnp.clip(0.9 * error ** (-1 / 3), 0.2, 5.0)
        return jnp.where(good, t + h, t), jnp.where(good, y, x), step, accepted + good, tried + 1

    initial = (jnp.zeros(()), start, jnp.full((), 0.01), 0, 0)
    return lax.while_loop(lambda s: (s[0] < 1.0) & (s[4] < 500), advance, initial)


@program(lambda r: (f32(np.exp(-(np.linspace(-4, 4, 40) ** 2))[:, None] * np.exp(-(np.linspace(-4, 4, 40) ** 2))),))
def waves(height: Any) -> Any:
    """The wave equation with an absorbing border, and the gradient of what arrives at a point."""

    def final(height: Any) -> Any:
        def advance(state: Any, _: Any) -> Any:
            before, now = state
            around = jnp.roll(now, 1, 0) + jnp.roll(now, -1, 0) + jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1)
            after = 2 * now - before + 0.2 * (around - 4 * now)
            after = after.at[0].set(0).at[-1].set(0).at[:, 0].multiply(0.5).at[:, -1].multiply(0.5)
            return (now, after), after[20, 30]

        (_, now), seen = lax.scan(advance, (height, height), None, length=20)
        return now, seen

    now, seen = final(height)
    return now, seen, jax.grad(lambda h: final(h)[1][-1] ** 2)(height)


@program(
    lambda r: (r.standard_normal((12, 12)),), wide=True, bound=1e-9, why="the iteration ends at a residual of 1e-8"
)
def implicit_heat(temperature: Any) -> Any:
    """The heat equation by backward Euler steps, each solved by conjugate gradients."""

    def operator(x: Any) -> Any:
        padded = jnp.pad(x, 1)
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        return x + 0.3 * (4 * x - around)

    def advance(x: Any, _: Any) -> Any:
        solved, _ = jax.scipy.sparse.linalg.cg(operator, x, tol=1e-10, maxiter=100)
        return solved, solved.mean()

    return lax.scan(advance, temperature, None, length=4)


@program(lambda r: (jax.random.key(5), r.choice([-1, 1], (16, 16)).astype(np.int32)), bound=0.0)
def ising(key: Any, spins: Any) -> Any:
    """Metropolis sweeps of a checkerboard: magnetisation and energy of each."""
    colours = (jnp.arange(16)[:, None] + jnp.arange(16)) % 2

    def sweep(state: Any, key: Any) -> Any:
        spins = state
        for colour, half in enumerate(jax.random.split(key)):
            around = sum(jnp.roll(spins, shift, axis) for shift in (1, -1) for axis in (0, 1))
            accepted = jax.random.uniform(half, spins.shape) < jnp.exp(-0.8 * spins * around)
            spins = jnp.where(accepted & (colours == colour), -spins, spins)
        return spins, (spins.sum(), -(spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1))).sum())

    return lax.scan(sweep, spins, jax.random.split(key, 6))


@program(lambda r: (r.standard_normal((2, 6)), r.standard_normal((6, 6)) * 0.4), wide=True)
def neural_ode(x: Any, weights: Any) -> Any:
    """A differential equation whose right side is a network, and the gradient through its solver."""

    def solve(weights: Any) -> Any:
        def slope(x: Any) -> Any:
            return jnp.tanh(x @ weights)

        def advance(x: Any, _: Any) -> Any:
            a = slope(x)
            b = slope(x + 0.05 * a)
            c = slope(x + 0.05 * b)
            d = slope(x + 0.1 * c)
            return x + 0.1 * (a + 2 * b + 2 * c + d) / 6, x

        return lax.scan(jax.checkpoint(advance), x, None, length=8)

    final, path = solve(weights)
    return final, path, jax.grad(lambda w: jnp.sum(solve(w)[0] ** 2))(weights)


@program(lambda r: (np.array([1.2, 0.4, 0.0, 0.1]),), wide=True, bound=1e-10)
def double_pendulum(state: Any) -> Any:
    """Motion from a Lagrangian: its Hessian and gradients give the accelerations."""

    def lagrangian(q: Any, v: Any) -> Any:
        kinetic = v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * jnp.cos(q[0] - q[1])
        return kinetic + 9.81 * (2 * jnp.cos(q[0]) + jnp.cos(q[1]))

    def acceleration(q: Any, v: Any) -> Any:
        mass = jax.hessian(lagrangian, 1)(q, v)
        force = jax.grad(lagrangian, 0)(q, v) - jax.jacfwd(jax.grad(lagrangian, 1), 0)(q, v) @ v
        determinant = mass[0, 0] * mass[1, 1] - mass[0, 1] * mass[1, 0]
        adjugate = jnp.array([[mass[1, 1], -mass[0, 1]], [-mass[1, 0], mass[0, 0]]])
        return adjugate @ force / determinant

    def advance(s: Any, _: Any) -> Any:
        v = s[2:] + 0.01 * acceleration(s[:2], s[2:])
        return jnp.concatenate([s[:2] + 0.01 * v, v]), s

    return lax.scan(advance, state, None, length=25)


@program(lambda r: ((r.uniform(size=(20, 20)) < 0.35).astype(np.uint8),), bound=0.0)
def game_of_life(cells: Any) -> Any:
    """Generations until nothing changes or 30 have passed."""

    def generation(cells: Any) -> Any:
        padded = jnp.pad(cells, 1, mode="wrap")
        around = sum(padded[i : i + 20, j : j + 20] for i in range(3) for j in range(3)) - cells
        return ((around == 3) | ((around == 2) & (cells == 1))).astype(jnp.uint8)

    def advance(state: Any) -> Any:
        n, now, _ = state
        after = generation(now)
        return n + 1, after, jnp.any(after != now)

    return lax.while_loop(lambda s: s[2] & (s[0] < 30), advance, (0, cells, True))


@program(lambda r: (f32(r.uniform(-1, 1, (5, 3))), f32(r.uniform(0.2, 0.5, 5))))
def ray_tracer(centres: Any, radii: Any) -> Any:
    """Spheres with diffuse light, by marching along distances."""
    x = jnp.linspace(-1, 1, 16)
    grid = jnp.stack(jnp.meshgrid(x, x, indexing="xy"), -1)
    rays = jnp.concatenate([grid, jnp.full((16, 16, 1), 1.5)], -1)
    rays = rays / jnp.linalg.norm(rays, axis=-1, keepdims=True)
    origin = jnp.array([0.0, 0.0, -3.0])

    def distance(p: Any) -> Any:
        return jnp.min(jnp.linalg.norm(p - centres, axis=-1) - radii)

    def march(ray: Any) -> Any:
        depth = lax.fori_loop(0, 30, lambda _, t: t + distance(origin + t * ray), 0.0)
        place = origin + depth * ray
        normal = jax.grad(distance)(place)
        light = jnp.maximum(0, normal @ jnp.array([0.577, 0.577, -0.577]))
        return jnp.where(depth < 6, light, 0.0)

    return jax.vmap(jax.vmap(march))(rays)
