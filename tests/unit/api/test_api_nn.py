"""`tw.nn` against its formulas in f64 and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from api_support import FLOAT_DTYPES, close, numbers, run, same

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import ArgumentError, DTypeError, ShapeError

_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS = [
    ("relu", lambda x: np.maximum(x, 0)),
    ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
    ("elu", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    ("silu", lambda x: x / (1 + np.exp(-x))),
    ("softplus", lambda x: np.logaddexp(x, 0)),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    ("tanh", np.tanh),
    ("gelu", lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)))),
]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("name", "reference"), ACTIVATIONS, ids=[a[0] for a in ACTIVATIONS])
def test_activations(name, reference, dtype):
    x = numbers((5, 7), dtype, low=-3, high=6)
    # 1 + erf cancels for negative operands.
    close(run(getattr(tw.nn, name), x), reference(x.astype(np.float64)), dtype, 256 if name == "gelu" else 6)


def test_activations_do_not_overflow():
    x = np.array([-1e4, -100.0, 0.0, 100.0, 1e4], np.float32)
    close(run(tw.nn.softplus, x), np.logaddexp(x.astype(np.float64), 0), "f32")
    close(run(tw.nn.elu, x), [-1, -1, 0, 100, 1e4], "f32")
    assert np.isfinite(run(tw.nn.silu, x)).all()
    assert np.isfinite(run(tw.nn.gelu, x)).all()


def test_gelu_by_tanh_is_its_formula_and_near_gelu():
    x = numbers((64,), "f64")
    exact = x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    close(run(lambda a: tw.nn.gelu(a, "tanh"), x), exact, "f64", 256)
    np.testing.assert_allclose(exact, run(tw.nn.gelu, x), atol=1e-3)
    with pytest.raises(ArgumentError):
        run(lambda a: tw.nn.gelu(a, approximate="erf"), x)


def _softmax(x: np.ndarray, axis) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None], ids=str)
def test_softmax(axis, dtype):
    x = numbers((3, 4, 5), dtype, low=-40, high=40)
    wide = x.astype(np.float64)
    # The error of exp grows with the magnitude of its operand.
    close(run(lambda a: tw.nn.softmax(a, axis=axis), x), _softmax(wide, axis), dtype, 40)
    expected = wide - np.logaddexp.reduce(wide, axis=axis, keepdims=True)
    actual = run(lambda a: tw.nn.log_softmax(a, axis=axis), x)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual.astype(np.float64), expected, atol=80 * dtypes.by_name(dtype).epsilon)


def test_softmax_of_large_masked_and_no_elements():
    x = np.array([[1e4, 1e4, -math.inf], [-math.inf, -5.0, -math.inf]], np.float32)
    same(run(tw.nn.softmax, x), np.array([[0.5, 0.5, 0], [0, 1, 0]], np.float32))
    same(run(tw.nn.softmax, x[:, :0]), x[:, :0])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("affine", [False, True])
def test_normalisation(affine, dtype):
    x, w, b = numbers((4, 16), dtype), numbers((16,), dtype, 1), numbers((16,), dtype, 2)
    wide, weight, bias = (a.astype(np.float64) for a in (x, w, b))
    extra = (w, b) if affine else ()
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    tolerance = 32 * dtypes.by_name(dtype).epsilon
    actual = run(lambda a, *p: tw.nn.layer_norm(a, *p), x, *extra)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(
        actual.astype(np.float64), normal * weight + bias if affine else normal, atol=tolerance * 4
    )
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    actual = run(lambda a, *p: tw.nn.rms_norm(a, *p[:1]), x, *extra)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual.astype(np.float64), rms * weight if affine else rms, atol=tolerance * 4)


def test_layer_norm_over_two_axes():
    x = numbers((2, 3, 4), "f64")
    expected = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(run(lambda a: tw.nn.layer_norm(a, axis=(1, 2), eps=1e-3), x), expected)


# ---- attention ------------------------------------------------------------------------------------------------------


def _attention(q, k, v, mask=None, causal=False, scale=None) -> np.ndarray:
    """Row by row, in f64."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(a.astype(np.float64), groups, axis=-3) for a in (k, v))
    q = q.astype(np.float64)
    logits = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        logits = np.where(mask, logits, -np.inf) if mask.dtype == bool else logits + mask.astype(np.float64)
    if causal:
        queries, keys = logits.shape[-2:]
        for i in range(queries):
            logits[..., i, max(0, i + keys - queries + 1) :] = -np.inf
    return _softmax(logits, -1) @ v


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, heads, causal):
    q = numbers((2, heads[0], 5, 8), dtype, 1, -1, 1)
    k, v = numbers((2, heads[1], 7, 8), dtype, 2, -1, 1), numbers((2, heads[1], 7, 6), dtype, 3, -1, 1)
    actual = run(lambda *a: tw.nn.attention(*a, causal=causal), q, k, v)
    assert (actual.shape, actual.dtype) == ((2, heads[0], 5, 6), q.dtype)
    tolerance = 8 * dtypes.by_name(dtype).epsilon
    np.testing.assert_allclose(actual.astype(np.float64), _attention(q, k, v, causal=causal), atol=tolerance)


def test_attention_masks():
    q, k, v = (numbers((2, 3, 4, 8), "f64", n, -1, 1) for n in range(3))
    keep = numbers((2, 1, 4, 4), "bool", 5)
    keep[..., 0] = True
    bias = numbers((4, 4), "f64", 6)
    for mask in (keep, bias):
        np.testing.assert_allclose(run(tw.nn.attention, q, k, v, mask), _attention(q, k, v, mask))
    both = run(lambda *a: tw.nn.attention(*a, causal=True, scale=0.3), q, k, v, keep)
    np.testing.assert_allclose(both, _attention(q, k, v, keep, True, 0.3))
    assert not np.isnan(both).any()


@pytest.mark.parametrize("masked", ["all", "keys", "pairs", "bias", "heads"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "shared", "queries", "keys", "size"),
    [(4, 2, 65, 65, 8), (2, 2, 130, 300, 32), (2, 2, 150, 129, 16), (8, 2, 1, 300, 16), (3, 3, 1, 17, 5)],
)
def test_attention_in_blocks(heads, shared, queries, keys, size, causal, masked):
    q = numbers((2, heads, queries, size), "f32", 1, -1, 1)
    k, v = numbers((2, shared, keys, size), "f32", 2, -1, 1), numbers((2, shared, keys, size + 3), "f32", 3, -1, 1)
    masks = {
        "all": np.ones((1, 1), bool),
        "keys": (np.arange(keys) < keys * 4 // 5).reshape(1, 1, 1, keys),
        "pairs": numbers((queries, keys), "bool", 4),
        "bias": numbers((2, 1, queries, keys), "f32", 5, -1, 1),
        "heads": numbers((heads, queries, keys), "bool", 6),
    }
    mask = masks[masked]
    actual = run(lambda *a: tw.nn.attention(*a, causal=causal), q, k, v, mask)
    with np.errstate(invalid="ignore"):
        expected = _attention(q, k, v, mask, causal)
    # Queries that see no key are NaN in both.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "shared", "queries", "keys"), [(4, 2, 65, 65), (6, 3, 1, 300), (4, 1, 130, 129)])
def test_attention_to_repeated_keys(heads, shared, queries, keys, causal):
    """Keys that the program repeats itself: not stored repeated, and one kernel."""
    q = numbers((2, heads, queries, 8), "f32", 1, -1, 1)
    k, v = numbers((2, shared, keys, 8), "f32", 2, -1, 1), numbers((2, shared, keys, 9), "f32", 3, -1, 1)

    def repeated(q, k, v):
        k, v = (tw.repeat(x, heads // shared, axis=1) for x in (k, v))
        return tw.nn.attention(q, k, v, causal=causal)

    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(run(repeated, q, k, v), _attention(q, k, v, causal=causal), rtol=1e-5, atol=1e-5)
    text = tw.jit(repeated, target="cpu").lower(q, k, v).compile().ir("tile")
    assert text.count("tile.kernel(") == 1


def test_causal_attention_ignores_what_no_query_sees():
    q, k, v = (numbers((1, 1, 200, 16), "f32", n, -1, 1) for n in range(3))
    expected = _attention(q, k, v, causal=True)
    k[..., 150:, :] = np.inf
    found = run(lambda *a: tw.nn.attention(*a, causal=True), q, k, v)
    np.testing.assert_allclose(found[..., :150, :], expected[..., :150, :], rtol=1e-5, atol=1e-5)


def test_attention_repeats_no_keys():
    q, k = np.zeros((2, 8, 5, 16), np.float32), np.zeros((2, 2, 7, 16), np.float32)
    nodes = tw.jit(lambda q, k, v: tw.nn.attention(q, k, v)).lower(q, k, k).graph.nodes
    inputs = [node.operands[1] for node in nodes if node.op == "contract"]
    assert [value.shape for value in inputs] == [k.shape, k.shape]


def test_attention_refuses():
    q = np.zeros((2, 4, 5, 8), np.float32)
    for call, error in [
        (lambda x: tw.nn.attention(x[0, 0], x[0, 0], x[0, 0]), ShapeError),
        (lambda x: tw.nn.attention(x, x[:, :3], x[:, :3]), ShapeError),
        (lambda x: tw.nn.attention(x, x[..., :4], x), ShapeError),
        (lambda x: tw.nn.attention(x, x, x[:, :, :3]), ShapeError),
        (lambda x: tw.nn.attention(x, x, x, np.zeros((3, 1, 5, 5), bool)), ShapeError),
        (lambda x: tw.nn.attention(*[x.astype(tw.i32)] * 3), DTypeError),
    ]:
        with pytest.raises(error):
            run(call, q)


def test_embedding():
    table, ids = numbers((10, 4), "f32"), np.array([[0, 9], [3, 3]])
    same(run(tw.nn.embedding, table, ids), table[ids])


# ---- windows --------------------------------------------------------------------------------------------------------


def _convolution(x, w, stride, low, high, dilation, groups) -> np.ndarray:
    """The definition, one result at a time."""
    rank = x.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(low, high, strict=True)])
    w = w.astype(np.float64)
    spans = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], dilation, strict=True)]
    sizes = [max(0, (n - s) // t + 1) for n, s, t in zip(x.shape[2:], spans, stride, strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_group = w.shape[0] // groups
    for place in itertools.product(*map(range, sizes)):
        window = tuple(slice(place[d] * stride[d], place[d] * stride[d] + spans[d], dilation[d]) for d in range(rank))
        for out in range(w.shape[0]):
            first = out // per_group * w.shape[1]
            patch = x[(slice(None), slice(first, first + w.shape[1]), *window)]
            result[(slice(None), out, *place)] = (patch * w[out]).reshape(x.shape[0], -1).sum(-1)
    return result


CONVOLUTIONS = [
    # spatial, window, stride, padding, low, high, dilation, groups
    ((9,), (3,), 1, 0, (0,), (0,), 1, 1),
    ((9,), (4,), 2, "same", (1,), (2,), 1, 1),
    ((9,), (3,), 2, "valid", (0,), (0,), 2, 2),
    ((7, 6), (3, 3), 1, 1, (1, 1), (1, 1), 1, 1),
    ((7, 6), (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 0), (0, 2), (1, 2), 2),
    ((7, 6), (1, 1), 1, 0, (0, 0), (0, 0), 1, 4),
    ((7, 6), (3, 3), 2, "same", (1, 0), (1, 1), 1, 1),
    ((4, 5, 3), (2, 3, 2), 1, (1, 0, 1), (1, 0, 1), (1, 0, 1), 1, 1),
    ((2,), (5,), 1, 0, (0,), (0,), 1, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_conv(case, dtype):
    spatial, window, stride, padding, low, high, dilation, groups = case
    rank = len(spatial)
    x, w = numbers((2, 4, *spatial), dtype, 1, -1, 1), numbers((8, 4 // groups, *window), dtype, 2, -1, 1)
    each = [v if isinstance(v, tuple) else (v,) * rank for v in (stride, dilation)]
    expected = _convolution(x, w, each[0], low, high, each[1], groups)
    actual = run(lambda a, b: tw.nn.conv(a, b, stride=stride, padding=padding, dilation=dilation, groups=groups), x, w)
    assert (actual.shape, actual.dtype) == (expected.shape, x.dtype)
    np.testing.assert_allclose(actual.astype(np.float64), expected, atol=64 * dtypes.by_name(dtype).epsilon)


def _transposed_convolution(x, w, stride, low, high, extra, dilation, groups):
    """The definition: each element adds its multiple of the window to the results around it."""
    (batch, channels), outputs = x.shape[:2], w.shape[1]
    spans = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], dilation, strict=True)]
    sizes = [(n - 1) * s + span for n, s, span in zip(x.shape[2:], stride, spans, strict=True)]
    result = np.zeros((batch, outputs * groups, *(n + e for n, e in zip(sizes, extra, strict=True))))
    for place in np.ndindex(*x.shape[2:]):
        each = zip(place, stride, spans, dilation, strict=True)
        window = tuple(slice(p * s, p * s + span, d) for p, s, span, d in each)
        for channel in range(channels):
            first = channel // (channels // groups) * outputs
            elements = x[(slice(None), channel, *place)].astype(np.float64)
            scaled = np.multiply.outer(elements, w[channel].astype(np.float64))
            result[(slice(None), slice(first, first + outputs), *window)] += scaled
    ends = (n - b for n, b in zip(result.shape[2:], high, strict=True))
    return result[(slice(None), slice(None), *(slice(a, e) for a, e in zip(low, ends, strict=True)))]


TRANSPOSED = [
    # spatial, window, stride, low, high, output padding, dilation, groups
    ((5,), (3,), (1,), (0,), (0,), (0,), (1,), 1),
    ((5,), (4,), (3,), (1,), (2,), (0,), (1,), 2),
    ((4, 3), (2, 2), (2, 2), (0, 0), (0, 0), (0, 0), (1, 1), 1),
    ((4, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), (1, 1), 1),
    ((4, 3), (3, 2), (2, 1), (1, 0), (0, 1), (0, 0), (1, 1), 4),
    ((4, 3), (3, 2), (2, 1), (1, 0), (0, 1), (1, 0), (2, 3), 2),
    ((4, 3), (1, 1), (3, 2), (0, 0), (0, 0), (2, 4), (1, 1), 1),
    ((2, 3, 2), (2, 1, 3), (2, 3, 1), (1, 0, 1), (0, 0, 1), (0, 0, 0), (1, 1, 1), 1),
    ((1, 1), (5, 2), (4, 4), (2, 0), (2, 1), (0, 0), (1, 1), 1),
    ((5, 4), (3, 3), (1, 1), (1, 2), (1, 0), (0, 0), (1, 1), 2),
    ((5, 4), (3, 2), (1, 1), (2, 5), (4, 0), (0, 0), (2, 3), 1),
    ((1, 3), (3, 3), (1, 1), (2, 1), (0, 1), (0, 2), (1, 1), 1),
    ((4,), (3,), (1,), (3,), (0,), (1,), (1,), 4),
]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_conv_transpose(case, dtype):
    spatial, window, stride, low, high, extra, dilation, groups = case
    x, w = numbers((2, 4, *spatial), dtype, 1, -1, 1), numbers((4, 3, *window), dtype, 2, -1, 1)
    expected = _transposed_convolution(x, w, stride, low, high, extra, dilation, groups)
    geometry = {"stride": stride, "padding": list(zip(low, high, strict=True)), "output_padding": extra}
    actual = run(lambda a, b: tw.nn.conv_transpose(a, b, **geometry, dilation=dilation, groups=groups), x, w)
    assert (actual.shape, actual.dtype) == (expected.shape, x.dtype)
    np.testing.assert_allclose(actual.astype(np.float64), expected, atol=64 * dtypes.by_name(dtype).epsilon)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, w: tw.nn.conv_transpose(x[0], w), ShapeError),
        (lambda x, w: tw.nn.conv_transpose(x, w[:3]), ShapeError),
        (lambda x, w: tw.nn.conv_transpose(x, w, groups=3), ShapeError),
        (lambda x, w: tw.nn.conv_transpose(x, w, padding=9), ArgumentError),
        (lambda x, w: tw.nn.conv_transpose(x, w, stride=0), ArgumentError),
        (lambda x, w: tw.nn.conv_transpose(x, w, output_padding=-1), ArgumentError),
    ],
)
def test_conv_transpose_refuses(call, error):
    with pytest.raises(error):
        run(call, np.ones((2, 4, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32))


POOLS = [
    # window, stride, padding, low, high
    (2, None, 0, (0, 0), (0, 0)),
    (3, 1, 1, (1, 1), (1, 1)),
    ((2, 3), (1, 2), ((0, 1), (1, 0)), (0, 1), (1, 0)),
    (3, 2, "same", (1, 0), (1, 1)),
]


@pytest.mark.parametrize(("window", "stride", "padding", "low", "high"), POOLS)
def test_pools(window, stride, padding, low, high):
    x = numbers((2, 3, 5, 6), "f64")
    sizes = window if isinstance(window, tuple) else (window, window)
    strides = sizes if stride is None else (stride if isinstance(stride, tuple) else (stride, stride))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)], constant_values=np.nan)
    views = np.lib.stride_tricks.sliding_window_view(padded, sizes, (2, 3))[:, :, :: strides[0], :: strides[1]]
    keywords = {"stride": stride, "padding": padding}
    same(run(lambda a: tw.nn.max_pool(a, window, **keywords), x), np.nanmax(views, (-2, -1)))
    averages = run(lambda a: tw.nn.avg_pool(a, window, **keywords, count_padding=False), x)
    np.testing.assert_allclose(averages, np.nanmean(views, (-2, -1)))
    averages = run(lambda a: tw.nn.avg_pool(a, window, **keywords), x)
    np.testing.assert_allclose(averages, np.nansum(views, (-2, -1)) / math.prod(sizes))


def test_pools_of_half_precision_round_once():
    x = numbers((1, 1, 8), "f16", low=1000, high=60000)
    expected = x.astype(np.float64).reshape(1, 1, 2, 4).mean(-1)
    close(run(lambda a: tw.nn.avg_pool(a, 4), x), expected, "f16", 1)


def test_windows_refuse():
    x, w = np.zeros((2, 4, 5, 6), np.float32), np.zeros((8, 4, 3, 3), np.float32)
    for call, error in [
        (lambda a, b: tw.nn.conv(a[0], b), ShapeError),
        (lambda a, b: tw.nn.conv(a, b[:, :3]), ShapeError),
        (lambda a, b: tw.nn.conv(a, b, groups=3), ShapeError),
        (lambda a, b: tw.nn.conv(a, b, stride=0), ArgumentError),
        (lambda a, b: tw.nn.conv(a, b, stride=(1, 1, 1)), ArgumentError),
        (lambda a, b: tw.nn.conv(a, b, padding="full"), ArgumentError),
        (lambda a, b: tw.nn.conv(a, b, padding=(1, 2, 3)), ArgumentError),
        (lambda a, b: tw.nn.conv(a, b, padding=-1), ArgumentError),
        (lambda a, b: tw.nn.max_pool(a[0, 0], 2), ShapeError),
        (lambda a, b: tw.nn.max_pool(a, 0), ArgumentError),
    ]:
        with pytest.raises(error):
            run(call, x, w)
