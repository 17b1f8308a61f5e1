"""`tw.fft` against `numpy.fft`, which transforms f32 in f64 and is exact enough to measure by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError, ShapeError

_NORMS = ("backward", "ortho", "forward")
_X = np.random.default_rng(0).standard_normal((2, 6, 5, 2))
_ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")


def _operand(name: str, dtype: Any = np.float32) -> Any:
    """Real numbers for transforms of them, else complex ones."""
    numbers = _X[..., 0] if name in ("rfft", "ihfft", "rfftn") else _X[..., 0] + 1j * _X[..., 1]
    return numbers.astype(np.result_type(dtype, np.complex64) if numbers.dtype.kind == "c" else dtype)


def _check(found: Any, expected: Any, dtype: Any) -> None:
    single = np.dtype(dtype) == np.float32
    kinds = {"c": np.complex64, "f": np.float32} if single else {"c": np.complex128, "f": np.float64}
    assert (found.dtype, found.shape) == (kinds[expected.dtype.kind], expected.shape)
    bound = 4 * np.finfo(dtype).eps * np.log2(max(2, expected.size)) * np.abs(expected).max()
    assert np.abs(found - expected).max() <= bound


def _both(name: str, calls: list[dict[str, Any]], dtype: Any, target: str = "cpu") -> None:
    x = _operand(name, dtype)
    found = tw.jit(lambda x: [getattr(tw.fft, name)(x, **call) for call in calls], target=target)(x)
    for result, call in zip(found, calls, strict=True):
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        _check(result, getattr(np.fft, name)(wide, **call), dtype)


@pytest.mark.parametrize("name", _ONE_AXIS)
def test_transforms_along_an_axis(name: str) -> None:
    lengths = [{"n": n, "axis": axis} for n, axis in ((None, -1), (7, 1), (3, 1), (1, 0))]
    _both(name, [*lengths, *({"norm": norm} for norm in _NORMS)], np.float32)


@pytest.mark.parametrize("name", _SEVERAL)
def test_transforms_along_several_axes(name: str) -> None:
    calls: list[dict[str, Any]] = [{}, {"axes": (0, 1)}, {"s": (4, 7), "axes": (1, 2)}, {"axes": (2, 0)}]
    _both(name, [*calls, *({"norm": norm, "axes": (1, 2)} for norm in _NORMS)], np.float64)


def test_transforms_in_their_definition() -> None:
    for name in (*_ONE_AXIS, *_SEVERAL):
        _both(name, [{}], np.float32, "interp")


def test_transforms_of_integers_and_narrow_floats() -> None:
    def transforms(i: Any, h: Any) -> Any:
        return tw.fft.rfft(i), tw.fft.fft(h), tw.fft.fft(i, n=6)

    i, h = np.arange(4), np.arange(5, dtype=np.float16)
    for found, expected in zip(
        tw.jit(transforms)(i, h), (np.fft.rfft(i), np.fft.fft(h), np.fft.fft(i, 6)), strict=True
    ):
        _check(found, expected, np.float32)


def test_convolution_by_transforms() -> None:
    random = np.random.default_rng(1)
    x, kernel = random.standard_normal(200), random.standard_normal(33)

    def convolved(x: Any, kernel: Any) -> Any:
        return tw.fft.irfft(tw.fft.rfft(x, n=232) * tw.fft.rfft(kernel, n=232), n=232)

    np.testing.assert_allclose(tw.jit(convolved)(x, kernel), np.convolve(x, kernel), rtol=0, atol=1e-13)


def test_a_loop_of_transforms() -> None:
    x = _operand("fft", np.float64)

    def steps(x: Any) -> Any:
        return tw.fori_loop(0, 3, lambda i, c: tw.fft.ifft(tw.fft.fft(c) * 0.5), x)

    np.testing.assert_allclose(tw.jit(steps)(x), x / 8, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    def all_of(x: Any) -> Any:
        shifts = (tw.fft.fftshift(x), tw.fft.ifftshift(x, axes=1), tw.fft.ifftshift(tw.fft.fftshift(x)))
        return tw.fft.fftfreq(n, d=0.5), tw.fft.rfftfreq(n, d=2.0, dtype=tw.f64), shifts

    x = np.arange(n * 3).reshape(n, 3)
    frequencies, halves, shifts = tw.jit(all_of)(x)
    np.testing.assert_allclose(frequencies, np.fft.fftfreq(n, 0.5).astype(np.float32), rtol=1e-6)
    np.testing.assert_allclose(halves, np.fft.rfftfreq(n, 2.0), rtol=1e-15)
    expected = (np.fft.fftshift(x), np.fft.ifftshift(x, axes=1), x)
    for found, wanted in zip(shifts, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: tw.fft.fft(x, n=0), ShapeError),
        (lambda x: tw.fft.fft(x[0, 0]), ShapeError),
        (lambda x: tw.fft.irfft(x[:, :1]), ShapeError),
        (lambda x: tw.fft.fft(x, norm="no"), ArgumentError),
        (lambda x: tw.fft.fftn(x, s=(2,), axes=(0, 1)), ArgumentError),
        (lambda x: tw.fft.fftn(x, s=3), ArgumentError),
        (lambda x: tw.fft.rfft(x + 1j), DTypeError),
        (lambda x: tw.fft.fftfreq(0), ShapeError),
        (lambda x: tw.fft.fftfreq(3, d=0.0), ArgumentError),
        (lambda x: tw.fft.rfftfreq(3, dtype=tw.i32), DTypeError),
    ],
)
def test_mistakes_are_refused(call: Any, error: Any) -> None:
    with pytest.raises(error) as caught:
        tw.jit(call, target="interp")(np.ones((3, 4)))
    assert caught.value.help
    assert caught.value.location is not None
