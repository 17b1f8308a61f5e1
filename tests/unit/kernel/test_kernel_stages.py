"""Compiled kernels are asked what compiled functions are: times of kernels, and storage formats of the target."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, UnsupportedOnTargetError


@tw.kernel
def scale(x: tw.In["N"], y: tw.InOut["N"], z: tw.Out["N"], *, block: int = 256):
    for i in tw.grid(z, block):
        z[i] = x[i] * 2.0
        y[i] = y[i] + 1.0


@tw.kernel
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, size: int = 64):
    for i, j in tw.grid(c, (size, size)):
        acc = tw.zeros((size, size), tw.f32)
        for k in tw.steps(a, axis=1, size=size):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


def matrices(side: int = 128) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((side, side)).astype(np.float32) for _ in range(2)]


def test_the_profile_of_a_kernel_leaves_its_arrays_as_they_are() -> None:
    x, y, z = np.ones(1000, np.float32), np.zeros(1000, np.float32), np.full(1000, 7, np.float32)
    compiled = scale.lower(x, y, z).compile("cpu")
    (time,) = compiled.profile(x, y, z, repeat=3)
    assert time.calls == 1
    assert time.seconds > 0
    assert (y == 0).all()
    assert (z == 7).all()
    compiled(x, y, z)
    assert (y == 1).all()
    assert (z == 2).all()


def test_the_profile_of_a_function_leaves_donated_arrays_as_they_are() -> None:
    x = np.ones(1000, np.float32)
    compiled = tw.jit(lambda x: x + 1, donate=("x",)).lower(x).compile("cpu")
    (time,) = compiled.profile(x, repeat=2)
    assert time.seconds > 0
    assert (x == 1).all()


def test_a_grid_has_the_times_of_its_simulator() -> None:
    a, b = matrices()
    compiled = matmul.lower(a, b, np.empty_like(a)).compile("grid:wormhole")
    (time,) = compiled.profile(a, b, np.empty_like(a))
    assert time.seconds == pytest.approx(compiled.cost()["seconds"])
    assert time.flops == 2 * 128**3
    assert time.bytes >= 3 * a.nbytes
    assert 0.5 < time.estimated_s / time.seconds < 2


@pytest.mark.parametrize("target", ["interp", "null"])
def test_other_targets_refuse_to_measure(target: str) -> None:
    a, b = matrices()
    compiled = matmul.lower(a, b, np.empty_like(a)).compile(target)
    with pytest.raises(UnsupportedOnTargetError, match="are not measured one by one"):
        compiled.profile(a, b, np.empty_like(a))


def test_other_arguments_are_refused() -> None:
    a, b = matrices()
    compiled = matmul.lower(a, b, np.empty_like(a)).compile("cpu")
    with pytest.raises(ArgumentError, match="takes 3 arrays, got 2"):
        compiled.profile(a, b)
    with pytest.raises(ArgumentError, match="takes arrays by position"):
        compiled.profile(a=a, b=b, c=np.empty_like(a))


def test_arrays_of_a_kernel_are_stored_in_formats_of_a_grid() -> None:
    a, b = matrices()
    exact, rounded = np.empty_like(a), np.empty_like(a)
    lowered = matmul.lower(a, b, exact)
    lowered.compile("grid:wormhole")(a, b, exact)
    compiled = lowered.compile("grid:wormhole", storage={"b": "bfp8", "c": "bf16"})
    compiled(a, b, rounded)
    assert "bfp8" in compiled.ir("scheduled")
    errors = [np.abs(result - a.astype(np.float64) @ b).max() for result in (exact, rounded)]
    assert errors[0] < errors[1] < 1
    with pytest.raises(ArgumentError, match="there is no argument `w` to store") as raised:
        lowered.compile("grid:wormhole", storage={"w": "bfp8"})
    assert raised.value.help == "name one of `a`, `b`, `c`"
    with pytest.raises(UnsupportedOnTargetError, match="does not store `bfp8`"):
        lowered.compile("cpu", storage={"b": "bfp8"})
