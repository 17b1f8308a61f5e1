"""Samples of images at points, against torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tilewright.interop.torch import backend  # noqa: E402

SHAPES = {
    "planes": ((2, 3, 5, 7), (4, 6)),
    "volumes": ((2, 3, 4, 5, 6), (3, 4, 2)),
    "one_element": ((1, 2, 1, 1), (3, 3)),
}


# torch has no cubic samples of volumes.
MODES = [(name, mode) for name in SHAPES for mode in ("bilinear", "nearest", "bicubic")]
MODES.remove(("volumes", "bicubic"))


@pytest.mark.parametrize(("shapes", "mode"), MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [False, True])
def test_grid_sample(shapes: str, mode: str, padding: str, aligned: bool) -> None:
    shape, places = SHAPES[shapes]
    torch.manual_seed(0)
    x, grid = torch.randn(shape), torch.rand(shape[0], *places, len(places)) * 2.6 - 1.3

    def sample(x, grid):
        return torch.nn.functional.grid_sample(x, grid, mode, padding, aligned)

    torch._dynamo.reset()
    found = torch.compile(sample, backend=backend, fullgraph=True)(x, grid)
    torch.testing.assert_close(found, sample(x, grid), rtol=1e-4, atol=1e-4)


def test_gradients_of_samples() -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 7), torch.rand(2, 4, 6, 2) * 2 - 1

    def gradients(function):
        a, b = x.clone().requires_grad_(), grid.clone().requires_grad_()
        function(a, b).square().sum().backward()
        return a.grad, b.grad

    def sample(x, grid):
        return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    torch._dynamo.reset()
    found = gradients(torch.compile(sample, backend=backend))
    for actual, expected in zip(found, gradients(sample), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
