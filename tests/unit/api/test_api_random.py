"""`tw.random`: published Philox vectors, determinism, independence and distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from api_support import run, same

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError


def _philox(key: tuple[int, int], counter: int) -> int:
    """First word of Philox4x32-10, in Python integers from the paper's description."""
    words, (k0, k1) = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], key
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            second >> 32 ^ words[1] ^ k0,
            second & 0xFFFFFFFF,
            first >> 32 ^ words[3] ^ k1,
            first & 0xFFFFFFFF,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return words[0]


def test_bits_are_philox():
    # The first known-answer vector of Random123 for counter 0 and key 0.
    assert _philox((0, 0), 0) == 0x6627E8D5
    for seed in (0, 7, 2**63 + 5):
        actual = run(lambda s=seed: tw.random.bits(tw.random.key(s), (2, 3)))
        expected = [_philox((seed & 0xFFFFFFFF, seed >> 32), n) for n in range(6)]
        same(actual, np.array(expected, np.uint32).reshape(2, 3))


def test_keys_inside_and_outside_of_a_trace():
    same(tw.random.key(2**33 + 5), np.array([5, 2], np.uint32))
    same(run(lambda: tw.random.key(2**33 + 5)), np.array([5, 2], np.uint32))
    same(run(tw.random.key, np.int64(2**33 + 5)), np.array([5, 2], np.uint32))
    same(
        run(lambda k: tw.random.uniform(k, (3,)), tw.random.key(1)),
        run(lambda: tw.random.uniform(tw.random.key(1), (3,))),
    )


@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64"])
def test_bits_of_all_widths(dtype):
    drawn = run(lambda: tw.random.bits(tw.random.key(3), (4000,), dtype))
    assert drawn.dtype == tw.dtypes.by_name(dtype).numpy
    bits = np.unpackbits(drawn.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / math.sqrt(bits.size)


def test_split_gives_other_keys():
    first, second = run(lambda: tw.random.split(tw.random.key(1)))
    own = run(lambda: tw.random.bits(tw.random.key(1), (2, 2)))
    keys = {tuple(first), tuple(second), tuple(tw.random.key(1)), tuple(own[0]), tuple(own[1])}
    assert len(keys) == 5
    assert len(run(lambda: tw.random.split(tw.random.key(1), 5))) == 5


def _kolmogorov_smirnov(values: np.ndarray, distribution) -> float:
    """Largest distance between the empirical and the given distribution function, times sqrt(n)."""
    ordered = np.sort(values.astype(np.float64))
    expected = distribution(ordered)
    steps = np.arange(ordered.size + 1) / ordered.size
    return max(np.abs(steps[1:] - expected).max(), np.abs(steps[:-1] - expected).max()) * math.sqrt(ordered.size)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_uniform(dtype):
    values = run(lambda: tw.random.uniform(tw.random.key(11), (20000,), dtype))
    assert values.dtype == tw.dtypes.by_name(dtype).numpy
    assert values.min() >= 0
    assert values.max() < 1
    assert _kolmogorov_smirnov(values, lambda x: x) < 1.95  # passed by 99.9 % of right generators


@pytest.mark.parametrize(("dtype", "bits"), [("f16", 11), ("bf16", 8)])
def test_uniform_of_half_precision_stays_below_one(dtype, bits):
    values = run(lambda: tw.random.uniform(tw.random.key(11), (20000,), dtype)).astype(np.float64)
    assert values.max() == 1 - 2.0**-bits
    assert values.min() == 0
    assert abs(values.mean() - 0.5 + 2.0 ** -(bits + 1)) < 0.01


def test_uniform_between_bounds():
    values = run(lambda low: tw.random.uniform(tw.random.key(11), (20000,), low=low, high=5.0), np.float32(-3))
    assert values.dtype == np.float32
    assert _kolmogorov_smirnov(values, lambda x: (x + 3) / 8) < 1.95


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_normal(dtype):
    values = run(lambda: tw.random.normal(tw.random.key(5), (20000,), dtype))
    assert values.dtype == tw.dtypes.by_name(dtype).numpy
    values = values.astype(np.float64)
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 5 / math.sqrt(values.size)
    assert abs(values.var() - 1) < 5 * math.sqrt(2 / values.size)
    if dtype != "bf16":
        normal = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))))
        assert _kolmogorov_smirnov(values, normal) < 1.95


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 7, "i64"), (-3, 4, "i8"), (250, 256, "u8"), (-128, 128, "i8")])
def test_randint(low, high, dtype):
    values = run(lambda: tw.random.randint(tw.random.key(9), (14000,), low, high, dtype))
    assert values.dtype == tw.dtypes.by_name(dtype).numpy
    wide = values.astype(np.int64)
    counts = np.bincount(wide - low, minlength=high - low)
    assert counts.size == high - low
    expected = values.size / (high - low)
    degrees = high - low - 1
    assert ((counts - expected) ** 2 / expected).sum() < degrees + 5 * math.sqrt(2 * degrees)


@pytest.mark.parametrize(("low", "high", "dtype"), [(-(2**63), 2**63, tw.i64), (0, 2**64, tw.u64)])
def test_randint_may_give_every_value_of_a_64_bit_type(low, high, dtype):
    values = run(lambda: tw.random.randint(tw.random.key(9), (1000,), low, high, dtype))
    assert len(np.unique(values)) > 990
    assert ((values >= (low + high) // 2).mean() - 0.5) < 0.1


def test_randint_over_the_whole_type_and_traced_bounds():
    values = run(lambda: tw.random.randint(tw.random.key(9), (1000,), -(2**63), 2**63 - 1))
    assert (values < 0).any()
    assert (values > 0).any()
    drawn = run(lambda n: tw.random.randint(tw.random.key(9), (1000,), 2, n), 5)
    assert set(drawn.tolist()) == {2, 3, 4}


def test_bernoulli():
    chances = np.array([0.0, 0.25, 0.9, 1.0], np.float32)
    drawn = run(lambda p: tw.random.bernoulli(tw.random.key(2), p, (8000, 4)), chances)
    assert drawn.dtype == bool
    assert np.abs(drawn.mean(0) - chances).max() < 5 * 0.5 / math.sqrt(8000)
    assert drawn[:, 3].all()
    assert not drawn[:, 0].any()
    assert run(lambda p: tw.random.bernoulli(tw.random.key(2), p), chances).shape == (4,)


def test_categorical():
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]) + 1e-300)
    drawn = run(lambda x: tw.random.categorical(tw.random.key(4), x, shape=(8000, 2)), logits)
    assert drawn.dtype == np.int64
    for column, chances in enumerate(np.exp(logits)):
        counts = np.bincount(drawn[:, column], minlength=3) / 8000
        assert np.abs(counts - chances).max() < 5 * 0.5 / math.sqrt(8000)
    assert run(lambda x: tw.random.categorical(tw.random.key(4), x, axis=0), logits).shape == (3,)


def test_random_refuses():
    for call, error in [
        (lambda k: tw.random.bits(k[:1]), DTypeError),
        (lambda k: tw.random.bits(k.astype(tw.i32)), DTypeError),
        (lambda k: tw.random.bits(k, dtype=tw.i32), DTypeError),
        (lambda k: tw.random.uniform(k, dtype=tw.i32), DTypeError),
        (lambda k: tw.random.normal(k, dtype=tw.u8), DTypeError),
        (lambda k: tw.random.randint(k, (), 5, 5), ArgumentError),
        (lambda k: tw.random.randint(k, (), 0, 300, tw.u8), DTypeError),
        (lambda k: tw.random.randint(k, (), 0, 3, tw.f32), DTypeError),
        (lambda k: tw.random.key(1.5), DTypeError),
    ]:
        with pytest.raises(error):
            run(call, tw.random.key(0))
