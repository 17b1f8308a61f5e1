"""Convolutions and pooling of images, NCHW."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random

from tilewright.cli.hunt.operators.base import Call, Operator, kind
from tilewright.cli.hunt.program import Type

_CHANNELS = (1, 3, 8, 16, 32, 64, 96, 128, 256, 512)
_MOST_WORK = 2 << 30


def _is_image(type: Type) -> bool:
    return len(type.shape) == 4 and kind(type).is_float and min(type.shape[2:]) >= 3


def _convolved(generator: random.Random, value: int, type: Type) -> Call | None:
    """Dense, grouped or depthwise, of stride 1 or 2."""
    if not _is_image(type):
        return None
    channels = type.shape[1]
    window = generator.choice((1, 3, 3, 3, 5, 7))
    stride = generator.choice((1, 1, 1, 2))
    groups = channels if generator.random() < 0.25 else 1
    work = type.size // stride**2 * window**2
    outs = [n for n in _CHANNELS if work * n <= _MOST_WORK] if groups == 1 else [channels]
    if not outs or work > _MOST_WORK or min(type.shape[2:]) < window:
        return None
    weights = Type((generator.choice(outs), channels // groups, window, window), type.dtype)
    return Call((value, weights), {"stride": stride, "padding": window // 2, "groups": groups})


def _pooled(generator: random.Random, value: int, type: Type) -> Call | None:
    if not _is_image(type):
        return None
    return Call((value,), {"window": generator.choice((2, 3)), "stride": generator.choice((1, 2))})


def _windows(np, x, window, stride):
    found = np.lib.stride_tricks.sliding_window_view(x, (window, window), (2, 3))
    return found[:, :, ::stride, ::stride]


def _numpy_conv(np, x, weights, stride, padding, groups):
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    found = _windows(np, np.pad(x, around), weights.shape[2], stride)
    batch, channels, height, width = found.shape[:4]
    found = found.reshape(batch, groups, channels // groups, height, width, *found.shape[4:])
    split = weights.reshape(groups, -1, *weights.shape[1:])
    result = np.einsum("bgchwij,gocij->bgohw", found, split, optimize=True)
    return result.reshape(batch, -1, height, width)


def _torch_conv(torch, x, weights, stride, padding, groups):
    return torch.nn.functional.conv2d(x, weights, None, stride, padding, 1, groups)


def _jax_conv(jnp, x, weights, stride, padding, groups):
    import jax

    around = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(x, weights, (stride, stride), around, feature_group_count=groups)


def _our_conv(tw, x, weights, stride, padding, groups):
    return tw.nn.conv(x, weights, stride=stride, padding=padding, groups=groups)


def _jax_pool(jnp, x, window, stride):
    import jax

    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, window, window), (1, 1, stride, stride), "VALID")


OPERATORS = (
    Operator(
        "conv",
        6,
        _convolved,
        {"numpy": _numpy_conv, "tilewright": _our_conv, "torch": _torch_conv, "jax": _jax_conv},
    ),
    Operator(
        "max_pool",
        2,
        _pooled,
        {
            "numpy": lambda np, x, window, stride: _windows(np, x, window, stride).max((-1, -2)),
            "tilewright": lambda tw, x, window, stride: tw.nn.max_pool(x, window, stride=stride),
            "torch": lambda t, x, window, stride: t.nn.functional.max_pool2d(x, window, stride),
            "jax": _jax_pool,
        },
    ),
)
