"""Complex arithmetic: fractals, quantum circuits, filters, state spaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs.registry import f32, program


def _plane(width: int, height: int) -> Any:
    return (np.linspace(-2, 1, width)[None] + 1j * np.linspace(-1.2, 1.2, height)[:, None]).astype(np.complex64)


@program(lambda r: (_plane(48, 32),), bound=0.0)
def mandelbrot(c: Any) -> Any:
    """How many steps each point takes to leave, in a loop that ends when all have."""

    def go_on(state: Any) -> Any:
        n, z, _ = state
        return (n < 60) & jnp.any(jnp.abs(z) <= 2)

    def advance(state: Any) -> Any:
        n, z, steps = state
        inside = jnp.abs(z) <= 2
        return n + 1, jnp.where(inside, z * z + c, z), steps + inside

    return lax.while_loop(go_on, advance, (0, jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))[2]


@program(
    lambda r: (_plane(24, 24).astype(np.complex128) * 1.1 + 0.55,), wide=True, bound=1e-9, why="basins are fractal"
)
def newton_fractal(z: Any) -> Any:
    """Roots of z**3 - 1 by Newton's method, and which of them each point comes to."""

    def advance(_: Any, z: Any) -> Any:
        derivative = 3 * z**2
        return z - (z**3 - 1) / jnp.where(derivative == 0, 1, derivative)

    roots = jnp.exp(2j * jnp.pi * jnp.arange(3) / 3)
    final = lax.fori_loop(0, 25, advance, z)
    return final, jnp.argmin(jnp.abs(final[..., None] - roots), axis=-1)


def _gate(state: Any, matrix: Any, qubits: tuple[int, ...]) -> Any:
    count = len(qubits)
    matrix = matrix.reshape((2,) * (2 * count))
    moved = jnp.tensordot(matrix, state, axes=(tuple(range(count, 2 * count)), qubits))
    return jnp.moveaxis(moved, tuple(range(count)), qubits)


@program(lambda r: (f32(r.uniform(0, 2 * np.pi, (3, 4))),))
def quantum_circuit(angles: Any) -> Any:
    """A variational circuit of 4 qubits: the energy of an Ising chain and its gradient."""
    cnot = jnp.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], jnp.complex64)

    def rotation(angle: Any) -> Any:
        c, s = jnp.cos(angle / 2), -1j * jnp.sin(angle / 2)
        return jnp.array([[c, s], [s, c]])

    def energy(angles: Any) -> Any:
        state = jnp.zeros((2,) * 4, jnp.complex64).at[0, 0, 0, 0].set(1)
        for layer in angles:
            for qubit, angle in enumerate(layer):
                state = _gate(state, rotation(angle), (qubit,))
            for qubit in range(3):
                state = _gate(state, cnot, (qubit, qubit + 1))
        z, x = jnp.array([[1, 0], [0, -1]]), jnp.array([[0, 1], [1, 0]])
        terms = [_gate(_gate(state, z, (n,)), z, (n + 1,)) for n in range(3)]
        terms += [0.5 * _gate(state, x, (n,)) for n in range(4)]
        return jnp.vdot(state, sum(terms)).real

    return jax.value_and_grad(energy)(angles)


@program(lambda r: (r.standard_normal(64) + 1j * r.standard_normal(64),), wide=True)
def quantum_fourier(state: Any) -> Any:
    """The quantum Fourier transform by gates, which the fast transform gives too."""
    qubits = 6
    state = (state / jnp.linalg.norm(state)).reshape((2,) * qubits)
    hadamard = jnp.array([[1, 1], [1, -1]]) / jnp.sqrt(2)
    for n in range(qubits):
        state = _gate(state, hadamard.astype(state.dtype), (n,))
        for m in range(n + 1, qubits):
            phase = jnp.exp(2j * jnp.pi / 2 ** (m - n + 1))
            state = _gate(state, jnp.diag(jnp.array([1, 1, 1, phase])), (n, m))
    by_gates = state.transpose(range(qubits)[::-1]).ravel()
    return by_gates, jnp.sum(jnp.abs(by_gates) ** 2)


@program(lambda r: (f32(r.standard_normal((60, 3))), f32(r.uniform(0.1, 1, 8)), f32(r.uniform(0, 3, 8))))
def state_space(signal: Any, decay: Any, frequency: Any) -> Any:
    """A diagonal state-space layer: a complex recurrence as an associative scan, and as a scan."""
    poles = jnp.exp(-decay + 1j * frequency)
    inputs = signal.sum(1)[:, None] * (1 - jnp.abs(poles))

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    _, states = lax.associative_scan(combine, (jnp.broadcast_to(poles, inputs.shape), inputs.astype(poles.dtype)))
    _, again = lax.scan(lambda h, u: ((h := poles * h + u), h.real.sum()), jnp.zeros_like(poles), inputs)
    return states, again


@program(lambda r: (r.standard_normal(200), np.array([0.9, 0.7]), np.array([0.3, 1.2])), wide=True)
def resonators(signal: Any, radius: Any, angle: Any) -> Any:
    """A recursive filter from its poles: the response by a recurrence and in the frequency domain."""
    poles = radius * jnp.exp(1j * angle)
    poles = jnp.concatenate([poles, poles.conj()])
    denominator = jnp.ones(1, poles.dtype)
    for n in range(4):
        denominator = jnp.convolve(denominator, jnp.stack([jnp.ones_like(poles[n]), -poles[n]]))
    denominator = denominator.real

    def advance(memory: Any, x: Any) -> Any:
        y = x - memory @ denominator[1:]
        return jnp.concatenate([y[None], memory[:-1]]), y

    _, filtered = lax.scan(advance, jnp.zeros(4), signal)
    z = jnp.exp(1j * jnp.linspace(0, jnp.pi, 50))
    response = 1 / jnp.prod(1 - poles / z[:, None], axis=-1)
    return filtered, jnp.abs(response), jnp.angle(response)


@program(lambda r: (f32(r.standard_normal((2, 5, 3, 8))),))
def rotary_attention(x: Any) -> Any:
    """Attention whose positions are complex rotations of queries and keys."""
    _, time, _, size = x.shape
    turns = jnp.outer(jnp.arange(time), 10000.0 ** (-jnp.arange(0, size, 2) / size))
    phases = jnp.exp(1j * turns)[None, :, None]

    def rotated(x: Any) -> Any:
        pairs = lax.complex(x[..., ::2], x[..., 1::2]) * phases
        return jnp.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    scores = jnp.einsum("bqhd,bkhd->bhqk", rotated(x), rotated(x + 1)) / np.sqrt(size)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), x)


@program(lambda r: (r.standard_normal((4, 5)) + 1j * r.standard_normal((4, 5)), r.standard_normal((4, 5))), wide=True)
def functions(z: Any, x: Any) -> Any:
    """Elementary functions of complex numbers, their parts, powers and reductions."""
    names = [
        "exp",
        "log",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "arcsin",
        "arccos",
        "arctan",
        "arcsinh",
        "arccosh",
        "arctanh",
        "expm1",
        "log1p",
    ]
    return (
        [getattr(jnp, name)(z) for name in names],
        (z**2, z**-1, z**0.5, z ** (1 + 2j), 2**z, z / x, x / z, jnp.sign(z), jnp.square(z), 1 / z),
        (z.real, z.imag, z.conj(), jnp.abs(z), jnp.angle(z), z == z.at[0, 0].set(0), jnp.isfinite(z)),
        (z.sum(0), z.prod(1), z.mean(), z.var(), z.std(0), jnp.cumsum(z, 1), jnp.cumprod(z, 0), jnp.linalg.norm(z)),
        (z @ z.T, jnp.vdot(z, z), jnp.kron(z, z), jnp.sort(z, axis=1), jnp.trace(z), jnp.where(x > 0, z, x)),
    )


@program(lambda r: (r.standard_normal(6) + 1j * r.standard_normal(6),), wide=True)
def holomorphic_gradients(z: Any) -> Any:
    """Derivatives of functions of complex numbers, and of real functions of them."""
    holomorphic = jax.vmap(jax.grad(lambda z: jnp.sin(z) * jnp.exp(z * z), holomorphic=True))(z)
    real = jax.grad(lambda z: jnp.sum(jnp.abs(z * z + 1j) ** 2))(z)
    tangents = jax.jvp(lambda z: jnp.log(1 + z * z.conj()), (z,), (z * (1 + 1j),))
    return holomorphic, real, tangents
