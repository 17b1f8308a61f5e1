"""Convolutions over (N, C, *spatial), their transposes and gradients: all are correlations of prepared operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.torch.registry import operator

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """A window that slides over the spatial axes of an array with `padding` zeros on both sides."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int

    @staticmethod
    def of(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, rank: int) -> Geometry:
        """One number for all axes is repeated."""
        parts = [tuple(p) * rank if len(p) == 1 else tuple(p) for p in (stride, padding, dilation)]
        return Geometry(parts[0], parts[1], parts[2], groups)


def _kept(sizes: Sequence[int], window: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The spatial axes of an array that matter: one with one position under a window of one element carries no
    geometry, but costs as the innermost axis."""
    return [d for d, part in enumerate(zip(sizes, window, padding, strict=True)) if part != (1, 1, 0)] or [0]


def _only(x: Array, kept: Sequence[int]) -> Array:
    """An array with just these of its spatial axes."""
    return tw.reshape(x, (*x.shape[:2], *(x.shape[2 + d] for d in kept)))


def _with_all(y: Array, kept: Sequence[int], rank: int) -> Array:
    """The reverse of `_only`."""
    found = iter(y.shape[2:])
    return tw.reshape(y, (*y.shape[:2], *(next(found) if d in kept else 1 for d in range(rank))))


def correlated(x: Array, w: Array, geometry: Geometry) -> Array:
    """`x` (N, C, *spatial) with windows `w` (O, C / groups, *window)."""
    kept = _kept(x.shape[2:], w.shape[2:], geometry.padding)
    y = tw.nn.conv(
        _only(x, kept),
        _only(w, kept),
        stride=[geometry.stride[d] for d in kept],
        padding=[geometry.padding[d] for d in kept],
        dilation=[geometry.dilation[d] for d in kept],
        groups=geometry.groups,
    )
    return _with_all(y, kept, x.ndim - 2)


def transposed(x: Array, w: Array, geometry: Geometry, sizes: Sequence[int]) -> Array:
    """The gradient of a correlation's input (N, C, *sizes), from the gradient `x` of its result and its weights `w`
    (channels of x, C / groups, *window)."""
    kept = _kept(sizes, w.shape[2:], geometry.padding)
    least = _transposed_sizes(x, w, geometry, (0,) * len(sizes))
    y = tw.nn.conv_transpose(
        _only(x, kept),
        _only(w, kept),
        stride=[geometry.stride[d] for d in kept],
        padding=[geometry.padding[d] for d in kept],
        output_padding=[sizes[d] - least[d] for d in kept],
        dilation=[geometry.dilation[d] for d in kept],
        groups=geometry.groups,
    )
    return _with_all(y, kept, len(sizes))


def weight_gradient(x: Array, grad: Array, geometry: Geometry, window: Sequence[int]) -> Array:
    """The gradient of `w` in a correlation of `x` with `w` (O, C / groups, *window), whose result has the gradient
    `grad`, as a correlation: batch and channels change roles, as do stride and dilation."""
    # Padding and cuts leave just as many places as the window has elements.
    along = zip(grad.shape[2:], geometry.stride, window, geometry.dilation, x.shape[2:], geometry.padding, strict=True)
    high = [(n - 1) * s + (k - 1) * d + 1 - size - low for n, s, k, d, size, low in along]
    cut = x[(..., *(slice(0, size + min(h, 0)) for size, h in zip(x.shape[2:], high, strict=True)))]
    padding = [(low, max(h, 0)) for low, h in zip(geometry.padding, high, strict=True)]
    kept = _kept(cut.shape[2:], grad.shape[2:], [sum(pair) for pair in padding])
    groups, batch, channels = geometry.groups, x.shape[0], x.shape[1] // geometry.groups
    split = tw.reshape(cut, (batch, groups, channels, *(cut.shape[2 + d] for d in kept)))
    image = tw.moveaxis(split, (2, 1), (0, 1))
    found = tw.nn.conv(
        tw.reshape(image, (channels, groups * batch, *image.shape[3:])),
        tw.moveaxis(_only(grad, kept), 1, 0),
        stride=[geometry.dilation[d] for d in kept],
        padding=[padding[d] for d in kept],
        dilation=[geometry.stride[d] for d in kept],
        groups=groups,
    )
    return tw.moveaxis(_with_all(found, kept, len(window)), 0, 1)


@operator("convolution", "_convolution")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *ignored: object,
) -> Array:
    """A correlation, or its transpose, plus a bias per channel."""
    rank = weight.ndim - 2
    geometry = Geometry.of(stride, padding, dilation, groups, rank)
    image = x if x.ndim == weight.ndim else tw.expand_dims(x, 0)
    if is_transposed:
        extra = tuple(output_padding) * rank if len(output_padding) == 1 else output_padding
        sizes = _transposed_sizes(image, weight, geometry, extra)
        y = transposed(image, weight, geometry, sizes)
    else:
        y = correlated(image, weight, geometry)
    if bias is not None:
        y = y + tw.reshape(bias, (-1, *(1,) * rank))
    return y if x.ndim == weight.ndim else tw.squeeze(y, 0)


def _transposed_sizes(x: Array, w: Array, geometry: Geometry, extra: Sequence[int]) -> Sizes:
    parts = zip(x.shape[2:], w.shape[2:], geometry.stride, geometry.padding, geometry.dilation, extra, strict=True)
    return tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in parts)


@operator("convolution_backward")
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of the operand, the weight and the bias of a convolution."""
    rank = weight.ndim - 2
    geometry = Geometry.of(stride, padding, dilation, groups, rank)
    window = weight.shape[2:]
    grad_x = grad_w = grad_bias = None
    if output_mask[0]:
        if is_transposed:
            # What `output_padding` added belongs to no element.
            grad_x = correlated(grad, weight, geometry)[(..., *(slice(0, n) for n in x.shape[2:]))]
        else:
            grad_x = transposed(grad, weight, geometry, x.shape[2:])
    if output_mask[1]:
        image, seen = (grad, x) if is_transposed else (x, grad)
        grad_w = weight_gradient(image, seen, geometry, window)
    if output_mask[2]:
        grad_bias = tw.sum(grad, (0, *range(2, grad.ndim)))
    return grad_x, grad_w, grad_bias
