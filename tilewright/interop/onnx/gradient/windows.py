"""Rules of windows that slide: pooling and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import emit, full, reshape, transpose
from tilewright.interop.onnx.gradient.maps import apart
from tilewright.interop.onnx.gradient.rules import Cotangents, Step, rule

# Each element of a window is a step of its own.
_MAX_PLACES = 256
_MAX_SPATIAL_AXES = 3


@rule("window_reduce")
def _window_reduce(step: Step) -> Cotangents:
    fn, window = step.attribute("fn"), step.attribute("window")
    if fn not in ("add", "maximum", "minimum") or math.prod(window) > _MAX_PLACES:
        raise step.unsupported(f"the primitive `window_reduce` by `{fn}` of windows of {math.prod(window)}")
    (x,) = step.operands
    low, high, strides = step.attribute("low"), step.attribute("high"), step.attribute("strides")
    sizes = tuple(n + a + b for n, a, b in zip(x.shape, low, high, strict=True))
    shares = [step.cotangent] * math.prod(window) if fn == "add" else _shares_of_extremes(step, x)
    total = full(sizes, 0, x.dtype)
    for starts, share in zip(_starts(window, step.attribute("dilation")), shares, strict=True):
        total = total + apart(share, sizes, starts, strides)
    limits = tuple(n + a for n, a in zip(x.shape, low, strict=True))
    return [emit("slice", total, starts=low, limits=limits, strides=(1,) * x.ndim)]


def _starts(window: Sequence[int], dilation: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The offsets of the elements of the first window."""
    for place in itertools.product(*map(range, window)):
        yield tuple(n * d for n, d in zip(place, dilation, strict=True))


def _shares_of_extremes(step: Step, x: Array) -> list[Array]:
    """The share of the gradient that each element of the windows gets: equal extremes share it."""
    result = step.results[0]
    strides = step.attribute("strides")
    outside = x.dtype.lowest if step.attribute("fn") == "maximum" else x.dtype.highest
    low, high = step.attribute("low"), step.attribute("high")
    around = emit("pad", x, full((), outside, x.dtype), low=low, high=high, interior=(0,) * x.ndim)
    found: list[Array] = []
    for starts in _starts(step.attribute("window"), step.attribute("dilation")):
        spans = zip(starts, result.shape, strides, strict=True)
        limits = tuple(start + (n - 1) * stride + 1 if n else start for start, n, stride in spans)
        seen = emit("slice", around, starts=starts, limits=limits, strides=strides)
        found.append(tw.astype(tw.equal(seen, result), x.dtype))
    count = found[0]
    for each in found[1:]:
        count = count + each
    share = step.cotangent / count
    return [share * each for each in found]


@rule("convolve")
def _convolve(step: Step) -> Cotangents:
    image, kernel = step.operands
    if image.ndim - 2 > _MAX_SPATIAL_AXES:
        raise step.unsupported(f"the primitive `convolve` over {image.ndim - 2} axes")
    return [_of_image(step, image, kernel), _of_kernel(step, image, kernel)]


def _of_image(step: Step, image: Array, kernel: Array) -> Array:
    g = step.cotangent
    strides, dilation = step.attribute("strides"), step.attribute("dilation")
    low, high = step.attribute("low"), step.attribute("high")
    spans = [(n - 1) * d + 1 for n, d in zip(kernel.shape[2:], dilation, strict=True)]
    reached = [(n - 1) * s + span for n, s, span in zip(g.shape[2:], strides, spans, strict=True)]
    missing = [n + a + b - end for n, a, b, end in zip(image.shape[2:], low, high, reached, strict=True)]
    return tw.nn.conv_transpose(
        g,
        kernel,
        stride=strides,
        padding=list(zip(low, high, strict=True)),
        output_padding=missing,
        dilation=dilation,
        groups=step.attribute("groups"),
    )


def _of_kernel(step: Step, image: Array, kernel: Array) -> Array:
    """The image correlated with the cotangents, whose batch is summed over as channels are."""
    g, groups = step.cotangent, step.attribute("groups")
    batch, channels = image.shape[0], image.shape[1] // groups
    split = reshape(image, (batch, groups, channels, *image.shape[2:]))
    rest = range(3, split.ndim)
    turned = reshape(transpose(split, (2, 1, 0, *rest)), (channels, groups * batch, *image.shape[2:]))
    found = emit(
        "convolve",
        turned,
        transpose(g, (1, 0, *range(2, g.ndim))),
        strides=step.attribute("dilation"),
        dilation=step.attribute("strides"),
        low=step.attribute("low"),
        high=step.attribute("high"),
        groups=groups,
    )
    # A stride may leave the end of the image unseen, which makes more places than the window has.
    limits = (*found.shape[:2], *kernel.shape[2:])
    cut = emit("slice", found, starts=(0,) * found.ndim, limits=limits, strides=(1,) * found.ndim)
    return transpose(cut, (1, 0, *range(2, cut.ndim)))
