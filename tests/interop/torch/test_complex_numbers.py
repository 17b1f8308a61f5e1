"""Complex tensors under `torch.compile` and in `from_torch`, and Fourier transforms, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright import events

torch = pytest.importorskip("torch")


def _check(function: Callable[..., Any], *inputs: Any) -> None:
    """Compiled as one program, without anything left to torch, the results are those of eager torch."""
    torch._dynamo.reset()
    with events.capture() as seen:
        found = torch.compile(function, backend="tilewright", fullgraph=True)(*inputs)
    assert [record["operators"] for record in seen if record["kind"] == "torch.fallback"] == []
    torch.testing.assert_close(found, function(*inputs), rtol=2e-5, atol=2e-5)


def _numbers(*shape: int, dtype: Any = torch.complex64) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _rotated(x: Any, phases: Any) -> Any:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * phases).flatten(-2)


def _phases(time: Any, size: int) -> Any:
    angles = torch.outer(time, 1e4 ** -(torch.arange(0, size, 2) / size))
    return torch.polar(torch.ones_like(angles), angles)


def test_rotary_embeddings_with_their_gradient() -> None:
    def loss(x: Any, time: Any) -> Any:
        return (_rotated(x, _phases(time, 8)[:, None]) ** 3).sum()

    x, time = _numbers(3, 2, 8, dtype=torch.float32).requires_grad_(), torch.arange(3.0)
    torch._dynamo.reset()
    with events.capture() as seen:
        (found,) = torch.autograd.grad(torch.compile(loss, backend="tilewright")(x, time), x)
    assert not [record for record in seen if record["kind"] == "torch.fallback"]
    torch.testing.assert_close(found, torch.autograd.grad(loss(x, time), x)[0], rtol=2e-5, atol=2e-5)


def test_functions_of_complex_inputs() -> None:
    def functions(z: Any, w: Any, x: Any) -> Any:
        arithmetic = (z + w, z * w, z / w, z * 2, z * 1j, 2 / z, x * 1j, x + z, z**2, z**w, -z, z == w)
        parts = (z.real, z.imag, z.conj(), z.abs(), torch.angle(z), torch.sgn(z), torch.exp(z), torch.complex(x, x))
        sums = (z.sum(), z.mean(0), z.prod(1), torch.cumsum(z, 0), z @ w.conj().mT, torch.isnan(z))
        moves = (z.T, torch.cat([z, z]), z.flip(0), torch.where(x > 0, z, 0j), z.to(torch.complex128))
        return arithmetic, parts, sums, moves

    _check(functions, _numbers(3, 4), _numbers(4, 3).mT.conj(), torch.ones(3, 4))


def test_inputs_that_are_written() -> None:
    mine, theirs = _numbers(5), _numbers(5)
    torch._dynamo.reset()
    torch.compile(lambda z: z.mul_(1j).add_(1), backend="tilewright")(mine)
    torch.testing.assert_close(mine, theirs * 1j + 1)


def test_fourier_transforms_and_the_gradient_of_a_filter() -> None:
    def transforms(x: Any) -> Any:
        one = (torch.fft.fft(x), torch.fft.ifft(x, norm="ortho"), torch.fft.rfft(x, 7), torch.fft.hfft(x))
        several = (torch.fft.fft2(x), torch.fft.rfft2(x, norm="forward"), torch.fft.irfftn(torch.fft.rfftn(x)))
        return (
            one,
            several,
            torch.fft.fftfreq(5, 0.1),
            torch.stft(x[0], 4, 2, return_complex=True, window=torch.ones(4)),
        )

    _check(transforms, _numbers(3, 8, dtype=torch.float32))

    def loss(x: Any) -> Any:
        return (torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j) * torch.exp(1j * torch.arange(5))) ** 3).sum()

    x = _numbers(3, 8, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(torch.compile(loss, backend="tilewright")(x), x)
    # Numbers of torch's default type are in it, rounded to f32.
    torch.testing.assert_close(found, torch.autograd.grad(loss(x), x)[0], rtol=2e-5, atol=2e-5)


def test_an_exported_program_of_complex_numbers() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phases", _phases(torch.arange(3.0), 8))

        def forward(self, z: Any) -> Any:
            return z * self.phases, z.abs()

    z = _numbers(3, 4)
    found = tw.from_torch(Module(), z)(z)
    assert [part.dtype for part in found] == [torch.complex64, torch.float32]
    torch.testing.assert_close(found, Module()(z))
