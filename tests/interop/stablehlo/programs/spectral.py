"""Fourier transforms: solvers of differential equations, signals, convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs.registry import f32, program


@program(lambda r: (r.standard_normal((32, 32)),), wide=True)
def navier_stokes(vorticity: Any) -> Any:
    """The vorticity equation on a torus: pseudo-spectral in space, semi-implicit in time."""
    n, viscosity, step = vorticity.shape[0], 1e-2, 1e-2
    k = jnp.fft.fftfreq(n, 1 / n)
    kx, ky = k[:, None], k[None, : n // 2 + 1]
    ky = ky.at[0, n // 2].set(n // 2)
    square = kx**2 + ky**2
    inverse = jnp.where(square == 0, 0.0, 1 / jnp.where(square == 0, 1, square))
    kept = (jnp.abs(kx) < n / 3) & (jnp.abs(ky) < n / 3)

    def advance(w: Any, _: Any) -> Any:
        stream = w * inverse
        u, v = jnp.fft.irfft2(1j * ky * stream), jnp.fft.irfft2(-1j * kx * stream)
        wx, wy = jnp.fft.irfft2(1j * kx * w), jnp.fft.irfft2(1j * ky * w)
        change = jnp.where(kept, -jnp.fft.rfft2(u * wx + v * wy), 0)
        w = (w + step * (change - 0.5 * viscosity * square * w)) / (1 + 0.5 * step * viscosity * square)
        return w, jnp.sum(jnp.abs(w) ** 2)

    final, energies = lax.scan(advance, jnp.fft.rfft2(vorticity), None, length=10)
    return jnp.fft.irfft2(final), energies


@program(lambda r: (np.linspace(-10, 10, 128, endpoint=False),), wide=True)
def schrodinger(x: Any) -> Any:
    """A wave packet at a barrier, by the split-step method."""
    step = 0.01
    k = 2 * jnp.pi * jnp.fft.fftfreq(x.size, x[1] - x[0])
    barrier = jnp.where(jnp.abs(x) < 0.5, 4.0, 0.0)
    kinetic, potential = jnp.exp(-0.5j * step * k**2), jnp.exp(-0.5j * step * barrier)
    packet = jnp.exp(-((x + 5) ** 2) / 2 + 2j * x)
    packet = packet / jnp.linalg.norm(packet)

    def advance(_: Any, psi: Any) -> Any:
        return potential * jnp.fft.ifft(kinetic * jnp.fft.fft(potential * psi))

    psi = lax.fori_loop(0, 50, advance, packet)
    return psi, jnp.abs(psi) ** 2, jnp.vdot(psi, psi).real


@program(lambda r: (np.linspace(0, 2 * np.pi, 64, endpoint=False),), wide=True)
def korteweg_de_vries(x: Any) -> Any:
    """Solitons: an integrating factor and a Runge-Kutta method of order 4."""
    step = 1e-4
    k = jnp.arange(x.size // 2 + 1)
    start = 3 * 5.0**2 / jnp.cosh(0.5 * 5.0 * (x - np.pi)) ** 2

    def slope(v: Any, t: Any) -> Any:
        turn = jnp.exp(1j * k**3 * t)
        u = jnp.fft.irfft(v * turn, n=x.size)
        return -0.5j * k * jnp.fft.rfft(u**2) / turn

    def advance(v: Any, t: Any) -> Any:
        a = slope(v, t)
        b = slope(v + 0.5 * step * a, t + 0.5 * step)
        c = slope(v + 0.5 * step * b, t + 0.5 * step)
        d = slope(v + step * c, t + step)
        return v + step * (a + 2 * b + 2 * c + d) / 6, None

    times = step * jnp.arange(30)
    final, _ = lax.scan(advance, jnp.fft.rfft(start), times)
    return jnp.fft.irfft(final * jnp.exp(1j * k**3 * times[-1]), n=x.size)


@program(lambda r: (f32(r.standard_normal((16, 24))),))
def poisson(density: Any) -> Any:
    """The potential of a density on a torus, and its gradient with respect to the density."""

    def potential(density: Any) -> Any:
        kx, ky = (2 * np.pi * jnp.fft.fftfreq(n) for n in density.shape)
        square = kx[:, None] ** 2 + ky[None, :] ** 2
        kernel = jnp.where(square == 0, 0, 1 / jnp.where(square == 0, 1, square))
        return jnp.fft.ifftn(jnp.fft.fftn(density) * kernel).real

    return potential(density), jax.grad(lambda d: jnp.sum(potential(d) ** 2))(density)


@program(lambda r: (f32(r.standard_normal(1000)), f32(r.standard_normal(65))))
def convolution(signal: Any, kernel: Any) -> Any:
    """Convolutions by transforms and directly, and the autocorrelation."""
    by_transform = jax.scipy.signal.fftconvolve(signal, kernel, mode="full")
    padded = jnp.fft.rfft(signal, n=2048)
    correlation = jnp.fft.irfft(padded * jnp.conj(padded))[: signal.size]
    return by_transform, jnp.convolve(signal, kernel, mode="same"), correlation


@program(lambda r: (f32(np.sin(np.linspace(0, 200, 1024)) + 0.1 * r.standard_normal(1024)),), bound=1e-4, why="log")
def spectrogram(signal: Any) -> Any:
    """Overlapping windows, their power in decibels, and the signal from the transforms."""
    size, hop = 128, 64
    window = jnp.hanning(size)
    starts = jnp.arange(0, signal.size - size + 1, hop)
    frames = jax.vmap(lambda s: lax.dynamic_slice(signal, (s,), (size,)))(starts)
    spectrum = jnp.fft.rfft(frames * window, axis=-1)
    decibels = 10 * jnp.log10(jnp.abs(spectrum) ** 2 + 1e-3)
    back = jnp.fft.irfft(spectrum, n=size, axis=-1) * window
    whole = jnp.zeros_like(signal).at[starts[:, None] + jnp.arange(size)].add(back)
    return decibels, whole


@program(lambda r: (np.cumsum(r.standard_normal(257)),), wide=True)
def analytic_signal(x: Any) -> Any:
    """The Hilbert transform: envelope, phase and frequency at each time."""
    n = x.size
    gain = jnp.zeros(n).at[0].set(1).at[1 : (n + 1) // 2].set(2)
    found = jnp.fft.ifft(jnp.fft.fft(x - x.mean()) * gain)
    phase = jnp.unwrap(jnp.angle(found))
    return jnp.abs(found), phase, jnp.diff(phase) / (2 * jnp.pi)


@program(lambda r: (f32(r.standard_normal((2, 8, 8, 6))), f32(r.standard_normal((2, 3, 3, 6, 5)) * 0.2)))
def fourier_operator(x: Any, weights: Any) -> Any:
    """A layer of a Fourier neural operator: weights of the lowest modes, and their gradient."""

    def layer(weights: Any) -> Any:
        modes = lax.complex(weights[0], weights[1])
        low = jnp.fft.rfft2(x, axes=(1, 2))[:, :3, :3, :]
        mixed = jnp.einsum("bxyi,xyio->bxyo", low, modes)
        full = jnp.zeros((x.shape[0], 8, 5, 5), jnp.complex64).at[:, :3, :3].set(mixed)
        return jax.nn.gelu(jnp.fft.irfft2(full, s=(8, 8), axes=(1, 2)))

    return layer(weights), jax.grad(lambda w: jnp.sum(layer(w) ** 2))(weights)


@program(lambda r: (r.standard_normal((3, 40)) + 1j * r.standard_normal((3, 40)),), wide=True)
def all_transforms(x: Any) -> Any:
    """Every transform and norm of `jnp.fft`, shifts and frequencies."""
    cube = x.reshape(6, 4, 5)
    return (
        [jnp.fft.fft(x, n, norm=norm) for n, norm in ((None, None), (32, "ortho"), (50, "forward"))],
        (jnp.fft.ifft(x, axis=0), jnp.fft.rfft(x.real), jnp.fft.irfft(x), jnp.fft.irfft(x, 77), jnp.fft.hfft(x)),
        (jnp.fft.ihfft(x.imag), jnp.fft.fft2(cube), jnp.fft.ifft2(cube), jnp.fft.fftn(cube), jnp.fft.ifftn(cube)),
        (jnp.fft.rfftn(cube.real), jnp.fft.irfftn(cube), jnp.fft.rfft2(cube.real), jnp.fft.irfft2(cube, (3, 7))),
        (jnp.fft.fftshift(x), jnp.fft.ifftshift(x, axes=1), jnp.fft.fftfreq(7, 0.5), jnp.fft.rfftfreq(8)),
    )
