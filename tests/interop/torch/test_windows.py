"""Rules of convolutions, their gradients and pooling, of many geometries, against eager torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402
from tilewright.interop.torch.operators import convolution as rules  # noqa: E402

# Stride, padding, dilation, groups.
_GEOMETRIES = [(1, 0, 1, 1), (2, 1, 1, 1), (3, 0, 1, 2), (1, 2, 2, 1), (2, 1, 2, 2)]
# Spatial sizes and windows, also with axes of one place.
_SIZES = [((7,), (3,)), ((8,), (1,)), ((1, 9), (1, 3)), ((6, 7), (3, 2)), ((5, 1, 6), (2, 1, 3))]


@pytest.mark.parametrize("geometry", _GEOMETRIES)
@pytest.mark.parametrize(
    ("sizes", "window", "target"), [*((*each, "interp") for each in _SIZES), ((9, 10), (3, 2), "cpu")]
)
def test_gradients_of_convolutions(sizes: Any, window: Any, target: str, geometry: Any) -> None:
    stride, around, dilation, groups = geometry
    rank = len(sizes)
    padding = [0 if k == 1 else around for k in window]
    torch.manual_seed(0)
    x = torch.randn(2, 4, *sizes, dtype=torch.float64)
    w = torch.randn(6, 4 // groups, *window, dtype=torch.float64)
    each = ([stride] * rank, padding, [dilation] * rank)
    y = torch.ops.aten.convolution(x, w, None, *each, False, [0] * rank, groups)
    grad = torch.randn_like(y)
    wanted = torch.ops.aten.convolution_backward(
        grad, x, w, None, *each, False, [0] * rank, groups, [True, True, False]
    )
    slide = rules.Geometry(tuple(each[0]), tuple(padding), tuple(each[2]), groups)

    @tw.jit(target=target)
    def gradients(grad: Any, x: Any, w: Any) -> Any:
        return rules.transposed(grad, w, slide, sizes), rules.weight_gradient(x, grad, slide, window)

    of_x, of_w = gradients(grad, x, w)
    torch.testing.assert_close(of_x, wanted[0])
    torch.testing.assert_close(of_w, wanted[1])


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("geometry", _GEOMETRIES[1:4])
@pytest.mark.parametrize(("sizes", "window"), _SIZES[:4])
def test_transposed_convolutions(sizes: Any, window: Any, geometry: Any, extra: int) -> None:
    stride, around, dilation, groups = geometry
    extra = extra if extra < max(stride, dilation) else 0
    rank = len(sizes)
    torch.manual_seed(0)
    x = torch.randn(2, 4, *sizes, dtype=torch.float64)
    w = torch.randn(4, 3, *window, dtype=torch.float64)
    padding = [0 if k == 1 else min(around, 1) for k in window]
    given = ([stride] * rank, padding, [dilation] * rank, True, [extra] * rank, groups)
    found = tw.jit(lambda x, w: rules.convolution(x, w, None, *given), target="interp")(x, w)
    torch.testing.assert_close(found, torch.ops.aten.convolution(x, w, None, *given))


@pytest.mark.parametrize(("name", "rank"), [*itertools.product(("max_pool", "avg_pool"), (2, 3))])
def test_one_size_for_all_axes_of_a_pooling(name: str, rank: int) -> None:
    pool = getattr(torch.nn.functional, f"{name}{rank}d")
    x = torch.randn(1, 2, *(6,) * rank, requires_grad=True)
    torch.compiler.reset()
    run = torch.compile(lambda v: pool(v, [2]), backend=backend, options={"target": "interp", "fallback": "error"})
    found, wanted = run(x), pool(x, [2])
    torch.testing.assert_close(found, wanted)
    seed = torch.randn_like(wanted)
    torch.testing.assert_close(torch.autograd.grad(found, x, seed)[0], torch.autograd.grad(wanted, x, seed)[0])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", [{"size": (5, 9)}, {"size": (17, 3), "align_corners": True}, {"scale_factor": 0.4}])
def test_antialiased_interpolation(mode: str, how: dict[str, Any]) -> None:
    def function(x: Any) -> Any:
        return torch.nn.functional.interpolate(x, mode=mode, antialias=True, **how)

    torch.compiler.reset()
    x = torch.randn(2, 3, 11, 8, requires_grad=True)
    run = torch.compile(function, backend=backend, fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(run(x), function(x))
    found, wanted = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (run, function))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
